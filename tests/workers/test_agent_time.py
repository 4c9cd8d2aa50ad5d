"""A simulated agent says how long it took in the environment's own time, and that counts like the environment's."""

import pytest

from passhat.workers.agent import Final, TaskView
from passhat.workers.contract import Ceilings, Contract, Task
from passhat.workers.environment import EnvSpec, ToolResult, ToolSpec
from passhat.workers.episode import Episode, run_episode
from passhat.workers.guard import Ledger
from passhat.workers.order import Limits
from passhat.workers.records import Outcome
from passhat.workers.replay import Stage, difference, script_of
from passhat.workers.session import compile_tools


class Clockwork:
    """Each call takes 100 virtual milliseconds."""

    spec = EnvSpec("clockwork", "1", (ToolSpec("tick", "", {"type": "object", "properties": {}}),))

    def __init__(self):
        self.calls = 0

    def reset(self, *, seed, options):
        self.calls = 0

    def call(self, name, arguments, *, principal):
        self.calls += 1
        return ToolResult({"calls": self.calls})

    def effects(self):
        return []

    invariants = effects

    def state_digest(self):
        return self.calls.to_bytes(8, "big")

    def facts(self):
        return 0

    def virtual_ms(self):
        return 100 * self.calls

    def close(self):
        pass


TASK = Task(id="t", request="wait", contract=Contract(ceilings=Ceilings(virtual_ms=900)))


def play(agent, limits=Limits()) -> Episode:  # noqa: B008 - immutable
    world = Clockwork()
    view = TaskView(TASK.id, TASK.request, {}, "", None)
    return run_episode(
        world, compile_tools(world.spec), TASK, view, agent, env_seed=0, agent_seed=0, limits=limits, plane=bytearray(1)
    )


def thinking(*waits, at_the_end=0):
    """An agent that thinks so long before each call, and before its last word."""

    def agent(task, tools, ctx):
        for wait in waits:
            ctx.record_usage(virtual_ms=wait)
            tools.call("tick")
        ctx.record_usage(virtual_ms=at_the_end)
        return Final("COMPLETED")

    return agent


def test_the_time_of_a_run_is_that_of_both():
    episode = play(thinking(250, 300))
    assert (episode.virtual_ms, episode.usage.virtual_ms, episode.assigned) == (750, 550, Outcome.NONE)


def test_a_limit_holds_for_both_together():
    reaching = play(thinking(100, 700, at_the_end=0), Limits(virtual_ms=1000))
    assert reaching.assigned is Outcome.NONE
    for agent, calls in ((thinking(100, 850), 1), (thinking(100, 700, at_the_end=1), 2), (thinking(1001), 0)):
        late = play(agent, Limits(virtual_ms=1000))
        assert (late.assigned, len(late.calls)) == (Outcome.TIMED_OUT, calls)
        assert late.virtual_ms > 1000


@pytest.mark.parametrize(("wait", "passes"), [(800, True), (801, False)])
def test_a_ceiling_on_latency_holds_for_both_together(wait, passes):
    judgement = play(thinking(wait)).judgement
    assert judgement is not None
    assert judgement.passed == passes


def test_an_agent_can_see_where_its_run_is_ended():
    seen = []
    play(lambda task, tools, ctx: seen.append(ctx.limits), Limits(turns=7))
    assert seen == [Limits(turns=7)]


@pytest.mark.parametrize("wait", [-1, 0.5, 10**13])
def test_a_time_that_can_be_none_is_the_agents_error(wait):
    episode = play(thinking(wait))
    assert episode.assigned is Outcome.AGENT_ERROR


def test_the_agents_time_is_no_part_of_what_the_environment_has_to_repeat():
    episode = play(thinking(250, 300))
    script = script_of(episode, 0, {}, TASK.principal)
    assert difference(episode, script, Stage("again", Clockwork(), Ledger())) is None
