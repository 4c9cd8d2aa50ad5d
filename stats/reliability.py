"""How reliably tasks are solved: pass^k, pass@k and at least m of k, flaky tasks, the attempt rate.

Every estimate is a mean over tasks of an unbiased value of each task. With fewer than k runs a task has no unbiased
value: it is *not estimable*, which is neither 0 nor 1, and the estimate of a suite with such a task is None.
"""

from dataclasses import dataclass

import numpy as np

from passhat.stats.table import FloatArray, Histogram, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class SuiteEstimate:
    """The mean over tasks of the chance that at least m of k runs pass; pass^k has m = k, pass@k has m = 1."""

    k: int
    m: int
    estimate: float | None  # None when a task is not estimable, or there is no task
    over_estimable: float | None  # the mean over those tasks that are; None without any
    tasks: int  # estimable: with at least k runs
    not_estimable: int
    values: FloatArray  # the distribution that `over_estimable` is the mean of: values, and how many tasks have each
    multiplicities: IntArray


@dataclass(frozen=True, slots=True)
class Share:
    """`count` of `total`, with what a reader must know before using it, if there is anything."""

    count: int
    total: int
    note: str | None = None

    @property
    def estimate(self) -> float | None:
        """The share; None, not 0, when there is nothing to take a share of."""
        return self.count / self.total if self.total else None


def pass_hat(histogram: Histogram, k: int) -> SuiteEstimate:
    """Estimate pass^k, the chance that k runs of a task all pass: the mean of C(c, k) / C(n, k).

    Unbiased for independent runs of a task (Yao et al. 2024, arXiv 2406.12045). ValueError when k is below 1; tasks
    with fewer than k runs are counted as not estimable.

    >>> from passhat.stats.table import histogram
    >>> pass_hat(histogram([4, 4], [4, 3]), 2).estimate
    0.75
    >>> short = pass_hat(histogram([4, 1], [4, 1]), 2)
    >>> short.estimate, short.over_estimable, short.not_estimable
    (None, 1.0, 1)
    """
    return at_least_m_of_k(histogram, k, k)


def pass_at(histogram: Histogram, k: int) -> SuiteEstimate:
    """Estimate pass@k, the chance that any of k runs of a task passes: the mean of 1 - C(n - c, k) / C(n, k).

    Unbiased for independent runs of a task (Chen et al. 2021, arXiv 2107.03374). Errors are those of `pass_hat`.

    >>> from passhat.stats.table import histogram
    >>> pass_at(histogram([4, 4], [0, 2]), 3).estimate
    0.5
    """
    return at_least_m_of_k(histogram, k, 1)


def at_least_m_of_k(histogram: Histogram, k: int, m: int) -> SuiteEstimate:
    """Estimate the chance that at least m of k runs of a task pass: the mean of `task_values`, without bias.

    ValueError unless 1 ≤ m ≤ k; tasks with fewer than k runs are counted as not estimable.

    >>> from passhat.stats.table import histogram
    >>> at_least_m_of_k(histogram([4, 4], [4, 2]), k=3, m=2).estimate
    0.75
    """
    if not 1 <= m <= k:
        raise ValueError(f"at least {m} of {k} runs: expected 1 ≤ m ≤ k")
    estimable = histogram.n >= k
    n, c, multiplicities = histogram.n[estimable], histogram.c[estimable], histogram.tasks[estimable]
    values = np.empty(len(n))
    for runs in np.unique(n):
        same = n == runs
        values[same] = task_values(int(runs), k, m)[c[same]]

    tasks = int(multiplicities.sum())
    mean = float(values @ multiplicities) / tasks if tasks else None
    not_estimable = histogram.total - tasks
    return SuiteEstimate(
        k=k,
        m=m,
        estimate=None if not_estimable else mean,
        over_estimable=mean,
        tasks=tasks,
        not_estimable=not_estimable,
        values=values,
        multiplicities=multiplicities,
    )


