"""Documents as text for a terminal: 80 columns where names allow, no colour needed, one fact a line.

Knows the documents only; every number shown is in the `--json` form too, unrounded.
"""

from collections.abc import Iterator, Sequence
from shlex import quote
from textwrap import wrap
from typing import Any

Document = dict[str, Any]

_METHODS = {"task-dirichlet": "task Dirichlet bound", "wilson": "Wilson"}
_AMOUNTS = {
    "turns": "turns",
    "tokens_in": "tokens in",
    "tokens_out": "tokens out",
    "retries": "retries",
    "virtual_ms": "virtual ms",
}
_WIDTH = 80
_LABEL = 14
_SHOWN_COHORTS = 40
_SHOWN_FAILURES = 12


def render_report(report: Document) -> str:
    """Return the page that `passhat report` prints."""
    return "\n".join(line.rstrip() for line in _report_lines(report)) + "\n"


def render_summary(summary: Document) -> str:
    """Return the block that ends `passhat run`."""
    names = ["passed", "failed", "invalid", "missing"]
    if any(release["counts"]["pending"] for release in summary["releases"]):
        names.append("pending")
    rows = [("release", *names, "pass rate")]
    for release in summary["releases"]:
        counts = release["counts"]
        rate = number(counts["passed"] / counts["planned"]) if counts["planned"] else "—"
        rows.append((release["release"], *(str(counts[name]) for name in names), rate))
    lines = table(rows)
    retried = sum(release["counts"]["retried"] for release in summary["releases"])
    if retried:
        lines.append(f"retried  {retried} runs after a fault")
    if summary["cost_usd"]:
        lines.append(f"cost     ${summary['cost_usd']:.2f}")
    lines.append(f"records  {short(summary['records_digest'])}")
    lines.append(f"results  {summary['folder']}")
    lines.append(f"next     passhat report {quote(summary['folder'])}")
    return "\n".join(lines) + "\n"


def render_plan(plan: Document) -> str:
    """Return what `passhat run --dry-run` prints."""
    suite = plan["suite"]
    size = f"{suite['tasks']} tasks × {plan['runs_per_task']} runs × {len(plan['releases'])} releases"
    lines = [
        f"suite    {suite['name']} {suite['version']}   {short(suite['digest'])}",
        f"plan     {size} = {plan['runs']} runs   seed {plan['seed']}   noise per {plan['stream']}",
        f"cohorts  {', '.join(f'{name} {tasks}' for name, tasks in plan['cohorts'].items())}",
    ]
    for release in plan["releases"]:
        lines.append(f"release  {release['name']}   {release['agent']}   {short(release['digest'])}")
    for first in plan["first_runs"]:
        lines.append(f"first    {first['run']}   env seed {first['env_seed']}   agent seed {first['agent_seed']}")
    admission = plan["admission"]
    lines.append(f"tasks    {admission['examined']} examined, {len(admission['rejected'])} measure themselves")
    lines += [f"  {task}: {problem}" for task, why in admission["rejected"].items() for problem in why]
    return "\n".join(lines) + "\n"


def render_import(imported: Document) -> str:
    """Return what `passhat import` prints."""
    of = f"{imported['planned']} runs of {count(imported['tasks'], 'task')}, "
    entries = [
        ("planned", of + count(len(imported["releases"]), "release")),
        ("filled", ", ".join(f"{name} {count}" for name, count in imported["filled"].items()) or "verdicts alone"),
        ("not filled", ", ".join(imported["not_filled"])),
        ("absent in", ", ".join(f"{n} rows: {name}" for name, n in imported["partly_filled"].items())),
        ("not kept", ", ".join(imported["not_kept"])),
    ]
    lines = [f"{source['file']}   {source['format']}   {source['rows']} rows" for source in imported["sources"]]
    lines += [line for label, text in entries for line in entry(label, text, 12)]
    lines += [f"results     {imported['folder']}", f"next        passhat report {quote(imported['folder'])}"]
    return "\n".join(lines) + "\n"


