"""How often a gate's rules pass: `python tests/benchmarks/gate_simulation.py [--campaigns N]`, two to four minutes.

Campaigns of 60 tasks × 5 runs are drawn, and decided by the gate's own code: the same release twice, whose gain no rule
may find; a candidate that loses exactly the margin, which may pass no more often than alpha; and one that loses half of
it, where passing is power. Tasks are a sample of a mixture, so the truth is known; a loss is either a little of every
task, or all of a few. Beside the default bound stand the others that a rule may name. The exit code is 1 when the
default passes more often than alpha by more than two standard errors where it should not.
"""

import argparse
import json
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import task_laws
from task_laws import Mixture

from passhat.runner.gate import Decision, decide
from passhat.runner.gate_file import DEFAULT_ALPHA, Gate, load_gate
from passhat.runner.importing import import_files
from passhat.runner.metrics import observe
from passhat.runner.pairing import Pairing, choose, pair
from passhat.stats.table import OutcomeTable

IntArray = npt.NDArray[np.int64]

TASKS, RUNS = 60, 5
KS = (1, 5)
MARGINS = (0.05, 0.10)
INTERVALS = ("task-dirichlet", "bootstrap", "paired-t")
DEFAULT = INTERVALS[0]
MIXTURES: Mapping[str, Mixture] = {
    "smooth Beta(5,1)": task_laws.beta(5, 1),
    "smooth Beta(1,1)": task_laws.beta(1, 1),
    "3% at .1, rest .97": task_laws.points((0.03, 0.1), (0.97, 0.97)),
    "all or nothing .8": task_laws.points((0.2, 0), (0.8, 1)),
}
LOSSES = ("every task a little", "a few tasks break")


# What is asked


@dataclass(frozen=True, slots=True)
class Setting:
    """A mixture, how the candidate differs from the baseline, and the rule that is asked."""

    mixture: str
    change: str  # "no change", or one of LOSSES
    k: int
    lost: float  # what the candidate loses of pass^k
    threshold: float  # that the difference has to exceed

    @property
    def should_not_pass(self) -> bool:
        """Whether the difference does not exceed the threshold."""
        return -self.lost <= self.threshold


@dataclass(frozen=True, slots=True)
class Rate:
    """How often a rule passed."""

    setting: Setting
    interval: str
    passed: float
    campaigns: int

    def exceeds(self) -> bool:
        """Whether it passed where it should not, beyond alpha by more than two standard errors."""
        return self.setting.should_not_pass and self.passed > most_passes(self.campaigns)


def most_passes(campaigns: int) -> float:
    """Alpha and two standard errors of so many campaigns."""
    return DEFAULT_ALPHA + 2 * sqrt(DEFAULT_ALPHA * (1 - DEFAULT_ALPHA) / campaigns)


def settings() -> Iterator[Setting]:
    for mixture in MIXTURES:
        for k in KS:
            yield from (Setting(mixture, "no change", k, 0.0, threshold) for threshold in (0.0, -0.05, -0.10))
    for mixture in MIXTURES:
        for change in LOSSES:
            for k in KS:
                for margin in MARGINS:
                    yield from (Setting(mixture, change, k, lost, -margin) for lost in (margin, margin / 2))


# Campaigns


def with_loss(base: Mixture, change: str, k: int, lost: float) -> Mixture:
    """Give the candidate rates by which it loses exactly this much of pass^k."""
    share = lost / float(base.shares @ base.a**k)  # of what the baseline has
    if change == "a few tasks break":
        shares = np.concatenate([base.shares * share, base.shares * (1 - share)])
        return Mixture(shares, np.tile(base.a, 2), np.concatenate([np.zeros_like(base.a), base.a]))
    return Mixture(base.shares, base.a, base.a * (1 - share) ** (1 / k))


def draw(setting: Setting, campaigns: int) -> tuple[IntArray, IntArray]:
    """Draw the passes of every task under both releases, one row a campaign; runs are independent given the task."""
    mixture = with_loss(MIXTURES[setting.mixture], setting.change, setting.k, setting.lost)
    # thresholds share their campaigns, nothing else does
    drawn = f"{setting.mixture} {setting.change} {setting.k} {setting.lost}"
    rng = np.random.default_rng(zlib.crc32(drawn.encode()))
    kinds = rng.choice(len(mixture.shares), (campaigns, TASKS), p=mixture.shares)
    return rng.binomial(RUNS, mixture.a[kinds]), rng.binomial(RUNS, mixture.b[kinds])


# The gate


