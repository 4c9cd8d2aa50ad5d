"""Admission finds tasks that would measure themselves instead of an agent."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from passhat.workers import admission
from passhat.workers.admission import Examination, Problem, examine
from passhat.workers.contract import CallRule, Ceilings, Contract, EffectRule, PayloadCheck, Step, Task
from passhat.workers.desk import Desk
from passhat.workers.desk_tasks import TEMPLATES, DeskTasks
from passhat.workers.environment import Principal, ToolResult
from passhat.workers.flaws import FLAWS, Flaw, Script
from passhat.workers.order import Limits
from passhat.workers.session import compile_tools

TOOLS = compile_tools(Desk.spec)
SUITE = DeskTasks(1, 300)[:]
TASKS = {task.template: task for task in reversed(SUITE)}
CREDIT = TASKS["duplicate_charge"]
ESCALATE = TASKS["two_holders"]
AMOUNT = next(check.equals for check in CREDIT.contract.payload if check.path == "amount_minor")


def problems(task: Task, **more: Any) -> tuple[Problem, ...]:
    return examine(task, Desk(), TOOLS, **more).problems


def with_contract(task: Task, **changes: object) -> Task:
    return replace(task, contract=replace(task.contract, **changes))


def tolerant(task: Task, path: str) -> PayloadCheck:
    """The check of a payload's value, made so lenient that a small mistake goes unseen."""
    return replace(next(check for check in task.contract.payload if check.path == path), absolute=5.0)


def without(task: Task, tool: str) -> Task:
    return replace(task, oracle=tuple(step for step in task.oracle if step.tool != tool))


def test_there_is_a_task_of_every_template() -> None:
    assert TASKS.keys() == {template for templates in TEMPLATES.values() for template in templates}


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS.keys())
def test_every_template_is_admitted(task: Task) -> None:
    assert examine(task, Desk(), TOOLS) == Examination((), ())


def test_every_task_of_a_suite_is_admitted() -> None:
    assert {task.id: problems(task, sets=1) for task in SUITE} == {task.id: () for task in SUITE}


# The oracle


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda: with_contract(CREDIT, outcomes=("REFUSED",)), "does not pass: outcome: must end REFUSED"),
        (lambda: without(CREDIT, "verify_requester"), "does not pass: trajectory: must call verify_requester"),
        (lambda: replace(CREDIT, oracle=CREDIT.oracle[:-1]), "does not pass"),
        (lambda: with_contract(CREDIT, ceilings=Ceilings(turns=2)), "does not pass: efficiency: at most 2 turns"),
    ],
    ids=["outcome", "missing call", "no ending", "ceiling"],
)
def test_an_oracle_that_does_not_pass_is_found_with_what_it_missed(spoil: Callable[[], Task], found: str) -> None:
    against = problems(spoil())
    assert {problem.check for problem in against} == {"oracle"}
    assert any(problem.text.startswith(found) for problem in against)


def test_the_limits_of_the_suite_hold_for_the_oracle() -> None:
    short = problems(CREDIT, limits=Limits(turns=3))
    assert [problem.check for problem in short][:1] == ["oracle"]
    assert "TURN_LIMIT" in short[0].text


def test_an_oracle_that_faults_is_found_with_the_reason() -> None:
    broken = replace(CREDIT, world={"tables": 7}, oracle=(Step(tool="get_account", arguments={"account_id": "x"}),))
    assert [problem.check for problem in problems(broken)] == ["oracle"]


# Replay


def test_a_state_that_does_not_repeat_is_found() -> None:
    class Drifting(Desk):
        """Remembers, between two runs, what it must not."""

        runs = 0

        def state_digest(self) -> bytes:
            self.runs += 1
            return self.runs.to_bytes(8, "big")

    found = "two runs of the oracle with one seed differ, in the final state"
    assert examine(CREDIT, Drifting(), TOOLS).problems == (Problem("replay", found),)
    found = "two runs of random calls with one seed differ, in the final state"
    assert examine(replace(CREDIT, oracle=()), Drifting(), TOOLS).problems == (Problem("replay", found),)


