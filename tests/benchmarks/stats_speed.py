"""Statistics beside what others compute from the same counts: `python tests/benchmarks/stats_speed.py [--quick]`.

Suites of T tasks with 8 runs, pass^4, T from 100 to 1,000,000; about three minutes, `--quick` stops at 10,000 tasks.
Times are medians of one sitting and start from counts per task; trust the ratios. Others get the tasks' values ready
made, and the batches with which they are fastest, below 2 GB. Where one would take more than a minute, its ratio is
scaled from a hundredth of the resamples and marked ~, or the time that it would take stands in its place.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from passhat.stats.bootstrap import bootstrap_pass_hat
from passhat.stats.discordant import mcnemar_tests
from passhat.stats.intervals import dirichlet
from passhat.stats.paired import pair_counts, paired_dirichlet, pass_hat_differences
from passhat.stats.reliability import flaky, pass_at, pass_hat, task_values
from passhat.stats.sign_flips import sign_flip_pass_hat
from passhat.stats.table import count_outcomes, histogram

RUNS = 8
K = 4
RESAMPLES = 10_000
FLIPS = 9_999
MCNEMAR_TABLES = 1_000
BOOTSTRAP_BATCH = 100_000  # resampled values at a time: where scipy is fastest
PERMUTATION_BATCH = 10_000_000
COPY_BYTES = 1 << 27  # beyond any cache
LONG_S = 5.0

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """Passes of each task under two releases, in the same number of runs."""

    n: IntArray
    a: IntArray
    b: IntArray

    @property
    def values(self) -> FloatArray:
        return task_values(RUNS, K, K)[self.a]

    @property
    def differences(self) -> FloatArray:
        value = task_values(RUNS, K, K)
        return value[self.b] - value[self.a]


def draw(tasks: int) -> Counts:
    rng = np.random.default_rng(tasks)
    rate = rng.uniform(0.55, 1, tasks)
    a, b = rng.binomial(RUNS, rate), rng.binomial(RUNS, np.minimum(rate + 0.02, 1))
    return Counts(np.full(tasks, RUNS, dtype=np.int64), a, b)


def seconds(work: Callable[[], object], for_s: float = 0.3) -> float:
    """The median time of at least three calls after one that warms up, or of one call that is long."""
    times = [_once(work)]
    if times[0] < LONG_S:
        deadline = time.perf_counter() + for_s
        times = [_once(work), _once(work), _once(work)]
        while time.perf_counter() < deadline:
            times.append(_once(work))
    return statistics.median(times)


def _once(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@dataclass(frozen=True, slots=True)
class Other:
    """How long another took, or would take by fewer resamples; `reason` says why there is no time."""

    seconds: float | None
    is_scaled: bool = False
    reason: str = ""

    def against(self, ours: float) -> str:
        if self.seconds is None:
            return self.reason
        return f"{'~' if self.is_scaled else ''}{self.seconds / ours:,.0f}x"


def within_limit(work: Callable[[int], object], repeats: int, limit_s: float) -> Other:
    """Time work whose cost is its number of repeats, or scale it from a hundredth of them."""
    work(2)  # others have things to import, too
    estimate = _once(lambda: work(repeats // 100)) * 100
    if estimate > limit_s:
        return Other(estimate, is_scaled=True)
    return Other(seconds(lambda: work(repeats)))


# One line a number of tasks


def bootstrap_line(tasks: int, limit_s: float) -> list[str]:
    from scipy.stats import bootstrap

    counts = draw(tasks)
    values = counts.values
    batch = max(1, BOOTSTRAP_BATCH // tasks)

    def scipy_bootstrap(resamples: int, method: str) -> object:
        return bootstrap(
            (values,), np.mean, n_resamples=resamples, method=method, batch=batch, vectorized=True, rng=1
        )  # fmt: skip

    ours = seconds(lambda: bootstrap_pass_hat(histogram(counts.n, counts.a), K))
    percentile = within_limit(lambda resamples: scipy_bootstrap(resamples, "percentile"), RESAMPLES, limit_s)
    # its jackknife takes T more resamples
    expected = (percentile.seconds or 0) * (1 + tasks / RESAMPLES)
    if expected > limit_s:
        bca = Other(None, reason=f"{expected / 60:,.0f} min")
    else:
        bca = Other(seconds(lambda: scipy_bootstrap(RESAMPLES, "BCa")))
    return [f"{ours * 1e3:.2f}", percentile.against(ours), bca.against(ours)]


def sign_flip_line(tasks: int, limit_s: float) -> list[str]:
    from scipy.stats import permutation_test

    counts = draw(tasks)
    differences = counts.differences
    batch = max(1, PERMUTATION_BATCH // tasks)

    def scipy_flips(flips: int) -> object:
        return permutation_test(
            (differences,), np.mean, permutation_type="samples", n_resamples=flips, batch=batch, vectorized=True, rng=1
        )

    def exact(k: int) -> object:
        return sign_flip_pass_hat(pair_counts(counts.n, counts.a, counts.n, counts.b), k)

    ours = {k: seconds(partial(exact, k)) for k in (1, K)}
    theirs = within_limit(scipy_flips, FLIPS, limit_s)
    return [f"{ours[1] * 1e3:.2f}", theirs.against(ours[1]), f"{ours[K] * 1e3:.2f}", theirs.against(ours[K])]


def mcnemar_line(tasks: int, limit_s: float) -> list[str]:
    from statsmodels.stats.contingency_tables import mcnemar

    rng = np.random.default_rng(tasks)
    cells = rng.multinomial(tasks, [0.7, 0.08, 0.1, 0.12], MCNEMAR_TABLES)

    def loop(tables: int) -> object:
        return [mcnemar([[both, a], [b, neither]], exact=True) for both, a, b, neither in cells[:tables].tolist()]

    ours = seconds(lambda: mcnemar_tests(cells[:, 1], cells[:, 2]))
    return [f"{ours * 1e3:.2f}", within_limit(loop, MCNEMAR_TABLES, limit_s).against(ours)]


def counting_line(tasks: int, limit_s: float) -> list[str]:
    """Records in the order of tasks and in none."""
    counts = draw(tasks)
    task = np.repeat(np.arange(tasks), RUNS)
    status = (np.tile(np.arange(RUNS), tasks) >= np.repeat(counts.a, RUNS)).astype(np.int64)
    shuffled = np.random.default_rng(1).permutation(len(task))
    copied = np.ones(COPY_BYTES // 8)
    copy = np.empty_like(copied)
    copy_rate = COPY_BYTES / seconds(lambda: np.copyto(copy, copied))
    line = [f"{copy_rate / 1e9:.1f}"]
    for columns in ((task, status), (task[shuffled], status[shuffled])):
        rate = len(task) / seconds(partial(count_outcomes, *columns, counts.n))
        line += [f"{rate / 1e6:,.0f}", f"{rate * 2 * task.itemsize / copy_rate:.2f}"]
    return line


def interval_line(tasks: int, limit_s: float) -> list[str]:
    """The default interval of a rate and of a difference, from histograms."""
    counts = draw(tasks)
    suite = histogram(counts.n, counts.a)
    pairs = pair_counts(counts.n, counts.a, counts.n, counts.b)
    times = []
    for k in (1, K, RUNS):
        estimated, differences = pass_hat(suite, k), pass_hat_differences(pairs, k)
        times.append(seconds(partial(dirichlet, estimated.values, estimated.multiplicities), 0.1))
        times.append(seconds(partial(paired_dirichlet, differences), 0.1))
    return [f"{each * 1e3:.2f}" for each in times]


TABLES: Sequence[tuple[str, Callable[[int, float], list[str]], list[str]]] = (
    (
        f"Exact bootstrap of pass^{K} (three intervals) against scipy.stats.bootstrap, {RESAMPLES:,} resamples",
        bootstrap_line,
        ["ms", "percentile", "BCa"],
    ),
    (
        f"Exact sign-flip test against scipy.stats.permutation_test, {FLIPS:,} flips",
        sign_flip_line,
        ["k=1 ms", "ratio", f"k={K} ms", "ratio"],
    ),
    (
        f"{MCNEMAR_TABLES:,} exact McNemar tests with mid-p, tables of T pairs, against statsmodels in a loop",
        mcnemar_line,
        ["ms", "ratio"],
    ),
    (
        "Counting records, T x 8 rows of two int64 columns, and its bytes/s as a share of a memory copy's",
        counting_line,
        ["copy GB/s", "M rows/s", "of copy", "unordered", "of copy"],
    ),
    (
        "Default interval, ms: rate and paired difference of pass^1, pass^4, pass^8",
        interval_line,
        ["k=1", "paired", "k=4", "paired", "k=8", "paired"],
    ),
)


# Whole answers


def report() -> str:
    """All k of 100,000 tasks with 10 runs in five cohorts, from a million records to intervals."""
    tasks, runs, cohorts = 100_000, 10, 5
    rng = np.random.default_rng(3)
    passes = rng.binomial(runs, rng.uniform(0.55, 1, tasks))
    task = np.repeat(np.arange(tasks), runs)
    status = (np.tile(np.arange(runs), tasks) >= np.repeat(passes, runs)).astype(np.int64)
    cohort = rng.integers(0, cohorts, tasks)

    def answer() -> int:
        table = count_outcomes(task, status, np.full(tasks, runs))
        intervals = 0
        for part in (table, *(table.select(cohort == one) for one in range(cohorts))):
            suite = part.histogram()
            flaky(suite)
            for k in range(1, runs + 1):
                for estimated in (pass_hat(suite, k), pass_at(suite, k)):
                    dirichlet(estimated.values, estimated.multiplicities)
                    intervals += 1
        return intervals

    return f"1,000,000 records, all k, {cohorts} cohorts: {seconds(answer) * 1e3:.0f} ms for {answer()} intervals"


def memory() -> dict[str, float]:
    """The default interval, the exact bootstrap and the exact test of 10,000 tasks with 8 runs, in a fresh process."""
    counts = draw(10_000)

    def answer() -> None:
        pairs = pair_counts(counts.n, counts.a, counts.n, counts.b)
        paired_dirichlet(pass_hat_differences(pairs, K))
        estimated = pass_hat(histogram(counts.n, counts.a), K)
        dirichlet(estimated.values, estimated.multiplicities)
        sign_flip_pass_hat(pairs, K)

    cold, warm = _once(answer), seconds(answer)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    tracemalloc.start()
    answer()
    return {
        "first_ms": cold * 1e3,
        "ms": warm * 1e3,
        "process_mb": int(status["VmHWM"].split()[0]) / 1024,
        "arrays_mb": tracemalloc.get_traced_memory()[1] / 2**20,
    }


def print_table(title: str, columns: list[str], lines: dict[int, list[str]]) -> None:
    print(f"\n{title}\n{'T':>11}" + "".join(f"{column:>13}" for column in columns))
    for tasks, line in lines.items():
        print(f"{tasks:>11,}" + "".join(f"{cell:>13}" for cell in line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="up to 10,000 tasks, others scaled beyond 5 s")
    parser.add_argument("--apart", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.apart:
        print(json.dumps(memory()))
        return
    limit_s = 5.0 if arguments.quick else 60.0
    sizes = (100, 1_000, 10_000) if arguments.quick else (100, 1_000, 10_000, 100_000, 1_000_000)
    for title, line, columns in TABLES:
        with_ten = (10, *sizes) if line is interval_line else sizes
        print_table(title, columns, {tasks: line(tasks, limit_s) for tasks in with_ten})
    print(f"\n{report()}")
    found = json.loads(subprocess.run([sys.executable, __file__, "--apart"], stdout=subprocess.PIPE, check=True).stdout)
    print(
        f"10,000 tasks x 8, intervals of a rate and a difference and the exact test: {found['ms']:.1f} ms "
        f"({found['first_ms']:.0f} ms with imports),\n"
        f"arrays of {found['arrays_mb']:.1f} MB, process of {found['process_mb']:.0f} MB"
    )


if __name__ == "__main__":
    main()
