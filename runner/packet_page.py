"""The page of a packet, and the pages of its traces: one file each, without scripts, and nothing loaded from elsewhere.

Whatever comes from records or files stays text: it is escaped, marks that steer a terminal or turn text around are
spelled out, and what is very long is cut, with its length.
"""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from passhat.runner.errors import InvalidFile
from passhat.runner.packet_data import EVIDENCE, GATE, SIDES, Contents, Document, Row
from passhat.runner.packet_figures import AMOUNT_LABELS, draw_figures
from passhat.runner.pairing import Side
from passhat.runner.plots import amount, changes
from passhat.runner.render import count, estimate, overrides_text
from passhat.runner.render_compare import p_text, points
from passhat.runner.render_gate import WORDS, conclusion, declared_text
from passhat.runner.render_show import clipped, printable, render_shown
from passhat.runner.show import run_document
from passhat.runner.store import Campaign
from passhat.workers.scoring import QUADRANTS

_TEMPLATES = Path(__file__).parent / "templates"
_LONGEST = 200  # of a name
_LONGEST_SENTENCE = 4000
_MOST_ON_HEAT_MAP = 300
_MOST_ROWS = 1000  # of exclusions
_MOST_NAMED = 20
_TRACES_IN_PAGE = 1_000_000  # letters
# what templates/methods.html.j2 explains; of two that a name begins with, the longer one first
METHODS = ("task-dirichlet-bonferroni", "task-dirichlet", "wilson", "bootstrap", "paired-t", "mcnemar", "sign-flip",
           "holm", "pass-hat", "completion", "gate", "percentile")  # fmt: skip
_KNOWN_IDENTITIES = {"model": "model", "prompt": "prompt", "tool_fixture": "tool fixture", "judge": "judge"}


def render_pages(
    contents: Contents, digests: Mapping[str, str], *, most_in_page: int = _TRACES_IN_PAGE
) -> dict[str, bytes]:
    """Return index.html, and where traces have more letters than it may hold one page a task, by name of the file."""
    template = _environment()
    comparison = contents.comparison
    traces = list(_traces(contents))
    in_page = sum(len(run["text"]) for task in traces for run in task["runs"]) <= most_in_page
    links = {
        task["task"]: {
            "href": f"#{task['id']}" if in_page else f"traces/{task['id']}.html",
            "runs": {(run["side"], run["run"]) for run in task["runs"]},
        }
        for task in traces
    }
    rows = {row["task"]: row for row in contents.tables["tasks"]}
    heat_rows = _heat_rows(contents.tables["tasks"])
    page = template("packet.html.j2").render(
        **_facts_and_concerns(contents),
        comparison=comparison,
        verdict=contents.verdict,
        words=WORDS,
        conclusion=contents.verdict and conclusion(contents.verdict),
        declared=contents.verdict and declared_text(contents.verdict["gate"]),
        identities=list(_identities(contents)),
        releases={side: contents.release(side) for side in SIDES},
        curve_rows=_curve_rows(contents),
        figures=draw_figures(contents, heat_rows),
        heat_rows=heat_rows,
        tables=contents.tables,
        moves=[rows[move["task"]] for move in comparison["moves"]],
        changes=changes(comparison["moves"]),
        links=links,
        traces=traces if in_page else [],
        quadrants=tuple(reversed(QUADRANTS)),
        amount_labels=AMOUNT_LABELS,
        most_rows=_MOST_ROWS,
        methods=methods_used(contents),
        commands=_text("\n".join(_commands(contents))),
        reruns=_text("\n".join(_reruns(contents))),
        made_with=", ".join(f"{name} {found}" for name, found in contents.request["made_with"].items()),
        digests=digests,
        sections=_sections(contents, has_traces=bool(traces) and in_page),
    )
    pages = {"index.html": page.encode()}
    if not in_page:
        one = template("trace.html.j2")
        names = {side: comparison[side] for side in SIDES}
        pages |= {f"traces/{task['id']}.html": one.render(task=task, **names).encode() for task in traces}
    return pages


