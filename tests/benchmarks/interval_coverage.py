"""How often intervals hold the truth, and tests reject it: `python tests/benchmarks/interval_coverage.py [--quick]`.

Suites are samples of tasks whose difficulty has a known distribution, so the truth is known too. A setting is such a
distribution, a number of runs, a k and a number of tasks T. Where the possible suites are few, all are gone through
with their chances and the coverage is exact; elsewhere suites are drawn, from fixed seeds. About a quarter of an hour;
`--quick` takes one minute, `--tables` and `--tasks` pick parts. The exit code is 1 when the default interval, or the
sign-flip test under its null, is beyond its level by more than three standard errors in any setting.
"""

import argparse
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import combinations
from math import comb, sqrt

import numpy as np
import numpy.typing as npt
import task_laws
from scipy.special import gammaln
from task_laws import Design, Law, Mixture

from passhat.stats.bootstrap import bootstrap_mean
from passhat.stats.closed_form import cluster_wilson, pseudo_task_t
from passhat.stats.discordant import mcnemar_tests
from passhat.stats.intervals import Interval, dirichlet
from passhat.stats.paired import Differences, paired_dirichlet, paired_t
from passhat.stats.sign_flips import sign_flip

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

DEFAULT = "task Dirichlet"
SIGN_FLIP = "sign-flip of tasks"
LEVEL = 0.05
TAIL = LEVEL / 2
# suites less likely than this are not gone through but counted as missed at both ends
NEGLIGIBLE = 1e-13
# an end that is the truth up to rounding holds it
ROUNDING = 1e-9


# Suites


@dataclass(frozen=True, slots=True)
class Suite:
    """The tasks of a sample by their values: `tasks[j]` of them have `numerators[j]` / `denominator`."""

    numerators: tuple[int, ...]
    denominator: int
    tasks: tuple[int, ...]

    @property
    def values(self) -> FloatArray:
        return np.array([numerator / self.denominator for numerator in self.numerators])


def suites(law: Law, tasks: int, draws: int, most: int, rng: np.random.Generator) -> tuple[IntArray, FloatArray, bool]:
    """Suites as rows of numbers of tasks a value, the chance or frequency of each, and whether these are all.

    They are when there are no more than `most`; otherwise `draws` are drawn, and equal ones put together.
    """
    kinds = len(law.numerators)
    if comb(tasks + kinds - 1, kinds - 1) <= most:
        counts = compositions(tasks, kinds)
        chances = np.exp(gammaln(tasks + 1) - gammaln(counts + 1).sum(axis=1) + counts @ np.log(law.chances))
        likely = chances > NEGLIGIBLE
        return counts[likely], chances[likely], True
    drawn = rng.multinomial(tasks, law.chances, size=draws)
    counts, times = np.unique(drawn, axis=0, return_counts=True)
    return counts, times / draws, False


def compositions(total: int, parts: int) -> IntArray:
    """All ways to write a total as a sum of this many whole numbers, one a row."""
    bars = np.array(list(combinations(range(total + parts - 1), parts - 1)), dtype=np.int64)
    edges = np.pad(bars, ((0, 0), (1, 1)), constant_values=((0, 0), (-1, total + parts - 1)))
    return np.diff(edges, axis=1) - 1


# Intervals


Intervals = dict[str, Interval | None]
Ends = dict[str, tuple[float, float]]


def rate_intervals(suite: Suite) -> Intervals:
    return {
        DEFAULT: dirichlet(suite.values, suite.tasks),
        "cluster Wilson": cluster_wilson(suite.values, suite.tasks).interval,
        "pseudo-task t": pseudo_task_t(suite.values, suite.tasks).interval,
    }


def rate_intervals_with_bootstraps(suite: Suite) -> Intervals:
    bootstrap = bootstrap_mean(suite.numerators, suite.denominator, suite.tasks)
    return rate_intervals(suite) | {
        "percentile": bootstrap.interval,
        "expanded percentile": bootstrap.expanded,
        "BCa": bootstrap.bca,
    }


def difference_intervals(suite: Suite) -> Intervals:
    differences = Differences(1, suite.numerators, suite.denominator, suite.tasks, not_estimable=0, rounding=0)
    return {
        DEFAULT: paired_dirichlet(differences),
        "augmented t": paired_t(differences),
        "plain t": paired_t(differences, pseudo_tasks=0),
    }


# Coverage


@dataclass(frozen=True, slots=True)
class Coverage:
    """What became of one method in one setting; `draws` is None where every possible suite was gone through."""

    setting: str
    tasks: int
    method: str
    coverage: float
    low_miss: float  # the chance of a lower end above the truth
    high_miss: float
    width: float
    draws: int | None

    def exceeds(self) -> bool:
        """Whether it covers too little, or misses too often at either end, by more than three standard errors."""
        worse_end = max(self.low_miss, self.high_miss)
        return 1 - self.coverage > LEVEL + _slack(LEVEL, self.draws) or worse_end > TAIL + _slack(TAIL, self.draws)


