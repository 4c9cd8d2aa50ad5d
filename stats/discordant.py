"""Exact McNemar tests of discordant pairs: of one table, or of many at once.

The pairs have to be independent, so a pair is a task. The cells (task, run-index) of one task are not, and a test of
all cells pooled rejects far too often unless the releases do not differ on any task at all.
"""

from dataclasses import dataclass
from math import log

import numpy as np
import numpy.typing as npt

from passhat.stats.paired import PairHistogram
from passhat.stats.sign_flips import SMALLEST_P
from passhat.stats.table import FloatArray, IntArray

# where the logarithm is computed on its own, well before p has lost digits
_FAR_TAIL = 1e-290


@dataclass(frozen=True, slots=True, eq=False)
class McNemarTests:
    """The two-sided p-values of many tables, as arrays of one shape."""

    a_only: IntArray
    b_only: IntArray
    p_value: FloatArray  # never 0: 2.2e-308 stands for anything below, and log10_p has the value
    mid_p: FloatArray
    log10_p: FloatArray
    log10_mid_p: FloatArray


@dataclass(frozen=True, slots=True)
class McNemar:
    """The two-sided p of one table; `reason` says why there is none, or that it is 1 by definition."""

    a_only: int | None  # pairs that only A passes
    b_only: int | None
    p_value: float | None  # as in McNemarTests
    mid_p: float | None
    log10_p: float | None
    log10_mid_p: float | None
    reason: str | None = None


def mcnemar_tests(a_only: npt.ArrayLike, b_only: npt.ArrayLike) -> McNemarTests:
    """Test every table of `a_only` pairs that only A passes and `b_only` that only B passes; arrays of one shape.

    With m the smaller count and X the heads of a_only + b_only fair coins, p = min(1, 2 P(X <= m)) (McNemar 1947,
    exact) and mid-p = P(X <= m) + P(X < m), which rejects closer to its level and may exceed it slightly (Fagerland,
    Lydersen and Laake 2013). Both are 1 when m is half of the pairs, or there are none. Accurate to 1e-10 of themselves
    up to a billion pairs; below 1e-290 the logarithms are, to 1e-11 of themselves.

    ValueError when a count is negative or the shapes differ, TypeError when one is not an integer.

    >>> mcnemar_tests([12, 0, 0], [39, 6, 0]).p_value.round(6).tolist()
    [0.000198, 0.03125, 1.0]
    """
    from scipy.special import betainc

    a_only, b_only = _counts("a_only", a_only), _counts("b_only", b_only)
    if a_only.shape != b_only.shape:
        raise ValueError(f"a_only has the shape {a_only.shape} and b_only {b_only.shape}")
    fewer, more = np.minimum(a_only, b_only), np.maximum(a_only, b_only)
    at_most = betainc(np.maximum(more, 1), fewer + 1, 0.5)
    below = np.where(fewer > 0, betainc(more + 1, np.maximum(fewer, 1), 0.5), 0.0)
    p_value = np.where(more - fewer <= 1, 1.0, 2 * at_most)
    mid_p = np.where(more == fewer, 1.0, at_most + below)
    p_value, mid_p = np.maximum(p_value, SMALLEST_P), np.maximum(mid_p, SMALLEST_P)
    log10_p, log10_mid_p = np.log10(p_value), np.log10(mid_p)
    far = p_value < _FAR_TAIL
    log_point, ratio = _far_tail(fewer[far], more[far])
    log10_p[far] = (log_point + np.log(2 * ratio)) / log(10)
    log10_mid_p[far] = (log_point + np.log(2 * ratio - 1)) / log(10)
    return McNemarTests(a_only, b_only, p_value, mid_p, log10_p, log10_mid_p)


def mcnemar(a_only: int, b_only: int) -> McNemar:
    """Test one table, as `mcnemar_tests` does; without discordant pairs p is 1 and the reason is said.

    >>> mcnemar(1, 9).p_value, mcnemar(1, 9).mid_p
    (0.021484375, 0.01171875)
    >>> mcnemar(0, 0).p_value, mcnemar(0, 0).reason
    (1.0, 'no discordant tasks')
    """
    tests = mcnemar_tests([a_only], [b_only])
    return McNemar(
        a_only=a_only,
        b_only=b_only,
        p_value=float(tests.p_value[0]),
        mid_p=float(tests.mid_p[0]),
        log10_p=float(tests.log10_p[0]),
        log10_mid_p=float(tests.log10_mid_p[0]),
        reason=None if a_only or b_only else "no discordant tasks",
    )


def mcnemar_tasks(pairs: PairHistogram) -> McNemar:
    """Test tasks as pairs, a task being passed when all its runs pass: the task's only run, or pass^n of n runs.

    Refused, with None and the reason, where a task ran a different number of times under A and B: the one with
    fewer runs passes more easily, whatever the releases are. For n > 1 `sign_flip_pass_hat` uses more of the runs.

    >>> from passhat.stats.paired import pair_counts
    >>> mcnemar_tasks(pair_counts([5] * 5, [0, 0, 3, 5, 0], [5] * 5, [5, 5, 3, 5, 0])).p_value
    0.5
    """
    if pairs.refusal:
        return McNemar(None, None, None, None, None, None, pairs.refusal)
    a_passes, b_passes = pairs.c_a == pairs.n_a, pairs.c_b == pairs.n_b
    return mcnemar(int(pairs.tasks[a_passes & ~b_passes].sum()), int(pairs.tasks[b_passes & ~a_passes].sum()))


def _far_tail(fewer: IntArray, more: IntArray) -> tuple[FloatArray, FloatArray]:
    """log P(X = fewer), and P(X <= fewer) / P(X = fewer) as the sum of the ratios of the terms below."""
    from scipy.special import gammaln

    total = fewer + more
    log_point = gammaln(total + 1) - gammaln(fewer + 1) - gammaln(more + 1) - total * log(2)
    ratio, term, step = np.ones(len(fewer)), np.ones(len(fewer)), 0
    while np.any(term > 1e-17 * ratio):
        term *= np.maximum(fewer - step, 0) / (more + step + 1)
        ratio += term
        step += 1
    return log_point, ratio


def _counts(name: str, values: npt.ArrayLike) -> IntArray:
    array = np.atleast_1d(np.asarray(values))
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} holds {array.dtype}, expected integers")
    if np.any(array < 0):
        raise ValueError(f"{name} counts pairs, found {array.min()}")
    return array.astype(np.int64, copy=False)
