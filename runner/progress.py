"""What a campaign shows while it runs: on a terminal a block that is redrawn, elsewhere one plain line every ten
seconds or five percent, and never more than one a second. Standard error only; the answer is somebody else's business.
"""

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TextIO

from passhat.workers.records import RunRecord, Status

_REDRAW_S = 0.2
_LINE_S = 10.0
_LINE_SHARE = 0.05
_SHORTEST_LINE_S = 1.0
_BAR = 30


@dataclass(slots=True)
class Tally:
    """What has come back of one release, retried attempts left out."""

    name: str
    planned: int
    passed: int = 0
    failed: int = 0
    invalid: int = 0

    @property
    def done(self) -> int:
        return self.passed + self.failed + self.invalid

    @property
    def rate(self) -> str:
        """Pass rate of the scored runs, in words."""
        scored = self.passed + self.failed
        return f"{self.passed / scored:6.1%} pass" if scored else "    — pass"


class Progress:
    """Counts settled runs and shows them."""

    def __init__(
        self,
        tallies: Sequence[Tally],
        title: str,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tallies = tallies
        self.cost_micros = 0
        self.retried = 0
        self._title = title
        self._stream = stream or sys.stderr
        self._is_live = self._stream.isatty()
        self._clock = clock
        self._started = clock()
        self._done_before = sum(tally.done for tally in tallies)
        self._planned = sum(tally.planned for tally in tallies)
        self._shown_at = self._started
        self._shown_done = self._done_before
        self._drawn = 0

    @property
    def done(self) -> int:
        return sum(tally.done for tally in self.tallies)

    @property
    def planned(self) -> int:
        return self._planned

    def settle(self, record: RunRecord, *, will_retry: bool = False) -> None:
        """Take in one attempt."""
        self.cost_micros += record.cost_micros or 0
        if will_retry:
            self.retried += 1
            return
        tally = self.tallies[record.release]
        if record.status == Status.PASS:
            tally.passed += 1
        elif record.status == Status.FAIL:
            tally.failed += 1
        else:
            tally.invalid += 1

    def show(self, *, final: bool = False) -> None:
        """Show the state if it is time to."""
        now, done = self._clock(), self.done
        if self._is_live:
            if final or now - self._shown_at >= _REDRAW_S:
                self._draw(now, done)
        elif done != self._shown_done and (final or self._is_line_due(now - self._shown_at, done - self._shown_done)):
            self._print_line(now, done)

    def _is_line_due(self, waited_s: float, more: int) -> bool:
        return waited_s >= _LINE_S or (waited_s >= _SHORTEST_LINE_S and more >= _LINE_SHARE * self._planned)

    def say(self, text: str) -> None:
        """Print a message that stays, above the live block."""
        self._erase()
        self._stream.write(text + "\n")
        self._stream.flush()

    def _print_line(self, now: float, done: int) -> None:
        releases = "  ".join(f"{t.name} {t.done}/{t.planned} {t.rate.strip()}" for t in self.tallies)
        self._stream.write(f"{time.strftime('%H:%M:%S')} {done}/{self._planned}  {releases}  {self._tail(now, done)}\n")
        self._stream.flush()
        self._shown_at, self._shown_done = now, done

    def _draw(self, now: float, done: int) -> None:
        width = max(len(tally.name) for tally in self.tallies)
        lines = [self._title]
        for tally in self.tallies:
            filled = _BAR * tally.done // max(1, tally.planned)
            bar = "█" * filled + "░" * (_BAR - filled)
            lines.append(f"  {tally.name:<{width}} {bar} {tally.done:>7}/{tally.planned} {tally.rate}")
        lines.append(f"  {self._tail(now, done)}")
        self._erase()
        columns = shutil.get_terminal_size().columns
        self._stream.write("\n".join(line[: columns - 1] for line in lines) + "\n")  # a line that wraps is not erased
        self._stream.flush()
        self._drawn = len(lines)
        self._shown_at = now

    def _erase(self) -> None:
        if self._drawn:
            self._stream.write(f"\x1b[{self._drawn}F\x1b[J")
            self._drawn = 0

    def _tail(self, now: float, done: int) -> str:
        parts = []
        if invalid := sum(tally.invalid for tally in self.tallies):
            parts.append(f"{invalid} invalid")
        if self.retried:
            parts.append(f"{self.retried} retried")
        if self.cost_micros:
            parts.append(f"${self.cost_micros / 1e6:.2f}")
        fresh, elapsed = done - self._done_before, now - self._started
        if fresh and elapsed > 0:
            rate = fresh / elapsed
            parts.append(f"{rate:,.0f} runs/s" if rate >= 10 else f"{rate:.2g} runs/s")
            if done < self._planned:
                parts.append(f"eta {duration((self._planned - done) / rate)}")
        return "  ".join(parts)


def duration(seconds: float) -> str:
    """Return a time span as people say it."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f}s" if seconds < 9.95 else f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
