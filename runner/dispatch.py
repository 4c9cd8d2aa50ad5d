"""Carries out what the schedule commands: on Ray actors, or in this process. Decides nothing.

Both backends are started, given shards and asked what has arrived; what arrives are the schedule's own events, and
frames still packed. The only module here that imports Ray.
"""

import math
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from passhat.runner.errors import Incomplete, Interrupted, UsageError
from passhat.runner.progress import Progress
from passhat.runner.schedule import ShardEnded, SlotLost, SlotReady
from passhat.workers.frames import Batch
from passhat.workers.guard import fixed_zone
from passhat.workers.host import Host
from passhat.workers.loading import WorkerError
from passhat.workers.order import Shard, WorkOrder


@dataclass(frozen=True, slots=True)
class Data:
    """A frame, as the worker packed it."""

    slot: int
    shard: int
    frame: bytes


@dataclass(frozen=True, slots=True)
class Failed:
    """The work cannot be done by any worker."""

    cause: str


Arrival = SlotReady | Data | ShardEnded | SlotLost | Failed


class Backend(Protocol):
    """Where runs are executed."""

    slots: int
    is_inline: bool  # runs are executed by `arrivals` itself

    def start(self, slot: int) -> None:
        """Start the worker of a slot, in place of the one it had."""

    def assign(self, slot: int, shard: Shard) -> None:
        """Queue a shard for a slot's worker."""

    def arrivals(self, timeout_s: float) -> list[Arrival]:
        """Return what has arrived, after waiting for at most this long."""

    def drain(self) -> list[Arrival]:
        """Return what has been finished and not yet returned, without waiting for more."""

    def publish(self, progress: Progress, *, final: bool = False) -> None:
        """Tell those who watch the machines how far it is; called often, and heard as often as makes sense."""

    def close(self) -> None:
        """End all workers."""


class InlineBackend:
    """One slot in this process: no Ray, no child; for debuggers, tests and small suites.

    Nothing can interrupt a run that hangs; its wall-clock limit is looked at whenever it calls a tool.
    """

    slots = 1
    is_inline = True

    def __init__(self, order: WorkOrder) -> None:
        self._order = order
        self._host: Host | None = None
        self._queue: deque[Shard] = deque()
        self._batch: Batch | None = None
        self._stream: Iterator[bytes] | None = None
        self._arrived: list[Arrival] = []
        self._settings = ExitStack()

    def start(self, slot: int) -> None:
        self._settings.enter_context(fixed_zone())
        try:
            with _prints_to_stderr():
                self._host = Host(self._order)
        except WorkerError as error:
            self._arrived.append(Failed(str(error)))
        else:
            self._arrived.append(SlotReady(slot))

    def assign(self, slot: int, shard: Shard) -> None:
        self._queue.append(shard)

    def arrivals(self, timeout_s: float) -> list[Arrival]:
        if not self._arrived and self._queue:
            if self._stream is None:
                self._stream = self._run(self._queue[0])
            shard = self._queue[0].id
            try:
                with _prints_to_stderr():
                    self._arrived.append(Data(0, shard, next(self._stream)))
            except StopIteration:
                self._stream, self._batch = None, None
                self._queue.popleft()
                self._arrived.append(ShardEnded(0, shard))
            except OSError as error:
                self._arrived.append(Failed(str(error)))
        arrived, self._arrived = self._arrived, []
        return arrived

    def drain(self) -> list[Arrival]:
        if self._batch is None:
            return []
        return [Data(0, self._queue[0].id, frame) for frame in self._batch.flush()]

    def publish(self, progress: Progress, *, final: bool = False) -> None:
        """Do nothing: whoever watches this process sees its progress."""

    def close(self) -> None:
        if self._host is not None:
            with _prints_to_stderr():
                self._host.close()
        self._settings.close()

    def _run(self, shard: Shard) -> Iterator[bytes]:
        assert self._host is not None
        self._batch = Batch(shard.id, 0, shard.first)
        for finished in self._host.run(shard):
            self._batch.add(finished.packed)
            if self._batch.is_due():
                yield from self._batch.flush()
        yield from self._batch.flush()


def _prints_to_stderr() -> AbstractContextManager[Any]:
    """Around code of the user: standard output is for the answer alone."""
    return redirect_stdout(sys.stderr)


def ray_address(address: str | None) -> str:
    """Return the address to use; raise UsageError for Ray Client, over which streams do not work."""
    chosen = address or os.environ.get("RAY_ADDRESS") or "local"
    if chosen.startswith("ray://"):
        raise UsageError(
            f"--address {chosen}: Ray Client cannot stream records; "
            "run passhat inside the cluster (ray job submit -- passhat run …) or give the address of a node"
        )
    return chosen


