"""Admission finds tasks that would measure themselves instead of an agent."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from passhat.workers.admission import examine
from passhat.workers.contract import CallRule, Contract, EffectRule, PayloadCheck, Step, Task
from passhat.workers.desk import Desk
from passhat.workers.desk_tasks import DeskTasks
from passhat.workers.session import compile_tools

TOOLS = compile_tools(Desk.spec)
TASKS = {task.template: task for task in DeskTasks(1, 300)}
CREDIT = TASKS["duplicate_charge"]
ESCALATE = TASKS["two_holders"]


def problems(task: Task) -> tuple[str, ...]:
    return examine(task, Desk(), TOOLS)


def with_contract(task: Task, **changes: object) -> Task:
    return replace(task, contract=replace(task.contract, **changes))


def tolerant(task: Task, path: str) -> PayloadCheck:
    """The check of a payload's value, made so lenient that a small mistake goes unseen."""
    return replace(next(check for check in task.contract.payload if check.path == path), absolute=5.0)


def without(task: Task, tool: str) -> Task:
    return replace(task, oracle=tuple(step for step in task.oracle if step.tool != tool))


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS.keys())
def test_every_template_is_admitted(task: Task) -> None:
    assert problems(task) == ()


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda: with_contract(CREDIT, outcomes=("REFUSED",)), "the oracle does not pass: outcome: must end REFUSED"),
        (
            lambda: without(CREDIT, "verify_requester"),
            "the oracle does not pass: trajectory: must call verify_requester",
        ),
        (lambda: replace(CREDIT, oracle=CREDIT.oracle[:-1]), "the oracle does not pass"),
        (
            lambda: with_contract(CREDIT, expect_effects=None, payload=(tolerant(CREDIT, "amount_minor"),)),
            "flaw wrong_amount fails nothing, expected outcome",
        ),
        (
            lambda: with_contract(CREDIT, must_call=(), order=(), expect_effects=None, payload=()),
            "an agent that does nothing and claims COMPLETED passes",
        ),
        (
            lambda: with_contract(ESCALATE, expect_effects=None, must_call=()),
            "an agent that does nothing and claims ESCALATED passes",
        ),
    ],
    ids=["outcome", "missing call", "no ending", "blind to amounts", "idle passes", "idle escalation passes"],
)
def test_a_task_that_measures_nothing_is_found(spoil: Callable[[], Task], found: str) -> None:
    assert [problem for problem in problems(spoil()) if problem.startswith(found)]


def test_without_an_oracle_only_the_trivial_agents_are_tried() -> None:
    task = Task(
        id="t", request="Do it.", world={"today": "2026-06-01", "tables": {}},
        contract=Contract(must_call=(CallRule(tool="get_account"),), expect_effects=(EffectRule(table="cases"),)),
    )  # fmt: skip
    assert problems(task) == ()
    assert problems(replace(task, contract=Contract())) == ("an agent that does nothing and claims COMPLETED passes",)


def test_an_oracle_that_does_not_repeat_is_found() -> None:
    class Drifting(Desk):
        """Remembers, between two runs, what it must not."""

        runs = 0

        def state_digest(self) -> bytes:
            self.runs += 1
            return self.runs.to_bytes(8, "big")

    assert examine(CREDIT, Drifting(), TOOLS) == ("the oracle does not repeat: two runs of it differ",)


def test_an_oracle_that_faults_is_found_with_the_reason() -> None:
    broken = replace(CREDIT, world={"tables": 7}, oracle=(Step(tool="get_account", arguments={"account_id": "x"}),))
    assert problems(broken)[0].startswith("the oracle does not pass: ")
