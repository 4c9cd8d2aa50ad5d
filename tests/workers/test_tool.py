"""Typed methods as tools: their schemas, what is refused, and the protocol that a `World` carries out for them."""

import inspect
import json
from collections.abc import Callable, Mapping
from datetime import date
from typing import Annotated, Any, Literal, NotRequired, Optional, TypedDict

import fastjsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passhat.workers.agent import AgentContext, Final, TaskView, Toolbox
from passhat.workers.contract import CallRule, Contract, EffectRule, PayloadCheck, Task
from passhat.workers.environment import Breach, Effect, Environment, EnvSpec, Principal, ToolResult, ToolSpec
from passhat.workers.episode import Episode, run_episode
from passhat.workers.order import Limits
from passhat.workers.records import Safety
from passhat.workers.session import compile_tools
from passhat.workers.tool import Bounds, ToolError, World, tool
from passhat.workers.tool_schema import parameters_schema


class Line(TypedDict):
    item: str
    count: Annotated[int, Bounds(ge=1)]


class Loose(TypedDict):
    item: NotRequired[str]


def schema_of(hint: Any, default: Any = inspect.Parameter.empty) -> Any:
    """Return the schema of a tool's one parameter of this type."""

    def method(self: World, x: Any = default) -> None:
        """Do."""

    method.__annotations__["x"] = hint
    if default is inspect.Parameter.empty:
        method.__defaults__ = None
    schema = parameters_schema(method)
    assert schema.keys() == {"type", "properties", "required", "additionalProperties"}
    assert (schema["required"], schema["additionalProperties"]) == (["x"], False)
    return schema["properties"]["x"]


HINTS: list[tuple[Any, dict[str, Any]]] = [
    (str, {"type": "string"}),
    (int, {"type": "integer"}),
    (float, {"type": "number"}),
    (bool, {"type": "boolean"}),
    (Literal["EUR", "GBP"], {"type": "string", "enum": ["EUR", "GBP"]}),
    (Literal[1, 2], {"type": "integer", "enum": [1, 2]}),
    (list[str], {"type": "array", "items": {"type": "string"}}),
    (list[list[int]], {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}),
    (str | None, {"type": ["string", "null"]}),
    (Optional[int], {"type": ["integer", "null"]}),  # noqa: UP045 - the older spelling is taken as well
    (Literal["a"] | None, {"type": ["string", "null"], "enum": ["a", None]}),
    (Annotated[str, "who asks"], {"type": "string", "description": "who asks"}),
    (
        Annotated[str, Bounds(min_length=1, max_length=9, pattern="^[A-Z]")],
        {"type": "string", "minLength": 1, "maxLength": 9, "pattern": "^[A-Z]"},
    ),
    (
        Annotated[int, Bounds(ge=1, le=4), "weeks"],
        {"type": "integer", "minimum": 1, "maximum": 4, "description": "weeks"},
    ),
    (Annotated[float, Bounds(ge=0.5)], {"type": "number", "minimum": 0.5}),
    (Annotated[int, Bounds(ge=1)] | None, {"type": ["integer", "null"], "minimum": 1}),
    (Annotated[int | None, Bounds(ge=1)], {"type": ["integer", "null"], "minimum": 1}),
    (
        Annotated[list[Annotated[str, Bounds(min_length=1)]], Bounds(min_length=1, max_length=3)],
        {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1, "maxItems": 3},
    ),
    (
        list[Line],
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"item": {"type": "string"}, "count": {"type": "integer", "minimum": 1}},
                "required": ["item", "count"],
                "additionalProperties": False,
            },
        },
    ),
]


@pytest.mark.parametrize(("hint", "schema"), HINTS, ids=str)
def test_a_type_hint_becomes_a_strict_schema(hint: Any, schema: dict[str, Any]) -> None:
    assert schema_of(hint) == schema


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats(0.1, 3.9) | st.sampled_from(["", "EUR", "A", "a"]),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.sampled_from(["item", "count"]), part, max_size=3),
    max_leaves=6,
)


