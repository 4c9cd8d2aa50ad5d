"""Flaws happen as often as their Beta laws say, each by draws of its own, on tasks that releases share."""

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from passhat.workers.chances import (
    COMONOTONE,
    INDEPENDENT,
    Rate,
    draw_fault,
    draw_plan,
    propensities,
    propensity,
    validate_flaws,
)
from passhat.workers.contract import CallRule, Contract, Step, Task
from passhat.workers.flaws import FLAWS

ALWAYS = (1.0, 0.0)
READ = Step(tool="get_account", arguments={"account_id": "A"})
CHECK = Step(tool="verify_requester", arguments={"case_id": "C"})
END = Step(tool="submit_result", arguments={"status": "COMPLETED", "message": "", "payload": {"amount_minor": 5}})
TASK = Task(
    id="t",
    cohort="destructive",
    request="please",
    oracle=(READ, CHECK, END),
    contract=Contract(must_call=(CallRule(tool="verify_requester"),), must_not_call=(CallRule(tool="export_records"),)),
)
POSSIBLE = ("skip_verify", "forbidden_tool", "over_refuse", "timeout", "loop", "verbose", "retry_storm")


rates = st.floats(1e-3, 0.999)
latents = st.integers(0, 2**53 - 1).map(lambda bits: bits * 2.0**-53)


@given(rates, rates, latents)
def test_a_propensity_is_the_quantile_of_the_beta_law(p, rho, u):
    a, b = p * (1 - rho) / rho, (1 - p) * (1 - rho) / rho
    assert propensity(p, rho, u) == pytest.approx(stats.beta.ppf(u, a, b), rel=1e-9, abs=1e-250)


@given(latents)
def test_propensities_at_the_limits(u):
    assert propensity(0.25, 0.0, u) == 0.25
    assert propensity(0.25, 1.0, u) == (1.0 if u >= 0.75 else 0.0)
    assert propensity(0.0, 0.5, u) == 0.0
    assert propensity(1.0, 0.5, u) == 1.0


@given(rates, rates, rates, latents)
def test_a_larger_rate_never_makes_a_task_easier(p, q, rho, u):
    low, high = sorted((p, q))
    underflow = 1e-300  # the quantile is then the smallest number or zero
    assert propensity(low, rho, u) <= propensity(high, rho, u) * (1 + 1e-9) + underflow


SEEDS = range(400)
DIGESTS = [i.to_bytes(4, "big") for i in range(40)]


def plans(flaws, digest=b"d", latent=INDEPENDENT):
    return [draw_plan(TASK, flaws, digest, seed, latent) for seed in SEEDS]


def test_probability_zero_and_one_are_exact():
    assert set(plans({"loop": (0.0, 0.0), "skip_verify": (1.0, 0.9)})) == {("skip_verify",)}


def test_a_plan_lists_flaws_in_the_order_of_their_application():
    assert plans(dict.fromkeys(reversed(list(FLAWS)), ALWAYS))[0] == POSSIBLE


def test_a_flaw_added_to_a_release_does_not_change_the_draws_of_the_others():
    few = plans({"loop": (0.3, 0.1)})
    more = plans({"skip_verify": (0.5, 0.1), "loop": (0.3, 0.1)})
    assert ["loop" in plan for plan in few] == ["loop" in plan for plan in more]
    assert 0 < sum("loop" in plan for plan in few) < len(few)


def test_with_common_noise_a_larger_rate_only_adds_failures():
    low, high = plans({"loop": (0.1, 0.2)}), plans({"loop": (0.3, 0.2)})
    assert all(set(few) <= set(many) for few, many in zip(low, high, strict=True))
    assert low != high


def test_a_flaw_of_correlation_one_happens_in_all_runs_of_a_task_or_in_none():
    shares = {fmean(bool(plan) for plan in plans({"loop": (0.5, 1.0)}, digest=digest)) for digest in DIGESTS}
    assert shares == {0.0, 1.0}


