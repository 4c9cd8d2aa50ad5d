"""The script that breaks the scorers finds every check, and its verdicts are right: a few of its mutants, tried."""

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "mutate_scoring.py"
MUTATION = runpy.run_path(str(SCRIPT))
SOURCE = MUTATION["SOURCE"].read_text()
MUTANTS = MUTATION["mutants"](SOURCE)


def named(name: str) -> int:
    (mutant,) = [mutant for mutant in MUTANTS if mutant.name == name]
    return int(mutant.number)


def tried(*numbers: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, numbers)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_condition_and_every_finding_has_a_mutant() -> None:
    tree = ast.parse(SOURCE)
    conditions = [node for node in ast.walk(tree) if isinstance(node, ast.If)]
    misses = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node).startswith("tally.miss(")
    ]
    assert len(conditions) > 30
    assert len(misses) > 10
    changed = {(type(mutant.change.node), mutant.line) for mutant in MUTANTS}
    assert {(ast.If, node.lineno) for node in conditions} | {(ast.Expr, node.lineno) for node in misses} <= changed


def test_a_mutant_is_the_module_with_one_change() -> None:
    for number in (0, len(MUTANTS) // 2, len(MUTANTS) - 1):
        mutant = MUTATION["mutants"](SOURCE)[number]
        mutant.code()
        before, after = ast.unparse(ast.parse(SOURCE)).splitlines(), ast.unparse(mutant.tree).splitlines()
        assert sum(one != other for one, other in zip(before, after, strict=True)) == 1, mutant.name


def test_names_of_mutants_that_need_not_be_killed_are_of_mutants_there_are() -> None:
    assert set(MUTATION["EQUIVALENT"]) <= {mutant.name for mutant in MUTANTS}


@pytest.mark.parametrize(
    ("name", "killed_by"),
    [
        ("_mismatch: if rule.receipt and call.result.receipt is None: … → if False: …", "test_scoring"),
        ("_judge_efficiency: used > ceiling → used >= ceiling", "test_scoring"),
    ],
)
def test_a_check_that_is_broken_is_noticed(name: str, killed_by: str) -> None:
    answer = tried(named(name))
    assert answer.returncode == 0, answer.stderr
    assert re.search(rf"killed by .*{killed_by}", answer.stdout)
    assert answer.stdout.endswith("1 mutants: 1 killed, 0 equivalent, 0 survive\n")


def test_a_change_that_changes_nothing_survives() -> None:
    answer = tried(named("module: 1024 → 1025"))
    assert answer.stdout.endswith("1 mutants: 0 killed, 1 equivalent, 0 survive\n")
