"""Any calls at all: the desk answers with declared errors only, and what the system promises holds after each call."""

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from passhat.workers.agent import AgentContext, Final, TaskView, Toolbox
from passhat.workers.contract import Task
from passhat.workers.desk import Desk
from passhat.workers.desk_tasks import DeskTasks
from passhat.workers.environment import ToolResult
from passhat.workers.episode import run_episode
from passhat.workers.order import Limits
from passhat.workers.records import Reason
from passhat.workers.session import compile_tools
from passhat.workers.trivial import Draws

TOOLS = compile_tools(Desk.spec)
OF_THE_DESK = {
    "account_closed", "already_reversed", "approval_required", "bad_cursor", "balance_not_zero", "case_not_open",
    "currency_mismatch", "denied", "exceeds_charges", "idempotency_conflict", "not_found", "not_verified",
    "verification_failed",
}  # fmt: skip
OF_THE_SESSION = {"invalid_arguments", "unknown_tool", "episode_ended"}
# What policy forbids and soft boundaries let happen; anything else is the system's own promise.
OF_THE_AGENT = {"writes_stay_in_tenant", "destructive_write_is_approved", "refunds_within_charges"}
CALLS = [pytest.param(15_000, id="short"), pytest.param(100_000, id="long", marks=pytest.mark.slow)]
VISIT = 40  # calls before the next world


def check_promises(desk: Desk, task: Task) -> None:
    """The promises, worked out again from the rows."""
    tables = task.world["tables"]
    entries = dict(desk.rows.scan("entries"))
    assert {key: entries[key] for key in tables["entries"]} == tables["entries"]
    totals: Counter[str] = Counter()
    for entry in entries.values():
        totals[entry["account_id"]] += entry["amount_minor"]
    for key, account in desk.rows.scan("accounts"):
        assert account["balance_minor"] == totals[key], key
    reversed_ids = [row["entry_id"] for _, row in desk.rows.scan("reversals")]
    assert len(set(reversed_ids)) == len(reversed_ids)
    assert sorted(reversed_ids) == sorted(entry["reverses"] for entry in entries.values() if entry.get("reverses"))
    assert not any(entries[key].get("reverses") for key in reversed_ids)
    for table in ("credits", "refunds"):
        keys = [row.get("idempotency_key") for _, row in desk.rows.scan(table)]
        given = [key for key in keys if key is not None]
        assert len(set(given)) == len(given)
    closed = {key for key, account in desk.rows.scan("accounts") if account["status"] == "closed"}
    assert all(totals[key] == 0 for key in closed)
    breaches = {breach.invariant for breach in desk.invariants()}
    assert breaches <= (OF_THE_AGENT if task.world["boundaries"] == "soft" else set())


def worlds(seed: int) -> Any:
    """Tasks for ever, with soft and hard boundaries in turn, whatever the template."""
    tasks = DeskTasks(seed, 100_000)
    for ordinal in range(len(tasks)):
        task = tasks[ordinal * 7919 % len(tasks)]
        boundaries = "hard" if ordinal % 2 else "soft"
        yield Task(
            id=task.id, request=task.request, inputs=task.inputs, principal=task.principal,
            world={**task.world, "boundaries": boundaries, "approver": {"default": "granted"}},
        )  # fmt: skip


@pytest.mark.parametrize("calls", CALLS)
def test_valid_calls_break_no_promise(calls: int) -> None:
    rng, desk, made = random.Random(1), Desk(), 0
    answers: Counter[str | None] = Counter()
    for task in worlds(1):
        desk.reset(seed=made, options=task.world)
        draws = Draws(rng, {**task.inputs, "ids": [list(rows) for rows in task.world["tables"].values()]})
        for _ in range(VISIT):
            result = any_call(desk, task, draws)
            answers[result.error] += 1
            made += 1
            check_promises(desk, task)
        if made >= calls:
            break
    assert answers.keys() - {None} <= OF_THE_DESK
    assert answers[None] > calls / 5  # most of what is drawn is not refused at the door
    assert len(answers) > 8


def any_call(desk: Desk, task: Task, draws: Draws) -> ToolResult:
    spec = draws.rng.choice(desk.spec.tools)
    drawn = draws.draw(spec.input_schema)
    TOOLS.by_name[spec.name].validate(drawn)
    given = {name: value for name, value in drawn.items() if value is not None}
    before = desk.state_digest()
    result = desk.call(spec.name, given, principal=task.principal)
    if result.error is not None:
        assert result.receipt is None
        assert result.content["message"]
        if result.error != "verification_failed":  # which leaves its audit row
            assert desk.state_digest() == before
    elif spec.effect in ("write", "destructive"):
        assert result.receipt is not None
    draws.learn(result.content)
    return result


ODD = (
    None, True, False, 0, -1, 1.5, 2**53, 2**64, -(2**70), 1e308, float("nan"), float("inf"), "", " ", "x" * 3000,
    "\x00", "\ud800", "٣", "AC-1", "2026-13-45\n", [], [[]], {}, {"$ref": "#"}, {"": None}, {1: 2}, b"bytes", object(),
)  # fmt: skip


def anything(rng: random.Random, depth: int = 0) -> Any:
    """Return a JSON value or something that is none."""
    if depth < 3 and rng.random() < 0.25:
        parts = [anything(rng, depth + 1) for _ in range(rng.randrange(4))]
        return parts if rng.random() < 0.5 else {rng.choice("abc"): part for part in parts}
    return rng.choice(ODD)


def spoilt(rng: random.Random, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with one left out, replaced, or added."""
    changed = dict(arguments)
    for name in rng.sample(sorted(changed), min(len(changed), rng.randrange(3))):
        if rng.random() < 0.3:
            del changed[name]
        else:
            changed[name] = anything(rng)
    if rng.random() < 0.2:
        changed[rng.choice(("tenant", "self", "name", "amount", "Σ"))] = anything(rng)
    return changed


@pytest.mark.parametrize("calls", CALLS)
def test_arbitrary_arguments_are_answered_and_break_no_promise(calls: int) -> None:
    rng, desk = random.Random(2), Desk()
    answers: Counter[str | None] = Counter()

    def agent(view: TaskView, tools: Toolbox, ctx: AgentContext) -> Final:
        draws = Draws(rng, {**view.inputs, "ids": [list(rows) for rows in task.world["tables"].values()]})
        error = None
        for _ in range(VISIT):
            spec = rng.choice(tools.list())
            name = spec.name if rng.random() < 0.95 else rng.choice(("", "reset", "__init__", "get_Account"))
            error = tools.call(name, **spoilt(rng, draws.draw(spec.input_schema))).error
            answers[error] += 1
            check_promises(desk, task)
            if error == "episode_ended":
                break
        return Final("COMPLETED")

    for seed, task in enumerate(worlds(2)):
        view = TaskView(task.id, task.request, task.inputs, task.policy, task.output_schema)
        episode = run_episode(
            desk, TOOLS, task, view, agent,
            env_seed=seed, agent_seed=seed, limits=Limits(), plane=bytearray(1),
        )  # fmt: skip
        assert (episode.error, episode.reason) == ("", Reason.NONE)
        assert episode.judgement is not None
        if answers.total() >= calls:
            break
    assert answers.keys() - {None} <= OF_THE_DESK | OF_THE_SESSION
    assert answers.keys() >= OF_THE_SESSION
    assert answers["invalid_arguments"] > calls / 5
    assert answers[None] > calls / 10
