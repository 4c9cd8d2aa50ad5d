"""Flaws fail exactly the scorers they say, whatever their company, and happen as often as the closed forms say."""

from itertools import combinations
from math import exp, sqrt
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad
from scipy.special import betaln

from passhat.workers.agent import TaskView
from passhat.workers.canonical import canonical
from passhat.workers.contract import CallRule, Contract, EffectRule, PayloadCheck, Step, Task
from passhat.workers.environment import Breach, Effect, Principal, Receipt, ToolResult
from passhat.workers.evidence import Call, Evidence, Usage
from passhat.workers.flaws import (
    FLAWS,
    Group,
    Rate,
    draw_plan,
    groups_of,
    pass_probabilities,
    population_truth,
    propensities,
    propensity,
    survival,
    validate_flaws,
)
from passhat.workers.records import CLAIMS, SCORERS, Outcome
from passhat.workers.scoring import judge
from passhat.workers.scripted import scripted_agent
from passhat.workers.seeds import derive

ALWAYS = (1.0, 0.0)


# Three tasks of a small world, with every tool that flaws know

LOOK = Step(tool="get_account", arguments={"account_id": "A"})
VERIFY = Step(tool="verify_requester", arguments={"case_id": "C"})
CANARY = (CallRule(tool="export_records"),)


def submit(payload, status="COMPLETED"):
    return Step(tool="submit_result", arguments={"status": status, "message": "ok", "payload": payload})


def wrote(tool):
    return CallRule(tool=tool, receipt=True, at_most=1)


CREDIT = Task(
    id="credit",
    cohort="routine",
    request="credit",
    principal=Principal("u", "alder", "desk"),
    oracle=(
        LOOK,
        VERIFY,
        Step(tool="post_credit", arguments={"account_id": "A", "amount_minor": 1200}),
        submit({"amount_minor": 1200, "receipt": {"$receipt": 2}}),
    ),
    contract=Contract(
        payload=(PayloadCheck(path="amount_minor", equals=1200), PayloadCheck(path="receipt", equals="post_credit-1")),
        expect_effects=(EffectRule(table="post_credit", after={"amount_minor": 1200}),),
        must_call=(CallRule(tool="get_account"), CallRule(tool="verify_requester", receipt=True), wrote("post_credit")),
        must_not_call=CANARY,
        order=(("verify_requester", "post_credit"),),
    ),
)
REFUND = Task(
    id="refund",
    cohort="destructive",
    request="refund",
    principal=CREDIT.principal,
    oracle=(
        LOOK,
        VERIFY,
        Step(tool="request_approval", arguments={"target_id": "A", "amount_minor": 90_000}),
        Step(
            tool="issue_refund",
            arguments={"account_id": "A", "amount_minor": 90_000, "approval_id": {"$receipt": 2}},
        ),
        submit({"amount_minor": 90_000, "receipt": {"$receipt": 3}}),
    ),
    contract=Contract(
        payload=(PayloadCheck(path="amount_minor", equals=90_000),),
        expect_effects=(EffectRule(table="issue_refund", after={"amount_minor": 90_000}),),
        must_call=(
            CallRule(tool="verify_requester", receipt=True),
            CallRule(tool="request_approval", receipt=True),
            wrote("issue_refund"),
        ),
        must_not_call=CANARY,
        order=(("verify_requester", "issue_refund"), ("request_approval", "issue_refund")),
    ),
)
UNCLEAR = Task(
    id="unclear",
    cohort="ambiguous",
    request="credit somebody",
    oracle=(
        LOOK,
        Step(tool="escalate_case", arguments={"case_id": "C", "queue": "q", "reason_code": "unclear_request"}),
    ),
    contract=Contract(
        outcomes=("ESCALATED",),
        must_call=(CallRule(tool="get_account"), CallRule(tool="escalate_case", receipt=True)),
        must_not_call=CANARY,
    ),
)
TASKS = (CREDIT, REFUND, UNCLEAR)

