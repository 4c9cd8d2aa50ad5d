"""`passhat suite validate`: which tasks may be in a suite, and why the others may not."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from passhat.workers.contract import CallRule, Contract, Task, task_content
from passhat.workers.desk_tasks import TEMPLATES, DeskTasks

TASKS = DeskTasks(1, 100)[:]
CREDIT = TASKS[0]
AMOUNT = next(check.equals for check in CREDIT.contract.payload if check.path == "amount_minor")
LEAKING = replace(CREDIT, id="leaking", request=f"{CREDIT.request} It was {AMOUNT}.")
NO_CALLS = Contract(must_not_call=(CallRule(tool="get_account"), CallRule(tool="export_records")))
EMPTY = Task(id="empty", cohort="own", request="Do it.", world=CREDIT.world, contract=NO_CALLS)

Passhat = Callable[..., Any]


def write_suite(*tasks: Task, environment: str = "desk", **keys: Any) -> str:
    Path("tasks.jsonl").write_text("".join(json.dumps(task_content(task)) + "\n" for task in tasks))
    suite = {"name": "own", "version": "1", "environment": environment, "tasks": "tasks.jsonl", **keys}
    Path("own.yaml").write_text(json.dumps(suite))
    return "own.yaml"


def test_the_desk_is_admitted_whole_and_every_template_named(passhat: Passhat) -> None:
    answer = passhat("suite", "validate", "desk", "--tasks", "60")
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[1] == "tasks    60 examined, 60 admitted, 0 rejected"
    named = [tuple(line.split()[:2]) for line in lines[4:]]
    assert named == [(cohort, name) for cohort, templates in TEMPLATES.items() for name in sorted(templates)]
    assert sum(int(line.split()[2]) for line in lines[4:]) == sum(int(line.split()[3]) for line in lines[4:]) == 60


def test_json_says_the_same_in_one_document(passhat: Passhat) -> None:
    document = passhat("suite", "validate", "desk", "--tasks", "20", "--json").document
    assert document["schema"] == "passhat.suite-validation/1"
    assert {key: document["suite"][key] for key in ("name", "version", "environment")} == {
        "name": "desk", "version": "1", "environment": "desk"
    }  # fmt: skip
    assert document["suite"]["digest"].startswith("sha256:")
    assert (document["examined"], document["admitted"]) == (20, 20)
    assert (document["rejected"], document["unchecked"]) == ([], {})
    assert document["templates"][0] == {
        "cohort": "routine", "template": "charges_in_april", "tasks": 1, "admitted": 1
    }  # fmt: skip


def test_rejections_name_task_check_and_reason_and_end_with_1(passhat: Passhat) -> None:
    suite = write_suite(CREDIT, LEAKING, EMPTY)
    answer = passhat("suite", "validate", suite)
    assert answer.code == 1
    reason = f"{AMOUNT} (payload amount_minor) is given away; if it is meant to be known, put it in inputs"
    assert answer.out.splitlines()[1:] == [
        "tasks    3 examined, 1 admitted, 2 rejected",
        "         not checked for want of an oracle: oracle, in 1 of 3 tasks",
        "         not checked for want of an oracle: flaws, in 1 of 3 tasks",
        "",
        "cohort   template          tasks  admitted",
        "routine  duplicate_charge      2         1",
        "own      —                     1         0",
        "",
        "rejected",
        f"  leaking  leak: {reason}",
        "  empty  trivial agent: complete passes, though it understands nothing",
    ]
    document = passhat("suite", "validate", suite, "--json").document
    assert document["rejected"][0] == {
        "task": "leaking",
        "cohort": "routine",
        "template": "duplicate_charge",
        "check": "leak",
        "reason": reason,
    }
    assert document["unchecked"] == {"oracle": 1, "flaws": 1}
    assert (document["examined"], document["admitted"], len(document["rejected"])) == (3, 1, 2)


def test_the_first_tasks_alone_may_be_examined(passhat: Passhat) -> None:
    answer = passhat("suite", "validate", write_suite(CREDIT, LEAKING), "--tasks", "1")
    assert answer.code == 0
    assert "tasks    1 examined, 1 admitted, 0 rejected" in answer.out


def test_the_suites_own_limits_hold(passhat: Passhat) -> None:
    document = passhat("suite", "validate", write_suite(CREDIT, limits={"turns": 2}), "--json").document
    assert {problem["check"] for problem in document["rejected"]} == {"oracle"}


def test_a_dry_run_finds_the_same(passhat: Passhat) -> None:
    suite = write_suite(CREDIT, LEAKING)
    Path("validated_agent.py").write_text("def run(task, tools, ctx):\n    return None\n")
    plan = passhat("run", suite, "-r", "validated_agent:run", "--dry-run", "--json").document
    rejected = passhat("suite", "validate", suite, "--json").document["rejected"]
    assert plan["admission"] == {
        "examined": 2,
        "rejected": {problem["task"]: [f"{problem['check']}: {problem['reason']}"] for problem in rejected},
    }


def test_a_users_environment_is_used_and_what_it_prints_is_no_part_of_the_answer(passhat: Passhat) -> None:
    Path("validated_world.py").write_text(
        "from passhat.workers.desk import Desk\n\n\n"
        "class Loud(Desk):\n    def reset(self, *, seed, options):\n        print('hello')\n"
        "        super().reset(seed=seed, options=options)\n"
    )
    answer = passhat("suite", "validate", write_suite(CREDIT, environment="validated_world:Loud"), "--json")
    assert (answer.code, answer.document["admitted"]) == (0, 1)
    assert "hello" in answer.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nowhere.yaml"], 2, "no such suite file"),
        (["desk", "--tasks", "0"], 2, "expected at least 1"),
        ([], 2, "Missing argument"),
        (["own.yaml", "--tasks", "9"], 2, "has 1 tasks"),
        (["broken.yaml"], 1, "broken.yaml"),
        (["no_world.yaml"], 1, "cannot"),
    ],
)
def test_what_cannot_be_examined_is_refused(passhat: Passhat, arguments: list[str], code: int, words: str) -> None:
    Path("broken.yaml").write_text("name: [")
    Path("validated_nowhere.py").write_text("raise RuntimeError('no database here')\n")
    write_suite(CREDIT, environment="validated_nowhere:build")
    Path("own.yaml").rename("no_world.yaml")
    write_suite(CREDIT)
    answer = passhat("suite", "validate", *arguments)
    assert (answer.code, answer.out) == (code, "")
    assert words in answer.err
