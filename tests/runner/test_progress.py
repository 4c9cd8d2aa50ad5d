"""Progress: what is counted, how often it is shown, and that it is never shown twice."""

import io
import re

import pytest

from passhat.runner.progress import Progress, Tally, duration
from passhat.workers.records import RunRecord, Status, blank


class Clock:
    """A clock that stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        """The lines that remain when each erasing sequence has been carried out."""
        lines: list[str] = []
        for part in re.split(r"(\x1b\[\d+F\x1b\[J)", self.getvalue()):
            if erased := re.fullmatch(r"\x1b\[(\d+)F\x1b\[J", part):
                del lines[-int(erased[1]) :]
            else:
                lines += part.split("\n")[:-1]
        return lines


def record(release: int, status: Status, cost_micros: int | None = 10_000) -> RunRecord:
    return blank(release, 0, 0)._replace(status=status, cost_micros=cost_micros)


def begin(stream: io.StringIO, clock: Clock, *, planned: int = 100, done: int = 0) -> Progress:
    return Progress([Tally("A", planned, passed=done), Tally("B", planned)], "desk", stream, clock)


def lines_of(stream: io.StringIO) -> list[str]:
    return [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in stream.getvalue().splitlines()]


def settle(progress: Progress, runs: int, release: int = 0) -> None:
    for _ in range(runs):
        progress.settle(record(release, Status.PASS))


def test_attempts_are_counted_by_release_and_those_tried_again_apart() -> None:
    progress = begin(io.StringIO(), Clock())
    progress.settle(record(0, Status.PASS))
    progress.settle(record(0, Status.FAIL))
    progress.settle(record(1, Status.INVALID), will_retry=True)
    progress.settle(record(1, Status.INVALID, cost_micros=None))
    first, second = progress.tallies
    assert (first.passed, first.failed, first.invalid, first.done) == (1, 1, 0, 2)
    assert (second.passed, second.failed, second.invalid, second.done) == (0, 0, 1, 1)
    assert (progress.done, progress.planned, progress.retried, progress.cost_micros) == (3, 200, 1, 30_000)


def test_a_line_says_counts_rates_faults_cost_speed_and_time_left() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = begin(stream, clock)
    settle(progress, 30)
    progress.settle(record(0, Status.FAIL))
    progress.settle(record(1, Status.INVALID), will_retry=True)
    progress.settle(record(1, Status.INVALID))
    clock.now += 2.0
    progress.show()
    assert lines_of(stream) == [
        "32/200  A 31/100 96.8% pass  B 1/100 — pass  1 invalid  1 retried  $0.33  16 runs/s  eta 10s"
    ]


def test_elsewhere_than_on_a_terminal_a_line_comes_every_five_percent_or_ten_seconds_never_twice_a_second() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = begin(stream, clock)
    shown = []
    for seconds, runs in [(0.5, 20), (0.5, 0), (0.9, 50), (0.1, 0), (9.9, 9), (0.1, 0), (20.0, 0)]:
        clock.now += seconds
        settle(progress, runs)
        before = len(lines_of(stream))
        progress.show()
        shown.append(len(lines_of(stream)) - before)
    assert shown == [0, 1, 0, 1, 0, 1, 0]


def test_the_last_line_is_shown_at_once_and_only_if_there_is_something_new() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = begin(stream, clock)
    progress.show(final=True)
    assert lines_of(stream) == []
    settle(progress, 1)
    progress.show(final=True)
    progress.show(final=True)
    assert lines_of(stream) == ["1/200  A 1/100 100.0% pass  B 0/100 — pass  $0.01"]


def test_speed_and_time_left_are_those_of_this_session() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = begin(stream, clock, done=90)
    settle(progress, 10)
    clock.now += 5.0
    progress.show()
    assert lines_of(stream)[0].endswith("2 runs/s  eta 50s")
    settle(progress, 100, release=1)
    progress.show(final=True)
    assert lines_of(stream)[1].endswith("22 runs/s")


def test_on_a_terminal_the_block_is_redrawn_in_place_and_messages_stay_above_it() -> None:
    stream, clock = Terminal(), Clock()
    progress = begin(stream, clock, planned=4)
    for _ in range(3):
        settle(progress, 1)
        clock.now += 0.3
        progress.show()
    progress.say("a worker was lost")
    clock.now += 0.3
    progress.show()
    assert stream.screen() == [
        "a worker was lost",
        "desk",
        "  A ██████████████████████░░░░░░░░       3/4 100.0% pass",
        "  B ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░       0/4     — pass",
        "  $0.03  2.5 runs/s  eta 2.0s",
    ]


def test_on_a_terminal_it_is_redrawn_five_times_a_second_at_most_and_at_the_end() -> None:
    stream, clock = Terminal(), Clock()
    progress = begin(stream, clock)
    drawn = []
    for seconds, final in [(0.125, False), (0.125, False), (0.125, False), (0.0625, True)]:
        clock.now += seconds
        before = stream.getvalue()
        progress.show(final=final)
        drawn.append(stream.getvalue() != before)
    assert drawn == [False, True, False, True]


def test_a_line_is_no_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    stream = Terminal()
    begin(stream, Clock()).show(final=True)
    assert {len(line) for line in stream.screen()} <= {*range(20)}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0s"), (0.04, "0.0s"), (9.94, "9.9s"), (9.96, "10s"), (59.4, "59s"), (59.6, "1m 00s"),
        (61.0, "1m 01s"), (3599.4, "59m 59s"), (3599.6, "1h 00m"), (7_325.0, "2h 02m"), (360_000.0, "100h 00m"),
    ],
)  # fmt: skip
def test_durations_read_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text
