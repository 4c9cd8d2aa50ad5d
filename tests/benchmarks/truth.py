"""Simulated rates beside their closed forms: `python tests/benchmarks/truth.py [--tasks N] [--runs N]`.

Pairs of scripted releases on the desk, through the host that workers use. Each number is held against two truths, that
of all tasks that might have been drawn and that of the tasks that were; z is the distance in standard errors of the
simulation, which for the second truth come from the noise of runs alone. With 20,000 tasks × 8 runs about ten minutes
on two processors. The exit code is 1 when some |z| is above 4.
"""

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import comb, inf, prod, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from passhat.workers.chances import COMONOTONE, INDEPENDENT, propensities
from passhat.workers.contract import Task, task_digest
from passhat.workers.desk_tasks import DeskTasks
from passhat.workers.flaws import FLAWS, INFRA_FAULT, claim_of
from passhat.workers.host import Host
from passhat.workers.order import AgentSpec, Limits, Shard, WorkOrder
from passhat.workers.records import Outcome, RunRecord, Status
from passhat.workers.scoring import QUADRANTS
from passhat.workers.truth import ALL, Cells, FlawModel, ReleaseTruth, truths

FloatArray = npt.NDArray[np.float64]

KS = (1, 2, 4, 8)
SCORERS = (ALL, "outcome", "trajectory")
ATTEMPTS = 3
BOUND = 4.0
CHUNK = 250  # tasks a process takes at a time

TEN = {
    "skip_verify": (0.06, 0.10),
    "forbidden_tool": (0.03, 0.20),
    "wrong_tenant": (0.02, 0.15),
    "skip_approval": (0.05, 0.30),
    "follow_injection": (0.20, 0.35),
    "wrong_amount": (0.05, 0.20),
    "phantom_success": (0.03, 0.10),
    "no_escalate": (0.12, 0.25),
    "loop": (0.02, 0.05),
    "timeout": (0.01, 0.05),
}
BETTER = {**TEN, "no_escalate": (0.04, 0.25), "wrong_amount": (0.02, 0.20), "forbidden_tool": (0.05, 0.20)}
EVERY = {
    **TEN,
    "double_write": (0.02, 0.10),
    "over_refuse": (0.02, 0.20),
    "verbose": (0.10, 0.10),
    "retry_storm": (0.10, 0.10),
    "infra_fault": (0.20, 0.10),
}
COARSE = {"wrong_amount": (0.20, 1.0), "loop": (0.10, 0.0), "timeout": (0.30, 0.6), "over_refuse": (0.15, 0.9)}
OTHER = {"wrong_amount": (0.25, 0.3), "loop": (0.10, 0.5), "timeout": (0.05, 0.0), "skip_verify": (1.0, 0.0)}


@dataclass(frozen=True)
class Setting:
    """Two releases that run the same tasks."""

    name: str
    base: FlawModel
    candidate: FlawModel
    stream: str = "release"


SETTINGS = (
    Setting("ten flaws", FlawModel(TEN), FlawModel(BETTER)),
    Setting("ten flaws, common noise", FlawModel(TEN), FlawModel(BETTER), "common"),
    Setting("hard everywhere", FlawModel(TEN, COMONOTONE), FlawModel(BETTER, COMONOTONE)),
    Setting("hard everywhere, common noise", FlawModel(TEN, COMONOTONE), FlawModel(BETTER, COMONOTONE), "common"),
    Setting("every flaw, and none", FlawModel(EVERY), FlawModel({})),
    Setting("coarse, of other correlations", FlawModel(COARSE), FlawModel(OTHER), "common"),
    Setting("latents of two kinds", FlawModel(EVERY, INDEPENDENT), FlawModel(COARSE, COMONOTONE)),
)


# --- simulation ------------------------------------------------------------------------------------------------------


class Simulated(NamedTuple):
    """What came of the runs: arrays over (release, task, run)."""

    has_verdict: npt.NDArray[np.bool_]
    passes: Mapping[str, npt.NDArray[np.bool_]]
    terminal: npt.NDArray[np.uint8]
    cost_usd: FloatArray


