"""p-values adjusted for having asked many questions: exploratory cohorts, or the best of several candidates.

The rules of a gate need none of this: it passes only if every rule does.
"""

import numpy as np
import numpy.typing as npt

from passhat.stats.table import FloatArray


def holm(p_values: npt.ArrayLike) -> FloatArray:
    """Holm's step-down adjustment (1979): rejecting what is at most alpha errs anywhere with a chance of at most alpha.

    One p-value a question, in any order and however dependent; the adjusted ones are in the same order, at most 1.
    ValueError when a value is not between 0 and 1.

    >>> holm([0.01, 0.04, 0.03, 0.005]).round(10).tolist()
    [0.03, 0.06, 0.06, 0.02]
    """
    p, order = _checked(p_values)
    steps = p[order] * np.arange(len(p), 0, -1)
    return _unsorted(np.maximum.accumulate(steps), order)


def benjamini_hochberg(p_values: npt.ArrayLike) -> FloatArray:
    """The step-up adjustment of Benjamini and Hochberg (1995): of what is at most alpha, a share alpha may be false.

    That bounds an expectation, for questions that are independent or positively dependent. Shapes and errors are those
    of `holm`.

    >>> benjamini_hochberg([0.01, 0.04, 0.03, 0.005]).round(10).tolist()
    [0.02, 0.04, 0.04, 0.02]
    """
    p, order = _checked(p_values)
    steps = p[order] * (len(p) / np.arange(1, len(p) + 1))
    return _unsorted(np.minimum.accumulate(steps[::-1])[::-1], order)


def _checked(p_values: npt.ArrayLike) -> tuple[FloatArray, npt.NDArray[np.intp]]:
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1:
        raise ValueError(f"p-values have {p.ndim} dimensions, expected 1")
    outside = p[~((p >= 0) & (p <= 1))]
    if outside.size:
        raise ValueError(f"a p-value is between 0 and 1, found {outside[0]}")
    return p, np.argsort(p, kind="stable")


def _unsorted(adjusted: FloatArray, order: npt.NDArray[np.intp]) -> FloatArray:
    result = np.empty(len(order))
    result[order] = np.minimum(adjusted, 1)
    return result