def _is_of(value: Any, hint: Any) -> bool:
    """Whether a JSON value is of a type, by plain rules: whole floats are integers, booleans are no numbers."""
    rules: dict[Any, Callable[[Any], bool]] = {
        str: lambda v: isinstance(v, str),
        int: lambda v: not isinstance(v, bool) and isinstance(v, int | float) and v == int(v),
        float: lambda v: not isinstance(v, bool) and isinstance(v, int | float),
        bool: lambda v: isinstance(v, bool),
        list[str]: lambda v: isinstance(v, list) and all(_is_of(part, str) for part in v),
        Line: lambda v: (
            isinstance(v, dict)
            and v.keys() == {"item", "count"}
            and _is_of(v["item"], str)
            and _is_of(v["count"], int)
            and v["count"] >= 1
        ),
        list[Line]: lambda v: isinstance(v, list) and all(_is_of(part, Line) for part in v),
        Literal["EUR", "GBP"]: lambda v: v in ("EUR", "GBP"),
    }
    return rules[hint](value)


_CHECKED: list[Any] = [str, int, float, bool, list[str], Line, list[Line], Literal["EUR", "GBP"]]
_VALIDATORS = [fastjsonschema.compile(schema_of(hint)) for hint in _CHECKED]


@given(st.sampled_from(range(len(_CHECKED))), _values)
def test_a_schema_takes_exactly_the_values_of_its_type(index: int, value: Any) -> None:
    try:
        _VALIDATORS[index](value)
    except fastjsonschema.JsonSchemaValueException:
        taken = False
    else:
        taken = True
    assert taken == _is_of(value, _CHECKED[index])


@pytest.mark.parametrize(
    ("hint", "problem"),
    [
        (date, "found datetime.date; allowed are str, int, float, bool, Literal, list, TypedDict"),
        (Any, "found Any; allowed are"),
        (list, "found list; allowed are"),
        (dict[str, int], "found dict[str, int]; allowed are"),
        (tuple[int, int], "found tuple[int, int]; allowed are"),
        (int | str, "found int | str; allowed are"),
        (int | str | None, "; allowed are"),
        (None, "; allowed are"),
        (list[int | None], "found int | None; allowed are"),
        (Literal["a", 1], "found Literal['a', 1]; allowed are"),
        (Literal[True], "found Literal[True]; allowed are"),
        (Loose, "Loose; allowed are"),
        (Annotated[int, 5], "found 5 in Annotated, expected Bounds(…) or a text"),
        (Annotated[int, [1]], "found [1] in Annotated, expected Bounds(…) or a text"),
        (Annotated[int, Bounds(pattern="a")], "pattern has no meaning for type integer"),
        (Annotated[bool, Bounds(ge=0)], "ge has no meaning for type boolean"),
    ],
    ids=str,
)
def test_any_other_type_is_refused_by_function_and_parameter(hint: Any, problem: str) -> None:
    with pytest.raises(TypeError) as caught:
        schema_of(hint)
    assert str(caught.value).startswith("schema_of.<locals>.method: parameter x: ")
    assert problem in str(caught.value)


@pytest.mark.parametrize(("hint", "default"), [(str, "a"), (str, None), (str | None, "a"), (int, 0)])
def test_the_only_default_is_none_of_a_parameter_that_may_be_left_out(hint: Any, default: Any) -> None:
    with pytest.raises(TypeError, match=r"parameter x: a parameter that may be left out is written X \| None = None"):
        schema_of(hint, default)


def test_a_parameter_that_may_be_left_out_has_none_as_default_or_no_default() -> None:
    assert schema_of(str | None, None) == schema_of(str | None)


def method_without_type(self: World, x) -> None:  # type: ignore[no-untyped-def]
    """Do."""


def method_with_anything(self: World, *x: int) -> None:
    """Do."""


def method_with_keywords(self: World, **x: int) -> None:
    """Do."""


def method_of_something_unknown(self: World, x: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821
    """Do."""


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        (method_without_type, "method_without_type: parameter x has no type; allowed are str"),
        (method_with_anything, "method_with_anything: parameter x: found *x: int, expected a parameter with a name"),
        (method_with_keywords, "method_with_keywords: parameter x: found **x: int, expected a parameter with a name"),
        (method_of_something_unknown, "method_of_something_unknown: its type hints cannot be read: name 'Nowhere'"),
    ],
)
def test_parameters_that_cannot_be_named_in_a_schema_are_refused(method: Callable[..., Any], problem: str) -> None:
    with pytest.raises(TypeError) as caught:
        parameters_schema(method)
    assert str(caught.value).startswith(problem)


