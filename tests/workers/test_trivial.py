"""Trivial agents: what they say, that they see no more than any agent, and that what they draw is valid."""

import random
from collections.abc import Mapping
from typing import Any

import fastjsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passhat.workers.agent import Final, TaskView
from passhat.workers.desk import Desk
from passhat.workers.desk_tasks import DeskTasks
from passhat.workers.desk_tools import REASON_CODES
from passhat.workers.environment import ToolResult, ToolSpec
from passhat.workers.trivial import TRIVIAL, Draws, trivial_agent

TASK = next(task for task in DeskTasks(1, 300) if task.template == "missing_record")
VIEW = TaskView(TASK.id, TASK.request, TASK.inputs, TASK.policy, TASK.output_schema)
VALIDATE = {tool.name: fastjsonschema.compile(tool.input_schema) for tool in Desk.spec.tools}


class Recorder:
    """Tools that answer nothing, and a context: both note what they were asked."""

    seed = 0

    def __init__(self, specs: tuple[ToolSpec, ...] = Desk.spec.tools) -> None:
        self.specs = specs
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.usage: list[dict[str, Any]] = []

    def list(self) -> tuple[ToolSpec, ...]:
        return self.specs

    def call(self, name: str, /, **arguments: Any) -> ToolResult:
        self.calls.append((name, arguments))
        return ToolResult({"account_id": "AC-7", "date": "2026-04-01"})

    def record_usage(self, **usage: Any) -> None:
        self.usage.append(usage)

    def log(self, text: str) -> None:
        raise AssertionError(text)


def play(
    name: str, seed: int = 1, luck: Mapping[str, Any] | None = None, **tools: Any
) -> tuple[Final | None, Recorder]:
    recorder = Recorder(**tools)
    return trivial_agent(name, seed, luck)(VIEW, recorder, recorder), recorder


def test_noop_says_and_does_nothing() -> None:
    final, recorder = play("noop")
    assert (final, recorder.calls) == (None, [])


@pytest.mark.parametrize("name", TRIVIAL)
def test_each_says_that_it_used_nothing(name: str) -> None:
    assert play(name)[1].usage == [{"retries": 0}]


@pytest.mark.parametrize(
    ("name", "claim", "tool"),
    [
        ("complete", "COMPLETED", "submit_result"),
        ("refuse", "REFUSED", "submit_result"),
        ("escalate", "ESCALATED", "escalate_case"),
    ],
)
def test_a_claim_is_made_by_one_call_of_the_tool_that_can_say_it(name: str, claim: str, tool: str) -> None:
    final, recorder = play(name)
    (call,) = recorder.calls
    assert final is not None
    assert (final.status, call[0]) == (claim, tool)
    VALIDATE[tool](call[1])
    assert call[1].get("status", claim) == claim
    assert call[1].get("case_id", TASK.inputs["case_id"]) == TASK.inputs["case_id"]


def test_of_allowed_values_the_lucky_one_is_picked_and_of_others_none() -> None:
    luck = {"reason_code": "record_not_found", "account_id": "AC-0", "amount_minor": 7}
    for seed in range(5):
        refused, _ = play("refuse", seed, luck)
        assert refused is not None
        assert refused.payload["reason_code"] == "record_not_found"
        assert refused.payload["account_id"] == TASK.inputs["account_id"]
        assert refused.payload["amount_minor"] != 7
        _, recorder = play("escalate", seed, luck)
        assert recorder.calls[0][1]["reason_code"] == "record_not_found"
    codes = {play("escalate", seed)[1].calls[0][1]["reason_code"] for seed in range(60)}
    assert codes == set(REASON_CODES)


def test_without_terminal_tools_a_claim_is_only_said() -> None:
    final, recorder = play("escalate", specs=Desk.spec.tools[:2])
    assert (final and final.status, recorder.calls) == ("ESCALATED", [])


def test_random_calls_are_repeatable_valid_and_of_many_tools() -> None:
    for seed in range(20):
        _, recorder = play("random", seed)
        assert recorder.calls == play("random", seed)[1].calls
        assert len({name for name, _ in recorder.calls}) > 5
        assert [tool for tool in recorder.calls if tool[0] in ("submit_result", "escalate_case")] == recorder.calls[16:]
        for name, arguments in recorder.calls:
            VALIDATE[name](arguments)
    assert play("random", 1)[1].calls != play("random", 2)[1].calls


def test_random_calls_use_what_is_known_and_what_was_answered() -> None:
    asked = [arguments.get("account_id") for seed in range(20) for _, arguments in play("random", seed)[1].calls]
    assert {TASK.inputs["account_id"], "AC-7"} <= set(asked)


_NAMES = st.sampled_from(["account_id", "note", "x"])
_SCHEMAS = st.recursive(
    st.one_of(
        st.fixed_dictionaries({"type": st.sampled_from(["boolean", "null", "string", ["string", "null"]])}),
        st.integers(-50, 50).flatmap(
            lambda least: st.fixed_dictionaries(
                {"type": st.just("integer"), "minimum": st.just(least), "maximum": st.integers(least, least + 9)}
            )
        ),
        st.fixed_dictionaries({"type": st.just("string"), "minLength": st.integers(0, 9)}),
        st.fixed_dictionaries({"enum": st.lists(st.integers() | st.text(), min_size=1, max_size=3)}),
        st.fixed_dictionaries({"const": st.integers() | st.text()}),
    ),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"type": st.just("array"), "items": inner, "minItems": st.integers(0, 3)}),
        st.dictionaries(_NAMES, inner).map(
            lambda parts: {
                "type": "object",
                "properties": parts,
                "required": list(parts),
                "additionalProperties": False,
            }
        ),
    ),
    max_leaves=6,
)


@given(_SCHEMAS, st.integers(0, 99), st.sampled_from([None, {}, {"x": 3, "note": ""}]))
def test_what_is_drawn_satisfies_the_schema(schema: dict[str, Any], seed: int, luck: dict[str, Any] | None) -> None:
    known = {"account_id": "AC-1", "x": [3, {"note": "long enough a text"}], "flag": True}
    fastjsonschema.validate(schema, Draws(random.Random(seed), known, luck).draw(schema))


def test_a_pattern_is_met_by_a_known_text_or_by_null() -> None:
    schema = {"type": ["string", "null"], "pattern": "^[0-9]{4}-[0-9]{2}$"}
    assert {Draws(random.Random(i), {}).draw(schema) for i in range(30)} == {None}
    assert {Draws(random.Random(i), {"a": ["2026-04", "May"]}).draw(schema) for i in range(30)} == {None, "2026-04"}


@pytest.mark.parametrize(
    "bounds",
    [{"minimum": 2_000_000}, {"maximum": -5}, {"minimum": 0.5}, {"minimum": -3, "maximum": -3}, {}],
)
def test_a_number_is_drawn_within_any_bounds(bounds):
    for seed in range(20):
        number = Draws(random.Random(seed), {}).draw({"type": "number", **bounds}, "n")
        assert bounds.get("minimum", number) <= number <= bounds.get("maximum", number)