_SECTIONS = {
    "quality": "Data quality",
    "verdict": "Verdict",
    "identities": "What was compared",
    "paired": "Paired result",
    "cohorts": "Cohorts",
    "reliability": "pass^k",
    "movement": "Movement",
    "quadrant": "Outcome and trajectory",
    "heat": "Task × run",
    "safety": "Safety events",
    "amounts": "Cost, turns, time",
    "exclusions": "Exclusions",
    "discordant": "Discordant tasks",
    "traces": "Traces",
    "methods": "Methods",
    "reproduce": "Reproduce",
    "digests": "Digests",
}


def _sections(contents: Contents, *, has_traces: bool) -> list[tuple[str, str]]:
    sections = {id_: title for id_, title in _SECTIONS.items() if id_ != "traces" or has_traces}
    if contents.verdict:
        sections["verdict"] += f": {WORDS[contents.verdict['verdict']]}"
    return list(sections.items())


def _environment() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "things": count,
        "points": points,
        "ends": lambda item: "—" if item["lower"] is None else f"[{points(item['lower'])}, {points(item['upper'])}]",
        "p": p_text,
        "holm": lambda test: "—" if not test or test.get("p_holm") is None else f"{test['p_holm']:.3g}",
        "estimate": estimate,
        "flaky": _flaky,
        "amount": amount,
        "sentence": lambda text: escape(clipped(printable(str(text)), _LONGEST_SENTENCE)),
    }
    return environment.get_template


def _finalize(value: Any) -> Any:
    """Make what a template writes safe to read; markup is what templates and figures made."""
    return value if isinstance(value, Markup) else clipped(printable(str(value)), _LONGEST)


def _text(lines: str) -> Markup:
    """Return text of many lines, each of which was made printable."""
    return escape(lines)


def _flaky(flaky: Document) -> str:
    if flaky["estimate"] is None:
        return str(flaky["note"])
    return f"{flaky['tasks_flaky']} of {flaky['tasks']}, {estimate(flaky)}"


# Data quality


def _facts_and_concerns(contents: Contents) -> dict[str, Any]:
    return {"facts": list(_facts(contents)), "concerns": list(_concerns(contents))}


def _facts(contents: Contents) -> Iterator[Document]:
    comparison, pairing = contents.comparison, contents.pairing
    suite = comparison["identities"]["base"]["suite"]
    yield _fact("Suite", f"{suite['name']} {suite['version'] or ''}".strip(), suite["digest"] or "digest absent")
    windows = dict.fromkeys(_window(side.campaign) for side in (pairing.base, pairing.candidate))
    yield _fact("Execution window", next(iter(windows)) or "absent", " / ".join(w or "absent" for w in [*windows][1:]))
    planned = [outcomes.planned for outcomes in (pairing.outcomes_base, pairing.outcomes_candidate)]
    fewest, most = min(int(p.min()) for p in planned), max(int(p.max()) for p in planned)
    unmatched = len(pairing.base_only) + len(pairing.candidate_only)
    yield _fact("Tasks", f"{comparison['tasks']} matched", f"{unmatched} without a partner")
    cells = sum(comparison["cells"].values())
    repeats = str(most) if fewest == most else f"{fewest} to {most}"
    yield _fact("Runs of each task", repeats, f"{count(cells, 'cell')} that both releases planned")
    counts = [comparison["counts"][side] for side in SIDES]
    scored = sum(of["passed"] + of["failed"] for of in counts)
    total = sum(of["planned"] for of in counts)
    yield _fact("Runs with a verdict", f"{scored} of {total}", f"{total - scored} without")
    treatments = dict.fromkeys("count as not passed" if of["on_missing"] == "fail" else "are left out" for of in counts)
    yield _fact("Runs without a verdict", " / ".join(treatments), "by declaration; worst and best cases are shown")