def _slack(level: float, draws: int | None) -> float:
    return ROUNDING if draws is None else 3 * sqrt(level * (1 - level) / draws)


@dataclass(frozen=True, slots=True)
class Table:
    """Settings of one kind, and the intervals that are measured in them."""

    title: str
    sizes: tuple[int, ...]  # numbers of tasks
    designs: tuple[Design, ...]
    mixtures: Callable[[int], dict[str, Mixture]]  # from the number of tasks
    law: Callable[[Mixture, Design], Law]
    intervals: Callable[[Suite], Intervals]


RATE_DESIGNS = (
    Design((1,), 1),
    *(Design((3,), k) for k in (1, 2, 3)),
    *(Design((8,), k) for k in (1, 4, 8)),
    *(Design((32,), k) for k in (1, 16, 32)),
    *(Design(tuple(range(2, 9)), k) for k in (1, 2)),
    *(Design((8,), k, missing=0.1) for k in (1, 4)),
)
BOOTSTRAP_DESIGNS = (Design((3,), 3), *(Design((8,), k) for k in (1, 4, 8)))
PAIR_DESIGNS = (Design((1,), 1), Design((8,), 1), Design((8,), 4), Design((32,), 1))
TABLES = {
    "rates": Table(
        "Intervals of pass^k", (5, 10, 20, 50, 100, 300), RATE_DESIGNS,
        task_laws.difficulties, task_laws.law_of_pass_hat, rate_intervals,
    ),
    "bootstraps": Table(
        "Intervals of pass^k beside bootstraps, smooth mixtures", (10, 20, 50, 100, 300), BOOTSTRAP_DESIGNS,
        lambda tasks: task_laws.SMOOTH, task_laws.law_of_pass_hat, rate_intervals_with_bootstraps,
    ),
    "differences": Table(
        "Intervals of differences", (20, 50, 100, 300), PAIR_DESIGNS,
        task_laws.movements, task_laws.law_of_differences, difference_intervals,
    ),
}  # fmt: skip


def measure(table: Table, tasks: int, draws: int, most: int) -> list[Coverage]:
    """Go through a table's settings at one number of tasks; `draws` and `most` as for `suites`."""
    rows = []
    for design in table.designs:
        ends = cache(partial(_ends, table.intervals))  # shared by the mixtures
        for name, mixture in table.mixtures(tasks).items():
            rows += _measure_setting(f"{name}, {design}", table.law(mixture, design), tasks, draws, most, ends)
    return rows


def _ends(intervals: Callable[[Suite], Intervals], suite: Suite) -> Ends:
    mean = float(suite.values @ suite.tasks) / sum(suite.tasks)
    return {
        # without an interval there is only the mean
        method: (mean, mean) if interval is None else (interval.lower, interval.upper)
        for method, interval in intervals(suite).items()
    }


def _measure_setting(
    setting: str, law: Law, tasks: int, draws: int, most: int, ends: Callable[[Suite], Ends]
) -> list[Coverage]:
    rng = np.random.default_rng([zlib.crc32(setting.encode()), tasks])
    counts, chances, is_exact = suites(law, tasks, draws, most, rng)
    found = [ends(_suite(law, row)) for row in counts.tolist()]
    rest = max(0.0, 1 - float(chances.sum())) if is_exact else 0.0
    rows = []
    for method in found[0]:
        lower, upper = np.array([each[method] for each in found]).T
        low_miss = float(chances @ (lower > law.truth + ROUNDING))
        high_miss = float(chances @ (upper < law.truth - ROUNDING))
        coverage, width = 1 - low_miss - high_miss - rest, float(chances @ (upper - lower))
        times = None if is_exact else draws
        rows.append(Coverage(setting, tasks, method, coverage, low_miss + rest, high_miss + rest, width, times))
    return rows


def _suite(law: Law, row: list[int]) -> Suite:
    present = [j for j, count in enumerate(row) if count]
    return Suite(tuple(law.numerators[j] for j in present), law.denominator, tuple(row[j] for j in present))


# Tests


TESTED_TASKS = (20, 50, 100, 300)
TESTED_RUNS = (8, 32)


@dataclass(frozen=True, slots=True)
class Rejection:
    """How often one test rejected a null at .05."""

    setting: str
    is_sharp: bool  # the releases do not differ on any task
    tasks: int
    test: str
    rate: float
    draws: int

    def exceeds(self) -> bool:
        """Whether the rate is above the level by more than three standard errors."""
        return self.rate > LEVEL + _slack(LEVEL, self.draws)