# Worlds


class Shop(World):
    """Sells things of a few kinds."""

    name = "shop"
    version = "3"
    tables = {"stock": {"S-1": {"kind": "pen", "left": 2}}}  # noqa: RUF012 - as the README writes it

    @tool(effect="read")
    def look(self, stock_id: str) -> dict[str, Any]:
        """Look at what is there.

        More than one line is for agents too.
        """
        row = self.rows.get("stock", stock_id)
        if row is None:
            raise ToolError("not_found", f"there is no {stock_id!r}")
        return {"id": stock_id, **row}

    @tool(effect="destructive")
    def sell(self, stock_id: str, note: str | None = None) -> dict[str, Any]:
        """Sell one."""
        row = self.look(stock_id)
        if not row["left"]:
            raise ToolError("sold_out")
        if self.principal.role != "clerk":
            self.note(Safety.SKIPPED_APPROVAL)
        self.rows.update("stock", stock_id, left=row["left"] - 1)
        sale = self.mint("sales")
        price = self.rng("price").randrange(100, 200)
        self.rows.insert("sales", sale, {"stock_id": stock_id, "note": note, "at": self.now().isoformat()})
        return {"id": sale, "price_minor": price}

    @tool(effect="write")
    def audit(self) -> None:
        """Note that somebody has looked."""
        self.wait(60_000)

    @tool(effect="control", terminal=True)
    def leave(self, status: Literal["COMPLETED", "REFUSED"]) -> dict[str, Any]:
        """Go."""
        return {"status": status}

    def invariants(self) -> list[Breach]:
        return [Breach("stock", key) for key, row in self.rows.scan("stock") if row["left"] < 0]


CLERK = Principal("c1", "t1", "clerk")


def shop(seed: int = 1, **world: Any) -> Shop:
    opened = Shop()
    opened.reset(seed=seed, options=world)
    return opened


def call(world: Environment, name: str, /, **arguments: Any) -> ToolResult:
    return world.call(name, arguments, principal=CLERK)


def test_a_world_is_an_environment_whose_spec_lists_its_tools_in_order() -> None:
    environment: Environment = Shop()
    text = {"type": "string"}
    looks = {
        "type": "object",
        "properties": {"stock_id": text},
        "required": ["stock_id"],
        "additionalProperties": False,
    }
    assert environment.spec.name == "shop"
    assert environment.spec.version == "3"
    assert [spec.name for spec in environment.spec.tools] == ["look", "sell", "audit", "leave"]
    description = "Look at what is there.\n\nMore than one line is for agents too."
    assert environment.spec.tools[0] == ToolSpec("look", description, looks, "read", False)
    assert [(spec.effect, spec.terminal) for spec in environment.spec.tools] == [
        ("read", False),
        ("destructive", False),
        ("write", False),
        ("control", True),
    ]
    compile_tools(environment.spec)


def test_a_subclass_inherits_overrides_and_adds_tools() -> None:
    class Kiosk(Shop):
        name = ""

        @tool(effect="read")
        def greet(self) -> dict[str, Any]:
            """Greet."""
            return {}

        def audit(self) -> None:
            """No tool any more."""

    assert [spec.name for spec in Kiosk.spec.tools] == ["look", "sell", "leave", "greet"]
    assert (Kiosk.spec.name, Kiosk.spec.version) == ("Kiosk", "3")
    assert World.__dict__.get("spec") is None
    assert EnvSpec("shop", "3", Shop.spec.tools) == Shop.spec


def test_a_function_of_its_own_can_be_a_tool() -> None:
    @tool(effect="read")
    def size(world: World, table: str) -> dict[str, Any]:
        """Count rows."""
        return {"rows": sum(1 for _ in world.rows.scan(table))}

    class Sized(Shop):
        count_rows = size

    world = Sized()
    world.reset(seed=1, options={})
    assert call(world, "count_rows", table="stock").content == {"rows": 1}


def test_a_tool_needs_a_docstring_and_a_name_that_is_free() -> None:
    with pytest.raises(TypeError, match=r"Mute\.act has no docstring, which is what an agent reads"):

        class Mute(World):
            @tool(effect="read")
            def act(self) -> None: ...

    with pytest.raises(TypeError, match=r"Taken\.mint: every World has a method mint of its own; choose another name"):

        class Taken(World):
            @tool(effect="write")
            def mint(self, table: str) -> Any:
                """Mint."""