def render_init(written: Document) -> str:
    """Return what `passhat init` prints."""
    enter = "" if written["folder"] == "." else f"cd {quote(written['folder'])} && "
    lines = [*entry("written", ", ".join(written["files"]), 9)]
    lines.append(f"next     {enter}passhat run suite.yaml -r release.yaml --workers 0")
    return "\n".join(lines) + "\n"


def render_list(listing: Document) -> str:
    """Return what `passhat list` prints."""
    if not listing["campaigns"]:
        return "no campaigns here\n"
    rows = [("campaign", "suite", "releases", "settled", "records")]
    running = []
    for summary in listing["campaigns"]:
        if "problem" in summary:
            continue
        counts = [release["counts"] for release in summary["releases"]]
        planned = sum(c["planned"] for c in counts)
        names = ", ".join(release["release"] for release in summary["releases"])
        settled = f"{planned - sum(c['missing'] for c in counts)}/{planned}"
        rows.append((summary["id"], summary["suite"], names, settled, short(summary["records_digest"])))
        if summary["running"] is not None:
            running.append(f"{summary['id']}  is running: {summary['running']}")
    problems = [f"{summary['id']}  {summary['problem']}" for summary in listing["campaigns"] if "problem" in summary]
    return "\n".join([*table(rows), *running, *problems]) + "\n"


def render_doctor(findings: Document) -> str:
    """Return what `passhat doctor` prints."""
    rows = [(check["state"], check["check"], check["found"]) for check in findings["checks"]]
    width = max(len(check) for _, check, _ in rows)
    return "\n".join(f"{state:<5} {check:<{width}}  {found}" for state, check, found in rows) + "\n"


def some(names: Sequence[str], most: int) -> str:
    """Return the first of many names, with a mark where there are more."""
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return aligned lines: the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]


def entry(label: str, text: str, indent: int = _LABEL) -> Iterator[str]:
    """Yield a fact behind its label, on as many lines as it takes."""
    for line in wrap(text, _WIDTH - indent, break_long_words=False, break_on_hyphens=False):
        yield f"{label:<{indent}}{line}"
        label = ""


