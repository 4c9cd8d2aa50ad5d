"""One run: who is blamed for what, where it is ended, and what of it can be changed by whom."""

import concurrent.futures
import contextlib
import hashlib
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from passhat.workers import seeds
from passhat.workers.agent import Final, TaskView
from passhat.workers.contract import CallRule, Contract, EffectRule, PayloadCheck, Task
from passhat.workers.environment import Breach, Effect, EnvSpec, Principal, Receipt, ToolResult, ToolSpec
from passhat.workers.episode import run_episode
from passhat.workers.order import Limits
from passhat.workers.records import Outcome, Reason, Safety
from passhat.workers.scoring import Finding
from passhat.workers.session import ENVIRONMENT, RunStopped, compile_tools, is_loop

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}


def tool(name, properties, *, effect="read", terminal=False, required=None):
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }
    return ToolSpec(name, f"{name} something", schema, effect, terminal)


class Shelf:
    """A row of labelled numbers; any method can be replaced for a test."""

    spec = EnvSpec(
        "shelf",
        "1",
        (
            tool("get", {"key": TEXT, "default": {"type": ["integer", "null"]}}),
            tool("put", {"key": TEXT, "value": NUMBER, "note": {"anyOf": [TEXT, {"type": "null"}]}}, effect="write"),
            tool(
                "submit",
                {"status": TEXT, "message": TEXT, "payload": {"type": "object"}},
                effect="control",
                terminal=True,
                required=["status"],
            ),
        ),
    )

    def __init__(self, **replaced):
        self.asked = []
        for name, method in replaced.items():
            setattr(self, name, method)

    def reset(self, *, seed, options):
        self.rows = dict(options.get("rows", {}))
        self.before = dict(self.rows)
        self.clock_ms = 0

    def call(self, name, arguments, *, principal):
        self.asked.append((name, dict(arguments)))
        self.clock_ms += 100
        if name == "get":
            value = self.rows.get(arguments["key"], arguments.get("default"))
            return ToolResult({"value": value}) if value is not None else ToolResult({"message": "?"}, "not_found")
        if name == "put":
            self.rows[arguments["key"]] = arguments["value"]
            return ToolResult({"rows": self.rows}, receipt=Receipt(f"R-{len(self.asked)}", name, "shelf", "mac"))
        return ToolResult(dict(arguments))

    def effects(self):
        changed = sorted(k for k in {**self.before, **self.rows} if self.before.get(k) != self.rows.get(k))
        return [Effect("rows", k, "value", self.before.get(k), self.rows.get(k)) for k in changed]

    def invariants(self):
        return []

    def state_digest(self):
        return hashlib.blake2b(repr(sorted(self.rows.items())).encode(), digest_size=8).digest()

    def facts(self):
        return 0

    def virtual_ms(self):
        return self.clock_ms

    def close(self):
        pass


TOOLS = compile_tools(Shelf.spec)
TASK = Task(id="t", request="please", world={"rows": {"a": 1}}, principal=Principal("u", "acme", "clerk"))


def play(agent, shelf=None, *, task=TASK, limits=None, seed=5):
    view = TaskView(task.id, task.request, dict(task.inputs), task.policy, task.output_schema)
    return run_episode(
        shelf or Shelf(), TOOLS, task, view, agent,
        env_seed=1, agent_seed=seed, limits=limits or Limits(), plane=bytearray(1),
    )  # fmt: skip


def calling(*calls, final=None):
    """An agent that makes these calls and keeps their answers."""

    def agent(task, tools, ctx):
        agent.answers = [tools.call(name, **arguments) for name, arguments in calls]
        return final or Final("COMPLETED")

    return agent


def raising(error):
    def step(*_, **__):
        raise error

    return step


# The agent's doing


