"""The truth in closed form: numbers worked out independently, and enumeration of every plan of every task."""

from collections import defaultdict
from itertools import product
from math import ceil, fsum, prod

import pytest

from passhat.workers.chances import COMONOTONE, INDEPENDENT, propensities
from passhat.workers.contract import task_digest
from passhat.workers.desk_tasks import DeskTasks
from passhat.workers.flaws import FLAWS
from passhat.workers.latents import moment
from passhat.workers.meter import Use, mean_micros, use_of
from passhat.workers.truth import ALL, SCORERS, FlawModel, ReleaseTruth, _mean_cost, observed_rate, truths

# Rates of the ten flaws whose truth was worked out and simulated independently, for five cohorts of these weights.
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
PLACES = {"duplicate_charge": 8, "two_holders": 4, "refund_granted": 3, "order_in_memo": 3, "missing_record": 2}
DESK = [(task, task_digest(task)) for task in DeskTasks(seed=3, tasks=200)]


def of_template(name: str, count: int):
    return [(task, digest) for task, digest in DESK if task.template == name][:count]


TWENTY = [one for name, count in PLACES.items() for one in of_template(name, count)]


def population(*models: FlawModel, tasks=TWENTY, **options):
    return truths(models, tasks, (1, 4, 8), **options)[0]


def test_the_tasks_have_the_weights_of_the_cohorts():
    assert len(TWENTY) == 20


@pytest.mark.parametrize(
    ("latent", "by_k"),
    [
        (INDEPENDENT, {1: 0.8101, 4: 0.5244, 8: 0.3559}),
        (COMONOTONE, {1: 0.8408, 4: 0.6519, 8: 0.5437}),
    ],
)
def test_pass_hat_of_ten_flaws_in_five_cohorts(latent, by_k):
    found = population(FlawModel(TEN, latent)).releases[0].scorers[ALL].pass_hat
    assert {k: round(found[k], 4) for k in by_k} == by_k


def test_correlation_and_design_of_ten_flaws_in_five_cohorts():
    scorer = population(FlawModel(TEN)).releases[0].scorers[ALL]
    assert round(scorer.icc, 3) == 0.186
    assert round(scorer.design_effect(8), 2) == 2.30
    assert [ceil(scorer.tasks_for(0.01, runs)) for runs in (1, 4, 8)] == [1539, 599, 443]


def test_a_judge_errs_both_ways():
    assert observed_rate(0.8, 0.1, 0.05) == pytest.approx(0.8 * 0.95 + 0.2 * 0.1)


# Enumeration

FEW = {
    "skip_verify": (0.3, 0.2),
    "over_refuse": (0.2, 0.1),
    "timeout": (0.1, 0.3),
    "loop": (0.2, 0.4),
    "verbose": (0.5, 0.1),
}
OTHER = {"double_write": (0.2, 0.2), "phantom_success": (0.1, 0.0), "no_escalate": (0.3, 0.2), "loop": (0.3, 0.1)}
MIXED = [*of_template("duplicate_charge", 2), *of_template("refund_denied", 2), *of_template("missing_record", 3)]


def plans(chances, task):
    """Every set of flaws that may happen on the task, with its probability."""
    happening = [name for name in chances if name != "infra_fault" and FLAWS[name].fails(task) is not None]
    for fires in product((False, True), repeat=len(happening)):
        weight = prod(chances[name] if fire else 1 - chances[name] for name, fire in zip(happening, fires, strict=True))
        yield frozenset(name for name, fire in zip(happening, fires, strict=True) if fire), weight


def passes(task, plan, scorer):
    return not any(FLAWS[name].fails(task) if scorer == ALL else scorer in FLAWS[name].fails(task) for name in plan)


def enumerated(model, tasks, ks):
    """Pass rates by scorer and k, and ends, of these very tasks."""
    pass_hat, ends = defaultdict(float), defaultdict(float)
    for task, digest in tasks:
        chances = propensities(model.flaws, digest, model.latent)
        for scorer in SCORERS:
            rate = fsum(weight for plan, weight in plans(chances, task) if passes(task, plan, scorer))
            for k in ks:
                pass_hat[scorer, k] += rate**k / len(tasks)
        for plan, weight in plans(chances, task):
            end = next((FLAWS[name].ends for name in reversed(list(FLAWS)) if name in plan and FLAWS[name].ends), None)
            claim = "ESCALATED" if task.oracle[-1].tool == "escalate_case" else task.oracle[-1].arguments["status"]
            ends[end.name if end else claim] += weight / len(tasks)
    return pass_hat, ends


