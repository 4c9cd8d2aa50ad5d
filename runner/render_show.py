"""What `passhat show` prints: a campaign, a release's failures, a task's runs, or one run call by call."""

import json
from collections.abc import Callable, Iterator, Mapping
from textwrap import wrap
from typing import Any

from passhat.runner.render import count, render_summary, short, table

Document = dict[str, Any]
Lines = dict[str, list[str]]  # label -> texts

_WIDTH = 100
_INDENT = 12
_LONGEST_VALUE = 300
_LONGEST = 2000  # of any text
_LISTED = 20  # effects, findings, log lines
_NAMED_RUNS = 200


def render_shown(document: Document) -> str:
    """Return the page for what was found."""
    lines = _PAGES[document["kind"]](document)
    return "\n".join(printable(line).rstrip() for line in lines) + "\n"


def _campaign_lines(document: Document) -> Iterator[str]:
    manifest = document["manifest"]
    suite = manifest["suite"]
    yield f"campaign {manifest['id']}   {manifest['origin']}   made {manifest['created_at']}"
    yield f"suite    {suite['name']} {suite['version'] or ''}   {suite['tasks']} tasks   {short(suite['digest'])}"
    for release in manifest["releases"]:
        yield f"release  {release['name']}   {release['agent'] or ''}   {short(release['digest'])}"
        for name, value in release["identity"].items():
            yield f"           {name}: {value}"
    yield f"seed     {manifest['seed']}   noise per {manifest['stream']}   retries {manifest['retries']}"
    yield f"versions {', '.join(f'{name} {text}' for name, text in manifest['versions'].items())}"
    yield ""
    yield from render_summary(document["summary"]).splitlines()
    yield ""
    yield "events"
    for event in document["events"]:
        details = "  ".join(f"{key} {_value(value)}" for key, value in event.items() if key not in ("at", "event"))
        yield f"  {event['at']}  {event['event']:<12} {details}"


def _release_lines(document: Document) -> Iterator[str]:
    yield f"{document['release']}   failed and invalid runs by how they ended"
    unscored = [{"signature": f"{group['status']} (no verdict)", **group} for group in document["unscored"]]
    for group in (*document["failures"], *unscored):
        yield f"{len(group['runs']):>6}  {group['signature']}"
        for name in group["runs"][:_NAMED_RUNS]:
            yield f"          {document['folder']}/{document['release']}/{name}"
        if len(group["runs"]) > _NAMED_RUNS:
            yield f"          … and {len(group['runs']) - _NAMED_RUNS} more: see --json"
    if not (document["failures"] or unscored):
        yield "  none"


def _task_lines(document: Document) -> Iterator[str]:
    yield f"{document['release']}/{document['task']}   cohort {document['cohort']}"
    rows = [("run", "status", "attempts", "how it ended")]
    rows += [(str(run["run"]), run["status"], str(run["attempts"]), run["how"]) for run in document["runs"]]
    yield from table(rows)


def _run_lines(document: Document) -> Iterator[str]:
    yield f"{document['run']}   {document['status'].upper()}   cohort {document['cohort']}"
    for record in document["attempts"]:
        yield from _attempt_lines(record)
    trace = document["trace"]
    if trace is None:
        yield "no trace was kept of this run: failed and invalid runs have one, and a seeded sample of the rest"
    else:
        yield from _trace_lines(trace)


def _attempt_lines(record: Document) -> Iterator[str]:
    ended = record["assigned"] if record["assigned"] != "NONE" else record["claimed"]
    reason = "" if record["reason"] == "NONE" else f"   {record['reason']}"
    yield f"attempt {record['attempt']}   {record['status']}   {ended}{reason}   digest {record['digest']}"
    scores = record["scores"].items()
    yield from _entry("scores", "   ".join(f"{name} {_score(score)}" for name, score in scores), margin=2)
    yield from _entry("safety", ", ".join(record["safety"]), margin=2)
    yield from _entry("used", ", ".join(_used(record)), margin=2)
    yield from _entry("hermetic", _hermetic(record), margin=2)


def _score(score: Document) -> str:
    return "pass" if score["passed"] else f"FAIL ({score['score']:.2f})"


def _used(record: Document) -> Iterator[str]:
    """Yield what the run says it used."""
    for name in ("turns", "bad_calls", "tokens_in", "tokens_cached", "tokens_out", "retries"):
        if name in record:
            yield f"{record[name]} {name.replace('_', ' ')}"
    if "cost_usd" in record:
        yield f"${record['cost_usd']:.4f}"
    if "virtual_ms" in record:
        yield f"{record['virtual_ms']} virtual ms"
    if "wall_us" in record:
        yield f"{record['wall_us'] / 1000:.1f} ms of wall time"


