"""Counts per task: they add up, nothing is dropped, and the three readings of unscored runs are what they say."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passhat.stats.reliability import attempt_rate, pass_at, pass_hat
from passhat.stats.table import OutcomeTable, count_outcomes, histogram


def rows(table):
    columns = (table.planned, table.passed, table.failed, table.unscored)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@st.composite
def outcome_rows(draw, max_tasks=8, max_runs=5):
    """Passed, failed and unscored of each task."""
    run = st.integers(0, max_runs)
    return draw(st.lists(st.tuples(run, run, run), max_size=max_tasks))


def table_of(triples):
    passed, failed, unscored = (list(column) for column in zip(*triples, strict=True)) if triples else ([], [], [])
    return OutcomeTable([sum(triple) for triple in triples], passed, failed, unscored)


def test_an_outcome_table_refuses_counts_that_do_not_add_up_and_names_the_row():
    with pytest.raises(ValueError, match=r"task row 1: planned 4 is not passed 2 \+ failed 1 \+ unscored 0"):
        OutcomeTable([3, 4], [3, 2], [0, 1], [0, 0])
    with pytest.raises(ValueError, match="task row 0: planned 1 "):
        OutcomeTable([1], [2], [-1], [0])


@pytest.mark.parametrize("planned", [[2.0], [True], ["2"]])
def test_an_outcome_table_refuses_what_is_not_an_integer(planned):
    with pytest.raises(TypeError, match="planned holds"):
        OutcomeTable(planned, [1], [1], [0])


def test_an_outcome_table_refuses_columns_of_different_length():
    with pytest.raises(ValueError, match="one entry for each task"):
        OutcomeTable([1, 1], [1], [0], [0])


def test_an_empty_table_is_complete_and_has_an_empty_histogram():
    table = OutcomeTable([], [], [], [])
    assert (table.tasks, table.is_complete, table.histogram().total) == (0, True, 0)


def test_three_passes_two_failures_and_seventeen_timeouts_keep_their_three_counts_and_both_rates():
    table = OutcomeTable([22], [3], [2], [17])
    assert (table.passed[0], table.failed[0], table.unscored[0], table.scored[0]) == (3, 2, 17, 5)
    observed = attempt_rate(table.observed().histogram())
    worst = attempt_rate(table.worst().histogram())
    best = attempt_rate(table.best().histogram())
    assert (observed.count, observed.total, observed.estimate) == (3, 5, 3 / 5)
    assert (worst.count, worst.total, worst.estimate) == (3, 22, 3 / 22)
    assert (best.count, best.total) == (20, 22)
    assert table.scored.sum() / table.planned.sum() == 5 / 22


def test_missing_runs_leave_pass_4_not_estimable_with_bounds_from_both_completions():
    # P P P P, P P P and one missing, F F F and one missing
    table = OutcomeTable([4, 4, 4], [4, 3, 0], [0, 0, 3], [0, 1, 1])
    observed = pass_hat(table.observed().histogram(), 4)
    assert (observed.estimate, observed.tasks, observed.not_estimable) == (None, 1, 2)
    assert pass_hat(table.worst().histogram(), 4).estimate == pytest.approx(1 / 3, rel=1e-15)
    assert pass_hat(table.best().histogram(), 4).estimate == pytest.approx(2 / 3, rel=1e-15)


def test_a_histogram_of_unscored_runs_is_refused_until_someone_decides_what_they_count_for():
    with pytest.raises(ValueError, match=r"2 runs are unscored: take worst\(\), best\(\) or observed\(\) first"):
        OutcomeTable([3, 1], [1, 0], [1, 0], [1, 1]).histogram()


@pytest.mark.parametrize("estimate", [pass_hat, pass_at])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_worst_and_best_are_the_extremes_over_all_completions(estimate, k):
    passed, unscored, planned = (2, 0, 1), (1, 2, 1), 3
    completed = []
    for verdicts in product((0, 1), repeat=sum(unscored)):
        verdict = iter(verdicts)
        c = [p + sum(next(verdict) for _ in range(u)) for p, u in zip(passed, unscored, strict=True)]
        completed.append(estimate(histogram([planned] * 3, c), k).estimate)
    table = OutcomeTable([planned] * 3, passed, [0, 1, 1], unscored)
    assert estimate(table.worst().histogram(), k).estimate == min(completed)
    assert estimate(table.best().histogram(), k).estimate == max(completed)


@given(outcome_rows())
def test_every_reading_adds_up_and_leaves_nothing_unscored(triples):
    table = table_of(triples)
    assert rows(table.worst()) == [(p + f + u, p, f + u, 0) for p, f, u in triples]
    assert rows(table.best()) == [(p + f + u, p + u, f, 0) for p, f, u in triples]
    assert rows(table.observed()) == [(p + f, p, f, 0) for p, f, u in triples]
    assert table.is_complete == all(u == 0 for _, _, u in triples)


def test_select_takes_the_rows_of_a_cohort_by_mask_or_by_number():
    table = OutcomeTable([3, 4, 5], [3, 1, 0], [0, 2, 5], [0, 1, 0])
    expected = [(3, 3, 0, 0), (5, 0, 5, 0)]
    assert rows(table.select(np.array([True, False, True]))) == expected
    assert rows(table.select(np.array([0, 2]))) == expected


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=60), st.integers(0, 3), st.randoms())
def test_counting_agrees_with_a_plain_count_in_any_order_of_records(records, spare, random):
    counts = Counter(records)
    planned = [sum(counts[task, status] for status in range(4)) + spare for task in range(6)]
    random.shuffle(records)
    task = np.array([task for task, _ in records], dtype=np.int32)
    status = np.array([status for _, status in records], dtype=np.uint8)
    expected = [
        (planned[t], counts[t, 0], counts[t, 1], counts[t, 2] + counts[t, 3] + spare)  # missing and without verdict
        for t in range(6)
    ]
    assert rows(count_outcomes(task, status, planned)) == expected


def test_counting_takes_more_records_than_fit_one_chunk():
    rng = np.random.default_rng(5)
    task, status = rng.integers(0, 40, 300_000), rng.integers(0, 4, 300_000)
    planned = np.bincount(task, minlength=40)
    table = count_outcomes(task, status, planned)
    assert table.passed.tolist() == np.bincount(task[status == 0], minlength=40).tolist()
    assert table.failed.tolist() == np.bincount(task[status == 1], minlength=40).tolist()
    assert table.unscored.tolist() == np.bincount(task[status > 1], minlength=40).tolist()


@pytest.mark.parametrize(
    ("task", "status", "message"),
    [
        ([0, 2], [0, 0], "task rows 0 to 2, the table has 0 to 1"),
        ([-1, 0], [0, 0], "task rows -1 to 0"),
        ([0, 0, 0], [0, 1, 3], "task row 0: 3 records for 2 planned runs"),
        ([0], [-1], "status -1 is negative"),
        ([0, 1], [0], "2 task rows but 1 statuses"),
    ],
)
def test_records_that_do_not_fit_the_plan_are_refused(task, status, message):
    with pytest.raises(ValueError, match=message):
        count_outcomes(np.array(task), np.array(status), [2, 2])


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400)).map(lambda pair: (max(pair), min(pair)))))
def test_a_histogram_has_each_pair_that_occurs_once_and_in_order(pairs):
    counted = histogram([n for n, _ in pairs], [c for _, c in pairs])
    entries = zip(counted.n.tolist(), counted.c.tolist(), counted.tasks.tolist(), strict=True)
    assert list(entries) == [(n, c, count) for (n, c), count in sorted(Counter(pairs).items())]
    assert counted.total == len(pairs)


def test_a_histogram_refuses_more_passes_than_runs():
    with pytest.raises(ValueError, match="task row 1: 3 passes in 2 runs"):
        histogram([2, 2], [2, 3])
    with pytest.raises(ValueError, match="2 values of n but 1 of c"):
        histogram([2, 2], [2])