_LONGEST_START_S = 120.0
_NOT_SHIPPED = ["results/", "*.mpk", "*.trace"]  # campaigns that lie in the folder


class RaySession:
    """Ray, from init to shutdown. It starts while the caller plans; `wait` gives it when it is there.

    While it lives, standard output is a copy of standard error: Ray's daemons write to it whatever they are told.
    """

    def __init__(self, address: str, slots: int | None, working_dir: Path | None = None) -> None:
        """Start Ray; on each of its nodes workers start in a copy of `working_dir`, if there is one."""
        self.address = address
        self.started_s = 0.0
        self._slots = slots
        self._working_dir = working_dir
        self._error: BaseException | None = None
        self._stdout = sys.stdout
        sys.stdout = sys.stderr
        self._started = threading.Event()
        self._closed = threading.Event()
        threading.Thread(target=self._live, name="ray", daemon=True).start()

    def wait(self) -> int:
        """Return the number of slots once Ray is up; raise Incomplete when it does not come up."""
        try:
            is_up = self._started.wait(_LONGEST_START_S)
        except KeyboardInterrupt:
            raise Interrupted("interrupted while Ray was starting") from None
        if not is_up:
            raise Incomplete(f"Ray ({self.address}) did not start within {_LONGEST_START_S:g} s")
        if self._error is not None:
            raise Incomplete(f"Ray ({self.address}) did not start: {self._error}") from None
        if self._slots is not None:
            return self._slots
        import ray

        return max(1, int(ray.cluster_resources().get("CPU", 1)))  # type: ignore[no-untyped-call]

    def hosts(self) -> list[str]:
        """Return the names of the hosts that have processors for workers now; nodes may still join."""
        import ray

        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        return sorted({node["NodeManagerHostname"] for node in nodes if node["Alive"] and node["Resources"].get("CPU")})

    def close(self) -> None:
        """Shut Ray down; one that is still starting ends with this process."""
        if self._started.is_set() and self._error is None:
            import ray

            ray.shutdown()
        self._closed.set()
        sys.stdout = self._stdout

    def _live(self) -> None:
        """Start Ray, then stay: its daemons are killed when the thread that started them ends."""
        begun = time.monotonic()
        try:
            self._start()
        except BaseException as error:
            self._error = error
        self.started_s = time.monotonic() - begun
        self._started.set()
        self._closed.wait()

    def _start(self) -> None:
        settings: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
        if self.address == "local":
            os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # else a token file appears in the user's home
            settings |= {"num_cpus": self._slots, "object_store_memory": 128 << 20, "include_dashboard": False}
        if self._working_dir is not None:
            settings["runtime_env"] = {"working_dir": str(self._working_dir), "excludes": _NOT_SHIPPED}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_SCHEDULER_EVENTS", "0")
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        import ray

        ray.init(address=self.address, **settings)


_PUBLISH_S = 1.0
_STATUSES = ("passed", "failed", "invalid")


class _Metrics:
    """What Ray offers to Prometheus of this session. Few labels: one series for each release and status."""

    def __init__(self, progress: Progress) -> None:
        from ray.util.metrics import Counter, Gauge

        self._settled = Counter("passhat_runs_settled", "Runs settled.", ("release", "status"))
        self._retries = Counter("passhat_retries", "Attempts at runs that faulted and are tried again.")
        self._lost = Counter("passhat_workers_lost", "Workers lost.")
        self._throughput = Gauge("passhat_runs_per_second", "Runs settled a second, of late.")
        self._told = _totals(progress, 0)  # earlier sessions told what they did
        self._told_at = time.monotonic()

    def tell(self, progress: Progress, lost: int, *, final: bool) -> None:
        totals, now = _totals(progress, lost), time.monotonic()
        more = {key: total - self._told[key] for key, total in totals.items()}
        runs = {key: count for key, count in more.items() if key not in ("retries", "lost")}
        for (release, status), count in runs.items():
            _add(self._settled, count, {"release": release, "status": status})
        _add(self._retries, more["retries"])
        _add(self._lost, more["lost"])
        self._throughput.set(0.0 if final else sum(runs.values()) / max(now - self._told_at, _PUBLISH_S))
        self._told, self._told_at = totals, now


def _totals(progress: Progress, lost: int) -> dict[Any, int]:
    settled = {(tally.name, status): getattr(tally, status) for tally in progress.tallies for status in _STATUSES}
    return {**settled, "retries": progress.retried, "lost": lost}