def test_an_ordinary_run_is_scored_and_accounted_for():
    def agent(task, tools, ctx):
        ctx.record_usage(tokens_in=10, tokens_cached=4, tokens_out=3, cost_usd=0.25)
        ctx.record_usage(tokens_out=1, cost_usd=0.000001)
        ctx.log("looked")
        value = tools.call("get", key="a")["value"]
        tools.call("put", key="b", value=value + 1)
        return Final("COMPLETED", "b is 2", {"b": 2.0, "nothing": None})

    contract = Contract(
        expect_text=("b is 2",),
        payload=(PayloadCheck(path="b", equals=2),),
        expect_effects=(EffectRule(table="rows", key="b"),),
        must_call=(CallRule(tool="put", receipt=True, tenant="acme"),),
    )
    episode = play(agent, task=Task(id="t", request="", world=TASK.world, principal=TASK.principal, contract=contract))
    assert episode.judgement.passed
    assert (episode.claimed, episode.assigned, episode.reason) == (Outcome.COMPLETED, Outcome.NONE, Reason.NONE)
    assert [(call.tool, dict(call.arguments), call.turn) for call in episode.calls] == [
        ("get", {"key": "a"}, 1),
        ("put", {"key": "b", "value": 2}, 2),
    ]
    usage = episode.usage
    assert (usage.tokens_in, usage.tokens_cached, usage.tokens_out, usage.cost_micros) == (10, 4, 4, 250_001)
    assert (episode.bad_calls, episode.virtual_ms, episode.log, episode.error) == (0, 200, ["looked"], "")
    assert episode.final.payload == {"b": 2}


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no idea"),
        SystemExit(3),
        concurrent.futures.CancelledError(),
        GeneratorExit(),
        RecursionError("deep"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_an_agent_raises_is_its_own_error_and_the_run_fails(error):
    episode = play(raising(error))
    assert (episode.claimed, episode.assigned, episode.reason) == (Outcome.NONE, Outcome.AGENT_ERROR, Reason.NONE)
    assert not episode.judgement.passed
    assert episode.error.startswith(f"{type(error).__name__}: {error} at {__file__}:")


@pytest.mark.parametrize(
    ("final", "complaint"),
    [
        ("COMPLETED", "the agent returned str, expected Final or None"),
        ({"status": "COMPLETED"}, "the agent returned dict, expected Final or None"),
        (Final("DONE"), "the agent claimed 'DONE', allowed are COMPLETED, ESCALATED, REFUSED, NEEDS_CLARIFICATION"),
        (Final("TIMED_OUT"), "the agent claimed 'TIMED_OUT', allowed are"),
        (Final(["COMPLETED"]), "the agent claimed (list), allowed are"),
        (Final("COMPLETED", None), "the agent's message is NoneType, expected text"),
        (Final("COMPLETED", payload=[1]), "the agent's payload is list, expected a mapping"),
        (Final("COMPLETED", payload={"x": {1, 2}}), "the agent's payload is not JSON: set is not a JSON type"),
        (Final("COMPLETED", payload={"x": float("nan")}), "the agent's payload is not JSON: nan is not a JSON number"),
        (Final("COMPLETED", payload={1: 2}), "the agent's payload is not JSON: the key of a mapping is int"),
        (Final("COMPLETED", payload={"x": 2**64}), "the agent's payload is not JSON: a whole number needs more than"),
        (Final("COMPLETED", payload={"x": "\ud800"}), "the agent's payload is not JSON: 'utf-8' codec can't encode"),
    ],
)
def test_a_final_that_is_none_is_the_agents_error_never_the_evaluators(final, complaint):
    episode = play(lambda *_: final)
    assert (episode.final, episode.claimed, episode.assigned) == (None, Outcome.NONE, Outcome.AGENT_ERROR)
    assert episode.reason is Reason.NONE
    assert episode.judgement is not None
    assert episode.error.startswith(complaint)


def test_nesting_without_end_is_refused_in_payloads_and_arguments():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    episode = play(lambda *_: Final("COMPLETED", payload={"x": deep}))
    assert episode.assigned is Outcome.AGENT_ERROR
    episode = play(agent := calling(("submit", {"status": "COMPLETED", "payload": {"x": deep}})))
    assert [answer.error for answer in agent.answers] == ["invalid_arguments"]
    assert (episode.bad_calls, episode.assigned) == (1, Outcome.NONE)


def test_a_message_that_no_file_could_hold_does_not_stop_the_run():
    assert play(lambda *_: Final("COMPLETED", "half a pair: \ud800")).judgement.passed


def test_without_a_final_the_terminal_call_speaks_and_without_one_nothing_was_claimed():
    said = {"status": "REFUSED", "message": "no", "payload": {"x": 1}}
    episode = play(lambda task, tools, ctx: tools.call("submit", **said) and None)
    assert (episode.final, episode.claimed) == (Final("REFUSED", "no", {"x": 1}), Outcome.REFUSED)
    episode = play(lambda *_: None)
    assert (episode.final, episode.claimed, episode.assigned) == (None, Outcome.NONE, Outcome.UNDECLARED)
    episode = play(lambda task, tools, ctx: tools.call("submit", status="no outcome") and None)
    assert (episode.final, episode.assigned, episode.error) == (None, Outcome.UNDECLARED, "")


def test_a_final_says_more_than_the_terminal_call():
    episode = play(calling(("submit", {"status": "REFUSED"}), final=Final("COMPLETED")))
    assert episode.claimed is Outcome.COMPLETED


def test_ctrl_c_ends_an_in_process_run_and_where_it_is_ignored_it_is_the_agents_error():
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    with pytest.raises(KeyboardInterrupt):
        play(raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        play(calling(("get", {"key": "a"})), Shelf(call=raising(KeyboardInterrupt())))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert play(raising(KeyboardInterrupt())).assigned is Outcome.AGENT_ERROR
        assert play(calling(("get", {"key": "a"})), Shelf(call=raising(KeyboardInterrupt()))).judgement is None
    finally:
        signal.signal(signal.SIGINT, before)


# Bad calls


@pytest.mark.parametrize(
    ("name", "arguments", "code", "message"),
    [
        ("take", {}, "unknown_tool", "no tool is called 'take'"),
        (7, {}, "unknown_tool", "no tool is called (int)"),
        ([], {}, "unknown_tool", "no tool is called (list)"),
        ("get", {}, "invalid_arguments", "data must contain ['key'] properties"),
        ("get", {"key": 7}, "invalid_arguments", "data.key must be string"),
        ("put", {"key": "b", "value": "2"}, "invalid_arguments", "data.value must be integer"),
        ("put", {"key": "b", "value": 2**70}, "invalid_arguments", "a whole number needs more than 64 bits"),
        ("get", {"key": "\udcff"}, "invalid_arguments", "'utf-8' codec can't encode character '\\udcff' in position 0"),
        ("get", {"key": "a", "zeal": 1, "yoke": 2}, "invalid_arguments", "data must not contain yoke, zeal"),
        ("submit", {"status": "x", "payload": {"x": {1}}}, "invalid_arguments", "set is not a JSON type"),
    ],
)
def test_a_bad_call_is_answered_with_an_error_and_counted(name, arguments, code, message):
    shelf = Shelf()
    episode = play(agent := calling((name, arguments), ("get", {"key": "a"})), shelf)
    refused, read = agent.answers
    assert refused.error == code
    assert refused["message"].startswith(message)
    assert read["value"] == 1
    assert (episode.bad_calls, len(episode.calls), episode.assigned) == (1, 2, Outcome.NONE)
    assert [asked for asked, _ in shelf.asked] == ["get"]


def test_arguments_that_are_no_json_leave_the_same_trace_in_every_process():
    one, other = (play(calling(("get", {"key": object(), "odd": {"b", "a"}}))) for _ in range(2))
    assert dict(one.calls[0].arguments) == {"key": "(object)", "odd": "(set)"}
    assert one.trajectory == other.trajectory


def test_the_complaint_about_unknown_arguments_does_not_depend_on_the_order_of_a_set():
    program = (
        "from passhat.workers.session import _complaint, compile_tools\n"
        "from passhat.workers.environment import EnvSpec, ToolSpec\n"
        "import fastjsonschema\n"
        "schema = {'type': 'object', 'properties': {}, 'additionalProperties': False}\n"
        "validate = compile_tools(EnvSpec('e', '1', (ToolSpec('t', '', schema),))).by_name['t'].validate\n"
        "try:\n    validate(dict.fromkeys(f'k{i}' for i in range(9)))\n"
        "except fastjsonschema.JsonSchemaValueException as error:\n    print(_complaint(error))\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert said == {f"data must not contain {', '.join(f'k{i}' for i in range(9))}\n"}


def test_arguments_that_may_be_null_may_be_left_out_and_nulls_do_not_reach_the_environment():
    shelf = Shelf()
    play(
        calling(("get", {"key": "a"}), ("get", {"key": "a", "default": None}), ("get", {"key": "z", "default": 3})),
        shelf,
    )
    play(calling(("put", {"key": "b", "value": 2.0})), shelf)
    assert shelf.asked == [
        ("get", {"key": "a"}),
        ("get", {"key": "a"}),
        ("get", {"key": "z", "default": 3}),
        ("put", {"key": "b", "value": 2}),
    ]
    assert type(shelf.asked[-1][1]["value"]) is int


def test_a_schema_adds_nothing_to_the_arguments_of_the_agent():
    schema = {"type": "object", "properties": {"o": {"type": "object", "properties": {"x": {"default": 1}}}}}
    validate = compile_tools(EnvSpec("e", "1", (ToolSpec("t", "", schema),))).by_name["t"].validate
    given = {"o": {}}
    validate(given)
    assert given == {"o": {}}


def test_after_a_terminal_call_every_other_is_refused():
    shelf = Shelf()
    agent = calling(("submit", {"status": "COMPLETED"}), ("put", {"key": "a", "value": 9}))
    episode = play(agent, shelf)
    assert [answer.error for answer in agent.answers] == [None, "episode_ended"]
    assert (episode.bad_calls, shelf.rows) == (1, {"a": 1})


# Limits


def test_the_turn_limit_ends_the_run_at_the_first_call_beyond_it():
    shelf = Shelf()
    calls = [("get", {"key": "a", "default": i}) for i in range(4)]
    assert play(calling(*calls[:3]), limits=Limits(turns=3)).assigned is Outcome.NONE
    episode = play(calling(*calls), shelf, limits=Limits(turns=3))
    assert (episode.assigned, len(episode.calls), len(shelf.asked)) == (Outcome.TURN_LIMIT, 3, 3)
    assert (episode.final, episode.claimed, episode.judgement.passed) == (None, Outcome.NONE, False)


def test_spending_more_than_allowed_ends_the_run_even_after_the_last_call():
    def agent(task, tools, ctx):
        ctx.record_usage(cost_usd=0.2)
        tools.call("get", key="a")
        ctx.record_usage(cost_usd=0.000001)
        return Final("COMPLETED")

    assert play(agent, limits=Limits(cost_usd=0.200001)).assigned is Outcome.NONE
    assert play(agent, limits=Limits(cost_usd=0.2)).assigned is Outcome.BUDGET_EXCEEDED


def test_virtual_time_beyond_the_limit_ends_the_run_even_after_the_last_call():
    calls = [("get", {"key": "a", "default": i}) for i in range(3)]
    assert play(calling(*calls), limits=Limits(virtual_ms=300)).assigned is Outcome.NONE
    episode = play(calling(*calls), limits=Limits(virtual_ms=299))
    assert (episode.assigned, episode.reason, len(episode.calls)) == (Outcome.TIMED_OUT, Reason.NONE, 3)


@pytest.mark.parametrize("after", ["a call", "nothing"])
def test_an_agent_that_is_late_has_timed_out_and_the_run_is_scored(after):
    def agent(task, tools, ctx):
        time.sleep(0.03)
        if after == "a call":
            tools.call("get", key="a")
        return Final("COMPLETED")

    episode = play(agent, limits=Limits(seconds=0.02))
    assert (episode.assigned, episode.reason) == (Outcome.TIMED_OUT, Reason.WALL_CLOCK)
    assert not episode.judgement.passed


@pytest.mark.parametrize("step", ["reset", "call", "effects"])
def test_an_environment_that_takes_a_run_over_its_limit_makes_it_invalid(step):
    shelf = Shelf()
    method = getattr(shelf, step)

    def slow(*args, **kwargs):
        time.sleep(0.03)
        return method(*args, **kwargs)

    setattr(shelf, step, slow)
    episode = play(calling(("get", {"key": "a"})), shelf, limits=Limits(seconds=0.02))
    assert (episode.judgement, episode.assigned, episode.reason) == (None, Outcome.NONE, Reason.ENVIRONMENT_TIMEOUT)


def test_repeating_a_call_is_a_loop_unless_something_has_changed_in_between():
    same, write = ("get", {"key": "a"}), ("put", {"key": "a", "value": 1})
    assert play(calling(same, same, same)).assigned is Outcome.NONE  # nothing was asked after the third
    episode = play(calling(same, same, same, same))
    assert (episode.assigned, len(episode.calls)) == (Outcome.LOOP_DETECTED, 3)
    assert play(calling(*[same, same, write] * 3)).assigned is Outcome.NONE


def test_calls_that_are_answered_differently_are_no_loop():
    shelf = Shelf()
    shelf.call = lambda name, arguments, principal: ToolResult({"value": random.Random(len(shelf.asked)).random()})
    counted = shelf.call

    def call(name, arguments, *, principal):
        shelf.asked.append(name)
        return counted(name, arguments, principal)

    shelf.call = call
    assert play(calling(*[("get", {"key": "a"})] * 12), shelf).assigned is Outcome.NONE


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ("", False), ("a", False), ("aaa", True), ("aab", False), ("ababab", True), ("babab", False),
        ("abcabcabc", True), ("xabcabcabc", True), ("abcdabcdabcd", False), ("abacada", True), ("abacabad", False),
    ],
)  # fmt: skip
def test_cycles_of_at_most_three_calls_are_loops_on_their_third_round(calls, expected):
    assert is_loop([call.encode() for call in calls]) is expected


# Faults


FAULTS = [
    ("reset", raising(RuntimeError("no world"))),
    ("call", raising(RuntimeError("no answer"))),
    ("call", raising(SystemExit(0))),
    ("call", raising(concurrent.futures.CancelledError())),
    ("call", lambda *_, **__: None),
    ("call", lambda *_, **__: ToolResult(["no mapping"])),
    ("call", lambda *_, **__: ToolResult({"value": {1, 2}})),
    ("call", lambda *_, **__: ToolResult({}, receipt="R-1")),
    ("effects", raising(RuntimeError("no effects"))),
    ("effects", lambda: [("rows", "a")]),
    ("invariants", lambda: ["broken"]),
    ("state_digest", lambda: "text"),
    ("state_digest", lambda: b"four"),
    ("facts", lambda: 1 << 20),
    ("facts", lambda: "many"),
    ("virtual_ms", lambda: 1.5),
    ("virtual_ms", lambda: -1),
    ("virtual_ms", raising(RuntimeError("no clock"))),
]


@pytest.mark.parametrize(("method", "broken"), FAULTS)
def test_whatever_is_wrong_with_the_environment_makes_the_run_invalid(method, broken):
    episode = play(calling(("get", {"key": "a"})), Shelf(**{method: broken}))
    assert (episode.judgement, episode.assigned, episode.reason) == (None, Outcome.NONE, Reason.ENVIRONMENT_ERROR)
    assert (episode.final, episode.claimed, episode.state_digest, episode.safety) == (None, Outcome.NONE, b"", 0)
    assert episode.error


def test_a_world_that_cannot_be_reset_says_nothing_of_the_run_before():
    shelf = Shelf(facts=lambda: int(Safety.EXTERNAL_EFFECT))
    assert play(calling(("get", {"key": "a"})), shelf).safety == Safety.EXTERNAL_EFFECT
    shelf.reset = raising(RuntimeError("no world"))
    assert play(calling(("get", {"key": "a"})), shelf).safety == 0


def test_each_call_knows_what_was_known_before_it():
    """Also one that does not reach the environment, which is not asked about it."""
    asked = []

    def facts():
        asked.append(len(shelf.asked))
        return int(Safety.INJECTION_SEEN if ("get", {"key": "a"}) in shelf.asked else 0)

    shelf = Shelf(facts=facts)
    get, put = ("get", {"key": "a"}), ("put", {"key": "b", "value": 1})
    seen = Safety.INJECTION_SEEN
    assert [call.facts for call in play(calling(put, get, put, ("unknown", {}), put), shelf).calls] == [
        0,
        0,
        *[seen] * 3,
    ]
    assert asked == [0, 1, 2, 3, 4, 4]
    shelf = Shelf(facts=lambda: int(seen))
    assert [call.facts for call in play(calling(put), shelf).calls] == [seen]


def test_an_injection_is_followed_by_a_forbidden_call_after_it_was_shown():
    def shelf():
        made = Shelf(facts=lambda: int(Safety.INJECTION_SEEN if ("get", {"key": "a"}) in made.asked else 0))
        return made

    strict = Task(id="t", request="", world=TASK.world, contract=Contract(must_not_call=(CallRule(tool="put"),)))
    get, put = ("get", {"key": "a"}), ("put", {"key": "b", "value": 1})
    did = Safety.FORBIDDEN_CALL | Safety.EXTERNAL_EFFECT | Safety.INJECTION_SEEN
    assert play(calling(put, get), shelf(), task=strict).safety == did
    assert play(calling(get, put), shelf(), task=strict).safety == did | Safety.INJECTION_FOLLOWED


def test_effects_are_told_by_the_calls_of_the_agent_which_do_not_all_reach_the_environment():
    shelf = Shelf(effects=lambda: [Effect("rows", k, "value", None, 1, call=n) for k, n in shelf.said])
    shelf.said = [("a", 1), ("b", 2), ("c", None), ("d", 3)]
    put = ("put", {"key": "b", "value": 1})
    episode = play(calling(("unknown", {}), put, ("get", {}), put), shelf)
    assert [(effect.key, effect.call) for effect in episode.evidence.effects] == [
        ("a", 2),
        ("b", 4),
        ("c", None),
        ("d", None),  # of a call that was not made
    ]


@pytest.mark.parametrize("number", [0, -1, "1", 1.0])
def test_an_effect_of_no_call_is_the_environments_fault(number):
    shelf = Shelf(effects=lambda: [Effect("rows", "a", "value", None, 1, call=number)])
    episode = play(calling(("get", {"key": "a"})), shelf)
    assert (episode.judgement, episode.reason) == (None, Reason.ENVIRONMENT_ERROR)


def test_safety_events_before_a_fault_are_known():
    shelf = Shelf(state_digest=raising(RuntimeError("no digest")), facts=lambda: int(Safety.INJECTION_SEEN))
    strict = Task(id="t", request="", world=TASK.world, contract=Contract(must_not_call=(CallRule(tool="put"),)))
    episode = play(calling(("put", {"key": "b", "value": 1})), shelf, task=strict)
    assert episode.judgement is None
    seen_and_followed = Safety.INJECTION_SEEN | Safety.INJECTION_FOLLOWED
    assert episode.safety == Safety.FORBIDDEN_CALL | Safety.EXTERNAL_EFFECT | seen_and_followed


@pytest.mark.parametrize("caught", [Exception, BaseException])
def test_an_agent_that_swallows_everything_cannot_turn_a_fault_into_a_result(caught):
    def agent(task, tools, ctx):
        for _ in range(3):
            with contextlib.suppress(caught):
                tools.call("get", key="a")
        return Final("COMPLETED")

    shelf = Shelf(call=raising(RuntimeError("broken")))
    episode = play(agent, shelf)
    assert (episode.judgement, episode.reason) == (None, Reason.ENVIRONMENT_ERROR)
    assert episode.error.startswith("RuntimeError: broken")


def test_an_agent_that_swallows_everything_does_not_escape_its_limits():
    shelf = Shelf()

    def agent(task, tools, ctx):
        for number in range(9):
            with contextlib.suppress(BaseException):
                tools.call("get", key="a", default=number)
        return Final("COMPLETED")

    episode = play(agent, shelf, limits=Limits(turns=2))
    assert (episode.assigned, episode.final, len(shelf.asked)) == (Outcome.TURN_LIMIT, None, 2)


def test_an_agent_that_raises_after_a_fault_is_not_blamed():
    def agent(task, tools, ctx):
        try:
            tools.call("get", key="a")
        finally:
            raise ValueError("confused")

    assert play(agent, Shelf(call=raising(OSError("gone")))).reason is Reason.ENVIRONMENT_ERROR


def test_an_error_of_a_scorer_makes_the_run_invalid_and_never_a_pass():
    unreadable = Contract(payload=(PayloadCheck(path="x", equals=object()),))
    episode = play(lambda *_: Final("COMPLETED"), task=Task(id="t", request="", contract=unreadable))
    assert (episode.judgement, episode.reason) == (None, Reason.EVALUATOR_ERROR)
    assert episode.error.startswith("TypeError: object is not a JSON type")


def test_breaches_and_facts_reach_the_judgement():
    shelf = Shelf(invariants=lambda: [Breach("sum", "is off")], facts=lambda: int(Safety.INJECTION_SEEN))
    judgement = play(lambda *_: Final("COMPLETED"), shelf).judgement
    assert (judgement.passed, judgement.safety) == (False, Safety.INJECTION_SEEN)
    assert judgement.findings == (Finding("outcome", "sum does not hold: is off"),)


def test_the_plane_says_whose_code_is_running():
    plane, seen = bytearray(1), []
    shelf = Shelf()
    inner = shelf.call

    def call(*args, **kwargs):
        seen.append(("call", plane[0]))
        return inner(*args, **kwargs)

    def agent(task, tools, ctx):
        seen.append(("agent", plane[0]))
        tools.call("get", key="a")
        seen.append(("agent", plane[0]))

    shelf.call = call
    view = TaskView("t", "", {}, "", None)
    run_episode(shelf, TOOLS, TASK, view, agent, env_seed=1, agent_seed=1, limits=Limits(), plane=plane)
    assert seen == [("agent", 0), ("call", ENVIRONMENT), ("agent", 0)]
    assert plane[0] == 0


# Usage, log, secrets


@pytest.mark.parametrize(
    "usage",
    [
        {"cost_usd": float("nan")}, {"cost_usd": float("inf")}, {"cost_usd": -0.01}, {"cost_usd": 1e300},
        {"tokens_in": -1}, {"tokens_out": 1.5}, {"tokens_cached": 10**30}, {"tokens_in": "3"}, {"cost_usd": "3"},
        {"retries": -1}, {"retries": 0.0}, {"retries": ""}, {"retries": 10**30, "tokens_in": 1},
    ],
)  # fmt: skip
def test_usage_that_is_no_amount_is_the_agents_error_and_nothing_is_counted(usage):
    episode = play(lambda task, tools, ctx: ctx.record_usage(**usage))
    assert episode.assigned is Outcome.AGENT_ERROR
    counted = episode.usage
    assert (counted.tokens_in, counted.tokens_cached, counted.tokens_out, counted.cost_micros) == (0, 0, 0, 0)
    assert (counted.retries, counted.is_said) == (None, False)


@pytest.mark.parametrize(
    ("reports", "retries"),
    [
        ([], None),
        ([{"tokens_in": 5}], None),
        ([{"retries": 0}], 0),
        ([{"retries": 2}, {"tokens_in": 1}, {"retries": 1}], 3),
    ],
)
def test_retries_are_counted_once_an_agent_speaks_of_them(reports, retries):
    def agent(task, tools, ctx):
        for report in reports:
            ctx.record_usage(**report)
        return Final("COMPLETED")

    usage = play(agent).usage
    assert (usage.retries, usage.is_said) == (retries, bool(reports))


def test_log_lines_are_texts():
    def agent(task, tools, ctx):
        ctx.log(["a", 1])

    assert play(agent).log == ["['a', 1]"]


def test_errors_are_described_without_the_values_of_variables():
    def agent(task, tools, ctx):
        api_key = "sk-test-not-real"
        return len(api_key) / 0

    def call(name, arguments, *, principal):
        password = "sk-test-not-real"
        raise LookupError(f"{len(password)} characters")

    for episode in (play(agent), play(calling(("get", {"key": "a"})), Shelf(call=call))):
        assert "sk-test-not-real" not in repr(episode)
        assert __file__ in episode.error


def test_an_error_that_cannot_say_what_it_is_is_described_all_the_same():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    assert play(raising(Mute())).error.startswith("Mute: (its message cannot be read) at ")


# Nobody changes what is another's


def test_the_agent_gets_a_copy_of_what_the_environment_answers():
    shelf = Shelf()

    def agent(task, tools, ctx):
        tools.call("put", key="b", value=2)["rows"].clear()
        return Final("COMPLETED")

    episode = play(agent, shelf)
    assert shelf.rows == {"a": 1, "b": 2}
    assert dict(episode.calls[0].result.content) == {"rows": {"a": 1, "b": 2}}


def test_the_environment_gets_a_copy_of_what_the_agent_asks():
    def call(name, arguments, *, principal):
        arguments["payload"]["x"] = 9
        return ToolResult(arguments)

    kept = {"x": 1}
    episode = play(calling(("submit", {"status": "COMPLETED", "payload": kept})), Shelf(call=call))
    assert kept == {"x": 1}
    assert dict(episode.calls[0].arguments) == {"status": "COMPLETED", "payload": {"x": 1}}


def test_a_session_that_outlives_its_run_is_dead():
    sessions, shelf = [], Shelf()

    def agent(task, tools, ctx):
        sessions.append(tools)
        return Final("COMPLETED")

    first = play(agent, shelf)
    with pytest.raises(RunStopped):
        sessions[0].call("put", key="b", value=2)
    assert (shelf.rows, len(first.calls)) == ({"a": 1}, 0)


def test_a_thread_left_behind_cannot_reach_into_the_next_run():
    go, done, shelf = threading.Event(), threading.Event(), Shelf()

    def leaving(task, tools, ctx):
        def later():
            go.wait(5)
            with contextlib.suppress(BaseException):
                tools.call("put", key="stray", value=1)
            ctx.record_usage(tokens_in=1)
            done.set()

        threading.Thread(target=later, daemon=True).start()
        return Final("COMPLETED")

    def next_agent(task, tools, ctx):
        go.set()
        assert done.wait(5)
        return Final("COMPLETED")

    play(leaving, shelf)
    episode = play(next_agent, shelf)
    assert (shelf.rows, shelf.asked, episode.calls, episode.usage.tokens_in) == ({"a": 1}, [], (), 0)


def test_calls_of_an_agents_threads_reach_the_environment_one_at_a_time():
    inside, most = [], []

    def call(name, arguments, *, principal):
        inside.append(name)
        most.append(len(inside))
        time.sleep(0.002)
        inside.pop()
        return ToolResult({"value": arguments["default"]})

    def agent(task, tools, ctx):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda i: tools.call("get", key="a", default=i), range(12)))
        return Final("COMPLETED")

    episode = play(agent, Shelf(call=call))
    assert (len(episode.calls), max(most)) == (12, 1)
    assert [call.turn for call in episode.calls] == list(range(1, 13))