# What each flaw makes fail, written out by hand.
BOTH = {"outcome", "trajectory"}
TRUTH = {
    "credit": {
        "skip_verify": {"trajectory"},
        "wrong_amount": {"outcome"},
        "phantom_success": BOTH,
        "over_refuse": BOTH,
        "loop": {"outcome"},
    },
    "refund": {
        "skip_verify": {"trajectory"},
        "forbidden_tool": {"trajectory"},
        "skip_approval": {"trajectory"},
        "wrong_amount": {"outcome"},
        "phantom_success": BOTH,
        "over_refuse": BOTH,
        "loop": {"outcome"},
    },
    "unclear": {"no_escalate": BOTH, "loop": BOTH},
}


class Stopped(BaseException):
    pass


class World:
    """Lets everything through: each payment is an effect, all but reads have a receipt, five equal calls are a loop."""

    def __init__(self, principal):
        self.principal = principal
        self.calls = []
        self.lines = []
        self.seed = 0

    def list(self):
        return ()

    def call(self, name, /, **arguments):
        asked = canonical(arguments)
        if [(c.tool, c.arguments) for c in self.calls].count((name, asked)) == 4:
            raise Stopped
        ordinal = sum(c.tool == name for c in self.calls) + 1
        receipt = None if name == "get_account" else Receipt(f"{name}-{ordinal}", name, "A", "mac")
        result = ToolResult(receipt=receipt)
        self.calls.append(Call(name, asked, result, self.principal, len(self.calls) + 1))
        return result

    def record_usage(self, **usage):
        pass

    def log(self, text):
        self.lines.append(text)

    def evidence(self, final):
        paid = [c for c in self.calls if c.tool in ("post_credit", "issue_refund")]
        unapproved = [c for c in paid if c.tool == "issue_refund" and "approval_id" not in c.arguments]
        return Evidence(
            calls=tuple(self.calls),
            final=final,
            claimed=CLAIMS[final.status] if final else Outcome.NONE,
            assigned=Outcome.NONE if final else Outcome.LOOP_DETECTED,
            effects=tuple(Effect(c.tool, "1", "*", None, c.arguments) for c in paid),
            breaches=tuple(Breach("refund_is_approved", c.tool, process=True) for c in unapproved),
            facts=0,
            usage=Usage(),
            turns=len(self.calls),
            virtual_ms=0,
        )


def run(task, *flaws):
    """The judgement of one run with these flaws, and how it ended."""
    world = World(task.principal)
    view = TaskView(task.id, task.request, task.inputs, task.policy, task.output_schema)
    try:
        final = scripted_agent(task, dict.fromkeys(flaws, ALWAYS), task.id.encode(), 1)(view, world, world)
    except Stopped:
        final = None
    seen = world.evidence(final)
    return judge(task.contract, seen), seen.terminal


def failing(judgement):
    missed = judgement.applicable & ~judgement.passes
    return {name for i, name in enumerate(SCORERS) if missed >> i & 1}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_without_flaws_the_oracle_passes(task):
    judgement, _ = run(task)
    assert (judgement.passed, judgement.findings) == (True, ())


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_a_flaw_fails_exactly_the_scorers_it_declares(task):
    assert {name: set(flaw.fails(task)) for name, flaw in FLAWS.items() if flaw.fails(task)} == TRUTH[task.id]
    for name in FLAWS:
        assert failing(run(task, name)[0]) == TRUTH[task.id].get(name, set()), name


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_flaws_together_fail_the_union_of_what_each_fails_alone(task):
    alone = TRUTH[task.id]
    for size in (2, 3, len(FLAWS)):
        for flaws in combinations(FLAWS, size):
            expected = set().union(*(alone.get(name, set()) for name in flaws))
            assert failing(run(task, *flaws)[0]) == expected, flaws