def _add(counter: Any, count: int, tags: dict[str, str] | None = None) -> None:
    if count > 0:  # Ray refuses to add nothing
        counter.inc(count, tags)


class _Stream(NamedTuple):
    """The frames of one shard, as they come."""

    frames: Any
    shard: int


class RayBackend:
    """One actor a slot."""

    is_inline = False

    def __init__(self, order: WorkOrder, slots: int) -> None:
        import ray

        from passhat.workers.actor import Worker

        self.slots = slots
        self._ray = ray
        self._worker: Any = Worker.options(scheduling_strategy="SPREAD")  # type: ignore[attr-defined]
        self._order = ray.put(order)
        self._actors: dict[int, Any] = {}
        self._starting: dict[Any, int] = {}  # answer to come → slot
        self._streams: dict[int, deque[_Stream]] = {}  # of each slot, in the order its worker gets to them
        self.places: dict[int, tuple[str, int]] = {}  # slot → host name, process id
        self._lost_workers = 0
        self._metrics: _Metrics | None = None
        self._publish_at = 0.0  # infinity once Ray would not have it

    def start(self, slot: int) -> None:
        self._forget(slot)
        actor = self._worker.remote(self._order, slot)
        self._actors[slot] = actor
        self._streams[slot] = deque()
        self._starting[actor.ready.remote()] = slot

    def assign(self, slot: int, shard: Shard) -> None:
        if slot in self._actors:  # else its loss has arrived already and is about to be heard of
            self._streams[slot].append(_Stream(self._actors[slot].run.remote(tuple(shard)), shard.id))

    def arrivals(self, timeout_s: float) -> list[Arrival]:
        # Only the stream a worker is at: an error reaches the later ones before the last frames of this one are read.
        sources = self._starting | {streams[0].frames: slot for slot, streams in self._streams.items() if streams}
        if not sources:
            return []
        ready, rest = self._ray.wait(list(sources), num_returns=1, timeout=timeout_s, fetch_local=False)
        if ready and rest:
            ready += self._ray.wait(rest, num_returns=len(rest), timeout=0, fetch_local=False)[0]
        return [
            self._take_start(source) if source in self._starting else self._take_frame(sources[source])
            for source in ready
        ]

    def drain(self) -> list[Arrival]:
        drained: list[Arrival] = []
        while arrived := self.arrivals(0):
            drained += (arrival for arrival in arrived if isinstance(arrival, Data))
        return drained

    def publish(self, progress: Progress, *, final: bool = False) -> None:
        now = time.monotonic()
        if now < self._publish_at and not (final and self._metrics):
            return
        self._publish_at = now + _PUBLISH_S
        try:
            self._metrics = self._metrics or _Metrics(progress)
            self._metrics.tell(progress, self._lost_workers, final=final)
        except Exception:  # no reason to end a campaign
            self._metrics, self._publish_at = None, math.inf

    def close(self) -> None:
        for slot in list(self._actors):
            self._forget(slot)

    def _take_start(self, source: Any) -> Arrival:
        slot = self._starting.pop(source)
        try:
            self.places[slot] = self._ray.get(source)
        except self._ray.exceptions.RayError as error:
            return self._lost(slot, error)
        return SlotReady(slot)

    def _take_frame(self, slot: int) -> Arrival:
        stream = self._streams[slot][0]
        try:
            return Data(slot, stream.shard, self._ray.get(next(stream.frames)))
        except StopIteration:
            self._streams[slot].popleft()
            return ShardEnded(slot, stream.shard)
        except WorkerError as error:  # Ray adds its own error and keeps ours as the cause
            host, _ = self.places[slot]
            where = "" if host == socket.gethostname() else f" (on {host})"
            return Failed(f"{getattr(error, 'cause', error)}{where}")
        except self._ray.exceptions.RayError as error:
            return self._lost(slot, error)

    def _lost(self, slot: int, error: Exception) -> SlotLost:
        self._forget(slot)
        self._lost_workers += 1
        _, _, last_line = str(error).strip().rpartition("\n")  # the one that says why
        return SlotLost(slot, f"{type(error).__name__}: {last_line}")

    def _forget(self, slot: int) -> None:
        """Kill a slot's actor and everything that was to come from it."""
        self._starting = {ref: s for ref, s in self._starting.items() if s != slot}
        self._streams.pop(slot, None)
        actor = self._actors.pop(slot, None)
        if actor is not None:
            self._ray.kill(actor)