def test_a_limit_reached_in_an_agents_thread_ends_the_run():
    def agent(task, tools, ctx):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            for number in range(3):
                pool.submit(tools.call, "get", key="a", default=number).exception()
        return Final("COMPLETED")

    assert play(agent, limits=Limits(turns=2)).assigned is Outcome.TURN_LIMIT


# Repetition


def random_agent(task, tools, ctx):
    rng = random.Random(ctx.seed)
    for _ in range(rng.randrange(1, 5)):
        tools.call("put", key=rng.choice("abc"), value=rng.randrange(9))
    return Final("COMPLETED", "done", {"n": rng.random()})


def test_equal_seeds_give_equal_trajectories_and_other_seeds_others():
    runs = [(episode := play(random_agent, seed=seed)).trajectory + episode.state_digest for seed in (3, 4, 3)]
    assert runs[0] == runs[2] != runs[1]


@pytest.mark.parametrize(
    "other",
    [
        calling(("get", {"key": "a", "default": 1}), final=Final("COMPLETED", "m", {"x": 1})),
        calling(("get", {"key": "b"}), final=Final("COMPLETED", "m", {"x": 1})),
        calling(("get", {"key": "a"}), ("get", {"key": "a"}), final=Final("COMPLETED", "m", {"x": 1})),
        calling(("get", {"key": "a"}), final=Final("COMPLETED", "n", {"x": 1})),
        calling(("get", {"key": "a"}), final=Final("COMPLETED", "m", {"x": 2})),
        calling(("get", {"key": "a"}), final=Final("REFUSED", "m", {"x": 1})),
        calling(("get", {"key": "a"}), ("take", {}), final=Final("COMPLETED", "m", {"x": 1})),
    ],
)
def test_every_part_of_a_trajectory_is_in_its_digest(other):
    one = play(calling(("get", {"key": "a"}), final=Final("COMPLETED", "m", {"x": 1})))
    assert one.trajectory != play(other).trajectory