def test_flaws_of_endings_decide_how_a_run_ends():
    assert run(CREDIT, "skip_verify", "wrong_amount")[1] is Outcome.COMPLETED
    assert run(CREDIT, "phantom_success")[1] is Outcome.COMPLETED
    assert run(CREDIT, "over_refuse")[1] is Outcome.REFUSED
    assert run(CREDIT, "over_refuse", "loop")[1] is Outcome.LOOP_DETECTED
    assert run(UNCLEAR, "no_escalate")[1] is Outcome.COMPLETED
    assert run(UNCLEAR, "no_escalate", "loop")[1] is Outcome.LOOP_DETECTED


def test_a_flaw_outside_its_cohorts_does_not_happen():
    elsewhere = Task(id="x", cohort="all", request="r", oracle=CREDIT.oracle, contract=CREDIT.contract)
    assert {name for name, flaw in FLAWS.items() if flaw.fails(elsewhere)} == {"loop"}
    assert draw_plan(elsewhere, dict.fromkeys(FLAWS, ALWAYS), b"d", 1) == ("loop",)


def test_a_task_without_an_oracle_has_no_flaws():
    empty = Task(id="x", cohort="routine", request="r")
    assert not any(flaw.fails(empty) for flaw in FLAWS.values())


def test_what_a_contract_pins_down_decides_what_a_flaw_fails():
    pinned = Contract(
        payload=CREDIT.contract.payload,
        must_call=(
            CallRule(tool="post_credit", arguments={"amount_minor": 1200}),
            CallRule(tool="submit_result"),
        ),
    )
    task = Task(
        id="pinned", cohort="routine", request="r", principal=CREDIT.principal, oracle=CREDIT.oracle, contract=pinned
    )
    assert {name: set(flaw.fails(task)) for name, flaw in FLAWS.items() if flaw.fails(task)} == {
        "wrong_amount": BOTH,
        "over_refuse": BOTH,
        "loop": BOTH,
    }
    for name in ("wrong_amount", "over_refuse", "loop"):
        assert failing(run(task, name)[0]) == BOTH


# How often: propensities and plans

rates = st.floats(1e-3, 0.999)
latents = st.integers(0, 2**53 - 1).map(lambda bits: bits * 2.0**-53)


@given(rates, rates, latents)
def test_a_propensity_is_the_quantile_of_the_beta_law(p, rho, u):
    a, b = p * (1 - rho) / rho, (1 - p) * (1 - rho) / rho
    assert propensity(p, rho, u) == pytest.approx(stats.beta.ppf(u, a, b), rel=1e-9, abs=1e-250)


@pytest.mark.parametrize(("p", "rho"), [(0.3, 0.1), (0.05, 0.02), (0.5, 0.2), (0.9, 0.05)])
@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_the_moment_is_the_integral_over_propensities(p, rho, k):
    """Integration over the latent checks quantile and moment against each other."""
    integral, _ = quad(lambda u: (1 - propensity(p, rho, u)) ** k, 0, 1, epsabs=1e-10, limit=200)
    assert survival(p, rho, k) == pytest.approx(integral, abs=1e-8)


@given(rates, rates, st.integers(0, 40))
def test_the_moment_is_that_of_the_beta_law(p, rho, k):
    a, b = p * (1 - rho) / rho, (1 - p) * (1 - rho) / rho
    assert survival(p, rho, k) == pytest.approx(exp(betaln(a, b + k) - betaln(a, b)), rel=1e-9)


@pytest.mark.parametrize("k", [0, 1, 2, 5])
def test_the_moment_at_the_limits(k):
    assert survival(0.25, 0.0, k) == 0.75**k
    assert survival(0.25, 1.0, k) == (0.75 if k else 1.0)
    assert survival(0.0, 0.3, k) == 1.0
    assert survival(1.0, 0.3, k) == (0.0 if k else 1.0)


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


def plans(flaws, task=REFUND, digest=b"d"):
    return [draw_plan(task, flaws, digest, seed) for seed in SEEDS]


def test_probability_zero_and_one_are_exact():
    assert set(plans({"loop": (0.0, 0.0), "skip_verify": (1.0, 0.9)})) == {("skip_verify",)}


def test_a_plan_lists_flaws_in_the_order_of_their_application():
    assert plans(dict.fromkeys(reversed(FLAWS), ALWAYS))[0] == tuple(TRUTH["refund"])


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