def test_an_answer_that_does_not_repeat_is_found_at_its_call() -> None:
    class Counting(Desk):
        count = 0

        def call(self, name: str, arguments: Mapping[str, Any], *, principal: Principal) -> ToolResult:
            result = super().call(name, arguments, principal=principal)
            self.count += 1
            return replace(result, content={**result.content, "n": self.count}) if name == "get_account" else result

    (problem,) = examine(CREDIT, Counting(), TOOLS).problems
    assert problem == Problem("replay", "two runs of the oracle with one seed differ, first at call 1, get_account")


# Trivial agents


LOOKED = CallRule(tool="get_account")
ENDS = {
    "complete": with_contract(CREDIT, must_call=(), order=(), expect_effects=None, payload=()),
    "escalate": with_contract(ESCALATE, expect_effects=None, must_call=(), order=()),
    "refuse": with_contract(CREDIT, outcomes=("REFUSED",), must_call=(), order=(), expect_effects=None, payload=()),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_task_that_an_agent_passes_by_its_claim_alone_is_found(name: str) -> None:
    assert Problem("trivial agent", f"{name} passes, though it understands nothing") in problems(ENDS[name])


def test_a_reason_code_alone_is_guessed() -> None:
    """Asking for one of nine codes does not help without a look; asking for a look does."""
    task = with_contract(TASKS["missing_record"], must_call=())
    found = {problem.text.split()[0] for problem in problems(task) if problem.check == "trivial agent"}
    assert {"escalate", "refuse"} <= found
    assert not problems(with_contract(task, must_call=(CallRule(tool="list_ledger_entries"),)), sets=0)


def test_what_is_asked_for_may_be_known_from_the_inputs() -> None:
    task = with_contract(
        CREDIT,
        must_call=(),
        order=(),
        expect_effects=None,
        payload=(PayloadCheck(path="account_id", equals=CREDIT.inputs["account_id"]),),
    )
    assert Problem("trivial agent", "complete passes, though it understands nothing") in problems(task)


def test_random_calls_meet_a_contract_that_asks_for_any_call() -> None:
    task = Task(
        id="t", request="Look.", principal=CREDIT.principal, world=CREDIT.world, inputs=CREDIT.inputs,
        contract=Contract(outcomes=("COMPLETED", "ESCALATED", "REFUSED"), must_call=(LOOKED,)),
    )  # fmt: skip
    found = {problem for i in range(4) for problem in problems(replace(task, id=f"t{i}"))}
    assert found == {Problem("trivial agent", "random passes, though it understands nothing")}


def test_an_agent_may_pass_where_the_task_says_so_and_must_then() -> None:
    told = replace(ENDS["escalate"], passes_trivially=("escalate",))
    assert not [p for p in problems(told) if p.text.startswith("escalate")]
    assert problems(replace(CREDIT, passes_trivially=("refuse", "shrug"))) == (
        Problem("trivial agent", "refuse does not pass, though the task says that it may"),
        Problem(
            "trivial agent",
            "passes_trivially: no agent is called 'shrug'; there are noop, complete, escalate, refuse, random",
        ),
    )


# Flaws


def test_a_contract_that_is_blind_to_a_flaw_is_found() -> None:
    blind = with_contract(CREDIT, expect_effects=None, payload=(tolerant(CREDIT, "amount_minor"),))
    assert Problem("flaw", "wrong_amount fails nothing, expected outcome") in problems(blind)


def test_a_flaw_that_hides_another_is_found_by_trying_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """A made-up flaw undoes skip_verify: each alone behaves, together they do not."""

    def restore(script: Script, task: Task) -> Script:
        there = {move.step for move in script}
        missing = [
            (i, step) for i, step in enumerate(task.oracle) if step.tool == "verify_requester" and i not in there
        ]
        move = script[0]
        added = [move._replace(step=i, tool=step.tool, arguments=step.arguments) for i, step in missing]
        canary = move._replace(
            step=None, tool="export_records", arguments={"tenant_id": task.principal.tenant, "scope": "all"}
        )
        return (script[0], *added, *(move for move in script[1:-1]), *([] if added else [canary]), script[-1])

    two = {"skip_verify": FLAWS["skip_verify"], "undo": Flaw((), lambda task: ["trajectory"], restore)}
    monkeypatch.setattr(admission, "FLAWS", two)
    monkeypatch.setattr("passhat.workers.flaws.FLAWS", two)
    monkeypatch.setattr("passhat.workers.chances.FLAWS", two)
    assert problems(CREDIT) == (Problem("flaws together", "skip_verify, undo fail nothing, expected trajectory"),)
    assert problems(CREDIT, sets=0) == ()


# Leaks


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda: replace(CREDIT, request=f"{CREDIT.request} It was {AMOUNT}."), f"{AMOUNT} (payload amount_minor)"),
        (
            lambda: replace(CREDIT, request=f"{CREDIT.request} It was {AMOUNT / 100:,.2f} EUR."),
            f"{AMOUNT} (payload amount_minor)",
        ),
        (lambda: replace(CREDIT, policy=f"{CREDIT.policy} {AMOUNT}"), f"{AMOUNT} (payload amount_minor)"),
        (
            lambda: replace(CREDIT, output_schema={**(CREDIT.output_schema or {}), "enum": [AMOUNT]}),
            f"{AMOUNT} (payload amount_minor)",
        ),
        (
            lambda: with_contract(replace(CREDIT, policy=f"{CREDIT.policy} Say AB-12."), expect_text=("AB-12",)),
            "'AB-12' (text of the message)",
        ),
        (
            lambda: with_contract(
                replace(CREDIT, request=f"{CREDIT.request} Not {AMOUNT}!"), payload=CREDIT.contract.payload[:1]
            ),
            f"{AMOUNT} (effect on credits)",
        ),
        (
            lambda: with_contract(
                replace(
                    TASKS["amount_missing"],
                    request=f"Credit {TASKS['amount_missing'].world['requester']['answers']['amount_minor']}.",
                ),
                payload=(),
                expect_effects=(EffectRule(table="credits"), EffectRule(table="entries"), EffectRule(table="accounts")),
            ),
            f"{TASKS['amount_missing'].world['requester']['answers']['amount_minor']} (step",
        ),
    ],
    ids=["request", "in major units", "policy", "output schema", "message", "effect", "an answer the oracle uses"],
)
def test_an_answer_in_the_public_part_is_found(spoil: Callable[[], Task], found: str) -> None:
    task = spoil()
    said = task.contract.expect_text
    oracle = tuple(
        replace(step, arguments={**step.arguments, "message": " ".join(said)}) if step.tool == "submit_result" else step
        for step in task.oracle
    )
    leaks = [problem.text for problem in problems(replace(task, oracle=oracle)) if problem.check == "leak"]
    assert len(leaks) == 1
    assert leaks[0].startswith(found)
    assert leaks[0].endswith("is given away; if it is meant to be known, put it in inputs")