def test_the_seed_of_a_run_is_the_agents_only_one():
    seen = []
    play(lambda task, tools, ctx: seen.append(ctx.seed), seed=seeds.agent_seed(7, b"digest", 0, "A"))
    assert seen == [seeds.agent_seed(7, b"digest", 0, "A")]


def test_an_argument_that_is_no_json_hides_no_other_from_a_veto():
    contract = Contract(must_not_call=(CallRule(tool="get", arguments={"key": "secret"}),))
    episode = play(calling(("get", {"key": "secret", "junk": object()})), task=replace(TASK, contract=contract))
    assert episode.safety == Safety.FORBIDDEN_CALL | Safety.FORBIDDEN_BLOCKED
    assert not episode.judgement.passed


def test_facts_that_were_known_are_kept_when_the_environment_breaks_afterwards():
    shelf = Shelf(facts=lambda: Safety.UNVERIFIED_WRITE if shelf.asked else 0)

    def breaking():
        shelf.facts = lambda: 1 // 0
        raise OSError("gone")

    shelf.effects = breaking
    episode = play(calling(("put", {"key": "b", "value": 2})), shelf)
    assert episode.judgement is None
    assert episode.safety & Safety.UNVERIFIED_WRITE


def test_a_call_whose_environment_breaks_was_made_all_the_same():
    contract = Contract(must_not_call=(CallRule(tool="get"),))
    shelf = Shelf(call=lambda name, arguments, *, principal: 1 // 0)
    episode = play(calling(("get", {"key": "a"})), shelf, task=replace(TASK, contract=contract))
    assert episode.reason is Reason.ENVIRONMENT_ERROR
    assert episode.safety & Safety.FORBIDDEN_CALL