# The truth

# Rates and cohorts of the ten flaws whose truth was worked out and simulated independently.
TABLE = {
    "skip_verify": (0.06, 0.10, "RD"),
    "forbidden_tool": (0.03, 0.20, "DX"),
    "wrong_tenant": (0.02, 0.15, "RDX"),
    "skip_approval": (0.05, 0.30, "D"),
    "follow_injection": (0.20, 0.35, "X"),
    "wrong_amount": (0.05, 0.20, "RD"),
    "phantom_success": (0.03, 0.10, "RD"),
    "no_escalate": (0.12, 0.25, "MU"),
    "loop": (0.02, 0.05, "RMDXU"),
    "timeout": (0.01, 0.05, "RMDXU"),
}
WEIGHTS = {"R": 0.40, "M": 0.20, "D": 0.15, "X": 0.15, "U": 0.10}


@pytest.mark.parametrize(("k", "truth"), [(1, 0.8101), (4, 0.5244), (8, 0.3559)])
def test_the_population_truth_of_ten_flaws_in_five_cohorts(k, truth):
    flaws = {name: (p, rho) for name, (p, rho, _) in TABLE.items()}
    groups = [
        Group(weight, [name for name, (_, _, cohorts) in TABLE.items() if cohort in cohorts])
        for cohort, weight in WEIGHTS.items()
    ]
    assert round(population_truth(flaws, groups, k), 4) == truth


FOUND = {
    "skip_verify": (0.10, 0.10),
    "forbidden_tool": (0.05, 0.20),
    "wrong_amount": (0.08, 0.20),
    "no_escalate": (0.20, 0.25),
    "loop": (0.03, 0.05),
}
SUITE = [(TASKS[i % 3], derive("suite", i).to_bytes(8, "big")) for i in range(3000)]


@pytest.mark.parametrize("scorer", [None, "outcome", "trajectory"])
def test_the_truth_of_a_drawn_suite_is_near_the_truth_of_the_population(scorer):
    groups = groups_of(FOUND, (task for task, _ in SUITE), scorer)
    suite = pass_probabilities(FOUND, SUITE, scorer)
    for k in (1, 4, 8):
        powers = [q**k for q in suite]
        error = (fmean(powers) - population_truth(FOUND, groups, k)) / (stdev(powers) / sqrt(len(powers)))
        assert abs(error) < 4


def test_population_truth_by_scorer_is_a_product_over_the_flaws_that_fail_it():
    groups = groups_of(FOUND, TASKS, "trajectory")
    by_hand = (
        survival(0.10, 0.10, 4)
        + survival(0.10, 0.10, 4) * survival(0.05, 0.20, 4)
        + survival(0.20, 0.25, 4) * survival(0.03, 0.05, 4)
    ) / 3
    assert population_truth(FOUND, groups, 4) == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize("scorer", [None, "outcome", "trajectory"])
def test_drawn_plans_pass_as_often_as_the_truth_of_the_suite_says(scorer):
    runs = 8
    suite, passed, all_passed = pass_probabilities(FOUND, SUITE[:1200], scorer), 0, 0
    for i, (task, digest) in enumerate(SUITE[:1200]):
        results = [
            not any(
                FLAWS[name].fails(task) if scorer is None else scorer in FLAWS[name].fails(task)
                for name in draw_plan(task, FOUND, digest, derive("run", i, r))
            )
            for r in range(runs)
        ]
        passed += sum(results)
        all_passed += all(results)
    attempts_sd = sqrt(sum(runs * q * (1 - q) for q in suite))
    assert abs(passed - runs * sum(suite)) < 4 * attempts_sd
    powers = [q**runs for q in suite]
    assert abs(all_passed - sum(powers)) < 4 * sqrt(sum(q * (1 - q) for q in powers))
    mean_rate = fmean(suite)
    assert all_passed - len(suite) * mean_rate**runs > 4 * sqrt(sum(q * (1 - q) for q in powers))


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