def measure_tests(tasks: int, draws: int, runs: int) -> Iterator[Rejection]:
    """Tests of no difference where there is none in the mean: of all cells, of majority votes, of tasks."""
    for name, mixture in task_laws.nulls(tasks).items():
        is_sharp = bool((mixture.a == mixture.b).all())
        rng = np.random.default_rng([zlib.crc32(name.encode()), tasks, runs])
        kinds = rng.choice(len(mixture.shares), (draws, tasks), p=mixture.shares)
        a, b = (rng.random((draws, tasks, runs)) < rates[kinds][:, :, np.newaxis] for rates in (mixture.a, mixture.b))
        cells = mcnemar_tests((a & ~b).sum(axis=(1, 2)), (b & ~a).sum(axis=(1, 2))).p_value
        c_a, c_b = a.sum(axis=2), b.sum(axis=2)
        a_wins, b_wins = 2 * c_a > runs, 2 * c_b > runs
        votes = mcnemar_tests((a_wins & ~b_wins).sum(axis=1), (b_wins & ~a_wins).sum(axis=1)).p_value
        flips = (
            sign_flip(*(column.tolist() for column in np.unique(row, return_counts=True))).p_value for row in c_b - c_a
        )
        ps = {
            "McNemar of all cells": cells,
            "McNemar of majority votes": votes,
            SIGN_FLIP: np.array(list(flips), dtype=np.float64),
        }
        for test, p in ps.items():
            yield Rejection(f"n={runs}, {name}", is_sharp, tasks, test, float(np.mean(p <= LEVEL)), draws)


# Printing


def print_coverage(title: str, rows: Sequence[Coverage]) -> None:
    print(
        f"\n{title}\n{'T':>5} {'settings':>16}  {'method':<20}"
        f"{'coverage':>15}{'low miss':>10}{'high miss':>10}{'width':>7}"
    )
    for tasks in sorted({row.tasks for row in rows}):
        for method in dict.fromkeys(row.method for row in rows):
            some = [row for row in rows if row.tasks == tasks and row.method == method]
            exact = sum(row.draws is None for row in some)
            worst = min(some, key=lambda row: row.coverage)
            print(
                f"{tasks:>5} {len(some):>6}, {exact:>3} exact  {method:<20}"
                f"{_mean(row.coverage for row in some):>7.3f} / {worst.coverage:.3f}"
                f"{max(row.low_miss for row in some):>10.3f}{max(row.high_miss for row in some):>10.3f}"
                f"{_mean(row.width for row in some):>7.3f}   worst: {worst.setting}"
            )
        sys.stdout.flush()
    print("     coverage: mean / worst setting; misses: worst setting; width: mean")


def print_rejections(rows: Sequence[Rejection]) -> None:
    sizes = sorted({row.tasks for row in rows})
    print(f"\nRejections at .05 where the mean difference is 0, T = {', '.join(map(str, sizes))}")
    for setting in dict.fromkeys(row.setting for row in rows):
        for test in dict.fromkeys(row.test for row in rows):
            rates = (f"{row.rate:>7.3f}" for row in rows if row.setting == setting and row.test == test)
            print(f"  {setting:<29}{test:<27}{''.join(rates)}")


def _mean(values: Iterator[float]) -> float:
    return float(np.mean(list(values)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer draws, T of 10 and 50")
    parser.add_argument("--tables", nargs="+", choices=[*TABLES, "tests"], default=[*TABLES, "tests"])
    parser.add_argument("--tasks", nargs="+", type=int, help="numbers of tasks T, at least 5")
    arguments = parser.parse_args()
    draws, most = (200, 2_000) if arguments.quick else (1_500, 25_000)
    chosen = arguments.tasks or ([10, 50] if arguments.quick else None)
    if chosen and min(chosen) < 5:
        parser.error("some mixtures take at least 5 tasks")

    exceeding: list[Coverage | Rejection] = []
    for table in arguments.tables:
        if table == "tests":
            rejections = [
                row for runs in TESTED_RUNS for tasks in chosen or TESTED_TASKS
                for row in measure_tests(tasks, draws, runs)
            ]  # fmt: skip
            print_rejections(rejections)
            exceeding += [row for row in rejections if row.is_sharp and row.test == SIGN_FLIP and row.exceeds()]
        else:
            sizes = chosen or TABLES[table].sizes
            rows = [row for tasks in sizes for row in measure(TABLES[table], tasks, draws, most)]
            print_coverage(TABLES[table].title, rows)
            exceeding += [row for row in rows if row.method == DEFAULT and row.exceeds()]
    for found in exceeding:
        print(f"beyond its level: {found}")
    sys.exit(1 if exceeding else 0)


if __name__ == "__main__":
    main()
