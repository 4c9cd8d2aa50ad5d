"""Carries out shards of a work order in the process it lives in: builds what a run needs, once, and turns runs into
packed records. The same code serves a worker's child and the in-process backend. Knows nothing of Ray or pipes.
"""

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from passhat.workers import seeds
from passhat.workers.agent import Agent, TaskView
from passhat.workers.contract import Task, task_digest
from passhat.workers.environment import Environment
from passhat.workers.episode import Episode, Tools, compile_tools, run_episode
from passhat.workers.order import AgentSpec, Cell, Shard, WorkOrder
from passhat.workers.records import Level, RunRecord, Status, blank, pack_record, seal
from passhat.workers.scripted import scripted_agent
from passhat.workers.traces import TraceFile, compose

_clock = time.perf_counter


class WorkerError(Exception):
    """The work cannot be done here, whatever the run: an agent that cannot be imported, a full disk."""


def load_object(target: str) -> Any:
    """Return what "module:name" names; raise WorkerError that says which part is missing."""
    module_name, _, name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise WorkerError(f"{target}: cannot import {module_name!r}: {type(error).__name__}: {error}") from error
    try:
        return getattr(module, name)
    except AttributeError:
        raise WorkerError(f"{target}: {module_name!r} has no {name!r}") from None


def build_environment(target: str) -> Environment:
    """Return an instance of the built-in desk, or of the user's "module:factory"."""
    if target == "desk":
        from passhat.workers.desk import Desk

        return Desk()
    factory = load_object(target)
    try:
        environment: Environment = factory()
    except Exception as error:
        raise WorkerError(f"{target}: the factory failed: {type(error).__name__}: {error}") from error
    return environment


@cache
def _desk_tools() -> Tools:
    from passhat.workers.desk import Desk

    return compile_tools(Desk.spec)


def preload(order: WorkOrder) -> None:
    """Do the part of the set-up that is safe before a fork, so that a new child starts in a millisecond."""
    if order.environment == "desk":
        _desk_tools()


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A task with what is derived from it, kept while its runs follow one another."""

    index: int
    task: Task
    digest: bytes
    view: TaskView


class Finished(NamedTuple):
    """A run that came to an end: its position in the grid, its record, and the record as it is sent."""

    position: int
    record: RunRecord
    packed: bytes


class Host:
    """One environment instance and one agent a release; one run at a time."""

    def __init__(self, order: WorkOrder, plane: Any = None) -> None:
        self._order = order
        self._grid = order.grid
        self._plane = bytearray(1) if plane is None else plane
        sys.path[:0] = [folder for folder in order.sys_path if folder not in sys.path]
        self._environment = build_environment(order.environment)
        self._tools = _desk_tools() if order.environment == "desk" else compile_tools(self._environment.spec)
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
        self._environment.close()

    def _prepare(self, index: int) -> _Prepared:
        if self._prepared is None or self._prepared.index != index:
            task = self._order.tasks[index]
            view = TaskView(task.id, task.request, task.inputs, task.policy, task.output_schema)
            self._prepared = _Prepared(index, task, task_digest(task), view)
        return self._prepared

    def _run_one(self, cell: Cell, attempt: int, traces: TraceFile | None) -> RunRecord:
        started = _clock()
        order, now = self._order, self._prepare(cell.task)
        spec = order.releases[cell.release]
        agent_seed = seeds.agent_seed(order.seed, now.digest, cell.run, order.stream_of(cell.release))
        episode = run_episode(
            self._environment,
            self._tools,
            now.task,
            now.view,
            self._agents[cell.release](now, agent_seed),
            env_seed=seeds.env_seed(order.seed, now.digest, cell.run),
            agent_seed=agent_seed,
            limits=order.limits,
            plane=self._plane,
        )
        record = make_record(cell, attempt, episode, round((_clock() - started) * 1e6))
        if traces is not None and (record.status != Status.PASS or self._is_sampled(now, cell)):
            file, offset = traces.append(compose(now.task, spec.name, record, episode))
            record = record._replace(trace_file=file, trace_offset=offset)
        return record

    def _is_sampled(self, now: _Prepared, cell: Cell) -> bool:
        return seeds.derive("trace", self._order.seed, now.digest, cell.run) % self._order.trace_every == 0


def _agent_source(spec: AgentSpec) -> Callable[[_Prepared, int], Agent]:
    """Return what gives the agent of a run: the user's callable, or a script with this run's flaws."""
    if spec.target == "scripted":
        return lambda now, agent_seed: scripted_agent(now.task, spec.flaws, now.digest, agent_seed)
    agent: Agent = load_object(spec.target)
    return lambda now, agent_seed: agent


def make_record(cell: Cell, attempt: int, episode: Episode, wall_us: int) -> RunRecord:
    """Return the compact record of an episode."""
    record = blank(*cell)._replace(
        attempt=attempt,
        status=Status.INVALID,
        reason=episode.reason,
        claimed=episode.claimed,
        assigned=episode.assigned,
        turns=len(episode.calls),
        calls=len(episode.calls),
        bad_calls=episode.bad_calls,
        tokens_in=episode.usage.tokens_in,
        tokens_cached=episode.usage.tokens_cached,
        tokens_out=episode.usage.tokens_out,
        cost_micros=episode.usage.cost_micros,
        virtual_ms=episode.virtual_ms,
        wall_us=wall_us,
        env_level=Level.DECLARED,
        agent_level=Level.OPEN,
        state_digest=episode.state_digest,
    )
    judgement = episode.judgement
    if judgement is not None:
        record = record._replace(
            status=Status.PASS if judgement.passed else Status.FAIL,
            outcome=judgement.outcome,
            trajectory=judgement.trajectory,
            efficiency=judgement.efficiency,
            passes=judgement.passes,
            safety=judgement.safety,
        )
    return seal(record, episode.trajectory)