@pytest.mark.parametrize(
    "task",
    [
        replace(CREDIT, request=f"{CREDIT.request} It was {AMOUNT}.", inputs={**CREDIT.inputs, "told": AMOUNT}),
        replace(CREDIT, request=f"{CREDIT.request} Ticket {AMOUNT}7, or 1{AMOUNT}, or {AMOUNT}.50."),
        replace(CREDIT, request=f"{CREDIT.request} It is a credit in {CREDIT.world['today'][:2]} of {AMOUNT % 100}."),
    ],
    ids=["in the inputs", "part of another number", "words and small numbers"],
)
def test_what_is_known_on_purpose_or_by_accident_is_no_leak(task: Task) -> None:
    assert [problem for problem in problems(task, sets=0) if problem.check == "leak"] == []


# Without an oracle


def test_without_an_oracle_the_checks_that_cannot_be_made_are_named() -> None:
    task = Task(
        id="t", request="Do it.", world={"today": "2026-06-01", "tables": {}},
        contract=Contract(must_call=(LOOKED,), expect_effects=(EffectRule(table="cases"),)),
    )  # fmt: skip
    assert examine(task, Desk(), TOOLS) == Examination((), ("oracle", "flaws"))
    bare = problems(replace(task, contract=Contract()))
    assert bare[0] == Problem("trivial agent", "complete passes, though it understands nothing")


def test_a_users_environment_that_changes_its_options_is_given_its_own_each_time() -> None:
    class Eating(Desk):
        """Takes the tables out of what it is given."""

        def reset(self, *, seed: int, options: Mapping[str, Any]) -> None:
            super().reset(seed=seed, options=dict(options))
            options.clear()  # type: ignore[attr-defined]

    class Wrapped:
        spec = Desk.spec

        def __init__(self) -> None:
            self.desk = Eating()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.desk, name)

    assert examine(CREDIT, Wrapped(), TOOLS, sets=2).problems == ()  # type: ignore[arg-type]
