"""A comparison as text for a terminal: what was matched, how large the difference is, and what moved where."""

from collections.abc import Iterator
from shlex import quote
from typing import Any

from passhat.runner.render import count, entry, method_text, overrides_text, shown_ks, some, table

Document = dict[str, Any]

_SHOWN = 8
_SIDES = (("base", "baseline"), ("candidate", "candidate"))


def render_comparison(comparison: Document) -> str:
    """Return the page that `passhat compare` prints."""
    return "\n".join(line.rstrip() for line in _lines(comparison)) + "\n"


def points(value: float | None) -> str:
    """Return a difference of rates in percentage points, with its sign and one digit, or as many as tell it from 0."""
    if value is None:
        return "—"
    for digits in (1, 2, 3):
        text = f"{100 * value:+.{digits}f}"
        if float(text) or not value:
            break
    return text.lstrip("+-") if not float(text) else text


def p_text(test: Document | None) -> str:
    """Return a p-value with three significant digits; "—" where there is none."""
    if test is None or test["p_value"] is None:
        return "—"
    return "<1e-300" if test["log10_p"] < -300 else f"{test['p_value']:.3g}"


def _ends(item: Document) -> str:
    return "—" if item["lower"] is None else f"[{points(item['lower'])}, {points(item['upper'])}]"


def _lines(comparison: Document) -> Iterator[str]:
    yield from _matched_lines(comparison)
    yield from _cell_lines(comparison)
    yield from _delta_lines(comparison)
    yield from _cohort_lines(comparison)
    yield from _move_lines(comparison)
    if comparison["movement"]:
        yield from _movement_lines(comparison["movement"])
    if comparison["safety"]:
        yield from _safety_lines(comparison["safety"])
    yield from _efficiency_lines(comparison["efficiency"])
    yield from _next_lines(comparison)


def _matched_lines(comparison: Document) -> Iterator[str]:
    for side, label in _SIDES:
        of = comparison["identities"][side]
        suite = of["suite"]
        yield f"{label:<14}{of['release']}   {of['campaign']}   suite {suite['name']} {suite['version'] or ''}"
        yield from entry("", f"declared {text}" if (text := overrides_text(of["overrides"])) else "")
    tasks, cells = comparison["tasks"], sum(comparison["cells"].values())
    yield from entry("matched", f"{count(tasks, 'task')}, {count(cells, 'cell')} (task, run-index)")
    unmatched = comparison["unmatched"]
    for side, label in _SIDES:
        only, lone = unmatched[f"{side}_only"], unmatched[f"{side}_cells"]
        if only:
            yield from entry("", f"only {label}: {count(len(only), 'task')}: {some(only, _SHOWN)}")
        if lone:
            yield from entry("", f"only {label}: {count(lone, 'cell')} of matched tasks")
    if comparison["differences"]:
        yield from entry("differing", f"compared all the same: {'; '.join(comparison['differences'])}")
    yield from entry("not verified", "; ".join(comparison["unverified"]))
    for side, label in _SIDES:
        yield from _count_lines(comparison["counts"][side], label)


def _count_lines(counts: Document, label: str) -> Iterator[str]:
    unscored = counts["planned"] - counts["passed"] - counts["failed"]
    text = f"{counts['passed']} of {counts['planned']} passed"
    if unscored:
        names = [name for name in ("invalid", "pending", "missing") if counts[name]]
        kinds = [f"{name} {counts[name]}/{counts['planned']}" for name in names]
        treatment = "count as not passed" if counts["on_missing"] == "fail" else "are left out"
        text += f"; {', '.join(kinds)}, which {treatment}: {some(counts['unscored'], _SHOWN)}"
    yield from entry(f"  {label}", text)


def _cell_lines(comparison: Document) -> Iterator[str]:
    cells = comparison["cells"]
    yield from table(
        [
            ("cells", "candidate passes", "candidate fails"),
            ("  baseline passes", str(cells["both_pass"]), str(cells["base_only"])),
            ("  baseline fails", str(cells["candidate_only"]), str(cells["both_fail"])),
        ]
    )
    if cells["unscored"]:
        yield from entry("", f"{count(cells['unscored'], 'cell')} without a verdict on one side or both")
    test = comparison["mcnemar"]
    if test:
        discordant = f"{test['base_only']} tasks only baseline, {test['candidate_only']} only candidate"
        yield from entry("McNemar", f"p {p_text(test)} exact, mid-p {test['mid_p']:.3g}; {discordant}")