def test_a_read_answers_with_its_content_alone() -> None:
    assert call(shop(), "look", stock_id="S-1") == ToolResult({"id": "S-1", "kind": "pen", "left": 2})


def test_a_tool_error_is_the_answer_and_leaves_no_receipt() -> None:
    assert call(shop(), "look", stock_id="x") == ToolResult({"message": "there is no 'x'"}, error="not_found")
    world = shop(tables={"stock": {"S-1": {"kind": "pen", "left": 0}}})
    assert call(world, "sell", stock_id="S-1") == ToolResult({"message": ""}, error="sold_out")
    assert world.effects() == []


def test_a_write_is_answered_by_a_receipt_that_names_tool_target_and_call() -> None:
    world = shop()
    call(world, "look", stock_id="S-1")
    answer = call(world, "sell", stock_id="S-1")
    receipt = answer.receipt
    assert receipt is not None
    assert (receipt.id, receipt.tool, receipt.target, receipt.call) == ("receipt-0001", "sell", "S-1", 2)
    assert len(receipt.mac) == len(receipt.effects_digest) == 16
    assert answer["receipt"] == receipt.id
    assert answer["id"] == "sales-0001"
    other = call(world, "audit").receipt
    assert other is not None
    assert (other.id, other.target) == ("receipt-0002", "")


def test_the_mac_of_a_receipt_belongs_to_the_run_and_its_changes_and_everything_else_to_the_calls() -> None:
    answers = [
        call(shop(seed), "sell", stock_id="S-1", note=note) for seed, note in ((1, "a"), (1, "a"), (2, "a"), (1, "b"))
    ]
    first, again, seed, note = (answer.receipt for answer in answers)
    assert first == again
    assert first is not None
    assert seed is not None
    assert note is not None
    assert first.id == seed.id == note.id
    assert first.mac not in (seed.mac, note.mac)
    assert first.effects_digest != note.effects_digest


def test_what_changed_is_told_with_the_call_that_changed_it() -> None:
    world = shop()
    before = world.state_digest()
    call(world, "look", stock_id="S-1")
    assert (world.effects(), world.state_digest()) == ([], before)
    call(world, "sell", stock_id="S-1")
    sold = {"stock_id": "S-1", "note": None, "at": world.now().isoformat()}
    assert world.effects() == [
        Effect("sales", "sales-0001", "*", None, sold, 2),
        Effect("stock", "S-1", "left", 2, 1, 2),
    ]
    assert world.state_digest() != before


def test_a_reset_forgets_everything_and_does_not_change_the_class() -> None:
    world = shop()
    first = [call(world, "sell", stock_id="S-1") for _ in range(2)]
    world.rows.get("stock", "S-1")["kind"] = "spoilt"  # type: ignore[index]
    world.reset(seed=1, options={})
    assert (world.effects(), world.facts(), world.virtual_ms()) == ([], 0, 0)
    assert [call(world, "sell", stock_id="S-1") for _ in range(2)] == first


def test_a_row_that_is_changed_in_place_is_noticed() -> None:
    world = shop()
    world.rows.get("stock", "S-1")["left"] -= 1  # type: ignore[index]
    with pytest.raises(RuntimeError, match="a row was changed in place; use self"):
        world.effects()


def test_a_task_replaces_tables_and_adds_others() -> None:
    world = shop(tables={"stock": {"S-9": {"kind": "ink", "left": 1}}, "sales": {"sales-0001": {}}})
    assert call(world, "look", stock_id="S-1").error == "not_found"
    assert call(world, "sell", stock_id="S-9")["id"] == "sales-0002"  # the first free one
    assert world.effects()[1] == Effect("stock", "S-9", "left", 1, 0, 2)


def test_chance_comes_in_streams_by_purpose_from_the_seed() -> None:
    first, other = shop(1), shop(1)
    other.rng("else").random()
    assert [first.rng("a").random() for _ in range(3)] == [other.rng("a").random() for _ in range(3)]
    assert first.rng("a").random() != shop(2).rng("a").random()
    assert shop(1).rng("a").random() != shop(1).rng("b").random()