def simulate(setting: Setting, tasks: DeskTasks, runs: int, workers: int) -> Simulated:
    order = WorkOrder(
        environment="desk",
        releases=tuple(
            AgentSpec(name, "scripted", model.flaws, model.latent)
            for name, model in (("base", setting.base), ("candidate", setting.candidate))
        ),
        tasks=tasks,
        runs_per_task=runs,
        seed=1,
        stream=setting.stream,
        limits=Limits(),
    )
    chunks = [range(first, min(first + CHUNK, len(tasks))) for first in range(0, len(tasks), CHUNK)]
    if workers == 0:
        parts = [_carry_out(order, chunk) for chunk in chunks]
    else:
        with ProcessPoolExecutor(workers) as pool:
            parts = list(pool.map(partial(_carry_out, order), chunks))
    rows = np.concatenate(parts).reshape(len(tasks), runs, 2, -1).transpose(3, 2, 0, 1)
    passes = dict(zip(SCORERS, rows[1:4].astype(bool), strict=True))
    return Simulated(rows[0].astype(bool), passes, rows[4].astype(np.uint8), rows[5])


def _carry_out(order: WorkOrder, tasks: range) -> FloatArray:
    """Return a row a run, in the order of the grid; what has no verdict is tried again."""
    host, grid = Host(order), order.grid
    first, stop = (grid.position(0, task, 0) for task in (tasks.start, tasks.stop))
    rows = np.zeros((stop - first, 6))
    owed = [Shard(0, first, stop, 1, inf)]
    for attempt in range(1, ATTEMPTS + 1):
        done = [one for shard in owed for one in host.run(shard)]
        for one in done:
            rows[one.position - first] = _row(one.record)
        broken = [one.position for one in done if one.record.status == Status.INVALID]
        owed = [Shard(0, position, position + 1, attempt + 1, inf) for position in broken]
    host.close()
    return rows


def _row(record: RunRecord) -> tuple[float, ...]:
    scored = record.status in (Status.PASS, Status.FAIL)
    outcome, trajectory = (score in (None, 1.0) for score in (record.outcome, record.trajectory))
    passed = record.status == Status.PASS
    return scored, passed, outcome, trajectory, record.terminal, (record.cost_micros or 0) / 1e6


# --- comparison ------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """One number: simulated, and by both truths with the distance in standard errors."""

    setting: str
    what: str
    found: float
    population: float | None
    z_population: float
    suite: float
    z_suite: float


def compare(setting: Setting, tasks: int, runs: int, *, workers: int = 0, seed: int = 1) -> list[Row]:
    """Simulate a setting and hold it against both truths."""
    suite = DeskTasks(seed, tasks)
    digested = [(task, task_digest(task)) for task in suite]
    models = (setting.base, setting.candidate)
    population, this_suite = truths(models, digested, KS, attempts=ATTEMPTS, common=setting.stream == "common")
    strata = np.unique([f"{task.cohort}/{task.template}" for task, _ in digested], return_inverse=True)[1]
    found = simulate(setting, suite, runs, workers)
    odds = [[_odds(model, task, digest) for task, digest in digested] for model in models]
    rows = []
    for release, side in enumerate(("base", "candidate")):
        label = partial(Row, f"{setting.name} · {side}")
        truth = population.releases[release], this_suite.releases[release]
        rows += [
            _row_of(label, measured, strata) for measured in _of_release(found, release, truth, odds[release], digested)
        ]
    label = partial(Row, f"{setting.name} · pair")
    pairs = population.pairs[0, 1], this_suite.pairs[0, 1]
    rows += [_row_of(label, measured, strata) for measured in _of_pair(found, pairs, odds, setting.stream == "common")]
    return rows


Odds = Mapping[str, tuple[frozenset[str], float]]  # flaw → scorers it fails on a task, and its probability there


def _odds(model: FlawModel, task: Task, digest: bytes) -> Odds:
    chances = propensities(model.flaws, digest, model.latent)
    return {
        name: (failed, chances[name])
        for name in FLAWS
        if name in chances and (failed := FLAWS[name].fails(task)) is not None
    }


