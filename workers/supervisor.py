"""Supervises the child that hosts a worker's environment: sends it shards, collects its records into frames, ends a
run that outlasts its wall-clock limit, and says which run a lost child was in. Knows nothing of Ray.
"""

import contextlib
import fcntl
import mmap
import os
import pickle
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

from passhat.workers import child as wire
from passhat.workers.frames import Batch
from passhat.workers.guard import VARIABLES
from passhat.workers.host import Levels
from passhat.workers.loading import WorkerError
from passhat.workers.order import Shard, WorkOrder
from passhat.workers.records import Level, Outcome, Reason, RunRecord, Status, blank, pack_record, seal
from passhat.workers.session import ENVIRONMENT, NOBODY

_TICK_S = 0.05
_GRACE_S = 0.5  # a run ends itself at its limit if it can
_SETUP_S = 120.0
_PIPE_BYTES = 1 << 20
_STDERR = 2
_SAME_EVERYWHERE = ("PYTHONHASHSEED", "TZ", "LANG", "LC_ALL")  # sets have one order in every child, days begin at once
_ENVIRONMENT = {"PYTHONUNBUFFERED": "1", **{name: VARIABLES[name] for name in _SAME_EVERYWHERE}}
_NO_ZYGOTE = "the process that children are forked from is gone"


class LostZygote(Exception):
    """The slot has to be replaced."""