def _delta_lines(comparison: Document) -> Iterator[str]:
    deltas = comparison["delta"]["pass_hat"]
    chosen = shown_ks([delta["k"] for delta in deltas])
    rows: list[tuple[str, ...]] = [("difference", "points", "95 %", "worst … best", "sign-flip p")]
    for delta in deltas:
        if delta["k"] in chosen:
            label = "  attempts" if delta["k"] == 1 else f"  pass^{delta['k']}"
            span = f"{points(delta['worst'])} … {points(delta['best'])}" if delta["worst"] != delta["best"] else ""
            rows.append((label, points(delta["estimate"]), _ends(delta), span, p_text(delta["sign_flip"])))
    if not any(row[3] for row in rows[1:]):
        rows = [(*row[:3], row[4]) for row in rows]
    yield from table(rows)
    first = deltas[0]
    of = f"candidate minus baseline, mean over {count(first['tasks'], 'task')}"
    yield from entry("", f"{of}; {method_text(first)}" + (f", for {first['estimand']}" if first["estimand"] else ""))
    for note in dict.fromkeys(note for delta in deltas if (note := _refusal(delta))):
        yield from entry("", note)


def _refusal(delta: Document) -> str | None:
    """Why a difference has no estimate, or no test."""
    test: Document | None = delta["sign_flip"]
    note = delta.get("note") if test is None else test.get("note")
    return None if note == "no discordant tasks" else note


def _cohort_lines(comparison: Document) -> Iterator[str]:
    rows = [("cohorts", "tasks", "baseline", "candidate", "points", "95 %", "p (Holm)")]
    for row in comparison["cohorts"]:
        test = row["sign_flip"]
        adjusted = "—" if not test or test.get("p_holm") is None else f"{test['p_holm']:.3g}"
        rows.append(
            (
                f"  {row['cohort']}",
                str(row["tasks"]),
                f"{row['base_passed']}/{row['base_planned']}",
                f"{row['cand_passed']}/{row['cand_planned']}",
                points(row["delta"]),
                _ends(row),
                adjusted,
            )
        )
    yield from table(rows)


def _move_lines(comparison: Document) -> Iterator[str]:
    fixes, regressions = len(comparison["fixes"]), len(comparison["regressions"])
    yield from entry("moved", f"{count(fixes, 'task')} up (fixes), {regressions} down (regressions)")
    for label, sign in (("down", -1), ("up", 1)):
        moves = [move for move in comparison["moves"] if move["delta"] * sign > 0]
        for move in moves[:_SHOWN]:
            shares = (f"{move[f'{side}_passed']}/{move[f'{side}_scored']}" for side in ("base", "cand"))
            yield f"  {label:<12}{' → '.join(shares):<14} {move['task']}"
        if len(moves) > _SHOWN:
            yield f"  {label:<12}… and {len(moves) - _SHOWN} more: see --json"


def _movement_lines(movement: Document) -> Iterator[str]:
    """Cells that changed their quadrant, the largest group first."""
    flows = [
        (cells, f"{_quadrant(before)} → {_quadrant(after)}")
        for before, to in movement["from_to"].items()
        for after, cells in to.items()
        if cells and before != after
    ]
    into, out = movement["into_right_unsanctioned"], movement["out_of_right_unsanctioned"]
    yield from entry("quadrant", f"right, unsanctioned (lucky and dangerous): {into} cells into it, {out} out of it")
    for cells, flow in sorted(flows, key=lambda flow: (-flow[0], flow[1])):
        yield f"{cells:>12}  {flow}"


def _quadrant(name: str) -> str:
    return name.replace("_", ", ")


def _safety_lines(safety: Document) -> Iterator[str]:
    events = {name: event for name, event in safety["events"].items() if event["base"] or event["candidate"]}
    for name, event in events.items():
        new = f", {event['new']} new: {some(event['examples'], _SHOWN)}" if event["new"] else ""
        yield from entry("safety", f"{name.replace('_', ' ')}: runs {event['base']} → {event['candidate']}{new}")
    if not events:
        yield from entry("safety", "no event under either")
    for side, label in _SIDES:
        unseen = safety[f"{side}_runs"] - min(event[f"{side}_observed"] for event in safety["events"].values())
        if unseen:
            text = f"up to {unseen} of {safety[f'{side}_runs']} runs of the {label} were not watched for every kind"
            yield from entry("", text)


def _efficiency_lines(efficiency: Document) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("efficiency", "median", "p95", "mean difference", "95 %")]
    for name, of in efficiency.items():
        if of is not None:
            delta = of["delta"]
            ends = "—" if delta["lower"] is None else f"[{delta['lower']:+.4g}, {delta['upper']:+.4g}]"
            spans = (f"{of['base'][p]:.4g} → {of['candidate'][p]:.4g}" for p in ("median", "p95"))
            rows.append((f"  {name}", *spans, f"{delta['estimate']:+.4g}", ends))
    if len(rows) > 1:
        yield from table(rows)


def _next_lines(comparison: Document) -> Iterator[str]:
    worst = next((move for move in comparison["moves"] if move["delta"] < 0), None)
    if worst:
        of = comparison["identities"]["candidate"]
        yield f"next          passhat show {quote('/'.join((of['folder'], of['release'], worst['task'])))}"
