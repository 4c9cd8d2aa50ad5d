"""Holm and Benjamini-Hochberg against statsmodels and against their definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.multitest import multipletests

from passhat.stats.multiplicity import benjamini_hochberg, holm

P_VALUES = st.lists(st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.01, 0.05, 1.0])), min_size=1, max_size=30)


@pytest.mark.parametrize(("adjust", "name"), [(holm, "holm"), (benjamini_hochberg, "fdr_bh")])
@given(P_VALUES)
def test_adjusted_p_values_are_those_of_statsmodels(adjust, name, p_values):
    np.testing.assert_allclose(adjust(p_values), multipletests(p_values, method=name)[1], rtol=1e-12, atol=1e-300)


@given(P_VALUES, st.randoms())
def test_order_does_not_matter_and_each_adjustment_only_raises(p_values, random):
    positions = list(range(len(p_values)))
    random.shuffle(positions)
    for adjust in (holm, benjamini_hochberg):
        shuffled = adjust([p_values[i] for i in positions])
        assert shuffled.tolist() == adjust(p_values)[positions].tolist()
    assert np.all(holm(p_values) >= benjamini_hochberg(p_values))
    assert np.all(benjamini_hochberg(p_values) >= np.array(p_values))
    assert holm(p_values).max() <= 1


def test_holm_rejects_as_its_steps_say():
    p_values = [0.012, 0.03, 0.001, 0.02]
    # the smallest at .05 / 4, then .05 / 3 and .05 / 2; .03 is within .05 / 1
    assert (holm(p_values) <= 0.05).tolist() == [True, True, True, True]
    # now .02 is above .05 / 3, and nothing after it is rejected
    assert (holm([0.02, 0.03, 0.001, 0.02]) <= 0.05).tolist() == [False, False, True, False]


def test_one_question_needs_no_adjustment_and_none_has_none():
    assert holm([0.03]).tolist() == benjamini_hochberg([0.03]).tolist() == [0.03]
    assert holm([]).tolist() == benjamini_hochberg([]).tolist() == []


@pytest.mark.parametrize("adjust", [holm, benjamini_hochberg])
@pytest.mark.parametrize("p_values", [[0.5, 1.1], [-0.1], [float("nan")], [[0.5]]])
def test_what_is_not_a_list_of_chances_is_refused(adjust, p_values):
    with pytest.raises(ValueError, match=r"a p-value is between 0 and 1, found|2 dimensions, expected 1"):
        adjust(p_values)
