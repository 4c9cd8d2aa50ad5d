"""The whole line against a truth in closed form: what a campaign reports is what the flaw model says it should."""

from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

import pytest

from passhat.runner import launch
from passhat.runner.release import load_release
from passhat.runner.report import load_account, report_campaign
from passhat.runner.store import Campaign
from passhat.runner.suite import load_suite
from passhat.runner.tables import release_table
from passhat.stats.reliability import pass_hat
from passhat.workers.contract import task_digest
from passhat.workers.flaws import groups_of, pass_probabilities, population_truth

TASKS, RUNS = 2000, 8
RELEASES = ("incumbent", "candidate")
KS = (1, 2, 4, 8)


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    out: Path = tmp_path_factory.mktemp("truth") / "campaign"
    request = launch.Request(suite="desk", releases=RELEASES, runs=RUNS, tasks=TASKS, seed=20261130)
    return launch.run(request, launch.Place(workers=0), out=out)


def standard_error(campaign: Campaign, release: int, k: int) -> float:
    """Of the mean over tasks, from the spread of the tasks' own unbiased values."""
    account, _ = load_account(campaign)
    estimate = pass_hat(release_table(account, release).outcomes.histogram(), k)
    mean = float(estimate.values @ estimate.multiplicities) / TASKS
    variance = float((estimate.values - mean) ** 2 @ estimate.multiplicities) / (TASKS - 1)
    return sqrt(variance / TASKS)


@pytest.mark.parametrize("release", range(len(RELEASES)), ids=RELEASES)
def test_pass_rate_and_pass_hat_agree_with_the_closed_form(campaign: Campaign, release: int) -> None:
    page = report_campaign(campaign)["releases"][release]
    tasks = list(load_suite("desk", tasks=TASKS).tasks)
    flaws = load_release(RELEASES[release]).flaws
    truths = {k: population_truth(flaws, groups_of(flaws, tasks), k) for k in KS}
    estimates = {item["k"]: item["estimate"] for item in page["pass_hat"]}
    assert page["counts"]["planned"] == TASKS * RUNS
    assert page["attempt_rate"]["estimate"] == pytest.approx(estimates[1], abs=1e-12)
    for k in KS:
        assert abs(estimates[k] - truths[k]) <= 4 * standard_error(campaign, release, k), k
    for k in (4, 8):  # at k = 2 the gap is the variance between tasks, less than four standard errors wide here
        assert abs(estimates[k] - estimates[1] ** k) > 4 * standard_error(campaign, release, k), k


@pytest.mark.parametrize("release", range(len(RELEASES)), ids=RELEASES)
def test_the_report_agrees_with_the_truth_of_these_very_tasks(campaign: Campaign, release: int) -> None:
    """The tasks are fixed here, so only the noise of their runs is left: a narrower band."""
    page = report_campaign(campaign)["releases"][release]
    flaws = load_release(RELEASES[release]).flaws
    tasks = [(task, task_digest(task)) for task in load_suite("desk", tasks=TASKS).tasks]
    chances = pass_probabilities(flaws, tasks)
    noise = sqrt(sum(q * (1 - q) for q in chances) / RUNS) / TASKS
    assert noise < stdev(chances) / sqrt(TASKS)
    assert abs(page["attempt_rate"]["estimate"] - fmean(chances)) <= 4 * noise


def test_scorers_fail_as_often_as_their_flaws_say(campaign: Campaign) -> None:
    """Outcome and trajectory apart: the quadrant's margins against the truth of these tasks for each scorer."""
    tasks = [(task, task_digest(task)) for task in load_suite("desk", tasks=TASKS).tasks]
    for page in report_campaign(campaign)["releases"]:
        flaws = load_release(page["release"]).flaws
        cells = page["quadrant"]
        for scorer, cell in (("outcome", "right"), ("trajectory", "sanctioned")):
            chances = pass_probabilities(flaws, tasks, scorer)
            noise = sqrt(sum(q * (1 - q) for q in chances) / RUNS) / TASKS
            passed = sum(count for name, count in cells.items() if cell in name.split("_"))
            assert abs(passed / (TASKS * RUNS) - fmean(chances)) <= 4 * noise, (page["release"], scorer)
