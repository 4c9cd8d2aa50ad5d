"""Executes what a campaign's plan owes: asks the schedule, lets a backend act, and writes down what comes back.

The loop neither decides nor acts itself: decisions are runner/schedule.py, actions runner/dispatch.py, the log is
runner/store.py. Whatever ends it, what has come back is in the log, and the rest is owed.
"""

import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from passhat.runner.dispatch import Arrival, Backend, Data, Failed
from passhat.runner.errors import Incomplete, Interrupted
from passhat.runner.progress import Progress
from passhat.runner.schedule import (
    Assign,
    Command,
    FrameArrived,
    GiveUp,
    Keep,
    RecordLoss,
    Schedule,
    SlotLost,
    StartSlot,
    Stretch,
)
from passhat.runner.store import Campaign, LogWriter
from passhat.workers.frames import Batch, Frame, unpack_frame
from passhat.workers.order import Cell
from passhat.workers.records import Reason, Status, fault, pack_record

_PATIENCE_S = 0.5
_SYNC_S = 0.1
_DRIVER = 0xFFFF  # stands for the driver where a frame names its worker


@dataclass(frozen=True, slots=True)
class Owed:
    """What is left to do, and where earlier sessions left off."""

    stretches: Sequence[Stretch]
    first_shard: int  # shard ids name trace files, so they are not used twice


class _Interrupts:
    """Turns Ctrl-C and SIGTERM into a request that the loop reads between two steps.

    While `raising`, they raise at once: code of the user may be running in this very process, for as long as it likes.
    Outside the main thread signals are left alone.
    """

    def __init__(self) -> None:
        self.requested = False
        self.raising = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "_Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _interrupt(self, *_: object) -> None:
        self.requested = True
        if self.raising:
            raise KeyboardInterrupt


class Execution:
    """One session of a campaign: from the first command to the last frame."""

    def __init__(
        self,
        campaign: Campaign,
        writer: LogWriter,
        backend: Backend,
        progress: Progress,
        *,
        owed: Owed,
        max_attempts: int,
    ) -> None:
        self._campaign = campaign
        self._writer = writer
        self._backend = backend
        self._progress = progress
        self._max_attempts = max_attempts
        self._synced_at = time.monotonic()
        self._schedule = Schedule(
            owed.stretches, slots=backend.slots, max_attempts=max_attempts, first_shard=owed.first_shard
        )

    def run(self) -> None:
        """Carry the plan to its end; raise Incomplete or Interrupted when something ends it before."""
        try:
            with _Interrupts() as interrupts:
                self._show()
                self._carry_out(self._schedule.begin())
                while not self._schedule.is_done:
                    if interrupts.requested:
                        raise KeyboardInterrupt
                    for arrival in sorted(self._wait(interrupts), key=_is_failure):  # what came back is kept first
                        self._take(arrival)
                    self._settle_down()
            self._writer.sync()
        except KeyboardInterrupt:
            self._rescue()
            raise Interrupted("interrupted") from None
        except Incomplete:
            self._rescue()
            raise
        except OSError as error:
            self._rescue()
            raise Incomplete(str(error)) from None
        self._show(final=True)

    def _wait(self, interrupts: _Interrupts) -> list[Arrival]:
        interrupts.raising = self._backend.is_inline
        try:
            return self._backend.arrivals(_PATIENCE_S)
        finally:
            interrupts.raising = False

    def _take(self, arrival: Arrival) -> None:
        if isinstance(arrival, Failed):
            raise Incomplete(arrival.cause)
        if isinstance(arrival, Data):
            try:
                frame = unpack_frame(arrival.frame)
            except ValueError as error:
                arrival = SlotLost(arrival.slot, f"sent what is no frame of this version: {error}")
            else:
                self._carry_out(self._schedule.handle(_event(arrival, frame)), arrival, frame)
                return
        if isinstance(arrival, SlotLost):
            self._campaign.note("worker_lost", worker=arrival.slot, cause=arrival.cause)
        self._carry_out(self._schedule.handle(arrival))

    def _carry_out(self, commands: Sequence[Command], data: Data | None = None, frame: Frame | None = None) -> None:
        for command in commands:
            match command:
                case Keep():
                    assert data is not None
                    assert frame is not None
                    self._keep(data.frame, frame)
                case Assign(slot, shard):
                    self._backend.assign(slot, shard)
                case StartSlot(slot):
                    self._backend.start(slot)
                case RecordLoss():
                    self._record_loss(command)
                case GiveUp(cause):
                    raise Incomplete(cause)

    def _keep(self, packed: bytes, frame: Frame) -> None:
        self._writer.append(packed)
        for record in frame.records:
            will_retry = record.status == Status.INVALID and record.attempt < self._max_attempts
            self._progress.settle(record, will_retry=will_retry)
            if record.status == Status.INVALID or record.reason != Reason.NONE:
                self._campaign.note(
                    "retry" if will_retry else "guard" if record.status == Status.FAIL else "invalid",
                    run=self._campaign.plan.name(Cell(record.release, record.task, record.run)),
                    attempt=record.attempt,
                    reason=Reason(record.reason).name,
                    worker=frame.header.worker,
                    cause=frame.header.note,
                )

    def _record_loss(self, loss: RecordLoss) -> None:
        batch = Batch(loss.shard, _DRIVER, loss.position)
        cell = self._campaign.plan.grid.locate(loss.position)
        batch.add(pack_record(fault(*cell, loss.attempt, Reason.WORKER_LOST)))
        for packed in batch.flush(loss.cause):
            self._keep(packed, unpack_frame(packed))

    def _settle_down(self) -> None:
        """Group what was written into one sync, and show how far it has come."""
        if time.monotonic() - self._synced_at >= _SYNC_S:
            self._writer.sync()
            self._synced_at = time.monotonic()
        self._show()

    def _show(self, *, final: bool = False) -> None:
        self._progress.show(final=final)
        self._backend.publish(self._progress, final=final)

    def _rescue(self) -> None:
        """Write what has been finished and not yet been written, as far as the disk allows; start nothing any more."""
        try:
            for arrival in self._backend.drain():
                if isinstance(arrival, Data):
                    frame = unpack_frame(arrival.frame)
                    if Keep() in self._schedule.handle(_event(arrival, frame)):
                        self._keep(arrival.frame, frame)
            self._writer.sync()
        except (Incomplete, OSError, ValueError):
            pass  # what ended it ends this too; the log is whole as it is
        self._show(final=True)


def _is_failure(arrival: Arrival) -> bool:
    return isinstance(arrival, Failed)


def _event(data: Data, frame: Frame) -> FrameArrived:
    header = frame.header
    invalid = tuple(header.first + i for i, record in enumerate(frame.records) if record.status == Status.INVALID)
    return FrameArrived(data.slot, data.shard, header.first, header.runs, header.seconds, invalid)