def _fact(name: str, value: str, note: str) -> Document:
    return {"name": name, "value": value, "note": note}


def _window(campaign: Campaign) -> str | None:
    """From the first start to the last end; None for an import, which does not say."""
    times = [event["at"] for event in campaign.events() if event.get("event") in ("start", "stopped", "end")]
    if campaign.manifest["origin"] != "run" or not times:
        return None
    (day, start), (last_day, end) = (time[:19].split("T") for time in (times[0], times[-1]))
    return f"{day} {start} to {'' if day == last_day else f'{last_day} '}{end} UTC"


def _concerns(contents: Contents) -> Iterator[str]:
    """What a reader has to know of the evidence before believing it."""
    comparison, pairing = contents.comparison, contents.pairing
    for side, lone in zip(SIDES, (pairing.base_only, pairing.candidate_only), strict=True):
        name, counts = comparison[side], comparison["counts"][side]
        for kind in ("missing", "invalid", "pending"):
            if counts[kind]:
                rows = [r for r in contents.tables["exclusions"] if r["release"] == name and r["status"] == kind]
                runs = _named([f"{row['task']}/{row['run']}" for row in rows])
                yield f"{name} {kind} = {counts[kind]}/{counts['planned']}, {rows[0]['treatment']}: {runs}."
        if lone:
            yield f"{len(lone)} tasks were planned for {name} only and are left out: {_named(lone)}."
        if comparison["unmatched"][f"{side}_cells"]:
            yield f"{comparison['unmatched'][f'{side}_cells']} runs of matched tasks were planned for {name} only."
        if overrides := comparison["identities"][side]["overrides"]:
            yield f"{name}: what the suite declares was overridden: {overrides_text(overrides)}."
        release = contents.release(side)
        for kind, meaning in (("retried", "run again after a fault"), ("duplicates", "merged duplicates")):
            if release["counts"][kind]:
                yield f"{name}: {count(release['counts'][kind], 'run')} {meaning}."
    yield from (f"Compared all the same: {difference}." for difference in comparison["differences"])
    yield from (f"Not verified: {what}." for what in comparison["unverified"])
    for report in contents.reports.values():
        of = report["campaign"]
        if of["torn_at"] is not None:
            yield f"The log of {of['id']} ends in a frame cut short at byte {of['torn_at']}; its runs count as missing."
        if of["foreign"]:
            yield f"{count(of['foreign'], 'record')} of {of['id']} belong to no planned run and are left out."
    yield from _gate_concerns(contents)


def _gate_concerns(contents: Contents) -> Iterator[str]:
    safety, verdict = contents.comparison["safety"], contents.verdict
    for side in SIDES if safety else ():
        runs = safety[f"{side}_runs"]
        watched = min((n for event in safety["events"].values() if (n := event[f"{side}_observed"])), default=0)
        if watched < runs:
            name = contents.comparison[side]
            unseen = f"up to {runs - watched} of {count(runs, 'run')}"
            yield f"{name}: {unseen} were not watched for every kind of safety event to their end."
    if verdict and verdict["gate"]["status"] != "declared":
        yield f"Gate {verdict['gate']['name']}: {declared_text(verdict['gate'])}."


def _named(names: Any) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more (data/exclusions.csv)" if more > 0 else "")


# Identities


