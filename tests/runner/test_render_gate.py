"""Verdicts and declarations as text, Markdown, workflow commands and JUnit: names from files stay names."""

from typing import Any
from xml.etree import ElementTree

import pytest

from passhat.runner.render_gate import (
    conclusion,
    declared_text,
    render_annotations,
    render_declaration,
    render_junit,
    render_step_summary,
    render_verdict,
)

Document = dict[str, Any]
DIGEST = "sha256:" + "0123456789abcdef" * 4
AT = "2026-11-29T08:12:00.000Z"
HOSTILE = "<b>|`x` *y*\N{RIGHT-TO-LEFT OVERRIDE}"


def rule(decision: str, name: str = "no-worse", **more: Any) -> Document:
    return {
        "id": name,
        "required": "> -5.0 points at its bound",
        "observed": "0.0 [-3.1, +3.1] points",
        "decision": decision,
        "reason": None,
        "assumes": None,
        **more,
    }


def verdict(*rules: Document, word: str = "GO", **gate: Any) -> Document:
    return {
        "verdict": word,
        "base": "1.0",
        "candidate": "1.1",
        "tasks": 100,
        "rules": list(rules),
        "gate": {
            "name": "g",
            "digest": DIGEST,
            "declared_at": AT,
            "status": "declared",
            "earlier_campaigns": [],
            **gate,
        },
    }


# The terminal


def test_a_verdict_is_one_line_a_rule_with_the_word_first() -> None:
    document = verdict(
        rule("pass"),
        rule("fail", "veto", required="≤ 0 runs", observed="1 run: t/0"),
        rule("inconclusive", "gain", reason="12 more tasks like these would do", assumes="that tasks are alike"),
        word="NO_GO",
    )
    assert render_verdict(document).splitlines() == [
        f"gate g   declared {AT}, before the runs   sha256:0123456789abcdef",
        "1.0 → 1.1   100 tasks",
        "      rule      required                    observed",
        "PASS  no-worse  > -5.0 points at its bound  0.0 [-3.1, +3.1] points",
        "FAIL  veto      ≤ 0 runs                    1 run: t/0",
        "OPEN  gain      > -5.0 points at its bound  0.0 [-3.1, +3.1] points",
        "      12 more tasks like these would do",
        "      assumes that tasks are alike",
        "NO-GO  1 of 3 rules failed: veto",
    ]


@pytest.mark.parametrize(
    ("decisions", "text"),
    [
        (("pass",), "all 1 rule passed"),
        (("pass", "pass"), "all 2 rules passed"),
        (("pass", "inconclusive"), "1 of 2 rules are not settled: r1"),
        (("inconclusive", "fail", "fail"), "2 of 3 rules failed: r1, r2"),
    ],
)
def test_the_conclusion_names_the_rules_that_keep_it_from_a_go(decisions: tuple[str, ...], text: str) -> None:
    assert conclusion(verdict(*(rule(d, f"r{i}") for i, d in enumerate(decisions)))) == text


@pytest.mark.parametrize(
    ("gate", "text"),
    [
        ({}, f"declared {AT}, before the runs"),
        ({"status": "exploratory"}, f"declared {AT}, after the runs: exploratory"),
        ({"status": "undeclared", "declared_at": None}, "not declared: exploratory"),
        ({"status": "other"}, f"declared {AT}, and the runs were begun under another gate: exploratory"),
        ({"status": "unknown"}, f"declared {AT}; an import does not say when its runs were made"),
        ({"earlier_campaigns": ["x"]}, f"declared {AT}, before the runs; 1 campaign there before it was declared"),
    ],
)
def test_how_declaration_and_runs_stand_in_time_is_said(gate: Document, text: str) -> None:
    assert declared_text(verdict(**gate)["gate"]) == text