def task_values(n: int, k: int, m: int) -> FloatArray:
    """The share of the k-subsets of n runs that hold at least m passes, for c = 0 … n passes; 1 ≤ m ≤ k ≤ n.

    Number the runs so that the passes come first: a subset qualifies when its m-th smallest number is at most c, and
    that number is x in C(x - 1, m - 1) C(n - x, k - m) of the subsets. These weights are built outwards from the
    largest by their ratios and summed from the small end, all positive: no cancellation and no overflow, and an
    error below 1e-13 of the value for n up to 100,000. m = k is pass^k and m = 1 is pass@k.

    The answer has n + 1 entries. ValueError unless 1 ≤ m ≤ k ≤ n.

    >>> task_values(4, k=2, m=1).round(12).tolist()
    [0.0, 0.5, 0.833333333333, 1.0, 1.0]
    """
    if not 1 <= m <= k <= n:
        raise ValueError(f"at least {m} of {k} out of {n} runs: expected 1 ≤ m ≤ k ≤ n")
    x = np.arange(m, n - k + m, dtype=np.float64)
    ratios = x / (x - m + 1) * ((n - x - k + m) / (n - x))  # of the weight of x + 1 to that of x
    peak = int(np.count_nonzero(ratios >= 1))  # the ratios fall
    rising = _cumulative_product(1 / ratios[:peak][::-1])[::-1]
    falling = _cumulative_product(ratios[peak:])
    weights = np.concatenate((rising, [1.0], falling))
    # sum() adds pairwise and is more precise than the last of the partial sums, which is the certain case
    shares = np.minimum(np.cumsum(weights[:-1]) / weights.sum(), 1)
    return np.concatenate((np.zeros(m), shares, np.ones(k - m + 1)))


def _cumulative_product(factors: FloatArray) -> FloatArray:
    """Products of the first 1, 2, 3 … factors, in two levels so that roundings of a long one do not pile up."""
    block = 256
    within = np.append(factors, np.ones(-len(factors) % block)).reshape(-1, block).cumprod(axis=1)
    before = np.append(1.0, within[:-1, -1]).cumprod()
    products: FloatArray = (within * before[:, np.newaxis]).ravel()
    return products[: len(factors)]


def attempt_rate(histogram: Histogram) -> Share:
    """All passes of all runs. With unequal n this is a ratio of sums, and not the mean over tasks that pass^1 is.

    >>> from passhat.stats.table import histogram
    >>> attempt_rate(histogram([2, 8], [2, 4])).estimate, pass_hat(histogram([2, 8], [2, 4]), 1).estimate
    (0.6, 0.75)
    """
    runs = int(histogram.n @ histogram.tasks)
    return Share(int(histogram.c @ histogram.tasks), runs, None if runs else "no runs")


def all_fail(histogram: Histogram) -> Share:
    """Tasks of which no run passed, among those with a run.

    >>> from passhat.stats.table import histogram
    >>> all_fail(histogram([3, 3, 0], [0, 1, 0]))
    Share(count=1, total=2, note=None)
    """
    ran = histogram.n > 0
    tasks = int(histogram.tasks[ran].sum())
    return Share(int(histogram.tasks[ran & (histogram.c == 0)].sum()), tasks, None if tasks else "no runs")


def flaky(histogram: Histogram) -> Share:
    """Tasks whose runs disagree (0 < c < n), among those with at least two runs, which is what it takes.

    A task is found flaky more often the more runs it has, so shares at different n cannot be compared; the note says
    so when the tasks of one suite differ.

    >>> from passhat.stats.table import histogram
    >>> flaky(histogram([3, 3, 3], [3, 1, 0]))
    Share(count=1, total=3, note=None)
    >>> flaky(histogram([2, 8], [1, 8])).note
    'tasks have 2 to 8 runs: not comparable with another share'
    """
    able = histogram.n >= 2
    n = histogram.n[able]
    disagree = (histogram.c[able] > 0) & (histogram.c[able] < n)
    left_out = int(histogram.tasks[~able].sum())
    note = None
    if not n.size:
        note = "no task has two runs" if left_out else "no tasks"
    elif left_out or n.min() != n.max():
        note = f"tasks have {histogram.n.min()} to {histogram.n.max()} runs: not comparable with another share"
    return Share(int(histogram.tasks[able][disagree].sum()), int(histogram.tasks[able].sum()), note)