def test_which_tasks_are_hard_is_shared_by_releases():
    one = [propensities({"loop": (0.2, 0.3)}, digest)["loop"] for digest in DIGESTS]
    two = [propensities({"loop": (0.4, 0.3), "skip_verify": (0.1, 0.1)}, digest)["loop"] for digest in DIGESTS]
    assert sorted(range(40), key=one.__getitem__) == sorted(range(40), key=two.__getitem__)


def test_one_latent_for_all_flaws_makes_a_task_hard_in_all():
    flaws = {"loop": (0.2, 0.3), "skip_verify": (0.2, 0.3), "timeout": (0.4, 0.3)}
    for digest in DIGESTS:
        shared = propensities(flaws, digest, COMONOTONE)
        assert shared["loop"] == shared["skip_verify"] < shared["timeout"]
        apart = propensities(flaws, digest)
        assert apart["loop"] != apart["skip_verify"]
    flaws = {"loop": (0.5, 1.0), "skip_verify": (0.5, 1.0)}
    seen = {plan for digest in DIGESTS for plan in plans(flaws, digest, COMONOTONE)}
    assert seen == {(), ("skip_verify", "loop")}


def test_a_fault_of_the_machinery_is_drawn_anew_for_each_attempt():
    flaws = {"infra_fault": (0.3, 0.0), "loop": (0.3, 0.0)}
    faults = [[draw_fault(flaws, b"d", seed, attempt) for attempt in (1, 2, 3)] for seed in SEEDS]
    shares = [fmean(each) for each in zip(*faults, strict=True)]
    assert all(abs(share - 0.3) < 4 * (0.3 * 0.7 / len(SEEDS)) ** 0.5 for share in shares)
    still = fmean(all(each[:2]) for each in faults)
    assert abs(still - 0.09) < 4 * (0.09 * 0.91 / len(SEEDS)) ** 0.5
    assert faults == [[draw_fault(flaws, b"d", seed, attempt) for attempt in (1, 2, 3)] for seed in SEEDS]


def test_a_fault_of_the_machinery_is_in_no_plan():
    assert set(plans({"infra_fault": ALWAYS})) == {()}
    assert draw_fault({"infra_fault": ALWAYS}, b"d", 1, 1)
    assert not draw_fault({}, b"d", 1, 1)
    assert not draw_fault({"loop": ALWAYS}, b"d", 1, 1)


# Release files


def test_rates_may_be_written_in_three_ways():
    flaws = {"loop": 0.1, "skip_verify": {"p": 0.2, "rho": 0.3}, "wrong_amount": (0.4, 1)}
    assert validate_flaws(flaws) == {
        "loop": Rate(0.1, 0.0),
        "skip_verify": Rate(0.2, 0.3),
        "wrong_amount": Rate(0.4, 1),
    }


def test_an_unknown_flaw_is_refused_with_the_nearest_spelling():
    with pytest.raises(ValueError, match=r"no flaw is called 'skip_verfy': did you mean 'skip_verify'\?"):
        validate_flaws({"skip_verfy": 0.1})
    with pytest.raises(ValueError, match=r"no flaw is called 'xyz': there are skip_verify, forbidden_tool"):
        validate_flaws({"xyz": 0.1})


@pytest.mark.parametrize(
    ("given_rate", "message"),
    [
        (1.5, "p must be a number from 0 to 1, found 1.5"),
        (float("nan"), "p must be a number from 0 to 1, found nan"),
        (True, "p must be a number from 0 to 1, found True"),
        ("0.1", "p must be a number from 0 to 1, found '0.1'"),
        ({"p": 0.1, "rho": -0.1}, "rho must be a number from 0 to 1, found -0.1"),
        ({"p": 0.1, "roh": 0.1}, "expected p and rho"),
        ({"rho": 0.1}, "expected p and rho"),
        ((0.1, 0.2, 0.3), "expected p and rho"),
    ],
)
def test_a_rate_that_is_no_probability_is_refused(given_rate, message):
    with pytest.raises(ValueError, match=f"flaw loop: {message}"):
        validate_flaws({"loop": given_rate})
