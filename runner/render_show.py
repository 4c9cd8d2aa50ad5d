"""What `passhat show` prints: a campaign, a release's failures, a task's runs, or one run call by call."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from passhat.runner.render import render_summary, short, table

Document = dict[str, Any]

_WIDEST = 100
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
    yield f"attempt {record['attempt']}  {record['status']}  {ended}{reason}   digest {record['digest']}"
    for name, score in record["scores"].items():
        yield f"  {name:<12}{'pass' if score['passed'] else 'FAIL'}  {score['score']:.2f}"
    if record["safety"]:
        yield f"  safety      {', '.join(record['safety'])}"
    used = [f"{name} {record[name]}" for name in ("turns", "tokens_in", "tokens_out", "virtual_ms") if name in record]
    if "cost_usd" in record:
        used.append(f"cost ${record['cost_usd']:.4f}")
    yield f"  used        {'  '.join(used)}"


def _trace_lines(trace: Document) -> Iterator[str]:
    yield ""
    yield f"request     {trace['request']}"
    for key, value in trace["inputs"].items():
        yield f"  {key}: {_value(value)}"
    for number, call in enumerate(trace["calls"], 1):
        yield ""
        arguments = ", ".join(f"{name}={_value(value)}" for name, value in call["arguments"].items())
        yield f"{number:>3}  {call['tool']}({arguments})"
        answer = f"error {call['error']}  " if call["error"] else ""
        yield f"       → {answer}{_value(call['result'])}"
        if call["receipt"]:
            yield f"       receipt {call['receipt']['id']}"
    yield ""
    if trace["final"]:
        yield f"final       {trace['final']['status']}  {trace['final']['message']}"
        if trace["final"]["payload"]:
            yield f"            {_value(trace['final']['payload'])}"
    for effect in trace["effects"]:
        change = f"{_value(effect['before'])} → {_value(effect['after'])}"
        yield f"effect      {effect['table']} {effect['key']} {effect['column']}: {change}"
    for title, lines in (("missed", trace["findings"]), ("log", trace["log"]), ("error", [trace["error"]])):
        for line in lines:
            if line:
                yield f"{title:<12}{line}"


def _value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST]}… ({len(text)} characters)"


def printable(text: str) -> str:
    """Return the text with control and direction marks spelled out: a trace is not to move the cursor."""
    return "".join(letter if letter.isprintable() else f"\\u{ord(letter):04x}" for letter in text)


_PAGES: Mapping[str, Callable[[Document], Iterator[str]]] = {
    "campaign": _campaign_lines,
    "release": _release_lines,
    "task": _task_lines,
    "run": _run_lines,
}