class Bench:
    """A pairing of an imported campaign, whose counts are replaced by others of as many tasks and runs."""

    def __init__(self, folder: Path, tasks: int = TASKS, runs: int = RUNS) -> None:
        self._folder = folder
        self._runs = runs
        rows = [
            {"release": release, "task": f"t{task:03}", "run": run, "passed": True}
            for release in "AB"
            for task in range(tasks)
            for run in range(runs)
        ]
        (folder / "runs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        campaign = import_files([folder / "runs.jsonl"], out=folder / "campaign").campaign
        self._pairing: Pairing = pair(*choose([campaign], "A", "B"))

    def gate(self, k: int, threshold: float, intervals: Sequence[str] = INTERVALS) -> Gate:
        """Return a gate with one rule an interval."""
        rules = [
            {"id": name, "metric": "delta_pass_hat", "k": k, "at_least": threshold, "interval": name}
            for name in intervals
        ]
        path = self._folder / "gate.yaml"
        path.write_text(json.dumps({"name": "simulated", "rules": rules}))
        return load_gate(path)

    def pairing(self, base: IntArray, candidate: IntArray) -> Pairing:
        """Return the pairing with these numbers of passes of every task."""
        return replace(self._pairing, outcomes_base=self._outcomes(base), outcomes_candidate=self._outcomes(candidate))

    def _outcomes(self, passed: IntArray) -> OutcomeTable:
        planned = np.full(len(passed), self._runs)
        return OutcomeTable(planned, passed, planned - passed, np.zeros_like(passed))

    def passes(self, gate: Gate, base: IntArray, candidate: IntArray) -> list[bool]:
        """Return whether each rule passes."""
        pairing = self.pairing(base, candidate)
        return [decide(rule, observe(rule, gate, pairing))[0] is Decision.PASS for rule in gate.rules]


def measure(bench: Bench, setting: Setting, campaigns: int, intervals: Sequence[str] = INTERVALS) -> list[Rate]:
    gate = bench.gate(setting.k, setting.threshold, intervals)
    passed = [bench.passes(gate, base, candidate) for base, candidate in zip(*draw(setting, campaigns), strict=True)]
    rates = np.mean(passed, axis=0).tolist()
    return [Rate(setting, interval, rate, campaigns) for interval, rate in zip(intervals, rates, strict=True)]


# Printing


def print_same(rates: Sequence[Rate]) -> None:
    print("\nThe same release twice: how often a rule passes")
    _print_heads("", ["gain > 0", *(f"loss < {margin:.2f}" for margin in MARGINS)])
    _print_rows((f"{rate.setting.mixture:<22}k={rate.setting.k}", rate) for rate in rates)


def print_losses(rates: Sequence[Rate]) -> None:
    print("\nA loss of pass^k: how often a rule with a margin passes")
    _print_heads(f"{'':29}margin", ["all of it lost", "half of it: power"])
    _print_rows(
        (f"{s.mixture:<22}k={s.k}  {s.change:<20}{-s.threshold:>9.2f}", rate) for rate in rates for s in [rate.setting]
    )


def _print_heads(more: str, questions: Sequence[str]) -> None:
    heads = "".join(f"{name:>8}" for name in ("default", "boot", "t"))
    print(f"{'':25}{more}{''.join(f'{question:>24}' for question in questions)}")
    print(f"{'':25}{' ' * len(more)}{heads * len(questions)}")


def _print_rows(labelled: Iterable[tuple[str, Rate]]) -> None:
    rows: dict[str, list[float]] = {}
    for label, rate in labelled:
        rows.setdefault(label, []).append(rate.passed)
    for label, row in rows.items():
        print(f"{label}{''.join(f'{passed:>8.3f}' for passed in row)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--campaigns", type=int, default=1_000)
    campaigns = parser.parse_args().campaigns
    with TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        rates = [rate for setting in settings() for rate in measure(bench, setting, campaigns)]
    print(f"{campaigns} campaigns of {TASKS} tasks × {RUNS} runs a row; alpha {DEFAULT_ALPHA}, ", end="")
    print(f"with two standard errors {most_passes(campaigns):.3f}")
    print_same([rate for rate in rates if rate.setting.change == "no change"])
    print_losses([rate for rate in rates if rate.setting.change != "no change"])
    exceeding = [rate for rate in rates if rate.exceeds()]
    for interval in INTERVALS:
        cells = [rate for rate in rates if rate.interval == interval and rate.setting.should_not_pass]
        beyond = sum(rate.exceeds() for rate in cells)
        print(f"{interval:<15} beyond alpha in {beyond} of {len(cells)}, at most {max(r.passed for r in cells):.3f}")
    sys.exit(1 if any(rate.interval == DEFAULT for rate in exceeding) else 0)


if __name__ == "__main__":
    main()