def test_a_declaration_says_what_can_pass_and_what_was_there_already() -> None:
    needs = {"metric": "delta_attempt_rate", "cohort": None, "alpha": 0.025, "fewest_tasks": 72, "can_pass": True}
    never = {"metric": "attempt_rate", "cohort": "hard", "alpha": None, "fewest_tasks": None, "can_pass": False}
    text = render_declaration(
        {
            "name": "g",
            "digest": DIGEST,
            "declared_at": AT,
            "file": "gate.yaml.declared.json",
            "earlier_campaigns": ["c1", "c2", "c3", "c4"],
            "rules": [{"id": "a", "required": "> -5", **needs}, {"id": "b", "required": "≥ 1", **never}],
        }
    )
    assert text.splitlines() == [
        "gate     g   sha256:0123456789abcdef",
        f"declared {AT}   gate.yaml.declared.json",
        "rule               metric  required  alpha  fewest tasks",
        "a      delta_attempt_rate      > -5  0.025            72",
        "b     attempt_rate (hard)       ≥ 1",
        "warning  no runs can let these pass: b",
        "with fewer tasks such a rule cannot pass, whatever the runs show",
        "warning  4 campaigns there already (c1, c2, c3, …): a verdict on it is exploratory",
    ]


# GitHub


def test_a_step_summary_is_a_table_in_which_names_are_no_markup() -> None:
    text = render_step_summary(verdict(rule("fail", HOSTILE, reason="a\nb"), word="NO_GO"))
    assert text.startswith("## NO-GO: 1.0 → 1.1\n\nGate g, declared ")
    assert "1 of 1 rule failed: \\<b\\>\\|" in text
    row = text.splitlines()[-1]
    assert row.startswith("| fail | \\<b\\>\\|\\`x\\` \\*y\\*")
    assert row.replace("\\|", "").count("|") == 6
    assert row.endswith("| a b |")


def test_a_step_summary_is_cut_at_a_line_within_900_kilobytes() -> None:
    rules = [rule("pass", f"rule {i} " + "ä" * 500) for i in range(2_000)]
    text = render_step_summary(verdict(*rules))
    assert len(text.encode()) <= 900_000 + len("\n\n… cut\n".encode())
    assert text.endswith("points |  |\n\n… cut\n")
    assert render_step_summary(verdict(*rules[:3])).count("\n| pass |") == 3


def test_each_failed_rule_is_an_annotation_up_to_ten() -> None:
    many = verdict(*(rule("fail", f"r{i}") for i in range(12)), rule("pass", "fine"), rule("inconclusive", "open"))
    lines = render_annotations(many).splitlines()
    assert lines[0] == "::error title=r0::> -5.0 points at its bound, observed 0.0 [-3.1, +3.1] points"
    assert [line.split("::")[1] for line in lines] == [f"error title=r{i}" for i in range(10)]


def test_an_annotation_cannot_start_another_command() -> None:
    text = render_annotations(verdict(rule("fail", "a:b,c%", observed="100%\n::set-env name=x::y\r")))
    assert text == (
        "::error title=a%3Ab%2Cc%25::> -5.0 points at its bound, observed 100%25%0A::set-env name=x::y%0D\n"
    )


# JUnit


def test_junit_counts_failures_and_open_rules_as_errors() -> None:
    rules = [rule("pass", "a"), rule("fail", "b", reason="why"), rule("inconclusive", "c"), rule("fail", "d")]
    root = ElementTree.fromstring(render_junit(verdict(*rules, word="NO_GO")))
    [suite] = root
    assert (root.tag, suite.tag) == ("testsuites", "testsuite")
    assert {name: suite.get(name) for name in ("tests", "failures", "errors")} == {
        "tests": "4",
        "failures": "2",
        "errors": "1",
    }
    assert suite.get("name") == f"gate g: NO-GO, declared {AT}, before the runs"
    cases = {case.get("name"): [child.tag for child in case] for case in suite}
    assert cases == {"a": [], "b": ["failure"], "c": ["error"], "d": ["failure"]}
    failure = suite.find("testcase[@name='b']/failure")
    assert failure is not None
    assert (failure.text, failure.get("message")) == (
        "why",
        "required > -5.0 points at its bound, observed 0.0 [-3.1, +3.1] points",
    )


@pytest.mark.parametrize("name", [HOSTILE, "]]>", "a\x00b", "\ud800", "\ufffe", 'q"&<'])
def test_whatever_a_rule_is_called_the_xml_can_be_read(name: str) -> None:
    root = ElementTree.fromstring(render_junit(verdict(rule("fail", name))))
    case = root.find("testsuite/testcase")
    assert case is not None
    shown = (case.get("name") or "").replace("\N{REPLACEMENT CHARACTER}", "")
    assert shown == "".join(letter for letter in name if letter not in "\x00\ud800\ufffe")
