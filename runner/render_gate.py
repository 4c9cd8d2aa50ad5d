"""Declarations and verdicts for people and machines: the terminal, a step summary, annotations, and JUnit."""

from collections.abc import Iterator
from textwrap import wrap
from typing import Any
from xml.etree import ElementTree

from passhat.runner.render import count, short, some, table

Document = dict[str, Any]

WORDS = {"GO": "GO", "NO_GO": "NO-GO", "INCONCLUSIVE": "INCONCLUSIVE"}
_STATUS = {
    "declared": "declared {at}, before the runs",
    "exploratory": "declared {at}, after the runs: exploratory",
    "other": "declared {at}, and the runs were begun under another gate: exploratory",
    "undeclared": "not declared: exploratory",
    "unknown": "declared {at}; an import does not say when its runs were made",
}
_SUMMARY_BYTES = 900_000
_MOST_ANNOTATIONS = 10


def render_declaration(declaration: Document) -> str:
    """Return what `passhat declare` prints."""
    lines = [
        f"gate     {declaration['name']}   {short(declaration['digest'])}",
        f"declared {declaration['declared_at']}   {declaration['file']}",
    ]
    rows = [("rule", "metric", "required", "alpha", "fewest tasks")]
    for rule in declaration["rules"]:
        metric = rule["metric"] + (f" ({rule['cohort']})" if rule["cohort"] else "")
        alpha, fewest = rule["alpha"], rule["fewest_tasks"]
        rows.append(
            (rule["id"], metric, rule["required"], f"{alpha:g}" if alpha else "", str(fewest) if fewest else "")
        )
    lines += [line.rstrip() for line in table(rows)]
    never = [rule["id"] for rule in declaration["rules"] if not rule["can_pass"]]
    if never:
        lines.append(f"warning  no runs can let these pass: {', '.join(never)}")
    if any(rule["fewest_tasks"] for rule in declaration["rules"]):
        lines.append("with fewer tasks such a rule cannot pass, whatever the runs show")
    earlier = declaration["earlier_campaigns"]
    if earlier:
        named = some(earlier, 3)
        lines.append(
            f"warning  {count(len(earlier), 'campaign')} there already ({named}): a verdict on it is exploratory"
        )
    return "\n".join(lines) + "\n"


def render_verdict(verdict: Document) -> str:
    """Return what `passhat gate` prints: one line a rule, the word first."""
    return "\n".join(_verdict_lines(verdict)) + "\n"


def declared_text(gate: Document) -> str:
    """Say how declaration and runs stand in time."""
    text = _STATUS[gate["status"]].format(at=gate["declared_at"])
    earlier = len(gate["earlier_campaigns"])
    return f"{text}; {count(earlier, 'campaign')} there before it was declared" if earlier else text


def _verdict_lines(verdict: Document) -> Iterator[str]:
    gate = verdict["gate"]
    yield f"gate {gate['name']}   {declared_text(gate)}   {short(gate['digest'])}"
    yield f"{verdict['base']} → {verdict['candidate']}   {count(verdict['tasks'], 'task')}"
    words = {"pass": "PASS", "fail": "FAIL", "inconclusive": "OPEN"}
    rows = [("", "rule", "required", "observed")]
    rows += [(words[r["decision"]], r["id"], r["required"], r["observed"]) for r in verdict["rules"]]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for row, rule in zip(rows, [None, *verdict["rules"]], strict=True):
        yield "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip()
        for note in (rule["reason"], rule["assumes"] and f"assumes {rule['assumes']}") if rule else ():
            yield from (f"      {line}" for line in wrap(note or "", 74))
    yield f"{WORDS[verdict['verdict']]}  {conclusion(verdict)}"


def conclusion(verdict: Document) -> str:
    """Say in a sentence what the rules come to."""
    rules = verdict["rules"]
    failed = [rule["id"] for rule in rules if rule["decision"] == "fail"]
    still_open = [rule["id"] for rule in rules if rule["decision"] == "inconclusive"]
    if failed:
        return f"{len(failed)} of {count(len(rules), 'rule')} failed: {', '.join(failed)}"
    if still_open:
        return f"{len(still_open)} of {count(len(rules), 'rule')} are not settled: {', '.join(still_open)}"
    return f"all {count(len(rules), 'rule')} passed"


# GitHub


def render_step_summary(verdict: Document) -> str:
    """Return the verdict as Markdown, cut to what a step summary may hold."""
    gate = verdict["gate"]
    lines = [
        f"## {WORDS[verdict['verdict']]}: {_markdown(verdict['base'])} → {_markdown(verdict['candidate'])}",
        "",
        f"Gate {_markdown(gate['name'])}, {declared_text(gate)}, `{short(gate['digest'])}`.",
        f"{_markdown(conclusion(verdict))}.",
        "",
        "| decision | rule | required | observed | |",
        "|---|---|---|---|---|",
    ]
    for rule in verdict["rules"]:
        cells = (rule["decision"], rule["id"], rule["required"], rule["observed"], rule["reason"] or "")
        lines.append(f"| {' | '.join(map(_markdown, cells))} |")
    text = "\n".join(lines) + "\n"
    data = text.encode()
    if len(data) <= _SUMMARY_BYTES:
        return text
    return data[:_SUMMARY_BYTES].decode(errors="ignore").rpartition("\n")[0] + "\n\n… cut\n"


def _markdown(text: str) -> str:
    """Keep text what it is: names come from files."""
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>()#+!|~" else letter for letter in text).replace("\n", " ")


def render_annotations(verdict: Document) -> str:
    """Return one workflow command a failed rule, ten at most."""
    failed = [rule for rule in verdict["rules"] if rule["decision"] == "fail"][:_MOST_ANNOTATIONS]
    return "".join(
        f"::error title={_property(rule['id'])}::{_command(rule['required'] + ', observed ' + rule['observed'])}\n"
        for rule in failed
    )


def _command(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _command(text).replace(":", "%3A").replace(",", "%2C")


# JUnit


def render_junit(verdict: Document) -> str:
    """Return one test case a rule: a failed rule is a failure, one that is not settled an error."""
    rules = verdict["rules"]
    counts = {kind: str(sum(rule["decision"] == kind for rule in rules)) for kind in ("fail", "inconclusive")}
    suite = ElementTree.Element(
        "testsuite",
        name=_xml(f"gate {verdict['gate']['name']}: {WORDS[verdict['verdict']]}, {declared_text(verdict['gate'])}"),
        tests=str(len(rules)),
        failures=counts["fail"],
        errors=counts["inconclusive"],
    )
    for rule in rules:
        case = ElementTree.SubElement(suite, "testcase", classname=_xml(verdict["gate"]["name"]), name=_xml(rule["id"]))
        text = _xml(f"required {rule['required']}, observed {rule['observed']}")
        if rule["decision"] == "fail":
            ElementTree.SubElement(case, "failure", message=text).text = _xml(rule["reason"] or "")
        elif rule["decision"] == "inconclusive":
            ElementTree.SubElement(case, "error", message=text).text = _xml(rule["reason"] or "")
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _xml(text: str) -> str:
    """Put a mark in place of what XML 1.0 cannot hold."""
    return "".join(
        letter if letter in "\t\n" or _is_xml(ord(letter)) else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


def _is_xml(point: int) -> bool:
    return 0x20 <= point <= 0xD7FF or 0xE000 <= point <= 0xFFFD or point >= 0x10000
