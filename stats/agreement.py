"""How well a judge agrees with labels that are taken for the truth, and what its verdicts then say about the pass rate.

Labelled runs are taken as independent: label at most one run of a task, or the intervals are too narrow. Every answer
that is undefined is None and has its reason.
"""

from dataclasses import dataclass
from math import inf, sqrt

import numpy as np
import numpy.typing as npt

from passhat.stats.intervals import Interval, clopper_pearson, dirichlet, tail_level
from passhat.stats.reliability import pass_hat
from passhat.stats.table import Histogram, IntArray

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Confusion:
    """Labelled runs by what the judge said and what the label says."""

    both_pass: int
    false_pass: int  # the judge passes what the label fails
    false_fail: int
    both_fail: int

    def __post_init__(self) -> None:
        if min(self.both_pass, self.false_pass, self.false_fail, self.both_fail) < 0:
            raise ValueError(f"a number of runs is at least 0: {self}")

    @property
    def total(self) -> int:
        """The number of labelled runs."""
        return self.both_pass + self.false_pass + self.false_fail + self.both_fail


@dataclass(frozen=True, slots=True)
class Rate:
    """`count` of `total` independent runs with the interval of Clopper and Pearson; `reason` says why there is none."""

    estimate: float | None
    count: int
    total: int
    interval: Interval | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class JudgeQuality:
    """What labelled runs say about a judge."""

    agreement: Rate
    false_pass: Rate  # of the runs that the label fails
    false_fail: Rate  # of the runs that the label passes


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its interval; `reason` says why either is None."""

    estimate: float | None
    interval: Interval | None
    reason: str | None = None


def confusion(judge: BoolArray, label: BoolArray) -> Confusion:
    """Count labelled runs: two boolean arrays with an entry a run, True for a pass.

    ValueError when the lengths differ, TypeError for anything but booleans: an unreadable verdict is neither.

    >>> confusion(np.array([True, True, False]), np.array([True, False, False]))
    Confusion(both_pass=1, false_pass=1, false_fail=0, both_fail=1)
    """
    return confusions(judge, label, np.zeros(np.shape(judge), dtype=np.int64), 1)[0]


def confusions(judge: BoolArray, label: BoolArray, group: npt.NDArray[np.integer], groups: int) -> list[Confusion]:
    """Count labelled runs by class, `group` being each run's class from 0 to `groups` - 1; errors as for `confusion`.

    >>> confusions(np.array([True, True]), np.array([True, False]), np.array([0, 2]), 3)[2]
    Confusion(both_pass=0, false_pass=1, false_fail=0, both_fail=0)
    """
    judge, label, group = np.asarray(judge), np.asarray(label), np.asarray(group)
    if not judge.shape == label.shape == group.shape or judge.ndim != 1:
        raise ValueError(
            f"judge {judge.shape}, label {label.shape} and group {group.shape} need one and the same length"
        )
    if not judge.dtype == label.dtype == np.bool_:
        raise TypeError(f"judge holds {judge.dtype} and label {label.dtype}, expected bool")
    if group.size and not 0 <= group.min() <= group.max() < groups:
        raise ValueError(f"groups go from 0 to {groups - 1}, found {group.min()} to {group.max()}")
    counts = np.bincount(4 * group + 2 * ~judge + ~label, minlength=4 * groups).reshape(groups, 4)
    return [Confusion(*row) for row in counts.tolist()]


def judge_quality(counted: Confusion, confidence: float = 0.95) -> JudgeQuality:
    """Estimate how often the judge agrees, passes what is a fail, and fails what is a pass.

    >>> quality = judge_quality(Confusion(both_pass=120, false_pass=3, false_fail=14, both_fail=73))
    >>> round(quality.false_pass.estimate, 3), quality.false_pass.total
    (0.039, 76)
    >>> judge_quality(Confusion(10, 0, 1, 0)).false_pass.reason
    'no run is labelled a fail'
    """
    agreed = counted.both_pass + counted.both_fail
    fails, passes = counted.false_pass + counted.both_fail, counted.false_fail + counted.both_pass
    return JudgeQuality(
        agreement=_rate(agreed, counted.total, confidence, "no labelled runs"),
        false_pass=_rate(counted.false_pass, fails, confidence, "no run is labelled a fail"),
        false_fail=_rate(counted.false_fail, passes, confidence, "no run is labelled a pass"),
    )


def cohen_kappa(counted: Confusion, confidence: float = 0.95) -> Estimate:
    """Estimate Cohen's kappa (1960): agreement beyond what the two pass rates bring by chance, as a share of the rest.

    The interval is kappa -+ z times its large-sample standard error (Fleiss, Cohen and Everitt 1969), both taken with
    half a run more in each cell, cut to [-1, 1] and widened to the estimate if need be. The half runs give it width
    when all runs agree. In nine designs neither end missed more than .051 with 20 runs or .036 with 100, for a nominal
    .025; without them the lower end was too high in up to .9 of samples.

    >>> kappa = cohen_kappa(Confusion(both_pass=120, false_pass=3, false_fail=14, both_fail=73))
    >>> round(kappa.estimate, 3), round(kappa.interval.lower, 3), round(kappa.interval.upper, 3)
    (0.83, 0.744, 0.9)
    >>> cohen_kappa(Confusion(20, 0, 0, 0)).reason
    'judge and labels give all runs one and the same verdict'
    """
    from scipy.special import ndtri

    z = -float(ndtri(tail_level(confidence)))
    if not counted.total:
        return Estimate(None, None, "no labelled runs")
    if counted.total in (counted.both_pass, counted.both_fail):
        return Estimate(None, None, "judge and labels give all runs one and the same verdict")
    cells = np.array([[counted.both_pass, counted.false_pass], [counted.false_fail, counted.both_fail]])
    kappa, _ = _kappa_and_error(cells)
    center, error = _kappa_and_error(cells + 0.5)
    lower, upper = max(-1.0, min(kappa, center - z * error)), min(1.0, max(kappa, center + z * error))
    return Estimate(kappa, Interval(lower, upper, "fleiss-cohen-everitt-plus-half", confidence))


def corrected_rate(judged: Histogram, counted: Confusion, confidence: float = 0.95) -> Estimate:
    """Correct the pass rate that a judge reports for its errors (Rogan and Gladen 1978).

    `judged` has the verdicts: n judged runs of each task, c of them passed. Their mean over tasks q, the judge's share
    f of false passes and its share t of true ones give (q - f) / (t - f), cut to [0, 1]. The labelled runs have to be a
    sample of runs like the judged ones.

    The interval adds up, as squares, how far the result moves when q, f or t alone goes to an end of its own interval
    (Zou and Donner 2008, MOVER): the task Dirichlet bound of q, Clopper and Pearson's of f and t. In 70 designs with 20
    to 300 labels of either kind no end missed more than .03, for a nominal .025.

    >>> from passhat.stats.table import histogram
    >>> labels = Confusion(both_pass=126, false_pass=3, false_fail=14, both_fail=67)
    >>> rate = corrected_rate(histogram([8] * 80, [8] * 50 + [6] * 20 + [1] * 10), labels)
    >>> round(rate.estimate, 3), round(rate.interval.lower, 3), round(rate.interval.upper, 3)
    (0.916, 0.812, 1.0)
    """
    apparent, quality = pass_hat(judged, 1), judge_quality(counted, confidence)
    reported = dirichlet(apparent.values, apparent.multiplicities, confidence)
    wrong, missed = quality.false_pass.interval, quality.false_fail.interval
    if apparent.estimate is None or reported is None:
        unjudged = f"{apparent.not_estimable} of {judged.total} tasks have no judged run"
        return Estimate(None, None, unjudged if judged.total else "no tasks")
    if wrong is None or missed is None:
        return Estimate(None, None, quality.false_pass.reason or quality.false_fail.reason)
    q, f = apparent.estimate, counted.false_pass / quality.false_pass.total
    t = counted.both_pass / quality.false_fail.total
    center = _rogan_gladen(q, f, t)
    if center is None:
        return Estimate(None, None, "the judge passes fails at least as often as passes")

    ends = [
        (_rogan_gladen(reported.lower, f, t), _rogan_gladen(reported.upper, f, t)),
        (_rogan_gladen(q, wrong.lower, t), _rogan_gladen(q, wrong.upper, t)),
        (_rogan_gladen(q, f, 1 - missed.upper), _rogan_gladen(q, f, 1 - missed.lower)),
    ]
    moves = [(-inf, inf) if None in pair else [end - center for end in pair if end is not None] for pair in ends]
    lower = center - sqrt(sum(min(0.0, *move) ** 2 for move in moves))
    upper = center + sqrt(sum(max(0.0, *move) ** 2 for move in moves))
    estimate = min(1.0, max(0.0, center))
    if lower >= 1 or upper <= 0:
        return Estimate(estimate, None, "the judge's errors on labelled runs cannot explain the rate that it reports")
    return Estimate(estimate, Interval(max(0.0, lower), min(1.0, upper), "rogan-gladen-mover", confidence))


def _rogan_gladen(reported: float, false_pass: float, true_pass: float) -> float | None:
    return (reported - false_pass) / (true_pass - false_pass) if true_pass > false_pass else None


def _rate(count: int, total: int, confidence: float, reason: str) -> Rate:
    if not total:
        return Rate(None, count, total, None, reason)
    return Rate(count / total, count, total, clopper_pearson(count, total, confidence))


def _kappa_and_error(cells: npt.NDArray[np.float64] | IntArray) -> tuple[float, float]:
    """Kappa of a table of judge (rows) by label, and its standard error."""
    total = float(cells.sum())
    shares = cells / total
    judge, label = shares.sum(axis=1), shares.sum(axis=0)
    agreed, chance = float(np.trace(shares)), float(judge @ label)
    kappa = (agreed - chance) / (1 - chance)
    agreeing = float(np.diag(shares) @ (1 - (judge + label) * (1 - kappa)) ** 2)
    # of a disagreement in cell (i, j) count the label's share of i and the judge's of j
    weights = (label[:, np.newaxis] + judge) ** 2
    disagreeing = (1 - kappa) ** 2 * float((shares * weights).sum() - np.trace(shares * weights))
    variance = agreeing + disagreeing - (kappa - chance * (1 - kappa)) ** 2
    return kappa, sqrt(max(0.0, variance) / total) / (1 - chance)