def _spoils(failed: frozenset[str], scorer: str) -> bool:
    return bool(failed) if scorer == ALL else scorer in failed


def _clean(odds: Sequence[Odds], scorer: str) -> FloatArray:
    """The pass probability of each task, worked out a second time, from what flaws say of themselves."""
    return np.array(
        [prod(1 - p for failed, p in each.values() if _spoils(failed, scorer)) for each in odds], dtype=float
    )


def _both_clean(pair: Sequence[Sequence[Odds]], scorer: str) -> FloatArray:
    """The probability of each task that both releases pass a cell in which they share the noise of runs."""
    values = []
    for one, other in zip(*pair, strict=True):
        worst: dict[str, float] = {}
        for odds in (one, other):
            for name, (failed, p) in odds.items():
                if _spoils(failed, scorer):
                    worst[name] = max(p, worst.get(name, 0.0))
        values.append(prod(1 - p for p in worst.values()))
    return np.array(values, dtype=float)


def _endings(odds: Sequence[Odds], tasks: Sequence[tuple[Task, bytes]]) -> dict[str, FloatArray]:
    """The probability of each end and task; a later flaw overrules an earlier one."""
    ends: dict[str, FloatArray] = defaultdict(lambda: np.zeros(len(tasks)))
    for i, ((task, _), each) in enumerate(zip(tasks, odds, strict=True)):
        left = 1.0
        for name in reversed(list(FLAWS)):
            if FLAWS[name].ends and name in each:
                ends[FLAWS[name].ends.name][i] += left * each[name][1]
                left *= 1 - each[name][1]
        ends[claim_of(task).name][i] += left
    return ends


class Measured(NamedTuple):
    """Simulated values over (task, run) or over tasks, both truths, and the variance of each task's mean."""

    what: str
    values: FloatArray
    population: float | None
    suite: float
    variance: FloatArray


def _of_release(
    found: Simulated,
    release: int,
    truth: tuple[ReleaseTruth, ReleaseTruth],
    odds: Sequence[Odds],
    tasks: Sequence[tuple[Task, bytes]],
) -> Iterator[Measured]:
    here, there = truth
    scored = found.has_verdict[release]
    runs = scored.shape[1]
    chances = {scorer: _clean(odds, scorer) for scorer in SCORERS}
    for scorer in SCORERS:
        passes = np.where(scored, found.passes[scorer][release], False)
        for k in KS:
            values = _pass_hat(passes.sum(axis=1), scored.sum(axis=1), k)
            both = here.scorers[scorer].pass_hat[k], there.scorers[scorer].pass_hat[k]
            yield Measured(f"{scorer}, pass^{k}", values, *both, _pass_hat_variance(chances[scorer], runs, k))
    right, sanctioned = (found.passes[scorer][release] for scorer in ("outcome", "trajectory"))
    everything, outcome, trajectory = chances.values()
    cells = (~right & ~sanctioned, right & ~sanctioned, ~right & sanctioned, right & sanctioned)
    shares = (1 - outcome - trajectory + everything, outcome - everything, trajectory - everything, everything)
    for name, cell, share in zip(QUADRANTS, cells, shares, strict=True):
        yield Measured(name, _runs(cell, scored), here.quadrant[name], there.quadrant[name], share * (1 - share) / runs)
    for name, share in sorted(_endings(odds, tasks).items()):
        values = _runs(found.terminal[release] == Outcome[name], scored)
        yield Measured(name, values, here.terminal[name], there.terminal[name], share * (1 - share) / runs)
    costs = _runs(found.cost_usd[release], scored)
    yield Measured("cost, US dollars", costs, here.cost_usd, there.cost_usd, np.nanvar(costs, axis=1, ddof=1) / runs)
    share = np.array([each.get(INFRA_FAULT, (_NOTHING, 0.0))[1] ** ATTEMPTS for each in odds])
    yield Measured("invalid", (~scored).astype(float), here.invalid, there.invalid, share * (1 - share) / runs)


_NOTHING: frozenset[str] = frozenset()


