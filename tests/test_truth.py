"""The whole line against a truth in closed form: what a campaign reports is what the flaw model says it should."""

import json
import runpy
from math import sqrt
from pathlib import Path
from typing import Any

import pytest

from passhat.runner import launch
from passhat.runner.report import load_account, report_campaign
from passhat.runner.request import Request
from passhat.runner.store import Campaign
from passhat.runner.tables import release_table
from passhat.stats.reliability import pass_hat

TASKS, RUNS = 1200, 8
RELEASES = ("incumbent", "candidate")
KS = (1, 2, 4, 8)
BENCHMARK = runpy.run_path(str(Path(__file__).parent / "benchmarks" / "truth.py"))


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    out: Path = tmp_path_factory.mktemp("truth") / "campaign"
    request = Request(suite="desk", releases=RELEASES, runs=RUNS, tasks=TASKS, seed=20261130)
    return launch.run(request, launch.Place(workers=0), out=out)


def truth(campaign: Campaign, which: str, release: int) -> Any:
    document = json.loads((campaign.folder / "truth.json").read_text())
    return document[which]["releases"][release]


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
    scorer = truth(campaign, "population", release)["scorers"]["all"]
    truths = {item["k"]: item["value"] for item in scorer["pass_hat"]}
    estimates = {item["k"]: item["estimate"] for item in page["pass_hat"]}
    assert page["counts"]["planned"] == TASKS * RUNS
    assert truths.keys() == estimates.keys()
    assert page["attempt_rate"]["estimate"] == pytest.approx(estimates[1], abs=1e-12)
    for k in KS:
        assert abs(estimates[k] - truths[k]) <= 4 * standard_error(campaign, release, k), k
    for k in (4, 8):  # at k = 2 the gap is the variance between tasks, less than four standard errors wide here
        assert abs(estimates[k] - estimates[1] ** k) > 4 * standard_error(campaign, release, k), k


@pytest.mark.parametrize("release", range(len(RELEASES)), ids=RELEASES)
def test_the_report_agrees_with_the_truth_of_these_very_tasks(campaign: Campaign, release: int) -> None:
    """The tasks are fixed here, so only the noise of their runs is left: a narrower band."""
    page = report_campaign(campaign)["releases"][release]
    scorer = truth(campaign, "this_suite", release)["scorers"]["all"]
    noise = sqrt(scorer["variance"]["within"] / RUNS / TASKS)
    assert noise < standard_error(campaign, release, 1)
    assert abs(page["attempt_rate"]["estimate"] - scorer["pass_rate"]) <= 4 * noise


def test_scorers_fail_as_often_as_their_flaws_say(campaign: Campaign) -> None:
    """Outcome and trajectory apart and together: the quadrant against the truth of these tasks."""
    for release, page in enumerate(report_campaign(campaign)["releases"]):
        expected = truth(campaign, "this_suite", release)["quadrant"]
        for cell, count in page["quadrant"].items():
            share, p = count / (TASKS * RUNS), expected[cell]
            assert abs(share - p) <= 4 * sqrt(p * (1 - p) / (TASKS * RUNS)), (page["release"], cell)


@pytest.mark.parametrize("number", [0, 3, 4], ids=[BENCHMARK["SETTINGS"][number].name for number in (0, 3, 4)])
def test_a_small_simulation_agrees_with_both_truths(number: int) -> None:
    """Scorers, ends, costs, invalid runs and discordance; tests/benchmarks/truth.py does it at full size."""
    rows = BENCHMARK["compare"](BENCHMARK["SETTINGS"][number], 300, 8)
    assert len(rows) > 40
    assert [row for row in rows if not max(abs(row.z_population), abs(row.z_suite)) <= 4] == []
