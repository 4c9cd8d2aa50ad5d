"""Carries out shards of a work order in the process it lives in: builds what a run needs, once, and turns runs into
packed records. The same code serves a worker's child and the in-process backend. Knows nothing of Ray or pipes.
"""

import contextlib
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from passhat.workers import seeds
from passhat.workers.agent import Agent, TaskView
from passhat.workers.chances import draw_fault, propensity
from passhat.workers.contract import Task, task_digest
from passhat.workers.episode import Episode, run_episode
from passhat.workers.guard import Guard, Ledger
from passhat.workers.loading import DESK, check_code, load_object, set_up
from passhat.workers.order import AgentSpec, Cell, Shard, WorkOrder
from passhat.workers.records import Level, RunRecord, Safety, Status, pack_record, seal
from passhat.workers.replay import condemn, difference, script_of
from passhat.workers.scripted import BrokenEnvironment, scripted_agent
from passhat.workers.session import AGENT, ENVIRONMENT, Tools, compile_tools
from passhat.workers.traces import TraceFile, TraceObjects, compose, open_traces
from passhat.workers.worlds import build_world

SCRIPTED = "scripted"  # the built-in agent

_clock = time.perf_counter
_ALL_EVENTS = int(sum(Safety))  # an episode sees all of its calls


@cache
def _desk_tools() -> Tools:
    from passhat.workers.desk import Desk

    return compile_tools(Desk.spec)


def preload(order: WorkOrder) -> None:
    """Do the part of the set-up that is safe before a fork, so that a new child starts in a millisecond."""
    if order.environment == DESK:
        _desk_tools()
    if any(spec.target == SCRIPTED and spec.flaws for spec in order.releases):
        propensity(0.5, 0.5, 0.5)  # the first one imports what computes it


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A task with what is derived from it, kept while its runs follow one another."""

    index: int
    task: Task
    digest: bytes
    parts: bytes  # inputs, output schema, world: each run gets its own, so that none changes another's

    def fresh(self) -> tuple[TaskView, Mapping[str, Any] | None]:
        """Return what a run's agent and environment get of the task."""
        inputs, output_schema, world = pickle.loads(self.parts)
        task = self.task
        return TaskView(task.id, task.request, inputs, task.policy, output_schema), world


class Finished(NamedTuple):
    """A run that came to an end: its position in the grid, its record, and the record as it is sent."""

    position: int
    record: RunRecord
    packed: bytes