class Supervisor:
    """One slot: a zygote, at most one child of it, and one shard at a time."""

    def __init__(self, order: WorkOrder, worker: int) -> None:
        self._order = order
        self._grid = order.grid
        self._worker = worker
        self._plane_file = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the slot
        self._plane_file.truncate(mmap.PAGESIZE)
        self._plane = mmap.mmap(self._plane_file.fileno(), mmap.PAGESIZE)
        self._control = self._start_zygote()
        self._level = Level.OPEN  # hermetic level of the environment in the latest child
        self._child: _Child | None = _Child.fork(self._control)  # sets itself up while the first shard is on its way

    def run(self, shard: Shard) -> Iterator[bytes]:
        """Yield frames of the shard's runs in order, until it is done or its time is used up.

        Raise WorkerError when the child cannot be set up or reports an error that is no run's, LostZygote when the
        process it is forked from is gone; what was finished before is yielded first.
        """
        self._ready_child()  # being set up counts neither as time of the shard nor as time of its runs
        ends_at = time.monotonic() + shard.seconds
        first = shard.first
        while first < shard.stop and (first == shard.first or time.monotonic() < ends_at):
            running = self._ready_child()
            batch = Batch(shard.id, self._worker, first, shard.frame_s)
            running.submit(shard._replace(first=first, seconds=ends_at - time.monotonic()))
            try:
                while (ended := self._listen(running, batch)) is None:
                    if batch.is_due():
                        yield from batch.flush()
            except (WorkerError, LostZygote):
                yield from batch.flush()
                raise
            yield from batch.flush()
            if ended.blame and batch.first < shard.stop:
                batch.add(pack_record(self._verdict(ended, batch.first, shard.attempt)))
                yield from batch.flush(ended.note)
            elif not ended.note:
                return
            first = batch.first

    def close(self) -> None:
        """End the zygote, the child, and what the child has started."""
        self._control.close()
        self._zygote.wait()
        self._drop_child()
        self._plane.close()
        self._plane_file.close()

    def _listen(self, running: "_Child", batch: Batch) -> "_Ended | None":
        """Take in what has arrived; say how it ended once the shard is done or the child is gone."""
        select.select([self._control.fileno(), running.shards.fileno()], [], [], min(_TICK_S, batch.flush_s))
        gone = self._exit_status()  # before the last look into the pipe, so that nothing sent is missed
        try:
            is_done = self._take(running, batch)
        except WorkerError:
            self._see_off(gone)
            raise
        if is_done:
            running.silence_bell()
            if gone is not None:
                self._drop_child()
            return _Ended()
        if gone is not None:
            self._drop_child()
            return _Ended(gone, blame=self._is_busy, wall_s=time.monotonic() - running.alive_at)
        if time.monotonic() - running.alive_at > self._order.limits.seconds + _GRACE_S:
            return self._end_overdue(running, batch)
        return None

    def _take(self, running: "_Child", batch: Batch) -> bool:
        """Add the records that have arrived to the batch; return whether the shard is done."""
        for tag, data in running.receive():
            if tag in (wire.RECORD, wire.ALIVE):
                running.alive_at = time.monotonic()
            if tag == wire.RECORD:
                batch.add(data)
            elif tag == wire.ERROR:
                raise WorkerError(data.decode(errors="replace"))
            elif tag == wire.DONE:
                return True
        return False

    def _end_overdue(self, running: "_Child", batch: Batch) -> "_Ended":
        """Kill the child for the run it is in, unless that run came to its end in the last moment."""
        overdue_since = running.alive_at
        with _zygote_needed():
            self._control.sendall(wire.KILL)
        self._wait_for_exit()
        self._take(running, batch)
        self._drop_child()
        note = f"ended by the wall-clock limit of {self._order.limits.seconds:g} s"
        blame = self._is_busy and running.alive_at == overdue_since
        return _Ended(note, blame=blame, wall_s=time.monotonic() - overdue_since, timed_out=True)

    @property
    def _is_busy(self) -> bool:
        """Whether the child has taken up a shard: one that is lost between two shards was in no run."""
        return self._plane[0] != NOBODY

    def _verdict(self, ended: "_Ended", position: int, attempt: int) -> RunRecord:
        """The record of the run in which the child ended. Only an agent that outlasts its limit has failed."""
        cell = self._grid.locate(position)
        wall_us = round(ended.wall_s * 1e6)
        hermetic = self._order.hermetic
        levels = Levels(hermetic.environment, self._level, hermetic.agent, hermetic.agent)
        record = blank(*cell)._replace(attempt=attempt, status=Status.INVALID, wall_us=wall_us, **levels._asdict())
        if not ended.timed_out:
            return seal(record._replace(reason=Reason.WORKER_LOST))
        if self._plane[0] == ENVIRONMENT:
            return seal(record._replace(reason=Reason.ENVIRONMENT_TIMEOUT))
        record = record._replace(status=Status.FAIL, outcome=0.0)
        return seal(record._replace(assigned=Outcome.TIMED_OUT, reason=Reason.WALL_CLOCK))

    def _start_zygote(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        plane_fd = self._plane_file.fileno()
        self._zygote = subprocess.Popen(
            [sys.executable, "-P", "-m", "passhat.workers.child", str(theirs.fileno()), str(plane_fd)],
            pass_fds=(theirs.fileno(), plane_fd),
            stdin=subprocess.DEVNULL,
            stdout=_STDERR,
            env={"OMP_NUM_THREADS": "1", **os.environ, **_ENVIRONMENT},  # one thread, for it is forked
        )
        theirs.close()
        order = pickle.dumps(self._order)
        with _zygote_needed():
            ours.sendall(wire.LENGTH.pack(len(order)))
            ours.sendall(order)
        return ours

    def _ready_child(self) -> "_Child":
        """Return a child that waits for a shard."""
        if self._child is None:
            self._plane[0] = NOBODY
            self._child = _Child.fork(self._control)
        if not self._child.is_ready:
            try:
                self._await_ready(self._child)
            except WorkerError:
                self._drop_child()
                raise
        self._child.alive_at = time.monotonic()
        return self._child

    def _await_ready(self, running: "_Child") -> None:
        limit_s = max(_SETUP_S, self._order.limits.seconds)
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            select.select([self._control.fileno(), running.records], [], [], 1.0)
            gone = self._exit_status()
            for tag, data in running.receive():
                if tag == wire.READY:
                    running.is_ready = True
                    self._level = Level(data[0])
                    return
                self._see_off(gone)
                raise WorkerError(data.decode(errors="replace"))
            if gone is not None:
                self._drop_child()
                raise WorkerError(f"the worker's child {gone} while it was being set up")
        raise WorkerError(f"the worker's child was not ready within {limit_s:g} s")

    def _exit_status(self) -> str | None:
        if not select.select([self._control], [], [], 0)[0]:
            return None
        return self._wait_for_exit()

    def _wait_for_exit(self) -> str:
        with _zygote_needed():
            data = wire.read_exactly(self._control, wire.EXIT.size)
        if not data:
            raise LostZygote(_NO_ZYGOTE)
        status = wire.EXIT.unpack(data)[0]
        code = os.waitstatus_to_exitcode(status)
        return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"

    def _see_off(self, gone: str | None) -> None:
        """Let go of a child that has sent an error: its last word before it ends."""
        if gone is None:
            self._wait_for_exit()
        self._drop_child()

    def _drop_child(self) -> None:
        if self._child is not None:
            self._child.close()
        self._child = None


@contextlib.contextmanager
def _zygote_needed() -> Iterator[None]:
    try:
        yield
    except (BrokenPipeError, ConnectionResetError):
        raise LostZygote(_NO_ZYGOTE) from None


@dataclass(frozen=True, slots=True)
class _Ended:
    """How a stretch of work ended: well without a note; with blame when the run it ended in has to answer for it."""

    note: str = ""
    blame: bool = False
    wall_s: float = 0.0
    timed_out: bool = False


@dataclass(slots=True)
class _Child:
    """Our ends of the channels to one child."""

    shards: socket.socket
    records: int
    alive_at: float  # when its last record arrived, or its shard was sent
    buffer: bytearray
    is_ready: bool = False

    @classmethod
    def fork(cls, control: socket.socket) -> "_Child":
        ours, theirs = socket.socketpair()
        read_fd, write_fd = os.pipe()
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with contextlib.suppress(OSError):
                fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        os.set_blocking(read_fd, False)
        child = cls(ours, read_fd, time.monotonic(), bytearray())
        try:
            with _zygote_needed():
                socket.send_fds(control, [wire.FORK], [theirs.fileno(), write_fd])
        except LostZygote:
            child.close()
            raise
        finally:
            theirs.close()
            os.close(write_fd)
        return child

    def submit(self, shard: Shard) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its exit tells
            self.shards.sendall(wire.SHARD.pack(*shard))

    def receive(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield every whole item that has arrived: tag and data."""
        buffer = self.buffer
        while chunk := self._read():
            buffer += chunk
        offset = 0
        try:
            while offset + wire.ITEM.size <= len(buffer):
                tag, length = wire.ITEM.unpack_from(buffer, offset)
                end = offset + wire.ITEM.size + length
                if end > len(buffer):
                    break
                data = bytes(buffer[offset + wire.ITEM.size : end])
                offset = end
                yield tag, data
        finally:
            del buffer[:offset]

    def _read(self) -> bytes:
        try:
            return os.read(self.records, _PIPE_BYTES)
        except BlockingIOError:
            return b""

    def silence_bell(self) -> None:
        self.shards.recv(1)

    def close(self) -> None:
        self.shards.close()
        os.close(self.records)