def _identities(contents: Contents) -> Iterator[Row]:
    """Everything that says what was compared; a value that is not known is None."""
    sides = (contents.pairing.base, contents.pairing.candidate)
    manifests = [side.campaign.manifest for side in sides]
    entries = [next(e for e in m["releases"] if e["name"] == s.release) for m, s in zip(manifests, sides, strict=True)]

    def row(name: str, values: Any) -> Row:
        base, candidate = (None if value in (None, "", {}) else str(value) for value in values)
        return {"name": name, "base": base, "candidate": candidate}

    yield row("release", (side.release for side in sides))
    yield row("release digest", (entry["digest"] for entry in entries))
    yield row("agent", (entry["agent"] for entry in entries))
    yield row("agent code", (entry["code"] for entry in entries))
    for key, name in _KNOWN_IDENTITIES.items():
        yield row(name, (entry["identity"].get(key) for entry in entries))
    for key in sorted({*entries[0]["identity"], *entries[1]["identity"]} - _KNOWN_IDENTITIES.keys()):
        yield row(key, (entry["identity"].get(key) for entry in entries))
    if any(entry["flaws"] for entry in entries):
        yield row("declared flaws", (_pairs(entry["flaws"]) or "none" for entry in entries))
    for key, name in (("name", "suite"), ("version", "suite version"), ("digest", "suite digest")):
        yield row(name, (manifest["suite"].get(key) for manifest in manifests))
    yield row("environment", (manifest["suite"].get("environment") for manifest in manifests))
    yield row("environment code", (manifest["suite"].get("code") for manifest in manifests))
    yield row("campaign", (manifest["id"] for manifest in manifests))
    yield row("made by", (manifest["origin"] for manifest in manifests))
    yield row("records digest", (contents.report(side)["campaign"]["records_digest"] for side in SIDES))
    yield row("execution window", (_window(side.campaign) for side in sides))
    yield row("seed", (manifest["seed"] for manifest in manifests))
    yield row("noise of the agents", (manifest["stream"] for manifest in manifests))
    yield row("limits of a run", (_pairs(manifest["limits"]) for manifest in manifests))
    yield row("hermetic levels", (_pairs(manifest.get("hermetic")) for manifest in manifests))
    yield row("retries after a fault", (manifest["retries"] for manifest in manifests))
    yield row("versions", (_pairs(manifest["versions"]) for manifest in manifests))
    begun = [(manifest.get("gate") or {}).get("digest") for manifest in manifests]
    if any(begun):
        yield row("gate it was begun under", begun)
    if any("sources" in manifest for manifest in manifests):
        yield row("imported files", (_sources(manifest) for manifest in manifests))
    if any(manifest.get("pass_mark") is not None for manifest in manifests):
        yield row("least score that passes", (manifest.get("pass_mark") for manifest in manifests))