class Host:
    """One environment instance and one agent a release; one run at a time."""

    def __init__(
        self, order: WorkOrder, plane: Any = None, *, is_child: bool = False, alive: Callable[[], None] = lambda: None
    ) -> None:
        """Set up; a child may start processes of its own and says with `alive` that a run's time begins anew."""
        self._pid = os.getpid()
        self._order = order
        self._grid = order.grid
        self._plane = bytearray(1) if plane is None else plane
        sys.path[:0] = [folder for folder in order.sys_path if folder not in sys.path]
        check_code(order.code)
        self._alive = alive
        self._world = build_world(order, is_child=is_child)
        self._environment = self._world.environment
        self._agent_level = min(order.hermetic.agent, Level.GUARDED)
        self._agent_guard = Guard("agent") if self._agent_level == Level.GUARDED else Ledger("agent")
        self._tools = self._compile_tools()
        self._levels = Levels(order.hermetic.environment, self.level, order.hermetic.agent, self._agent_level)
        self._agents = [_agent_source(spec) for spec in order.releases]
        self._prepared: _Prepared | None = None

    def run(self, shard: Shard) -> Iterator[Finished]:
        """Carry out the runs of a shard in order; stop early once its time is used up."""
        started = _clock()
        traces = open_traces(self._order.trace_dir, shard.id) if self._order.trace_dir else None
        try:
            for position in range(shard.first, shard.stop):
                record = self._run_one(self._grid.locate(position), shard.attempt, traces)
                yield Finished(position, record, pack_record(record))
                if _clock() - started > shard.seconds:
                    return
        finally:
            if traces is not None:
                traces.close()

    def close(self) -> None:
        for environment in (self._environment, *(stage.environment for stage in self._world.stages)):
            with contextlib.suppress(Exception):  # says nothing about any run
                environment.close()

    @property
    def level(self) -> Level:
        """Hermetic level of the environment that was achieved."""
        return self._world.level

    def _compile_tools(self) -> Tools:
        target, environment = self._order.environment, self._environment
        return _desk_tools() if target == DESK else set_up(target, lambda: compile_tools(environment.spec))

    def _prepare(self, index: int) -> _Prepared:
        if self._prepared is None or self._prepared.index != index:
            task = self._order.tasks[index]
            world = None if self._order.environment == DESK else task.world  # the desk only reads a world
            parts = pickle.dumps((task.inputs, task.output_schema, world))
            self._prepared = _Prepared(index, task, task_digest(task), parts)
        return self._prepared

    def _run_one(self, cell: Cell, attempt: int, traces: TraceFile | TraceObjects | None) -> RunRecord:
        started = _clock()
        order, now = self._order, self._prepare(cell.task)
        spec = order.releases[cell.release]
        agent_seed = seeds.agent_seed(order.seed, now.digest, cell.run, order.stream_of(cell.release))
        view, world = now.fresh()
        is_broken = draw_fault(spec.flaws, now.digest, agent_seed, attempt, spec.latent)
        episode = run_episode(
            BrokenEnvironment(self._environment) if is_broken else self._environment,
            self._tools,
            now.task,
            view,
            self._agents[cell.release](now, agent_seed),
            env_seed=seeds.env_seed(order.seed, now.digest, cell.run),
            agent_seed=agent_seed,
            limits=order.limits,
            plane=self._plane,
            world=world,
            guard=self._world.guard,
            agent_guard=self._agent_guard,
        )
        if os.getpid() != self._pid:
            os._exit(0)  # a process forked by the agent came back from it; the run goes on in the original
        wall_us = round((_clock() - started) * 1e6)
        if episode.judgement is not None and self._is_replayed(now, cell):
            episode = self._replay(now, cell, episode)
        record = make_record(cell, attempt, episode, wall_us, self._levels)
        if traces is None or (record.status == Status.PASS and not self._is_sampled(now, cell)):
            return record
        file, offset = traces.append(compose(now.task, spec.name, record, episode))
        return record._replace(trace_file=file, trace_offset=offset)

    def _is_replayed(self, now: _Prepared, cell: Cell) -> bool:
        """Whether a run has to prove that it repeats: the first of a campaign does, and a seeded share of the rest."""
        every = self._order.hermetic.replay_every
        if not self._world.stages:
            return False
        return cell.task == cell.run == 0 or seeds.derive("replay", self._order.seed, now.digest, cell.run) % every == 0

    def _replay(self, now: _Prepared, cell: Cell, episode: Episode) -> Episode:
        """Return the episode; one that its environment does not repeat is invalid."""
        seed = seeds.env_seed(self._order.seed, now.digest, cell.run)
        for stage in self._world.stages:
            self._alive()
            world = now.fresh()[1]
            options = now.task.world if world is None else world
            self._plane[0] = ENVIRONMENT
            found = difference(episode, script_of(episode, seed, options, now.task.principal), stage)
            self._plane[0] = AGENT
            if found is not None:
                return condemn(episode, found)
        return episode

    def _is_sampled(self, now: _Prepared, cell: Cell) -> bool:
        return seeds.derive("trace", self._order.seed, now.digest, cell.run) % self._order.trace_every == 0


def _agent_source(spec: AgentSpec) -> Callable[[_Prepared, int], Agent]:
    """Return what gives the agent of a run: the user's callable, or a script with this run's flaws."""
    if spec.target == SCRIPTED:
        return lambda now, agent_seed: scripted_agent(now.task, spec.flaws, now.digest, agent_seed, spec.latent)
    agent: Agent = load_object(spec.target)
    return lambda now, agent_seed: agent


class Levels(NamedTuple):
    """Hermetic levels as a record has them."""

    env_requested: Level
    env_level: Level
    agent_requested: Level
    agent_level: Level


def make_record(cell: Cell, attempt: int, episode: Episode, wall_us: int, levels: Levels) -> RunRecord:
    """Return the compact record of an episode."""
    usage, judgement = episode.usage, episode.judgement
    record = RunRecord(
        *cell,
        attempt=attempt,
        status=Status.INVALID if judgement is None else Status.PASS if judgement.passed else Status.FAIL,
        claimed=episode.claimed,
        assigned=episode.assigned,
        reason=episode.reason,
        outcome=None if judgement is None else judgement.outcome,
        trajectory=None if judgement is None else judgement.trajectory,
        efficiency=None if judgement is None else judgement.efficiency,
        rubric=None,
        passes=0 if judgement is None else judgement.passes,
        safety=episode.safety,
        watched=_ALL_EVENTS,
        turns=len(episode.calls),
        calls=len(episode.calls),
        bad_calls=episode.bad_calls,
        tokens_in=usage.tokens_in if usage.is_said else None,
        tokens_cached=usage.tokens_cached if usage.is_said else None,
        tokens_out=usage.tokens_out if usage.is_said else None,
        retries=usage.retries,
        cost_micros=usage.cost_micros if usage.is_said else None,
        virtual_ms=episode.virtual_ms,
        wall_us=wall_us,
        **levels._asdict(),
        violations=episode.violation_count,
        state_digest=episode.state_digest,
        digest=b"",
        trace_file=None,
        trace_offset=None,
    )
    return seal(record, episode.trajectory)
