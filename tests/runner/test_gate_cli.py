"""`passhat compare`, `declare`, `gate` and `run --gate` as a user meets them: exit codes, formats, one document."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

GO = {"id": "here", "metric": "attempt_rate", "at_least": 0.5, "by": "estimate"}
NO = {"id": "too-high", "metric": "attempt_rate", "at_least": 0.99, "by": "estimate"}
OPEN = {"id": "too-few", "metric": "delta_attempt_rate", "at_least": -0.05}

Passhat = Callable[..., Any]


@pytest.fixture
def evidence(passhat: Passhat) -> str:
    """A campaign in which B passes 8 of 10 tasks, like A."""
    rows = ({"release": r, "task": f"t{i}", "run": 0, "passed": i < 8} for r in "AB" for i in range(10))
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert passhat("import", "rows.jsonl", "--out", "evidence").code == 0
    return "evidence"


def write_gate(*rules: dict[str, Any], **fields: Any) -> None:
    Path("gate.yaml").write_text(json.dumps({"name": "g", "baseline": "A", "candidate": "B", "rules": rules, **fields}))


@pytest.mark.parametrize(
    ("rules", "code", "word"),
    [((GO,), 0, "GO"), ((GO, OPEN), 3, "INCONCLUSIVE"), ((GO, OPEN, NO), 1, "NO_GO")],
)
def test_the_exit_code_is_the_verdict(
    passhat: Passhat, evidence: str, rules: tuple[dict[str, Any], ...], code: int, word: str
) -> None:
    write_gate(*rules)
    told = passhat("gate", "gate.yaml", evidence)
    assert told.code == code
    assert told.out.splitlines()[-1].startswith(word.replace("_", "-"))
    for form in ("json", "github", "junit"):
        assert passhat("gate", "gate.yaml", evidence, "--format", form).code == code


def test_json_is_exactly_one_document(passhat: Passhat, evidence: str) -> None:
    write_gate(GO, NO)
    asked = passhat("gate", "gate.yaml", evidence, "--json")
    document = asked.document
    assert (document["schema"], document["verdict"], asked.err) == ("passhat.verdict/1", "NO_GO", "")
    assert document["gate"]["status"] == "undeclared"
    assert [(rule["id"], rule["decision"]) for rule in document["rules"]] == [("here", "pass"), ("too-high", "fail")]
    assert passhat("gate", "gate.yaml", evidence, "--format", "json").out == asked.out
    compared = passhat("compare", evidence, "--json")
    assert (compared.code, compared.document["schema"], compared.err) == (0, "passhat.comparison/1", "")
    declared = passhat("declare", "gate.yaml", "--json")
    assert (declared.code, declared.document["schema"], declared.err) == (0, "passhat.declaration/1", "")


def test_github_gets_a_step_summary_beside_annotations(
    passhat: Passhat, evidence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gate(GO, {**NO, "id": "a|b"})
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    Path("summary.md").write_text("# before\n")
    answer = passhat("gate", "gate.yaml", evidence, "--format", "github")
    assert answer.out.splitlines()[-1] == "::error title=a|b::≥ 0.990, observed 0.800"
    summary = Path("summary.md").read_text()
    assert summary.startswith("# before\n## NO-GO: A → B\n")
    assert summary.endswith("| fail | a\\|b | ≥ 0.990 | 0.800 | the nearest attainable rates are 9/10 and 1 |\n")


def test_a_step_summary_that_cannot_be_written_changes_no_verdict(
    passhat: Passhat, evidence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gate(GO)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", os.path.join("nowhere", "summary.md"))
    answer = passhat("gate", "gate.yaml", evidence, "--format", "github")
    assert answer.code == 0
    assert "the step summary cannot be written" in answer.err


def test_junit_is_xml_with_a_case_a_rule(passhat: Passhat, evidence: str) -> None:
    write_gate(GO, OPEN, NO)
    suite = ElementTree.fromstring(passhat("gate", "gate.yaml", evidence, "--format", "junit").out)[0]
    assert [(case.get("name"), [child.tag for child in case]) for case in suite] == [
        ("here", []),
        ("too-few", ["error"]),
        ("too-high", ["failure"]),
    ]


def test_declaring_twice_keeps_the_time_and_a_change_ends_with_4(passhat: Passhat, evidence: str) -> None:
    write_gate(GO)
    first = passhat("declare", "gate.yaml", "--json").document
    assert passhat("declare", "gate.yaml", "--json").document == first
    write_gate({**GO, "at_least": 0.4})
    for command in (("declare", "gate.yaml"), ("gate", "gate.yaml", evidence)):
        refused = passhat(*command)
        assert (refused.code, refused.out) == (4, "")
        assert "changed after it was declared" in refused.err
        assert "rule here" in refused.err


def test_a_declaration_says_which_campaigns_were_there(passhat: Passhat) -> None:
    run = ("run", "desk", "--tasks", "5", "--runs", "1", "--workers", "0")
    assert passhat(*run).code == 0
    write_gate(GO, baseline="incumbent", candidate="candidate")
    assert "warning  1 campaign there already" in passhat("declare", "gate.yaml").out
    assert "after the runs: exploratory" in passhat("gate", "gate.yaml").out
    assert passhat(*run).code == 0
    assert "before the runs; 1 campaign there before it was declared" in passhat("gate", "gate.yaml").out


def test_a_campaign_is_begun_under_a_gate_that_was_declared(passhat: Passhat) -> None:
    run = ("run", "desk", "--tasks", "5", "--runs", "1", "--workers", "0", "--gate", "gate.yaml")
    write_gate(GO, baseline="incumbent", candidate="candidate")
    for more in ((), ("--dry-run",)):
        refused = passhat(*run, *more)
        assert (refused.code, refused.out) == (4, "")
        assert "gate.yaml: not declared" in refused.err
        assert "passhat declare gate.yaml" in refused.err
    assert not Path("results").exists()
    digest = passhat("declare", "gate.yaml", "--json").document["digest"]
    assert passhat(*run).code == 0
    assert json.loads(Path("results/latest/manifest.json").read_text())["gate"]["digest"] == digest
    Path("gate.yaml.declared.json").unlink()
    assert passhat("gate", "gate.yaml", "--json").document["gate"]["status"] == "declared"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("gate", "gate.yaml", "evidence", "--format", "html"), 2, "allowed are text, json, github, junit"),
        (("gate", "gate.yaml", "evidence", "--cand", "C"), 4, 'candidate: declared is "B", asked for "C"'),
        (("gate", "gate.yaml", "a", "b", "c"), 2, "name one campaign, or two"),
        (("gate", "nowhere.yaml", "evidence"), 1, "nowhere.yaml: no such file"),
        (("gate", "gate.yaml", "nowhere"), 1, "nowhere: no such campaign folder"),
        (("compare", "evidence", "--cand", "C"), 5, 'candidate "C": no such release'),
        (("compare", "evidence", "--base", "A", "--cand", "A"), 2, "named as both baseline and candidate"),
    ],
)
def test_what_cannot_be_done_is_told_with_its_exit_code(
    passhat: Passhat, evidence: str, arguments: tuple[str, ...], code: int, message: str
) -> None:
    write_gate(GO)
    answer = passhat(*arguments)
    assert (answer.code, answer.out) == (code, "")
    assert message in " ".join(answer.err.split())


def test_a_gate_without_names_asks_for_them(passhat: Passhat, evidence: str) -> None:
    write_gate(GO, baseline=None, candidate=None)
    assert passhat("gate", "gate.yaml", evidence).code == 2
    assert passhat("gate", "gate.yaml", evidence, "--base", "A", "--cand", "B").code == 0


def test_scores_are_imported_by_a_pass_mark(passhat: Passhat) -> None:
    Path("s.csv").write_text("release,task,run,reward\nA,t,0,0.8\nA,u,0,0.79\nA,v,0,nan\n")
    command = ("import", "s.csv", "--map", "score=reward", "--out", "scored")
    assert passhat(*command).code == 2
    assert passhat(*command, "--pass-mark", "1.5").code == 2
    assert passhat(*command, "--pass-mark", "nan").code == 2
    assert passhat(*command, "--pass-mark", "0.8").code == 0
    counts = passhat("report", "scored", "--json").document["releases"][0]["counts"]
    assert (counts["passed"], counts["failed"], counts["invalid"]) == (1, 1, 1)
    assert json.loads(Path("scored/manifest.json").read_text())["pass_mark"] == 0.8


def test_the_schema_of_a_gate_lists_its_metrics(passhat: Passhat) -> None:
    schema = passhat("schema", "gate").document
    assert schema["title"] == "passhat gate file"
    metric = schema["$defs"]["RuleFile"]["properties"]["metric"]
    assert {"delta_pass_hat", "new_forbidden_calls", "turns"} <= set(metric["enum"])