def _pairs(mapping: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{name} {value}" for name, value in (mapping or {}).items() if value is not None)


def _sources(manifest: Mapping[str, Any]) -> str:
    return ", ".join(f"{source['file']} sha256:{source['sha256']}" for source in manifest.get("sources", ()))


# Rows of tables and figures


def _curve_rows(contents: Contents) -> list[Row]:
    curves = [contents.release(side)[name] for name in ("pass_hat", "pass_at") for side in SIDES]
    by_k = [{item["k"]: item for item in curve} for curve in curves]
    return [{"k": k, "items": [of.get(k) for of in by_k]} for k in sorted({k for of in by_k for k in of})]


def _heat_rows(tasks: list[Row]) -> list[Row]:
    """The tasks in the order of their change; of very many those that moved most, then those that vary most."""

    def weight(row: Row) -> tuple[float, float]:
        passes = [row[f"{side}_passed"] for side in SIDES]
        varies = sum(p * (row[f"{side}_scored"] - p) for side, p in zip(SIDES, passes, strict=True))
        return -abs(row["delta"] or 0), -varies

    chosen = sorted(tasks, key=weight)[:_MOST_ON_HEAT_MAP]
    return sorted(chosen, key=lambda row: (row["delta"] or 0, row["base_passed"] + row["candidate_passed"]))


# Traces


def _traces(contents: Contents) -> Iterator[Document]:
    """Every kept trace of a discordant cell in a task that moved, and of a run with a safety event, by task."""
    runs, moved = contents.tables["runs"], {move["task"] for move in contents.comparison["moves"]}
    wanted = {(row["side"], row["task"], row["run"]) for row in contents.tables["events"]}
    for cell in contents.tables["cells"]:
        if cell["task"] in moved and cell["base_status"] != cell["candidate_status"]:
            wanted |= {(side, cell["task"], cell["run"]) for side in SIDES}
    shown: dict[str, list[Row]] = {}
    for run in runs:
        if run["trace"] and (run["side"], run["task"], run["run"]) in wanted:
            shown.setdefault(run["task"], []).append(run)
    sides = dict(zip(SIDES, (contents.pairing.base, contents.pairing.candidate), strict=True))
    numbers = {name: {task: i for i, task in enumerate(of.account.plan.tasks)} for name, of in sides.items()}
    for number, (task, of) in enumerate(shown.items()):
        traces = [
            _trace(sides[run["side"]], numbers[run["side"]][task], run)
            for run in sorted(of, key=lambda run: (run["run"], run["side"]))
        ]
        yield {"id": f"t{number}", "task": task, "cohort": of[0]["cohort"], "runs": traces}


def _trace(side: Side, task: int, run: Row) -> Document:
    try:
        found = run_document(side.campaign, side.account, side.number, task, run["run"])
        text = render_shown({"kind": "run", **found})
    except InvalidFile:  # its message names this machine's folders
        text = "This trace cannot be read: its file is missing or damaged.\n"
    name = f"{side.release} run {run['run']}"
    return {"side": run["side"], "run": run["run"], "name": name, "status": run["status"], "text": _text(text)}


# Methods and commands


def methods_used(contents: Contents) -> set[str]:
    """Return the methods that the numbers of a packet were made with, by their names in METHODS."""
    used = {
        _family(name) for name in _named_methods([contents.comparison, contents.verdict, *contents.reports.values()])
    }
    used |= {"pass-hat", "completion", "holm"}
    used |= {"mcnemar"} if contents.comparison["mcnemar"] else set()
    used |= {"gate"} if contents.verdict else set()
    return used | ({"percentile"} if any(contents.comparison["efficiency"].values()) else set())


def _named_methods(document: Any) -> Iterator[str]:
    """Yield every value of a field `method` in a document."""
    if isinstance(document, Mapping):
        if isinstance(document.get("method"), str):
            yield document["method"]
        document = list(document.values())
    for part in document if isinstance(document, list) else ():
        yield from _named_methods(part)


def _family(method: str) -> str:
    """Return the entry that says what a method is; KeyError for one of which nothing is said."""
    for name in METHODS:
        if method == name or method.startswith(f"{name}-"):
            return name
    raise KeyError(method)


def _commands(contents: Contents) -> Iterator[str]:
    request = contents.request
    folders = [f"{EVIDENCE}/{name}" for name in request["campaigns"]]
    names = ["--base", request["base"], "--cand", request["candidate"]]
    common = ["--common"] if request["common"] else []
    yield _command("packet", "--verify", ".")
    yield _command("compare", *folders, *names, *common)
    if contents.gate is not None:
        yield _command("gate", GATE, *folders, *names)


def _reruns(contents: Contents) -> Iterator[str]:
    for side in dict.fromkeys(side.campaign for side in (contents.pairing.base, contents.pairing.candidate)):
        request = side.manifest.get("request")
        if request:
            options = {"--runs": "runs", "--tasks": "tasks", "--filter": "filter", "--seed": "seed"}
            options |= {"--stream": "stream", "--timeout": "timeout_s", "--hermetic": "hermetic"}
            given = [[option, request[key]] for option, key in options.items() if request.get(key) is not None]
            releases = [word for release in request["releases"] for word in ("--release", release)]
            yield _command("run", request["suite"], *releases, *(word for pair in given for word in pair))


def _command(*words: Any) -> str:
    return printable(f"passhat {shlex.join(map(str, words))}")
