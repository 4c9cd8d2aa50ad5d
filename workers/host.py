"""Carries out shards of a work order in the process it lives in: builds what a run needs, once, and turns runs into
packed records. The same code serves a worker's child and the in-process backend. Knows nothing of Ray or pipes.
"""

import contextlib
import importlib
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar

from passhat.workers import seeds
from passhat.workers.agent import Agent, TaskView
from passhat.workers.contract import Task, task_digest
from passhat.workers.environment import Environment
from passhat.workers.episode import Episode, run_episode
from passhat.workers.flaws import propensity
from passhat.workers.order import AgentSpec, Cell, Shard, WorkOrder
from passhat.workers.records import Level, RunRecord, Status, pack_record, seal
from passhat.workers.scripted import scripted_agent
from passhat.workers.session import Tools, compile_tools, describe
from passhat.workers.traces import TraceFile, compose

T = TypeVar("T")

DESK = "desk"  # the built-in environment
SCRIPTED = "scripted"  # the built-in agent

_clock = time.perf_counter


class WorkerError(Exception):
    """The work cannot be done here, whatever the run: an agent that cannot be imported, a full disk."""


def load_object(target: str) -> Any:
    """Return what "module:name" names; raise WorkerError that says which part is missing."""
    module_name, _, name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise WorkerError(f"{target}: cannot import {module_name!r}: {describe(error)}") from error
    try:
        return getattr(module, name)
    except AttributeError:
        raise WorkerError(f"{target}: {module_name!r} has no {name!r}") from None


def build_environment(target: str) -> Environment:
    """Return an instance of the built-in desk, or of the user's "module:factory"."""
    if target == DESK:
        from passhat.workers.desk import Desk

        return Desk()
    environment: Environment = _set_up(target, load_object(target))
    return environment


def _set_up(target: str, step: Callable[[], T]) -> T:
    """Carry out a step of setting up the user's environment; raise WorkerError when it cannot be done."""
    try:
        return step()
    except (Exception, SystemExit) as error:
        raise WorkerError(f"{target}: the environment cannot be set up: {describe(error)}") from error


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

    def __init__(self, order: WorkOrder, plane: Any = None) -> None:
        self._pid = os.getpid()
        self._order = order
        self._grid = order.grid
        self._plane = bytearray(1) if plane is None else plane
        sys.path[:0] = [folder for folder in order.sys_path if folder not in sys.path]
        self._environment = build_environment(order.environment)
        self._tools = self._compile_tools()
        self._agents = [_agent_source(spec) for spec in order.releases]
        self._prepared: _Prepared | None = None

    def run(self, shard: Shard) -> Iterator[Finished]:
        """Carry out the runs of a shard in order; stop early once its time is used up."""
        started = _clock()
        traces = TraceFile(self._order.trace_dir, shard.id) if self._order.trace_dir else None
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
        with contextlib.suppress(Exception):  # says nothing about any run
            self._environment.close()

    def _compile_tools(self) -> Tools:
        target, environment = self._order.environment, self._environment
        return _desk_tools() if target == DESK else _set_up(target, lambda: compile_tools(environment.spec))

    def _prepare(self, index: int) -> _Prepared:
        if self._prepared is None or self._prepared.index != index:
            task = self._order.tasks[index]
            world = None if self._order.environment == DESK else task.world  # the desk only reads a world
            parts = pickle.dumps((task.inputs, task.output_schema, world))
            self._prepared = _Prepared(index, task, task_digest(task), parts)
        return self._prepared

    def _run_one(self, cell: Cell, attempt: int, traces: TraceFile | None) -> RunRecord:
        started = _clock()
        order, now = self._order, self._prepare(cell.task)
        spec = order.releases[cell.release]
        agent_seed = seeds.agent_seed(order.seed, now.digest, cell.run, order.stream_of(cell.release))
        view, world = now.fresh()
        episode = run_episode(
            self._environment,
            self._tools,
            now.task,
            view,
            self._agents[cell.release](now, agent_seed),
            env_seed=seeds.env_seed(order.seed, now.digest, cell.run),
            agent_seed=agent_seed,
            limits=order.limits,
            plane=self._plane,
            world=world,
        )
        if os.getpid() != self._pid:
            os._exit(0)  # a process forked by the agent came back from it; the run goes on in the original
        record = make_record(cell, attempt, episode, round((_clock() - started) * 1e6))
        if traces is None or (record.status == Status.PASS and not self._is_sampled(now, cell)):
            return record
        file, offset = traces.append(compose(now.task, spec.name, record, episode))
        return record._replace(trace_file=file, trace_offset=offset)

    def _is_sampled(self, now: _Prepared, cell: Cell) -> bool:
        return seeds.derive("trace", self._order.seed, now.digest, cell.run) % self._order.trace_every == 0


def _agent_source(spec: AgentSpec) -> Callable[[_Prepared, int], Agent]:
    """Return what gives the agent of a run: the user's callable, or a script with this run's flaws."""
    if spec.target == SCRIPTED:
        return lambda now, agent_seed: scripted_agent(now.task, spec.flaws, now.digest, agent_seed)
    agent: Agent = load_object(spec.target)
    return lambda now, agent_seed: agent


def make_record(cell: Cell, attempt: int, episode: Episode, wall_us: int) -> RunRecord:
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
        turns=len(episode.calls),
        calls=len(episode.calls),
        bad_calls=episode.bad_calls,
        tokens_in=usage.tokens_in if usage.is_said else None,
        tokens_cached=usage.tokens_cached if usage.is_said else None,
        tokens_out=usage.tokens_out if usage.is_said else None,
        cost_micros=usage.cost_micros if usage.is_said else None,
        virtual_ms=episode.virtual_ms,
        wall_us=wall_us,
        env_level=Level.DECLARED,
        agent_level=Level.OPEN,
        violations=0,
        state_digest=episode.state_digest,
        digest=b"",
        trace_file=None,
        trace_offset=None,
    )
    return seal(record, episode.trajectory)