def test_time_is_virtual_seeded_and_starts_where_the_task_says() -> None:
    world = shop(now="2026-05-04T08:00:00")
    assert world.now().isoformat() == "2026-05-04T08:00:00"
    call(world, "look", stock_id="S-1")
    assert 50 <= world.virtual_ms() <= 100
    before = world.virtual_ms()
    call(world, "audit")
    assert 60_050 <= world.virtual_ms() - before <= 60_100
    assert (world.now() - shop(now="2026-05-04T08:00:00").now()).total_seconds() == world.virtual_ms() / 1000
    assert shop().now().isoformat() == "2026-01-01T00:00:00"


def test_tools_see_on_whose_behalf_they_are_called() -> None:
    world = shop()
    call(world, "sell", stock_id="S-1")
    assert world.facts() == 0
    world.call("sell", {"stock_id": "S-1"}, principal=Principal("c2", "t1", "guest"))
    assert world.facts() == Safety.SKIPPED_APPROVAL


# In a run


def run(agent: Callable[[TaskView, Toolbox, AgentContext], Final | None], contract: Contract, **world: Any) -> Episode:
    task = Task(id="t", request="Sell a pen.", world=world, principal=CLERK, contract=contract)
    view = TaskView(task.id, task.request, {}, "", None)
    environment = Shop()
    return run_episode(
        environment,
        compile_tools(environment.spec),
        task,
        view,
        agent,  # type: ignore[arg-type] - None is for agents that end by a terminal tool
        env_seed=5,
        agent_seed=6,
        limits=Limits(),
        plane=bytearray(1),
    )


def test_a_run_of_a_world_is_scored_by_effects_receipts_and_calls() -> None:
    def agent(task: TaskView, tools: Toolbox, ctx: AgentContext) -> Final:
        assert tools.call("sell", stock_id=7).error == "invalid_arguments"
        assert tools.call("sell", stock_id="S-1", price=1).error == "invalid_arguments"
        sold = tools.call("sell", stock_id="S-1")
        return Final("COMPLETED", payload={"receipt": sold["receipt"]})

    contract = Contract(
        payload=(PayloadCheck(path="receipt", receipt="sell"),),
        must_call=(CallRule(tool="sell", receipt=True, tenant="t1"),),
        expect_effects=(EffectRule(table="sales"), EffectRule(table="stock", key="S-1", column="left")),
    )
    episode = run(agent, contract)
    assert episode.judgement is not None
    assert (episode.judgement.passed, episode.judgement.findings) == (True, ())
    assert episode.bad_calls == 2


def test_a_terminal_tool_ends_the_run_with_what_it_says() -> None:
    def agent(task: TaskView, tools: Toolbox, ctx: AgentContext) -> None:
        tools.call("leave", status="REFUSED")
        assert tools.call("look", stock_id="S-1").error == "episode_ended"

    episode = run(agent, Contract(outcomes=("REFUSED",), expect_effects=()))
    assert episode.judgement is not None
    assert episode.judgement.passed


_arguments: Mapping[str, st.SearchStrategy[dict[str, Any]]] = {
    "look": st.fixed_dictionaries({"stock_id": st.sampled_from(["S-1", "S-2", "x"])}),
    "sell": st.fixed_dictionaries(
        {"stock_id": st.sampled_from(["S-1", "S-2"])}, optional={"note": st.text(max_size=3)}
    ),
    "audit": st.just({}),
}
_calls = st.lists(st.sampled_from(list(_arguments)).flatmap(lambda name: st.tuples(st.just(name), _arguments[name])))


@given(_calls, st.integers(0, 2**64 - 1))
def test_the_same_calls_with_the_same_seed_give_the_same_world(
    calls: list[tuple[str, dict[str, Any]]], seed: int
) -> None:
    one, other = shop(seed), Shop()
    other.reset(seed=seed + 1, options={})
    call(other, "sell", stock_id="S-1")
    other.reset(seed=seed, options={})
    for name, arguments in calls:
        assert call(one, name, **arguments) == call(other, name, **arguments)
    assert one.effects() == other.effects()
    assert one.state_digest() == other.state_digest()
    assert one.virtual_ms() == other.virtual_ms()
    assert one.invariants() == []
    json.dumps([effect.after for effect in one.effects()])