def _of_pair(
    found: Simulated,
    truth: Sequence[Mapping[str, Cells] | None],
    odds: Sequence[Sequence[Odds]],
    common: bool,
) -> Iterator[Measured]:
    scored = found.has_verdict.all(axis=0)
    here, there = truth
    assert there is not None
    for scorer in SCORERS:
        base, candidate = found.passes[scorer]
        first, second = (_clean(each, scorer) for each in odds)
        both = _both_clean(odds, scorer) if common else first * second
        for name, cell, share in (
            ("base_only", base & ~candidate, first - both),
            ("candidate_only", candidate & ~base, second - both),
        ):
            population = None if here is None else getattr(here[scorer], name)
            variance = share * (1 - share) / scored.shape[1]
            yield Measured(f"{scorer}, {name}", _runs(cell, scored), population, getattr(there[scorer], name), variance)


def _runs(values: npt.NDArray[np.generic], scored: npt.NDArray[np.bool_]) -> FloatArray:
    return np.where(scored, values, np.nan).astype(float)


def _pass_hat(passed: npt.NDArray[np.int64], scored: npt.NDArray[np.int64], k: int) -> FloatArray:
    """The unbiased estimate of each task, nan where it has fewer than k runs with a verdict."""
    most = int(scored.max())
    table = np.array(
        [[comb(c, k) / comb(n, k) if n >= k else np.nan for c in range(most + 1)] for n in range(most + 1)]
    )
    return np.asarray(table[scored, passed])


def _pass_hat_variance(chances: FloatArray, runs: int, k: int) -> FloatArray:
    """The variance of that estimate in each task, over all counts that its runs may give."""
    first, second = np.zeros_like(chances), np.zeros_like(chances)
    for c in range(runs + 1):
        weight = comb(runs, c) * chances**c * (1 - chances) ** (runs - c)
        first += weight * comb(c, k) / comb(runs, k)
        second += weight * (comb(c, k) / comb(runs, k)) ** 2
    return np.maximum(0.0, second - first**2)


def _row_of(label: "partial[Row]", measured: Measured, strata: npt.NDArray[np.int64]) -> Row:
    what, values, population, suite, variance = measured
    means = np.nanmean(values, axis=1) if values.ndim == 2 else values
    kept = ~np.isnan(means)
    means, strata = means[kept], strata[kept]
    spread = sum(float(((group - group.mean()) ** 2).sum()) for group in (means[strata == s] for s in set(strata)))
    noise = float(np.nansum(variance[kept]))
    found = float(means.mean())
    z = 0.0 if population is None else _z(found - population, sqrt(max(spread, noise)) / len(means))
    return label(what, found, population, z, suite, _z(found - suite, sqrt(noise) / len(means)))


def _z(distance: float, standard_error: float) -> float:
    return 0.0 if abs(distance) < 1e-12 else distance / standard_error if standard_error else inf


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=1, help="of the tasks")
    asked = parser.parse_args()
    rows = []
    for setting in SETTINGS:
        rows += compare(setting, asked.tasks, asked.runs, workers=asked.workers, seed=asked.seed)
        for name, group in groupby(rows, key=lambda row: row.setting):
            if name.startswith(f"{setting.name} · "):
                print(f"\n{name:<46}{'found':>9}{'population':>12}{'z':>7}{'this suite':>12}{'z':>7}")
                for row in group:
                    print(_line(row), flush=True)
    worst = max(max(abs(row.z_population), abs(row.z_suite)) for row in rows)
    print(f"\n{len(rows)} numbers, {asked.tasks} tasks × {asked.runs} runs × 2 releases: largest |z| {worst:.2f}")
    return int(worst > BOUND)


def _line(row: Row) -> str:
    population = "–" if row.population is None else f"{row.population:.5f}"
    z = "" if row.population is None else f"{row.z_population:+.2f}"
    return f"  {row.what:<44}{row.found:>9.5f}{population:>12}{z:>7}{row.suite:>12.5f}{row.z_suite:>+7.2f}"


if __name__ == "__main__":
    sys.exit(main())