@pytest.mark.parametrize("model", [FlawModel(FEW), FlawModel(OTHER), FlawModel(FEW, COMONOTONE)])
def test_the_truth_of_this_suite_is_the_sum_over_all_plans(model):
    _, (releases, _) = truths([model], MIXED, (1, 3))
    pass_hat, ends = enumerated(model, MIXED, (1, 3))
    for (scorer, k), value in pass_hat.items():
        assert releases[0].scorers[scorer].pass_hat[k] == pytest.approx(value, abs=1e-12)
    assert {name: pytest.approx(value, abs=1e-12) for name, value in ends.items()} == releases[0].terminal


def joint(models, tasks, scorer, *, common):
    """The probability that both pass a cell, by enumeration; with common noise both read one number a flaw."""
    total = 0.0
    for task, digest in tasks:
        first, second = (propensities(model.flaws, digest, model.latent) for model in models)
        if not common:
            rates = [fsum(w for plan, w in plans(one, task) if passes(task, plan, scorer)) for one in (first, second)]
            total += prod(rates)
            continue
        shared = {name: max(first.get(name, 0.0), second.get(name, 0.0)) for name in {**first, **second}}
        for plan, weight in plans(shared, task):
            mine = frozenset(name for name in plan if name in first)
            # given that the number is below the larger probability, it is below the smaller one in proportion
            inner = [(name, first.get(name, 0.0) / shared[name], second.get(name, 0.0) / shared[name]) for name in plan]
            for drawn in product(*([(True, min(a, b)), (False, 1 - min(a, b))] for _, a, b in inner)):
                both = {name for (name, _, _), (is_low, _) in zip(inner, drawn, strict=True) if is_low}
                one = both | {name for name, a, b in inner if a > b}
                other = both | {name for name, a, b in inner if b > a}
                share = prod(p for _, p in drawn)
                if passes(task, one & mine, scorer) and passes(task, other & second.keys(), scorer):
                    total += weight * share
    return total / len(tasks)


@pytest.mark.parametrize("common", [False, True])
@pytest.mark.parametrize("latents", [(INDEPENDENT, INDEPENDENT), (COMONOTONE, COMONOTONE), (INDEPENDENT, COMONOTONE)])
def test_discordance_in_this_suite_is_the_sum_over_all_plans(latents, common):
    models = [FlawModel(FEW, latents[0]), FlawModel(OTHER, latents[1])]
    _, (releases, pairs) = truths(models, MIXED, (1,), common=common)
    for scorer in (ALL, "outcome", "trajectory"):
        cells, both = pairs[0, 1][scorer], joint(models, MIXED, scorer, common=common)
        rates = [release.scorers[scorer].pass_rate for release in releases]
        expected = (both, rates[0] - both, rates[1] - both, 1 - sum(rates) + both)
        found = (cells.both_pass, cells.base_only, cells.candidate_only, cells.both_fail)
        assert found == pytest.approx(expected, abs=1e-12)


def test_the_population_is_the_mean_of_very_many_suites():
    """The same tasks under other digests draw other difficulties: a Monte Carlo oracle, four standard errors wide."""
    models = [FlawModel(FEW, COMONOTONE), FlawModel(OTHER, INDEPENDENT), FlawModel(OTHER, COMONOTONE)]
    for common in (False, True):
        many = [(task, i.to_bytes(4, "big")) for task, _ in MIXED for i in range(600)]
        here, there = truths(models, many, (1, 4), common=common)
        for release, other in zip(here.releases, there.releases, strict=True):
            for scorer in (ALL, "outcome", "trajectory"):
                for k in (1, 4):
                    assert abs(release.scorers[scorer].pass_hat[k] - other.scorers[scorer].pass_hat[k]) < 0.02
            assert release.cost_usd == pytest.approx(other.cost_usd, rel=0.02)
            assert all(abs(release.terminal[name] - value) < 0.02 for name, value in other.terminal.items())
        assert (here.pairs[0, 1] is None) == common  # latents of two kinds
        assert abs(here.pairs[0, 2][ALL].both_pass - there.pairs[0, 2][ALL].both_pass) < 0.02