def _hermetic(record: Document) -> str:
    parts = []
    for plane, name in (("env", "environment"), ("agent", "agent")):
        achieved, requested = record["hermetic"][plane], record["hermetic_requested"][plane]
        parts.append(f"{name} {achieved}" + ("" if requested == achieved else f" (asked for {requested})"))
    return f"{', '.join(parts)}, {count(record['violations'], 'violation')}"


def _trace_lines(trace: Document) -> Iterator[str]:
    yield ""
    yield from _entry("request", trace["request"])
    for key, value in trace["inputs"].items():
        yield from _entry("", f"{key}: {_value(value)}")
    told = _told(trace)
    principal: Document | None = None
    for number, call in enumerate(trace["calls"], 1):
        if call["principal"] != principal:
            principal = call["principal"]
            yield from _entry("for", ", ".join(f"{part} {name}" for part, name in principal.items() if name))
        yield ""
        yield from _call_lines(number, call, told.pop(number, {}))
    yield ""
    if trace["final"]:
        yield from _entry("final", f"{trace['final']['status']}  {trace['final']['message']}")
        if trace["final"]["payload"]:
            yield from _entry("", _value(trace["final"]["payload"]))
    for lines in told.values():
        yield from _list(lines)
    yield from _list({"log": trace["log"], "error": [trace["error"]]})


def _call_lines(number: int, call: Document, told: Lines) -> Iterator[str]:
    arguments = ", ".join(f"{name}={_value(value)}" for name, value in call["arguments"].items())
    yield from _entry(f"{number:>3}", f"{call['tool']}({arguments})", 5)
    error = f"error {call['error']}  " if call["error"] else ""
    yield from _entry("→", f"{error}{_value(call['result'])}", 7, margin=5)
    receipt = call["receipt"]
    receipts = [f"{receipt['id']} for {receipt['target']}"] if receipt else []
    yield from _list({"receipt": receipts, "safety": [", ".join(call["facts"])], **told}, margin=5)


def _told(trace: Document) -> dict[int | None, Lines]:
    """Return what is told of each call by its number, and under None of the run: effects, violations, what was missed.

    These are what a call changed, what was reached for out of the world during it, and what the contract says of it.
    """
    told: dict[int | None, Lines] = {}
    numbers = range(1, len(trace["calls"]) + 1)

    def tell(call: Any, label: str, line: str) -> None:
        told.setdefault(call if call in numbers else None, {}).setdefault(label, []).append(line)

    for effect in trace["effects"]:
        tell(effect["call"], "effect", _effect(effect))
    for found in trace["violations"]:
        _, _, call = found["where"].partition("call#")
        tell(int(call) if call.isdecimal() else None, "violation", _violation(found))
    for finding in trace["findings"]:
        tell(finding["call"], "missed", f"{finding['scorer']}: {finding['text']}")
    return told


def _effect(effect: Document) -> str:
    row, before, after = f"{effect['table']} {effect['key']}", effect["before"], effect["after"]
    if effect["column"] != "*":
        return f"{row} {effect['column']}: {_value(before)} → {_value(after)}"
    return f"{row} deleted: {_value(before)}" if after is None else f"{row} inserted: {_value(after)}"


def _violation(found: Document) -> str:
    what = " ".join(filter(None, (found["event"], found["target"])))
    return f"{found['plane']}, {found['where']}: {found['kind']} ({what}){', denied' if found['blocked'] else ''}"


def _list(lines: Lines, *, margin: int = 0) -> Iterator[str]:
    """Yield lines under their labels, the first ones of each."""
    for label, texts in lines.items():
        for text in texts[:_LISTED]:
            yield from _entry(label, text, margin + _INDENT, margin=margin)
        if len(texts) > _LISTED:
            yield from _entry(label, f"… and {len(texts) - _LISTED} more: see --json", margin + _INDENT, margin=margin)


def _entry(label: str, text: str, indent: int = _INDENT, *, margin: int = 0) -> Iterator[str]:
    """Yield a text behind its label, on as many lines as it takes; nothing when there is none."""
    for line in clipped(text, _LONGEST).split("\n") if text else ():
        for part in wrap(printable(line), _WIDTH - indent, break_on_hyphens=False) or [""]:
            yield f"{' ' * margin}{label:<{indent - margin}}{part}"
            label = ""


def _value(value: Any) -> str:
    return clipped(json.dumps(value, ensure_ascii=False, default=repr), _LONGEST_VALUE)


def clipped(text: str, most: int) -> str:
    """Return a text, or its beginning and how long it is."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def printable(text: str) -> str:
    """Return the text with control and direction marks spelled out: a trace is not to move the cursor."""
    return text if text.isprintable() else "".join(map(_spelled_out, text))


def _spelled_out(letter: str) -> str:
    if letter.isprintable():
        return letter
    return f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"


_PAGES: Mapping[str, Callable[[Document], Iterator[str]]] = {
    "campaign": _campaign_lines,
    "release": _release_lines,
    "task": _task_lines,
    "run": _run_lines,
}