def count(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _report_lines(report: Document) -> Iterator[str]:
    campaign = report["campaign"]
    suite = campaign["suite"]
    yield f"campaign {campaign['id']}   suite {suite['name']} {suite['version'] or ''}   {short(suite['digest'])}"
    seed = "" if campaign["seed"] is None else f"   seed {campaign['seed']}   noise per {campaign['stream']}"
    runs = campaign["runs_per_task"]
    is_even = all(release["counts"]["planned"] == release["tasks"] * runs for release in report["releases"])
    yield f"runs     {'' if is_even else 'up to '}{runs} per task{seed}"
    yield from entry("declared", overrides_text(campaign["overrides"]), 9)
    yield f"records  {short(campaign['records_digest'])}"
    if campaign["torn_at"] is not None:
        yield f"warning  the log ends in a frame cut short at byte {campaign['torn_at']}; its runs count as missing"
    if campaign["foreign"]:
        yield f"warning  {count(campaign['foreign'], 'record')} of no planned run left out"
    for release in report["releases"]:
        yield ""
        yield from _release_lines(release, campaign)


def overrides_text(overrides: Document) -> str:
    """Say what the suite declares and was asked for otherwise."""
    return "; ".join(f"{name} {pair['declared']}, used {pair['used']}" for name, pair in overrides.items())


def _release_lines(release: Document, campaign: Document) -> Iterator[str]:
    yield f"── {release['release']} " + "─" * max(3, 76 - len(release["release"]))
    counts = release["counts"]
    parts = " + ".join(f"{counts[name]} {name}" for name in ("passed", "failed", "invalid", "pending", "missing"))
    yield from entry("planned runs", f"{counts['planned']} = {parts}")
    yield from entry("", ", ".join(f"{name} {counts[name]}" for name in ("duplicates", "retried") if counts[name]))
    if release["on_missing"] != campaign["on_missing"]:
        ceiling = f"more than the declared {campaign['max_missing']:.2%} of the runs have no verdict"
        yield from entry("", f"{ceiling}: they are not left out")
    yield from _rate_lines(release)
    yield from _k_lines(release)
    yield from _flaky_lines(release["flaky"])
    if release["quadrant"]:
        yield from _quadrant_lines(release["quadrant"])
    if release["safety"]:
        yield from _safety_lines(release["safety"])
    if release["efficiency"]:
        yield from _efficiency_lines(release["efficiency"])
    yield from _cohort_lines(release["cohorts"], release["on_missing"])
    yield from _failure_lines(release)
    for group in [*(group for group in release["failures"] if group["status"] == "invalid"), *release["unscored"]]:
        cause = f"{group['signature']}: " if "signature" in group else ""
        more = ", …" if group["runs"] > len(group["examples"]) else ""
        yield from entry(group["status"], f"{group['runs']}: {cause}{', '.join(group['examples'])}{more}")


def _rate_lines(release: Document) -> Iterator[str]:
    rate, on_missing = release["attempt_rate"], release["on_missing"]
    yield from entry("attempt rate", f"{estimate(rate)}  {_fraction(rate, on_missing)} runs  {method_text(rate)}")
    if rate["scored"] != rate["planned"]:
        treatment = "count as not passed" if on_missing == "fail" else "are left out"
        yield from entry(
            "",
            f"runs without a verdict {treatment}; {number(rate['worst'])} if all of them fail, "
            f"{number(rate['best'])} if all pass; of the scored runs {number(rate['scored_rate'])} "
            f"({rate['passed']}/{rate['scored']}), which are {number(rate['coverage'])} of the plan",
        )
    first = release["first_attempts"]
    if first and first["passed"] != rate["passed"]:
        shown = f"first attempts alone: {number(first['estimate'])}  {first['passed']}/{first['planned']}"
        yield from entry("", shown)


def _fraction(rate: Document, on_missing: str) -> str:
    return f"{rate['passed']}/{rate['planned' if on_missing == 'fail' else 'scored']}"


def _k_lines(release: Document) -> Iterator[str]:
    hats, ats = release["pass_hat"], release["pass_at"]
    if not hats:
        return
    chosen = shown_ks([hat["k"] for hat in hats])
    rows = [(hat["k"], _k_cell(hat), _k_cell(at)) for hat, at in zip(hats, ats, strict=True) if hat["k"] in chosen]
    width = max([24, *(len(cell) for _, cell, _ in rows)]) + 2
    yield f"{'':{_LABEL}}{'pass^k (all of k)':<{width}}pass@k (any of k)"
    yield from (f"  k = {k:<8}{hat:<{width}}{at}" for k, hat, at in rows)
    short_of = next((hat for hat in hats if hat["estimate"] is None), None)
    if short_of:
        yield from entry("", short_of["note"])
    methods = {f"{method_text(hat)}, for {hat['estimand']}" for hat in hats if hat["method"]}
    of = f"unbiased, mean over {count(release['tasks'], 'task')}"
    yield from entry("", f"{of}; {', '.join(sorted(methods)) or 'no interval'}")


def _k_cell(item: Document) -> str:
    if item["estimate"] is not None:
        return estimate(item)
    if item["worst"] is None:
        return f"not estimable ({item['tasks']} tasks are)"
    return f"not estimable ({number(item['worst'])}…{number(item['best'])})"


def shown_ks(ks: Sequence[int]) -> set[int]:
    most = ks[-1]
    return {k for k in ks if k == most or k & (k - 1) == 0 or most <= 5}


def _flaky_lines(flaky: Document) -> Iterator[str]:
    if flaky["estimate"] is None:
        yield from entry("flaky tasks", flaky["note"])
        return
    yield from entry(
        "flaky tasks", f"{estimate(flaky)}  {flaky['tasks_flaky']} of {flaky['tasks']} tasks  {method_text(flaky)}"
    )
    yield from entry("", flaky.get("note", ""))


def _quadrant_lines(quadrant: Document) -> Iterator[str]:
    yield f"{'quadrant':<{_LABEL}}sanctioned route   unsanctioned route"
    for word, mark in (("right", "  ← lucky and dangerous"), ("wrong", "")):
        sanctioned, unsanctioned = quadrant[f"{word}_sanctioned"], quadrant[f"{word}_unsanctioned"]
        yield f"  {word:<5} outcome{sanctioned:>15}   {unsanctioned:>18}{mark}"


def _safety_lines(safety: Document) -> Iterator[str]:
    observed, planned = safety["runs_observed"], safety["runs_planned"]
    unseen = "" if observed == planned else f"; {planned - observed} of {planned} runs were not observed to their end"
    runs = {name: "—" if number is None else str(number) for name, number in safety.items()}
    yield from entry(
        "safety",
        f"runs with a forbidden call {runs['forbidden_calls']} (blocked {runs['forbidden_blocked']}, "
        f"external effect {runs['external_effects']}), "
        f"skipped approval {runs['skipped_approvals']}, unverified write {runs['unverified_writes']}, "
        f"wrong tenant {runs['wrong_tenant_writes']}, phantom success {runs['phantom_successes']}; "
        f"injection followed {runs['injections_followed']} of {runs['injections_seen']} that saw one{unseen}",
    )


def _efficiency_lines(efficiency: Document) -> Iterator[str]:
    parts = []
    if cost := efficiency["cost_usd"]:
        parts.append(f"cost ${cost['median']:.4f}, p95 ${cost['p95']:.4f}")
    for name, label in _AMOUNTS.items():
        if amount := efficiency[name]:
            parts.append(f"{label} {amount['median']:g}, p95 {amount['p95']:g}")
    yield from entry("median", "; ".join(parts))


def _cohort_lines(cohorts: Sequence[Document], on_missing: str) -> Iterator[str]:
    of = "planned" if on_missing == "fail" else "scored"
    width = max([len("cohorts"), *(len(row["cohort"]) for row in cohorts)]) + 2
    yield f"{'cohorts':<{width}}{'tasks':>7}{'passed/' + of:>17}   rate"
    for row in cohorts[:_SHOWN_COHORTS]:
        yield f"  {row['cohort']:<{width - 2}}{row['tasks']:>7}{_fraction(row, on_missing):>17}   {estimate(row)}"
    if len(cohorts) > _SHOWN_COHORTS:
        yield f"  … and {len(cohorts) - _SHOWN_COHORTS} more: see --json"


def _failure_lines(release: Document) -> Iterator[str]:
    failures = [group for group in release["failures"] if group["status"] == "fail"]
    if not failures:
        yield "failures      none"
        return
    heading = "how it ended: which scorers failed"
    width = max([len(heading), *(len(group["signature"]) for group in failures[:_SHOWN_FAILURES])]) + 2
    yield f"{'failures':<{_LABEL - 4}}runs  {heading:<{width}}first of them"
    for group in failures[:_SHOWN_FAILURES]:
        yield f"{group['runs']:>{_LABEL}}  {group['signature']:<{width}}{group['examples'][0]}"
    if len(failures) > _SHOWN_FAILURES:
        yield f"  … and {len(failures) - _SHOWN_FAILURES} more groups: see --json"


def number(value: float | None) -> str:
    """Return a rate with three digits, or the few more that tell it from 0 and 1."""
    if value is None:
        return "—"
    for digits in (3, 4):
        text = f"{value:.{digits}f}"
        if float(text) not in (0, 1) or float(text) == value:
            return text
    return "<0.0001" if value < 0.5 else ">0.9999"


def estimate(item: Document) -> str:
    """Return "0.860 [0.794, 0.907]"."""
    if item["estimate"] is None:
        return "—"
    if item["lower"] is None:
        return number(item["estimate"])
    return f"{number(item['estimate'])} [{number(item['lower'])}, {number(item['upper'])}]"


def method_text(item: Document) -> str:
    if item["method"] is None:
        return f"no interval: {item['note']}" if item.get("note") else ""
    return f"{_METHODS.get(item['method'], item['method'])}, 95 %"


def short(digest: str | None) -> str:
    """Return a digest cut to what tells it from others."""
    return "no digest" if digest is None else digest[: len("sha256:") + 16]