def test_a_release_without_flaws_passes_everything():
    for truth in truths([FlawModel({})], MIXED, (1, 8)):
        release = truth.releases[0]
        assert {scorer.pass_hat[8] for scorer in release.scorers.values()} == {1.0}
        assert release.quadrant["right_sanctioned"] == 1.0
        assert (release.invalid, release.scorers[ALL].icc) == (0.0, 0.0)


def test_shares_add_up():
    for truth in truths([FlawModel(FEW), FlawModel(TEN)], DESK, (1,), common=True):
        for release in truth.releases:
            assert sum(release.quadrant.values()) == pytest.approx(1)
            assert sum(release.terminal.values()) == pytest.approx(1)
        cells = truth.pairs[0, 1][ALL]
        assert cells.both_pass + cells.base_only + cells.candidate_only + cells.both_fail == pytest.approx(1)


@pytest.mark.parametrize("attempts", [1, 3])
def test_what_stays_invalid_is_a_moment_of_the_rate(attempts):
    flaws = {"infra_fault": (0.2, 0.3), "loop": (0.1, 0.1)}
    found = population(FlawModel(flaws), attempts=attempts).releases[0]
    a, b = 0.2 * 0.7 / 0.3, 0.8 * 0.7 / 0.3
    assert found.invalid == pytest.approx(prod((a + r) / (a + b + r) for r in range(attempts)))
    assert found.scorers[ALL].pass_rate == pytest.approx(0.9)  # of the runs that get a verdict
    assert population(FlawModel({"infra_fault": (0.2, 0.0)}), attempts=attempts).releases[0].invalid == pytest.approx(
        0.2**attempts
    )


# Costs


def test_the_price_of_calls_has_the_mean_it_is_said_to_have():
    for calls in (1, 5, 12):
        found = (
            sum(use_of(turn, byte * 0x0101010101010101).micros for turn in range(calls) for byte in range(256)) / 256
        )
        assert found == mean_micros(calls)
    assert mean_micros(0) == 0


def test_a_run_that_stops_early_costs_less_and_one_that_goes_on_more():
    task = of_template("duplicate_charge", 1)
    steps = len(task[0][0].oracle)

    def cost(*names: str) -> float:
        release: ReleaseTruth = population(FlawModel(dict.fromkeys(names, (1.0, 0.0))), tasks=task).releases[0]
        return round(release.cost_usd * 1_000_000)

    assert cost() == cost("timeout") == cost("wrong_amount") == cost("infra_fault") == mean_micros(steps)
    assert cost("skip_verify") == mean_micros(steps - 1)
    assert cost("double_write") == mean_micros(steps + 1)
    assert cost("phantom_success", "double_write") == mean_micros(steps - 1)
    assert cost("over_refuse") == mean_micros(steps - 2)
    assert cost("over_refuse", "skip_verify") == mean_micros(steps - 2)
    assert cost("loop") == mean_micros(steps + 3)
    assert cost("verbose", "loop") == mean_micros(steps + 3) + Use(tokens_out=3000).micros


def test_the_mean_cost_is_the_sum_over_all_plans():
    for model in (FlawModel(FEW), FlawModel(OTHER)):
        expected = 0.0
        for task, digest in MIXED:
            chances = propensities(model.flaws, digest)
            expected += fsum(weight * _mean_cost(task, plan) for plan, weight in plans(chances, task))
        found = truths([model], MIXED, (1,))[1].releases[0].cost_usd
        assert found * 1_000_000 == pytest.approx(expected / len(MIXED), rel=1e-12)


def test_moments_multiply_over_independent_flaws():
    found = population(FlawModel(FEW), tasks=of_template("duplicate_charge", 3)).releases[0]
    rates = [FEW[name] for name in ("skip_verify", "over_refuse", "timeout", "loop")]
    assert found.scorers[ALL].pass_hat[4] == pytest.approx(prod(moment(*rate, 4) for rate in rates))
    assert found.terminal["TIMED_OUT"] == pytest.approx(0.8 * 0.1)
    assert found.terminal["REFUSED"] == pytest.approx(0.8 * 0.9 * 0.2)
