"""A campaign of scripted releases says beforehand what its results should be; nothing that reports reads it."""

import json
from pathlib import Path
from typing import Any

import pytest

from passhat.runner import launch, truth_file
from passhat.runner.report import report_campaign
from passhat.runner.request import Request
from passhat.runner.store import Campaign
from passhat.workers.contract import task_digest
from passhat.workers.desk_tasks import DeskTasks
from passhat.workers.truth import FlawModel, truths

HERE = launch.Place(workers=0)


def carried_out(**options: Any) -> Campaign:
    request = Request(**{"suite": "desk", "releases": ("incumbent", "candidate"), "runs": 3, "tasks": 20, **options})
    return launch.run(request, HERE, out=Path("c"))


def truth_of(campaign: Campaign) -> Any:
    return json.loads((campaign.folder / truth_file.FILE).read_text())


def test_the_file_has_both_truths_of_releases_and_pairs() -> None:
    flaws = ("incumbent:infra_fault=.5", "candidate:timeout=.1,.2")
    found = truth_of(carried_out(flaws=flaws, stream="common", retries=1))
    assert {key: found[key] for key in ("schema", "tasks", "runs_per_task", "stream", "retries")} == {
        "schema": "passhat.truth/1",
        "tasks": 20,
        "runs_per_task": 3,
        "stream": "common",
        "retries": 1,
    }
    models = [
        FlawModel({name: (rate["p"], rate["rho"]) for name, rate in release["flaws"].items()}, release["latent"])
        for release in found["releases"]
    ]
    assert models[1].flaws["timeout"] == (0.1, 0.2)
    tasks = [(task, task_digest(task)) for task in DeskTasks(1, 20)]
    both = truths(models, tasks, (1, 2, 3), attempts=2, common=True)
    for name, truth in zip(("population", "this_suite"), both, strict=True):
        for written, release in zip(found[name]["releases"], truth.releases, strict=True):
            scorer = release.scorers["outcome"]
            assert written["scorers"]["outcome"] == {
                "pass_rate": scorer.pass_rate,
                "pass_hat": [{"k": k, "value": scorer.pass_hat[k]} for k in (1, 2, 3)],
                "variance": {"between": scorer.between, "within": scorer.within},
                "icc": scorer.icc,
                "design_effect": scorer.design_effect(3),
            }
            assert (written["quadrant"], written["terminal"]) == (release.quadrant, release.terminal)
            assert (written["cost_usd"], written["invalid"]) == ({"mean": release.cost_usd}, release.invalid)
        (pair,) = found[name]["pairs"]
        cells = truth.pairs[0, 1]
        assert cells is not None
        assert (pair["base"], pair["candidate"]) == ("incumbent", "candidate")
        assert pair["cells"]["all"]["base_only"] == cells["all"].base_only
    assert found["population"]["releases"][0]["invalid"] == pytest.approx(0.25)


def test_one_run_a_task_has_one_k() -> None:
    scorer = truth_of(carried_out(runs=1, releases=("incumbent",)))["population"]["releases"][0]["scorers"]["all"]
    assert [item["k"] for item in scorer["pass_hat"]] == [1]


def test_a_pair_without_a_closed_form_is_null_for_the_population_alone() -> None:
    Path("hard.yaml").write_text("agent: scripted\nflaws: {loop: {p: .2, rho: .3}}\nlatent: comonotone\n")
    found = truth_of(carried_out(releases=("incumbent", "hard.yaml"), stream="common"))
    assert found["population"]["pairs"][0]["cells"] is None
    assert found["this_suite"]["pairs"][0]["cells"]["all"]["both_pass"] > 0


def test_only_scripted_releases_have_a_truth() -> None:
    Path("agents.py").write_text("def run(task, tools, ctx): pass\n")
    campaign = carried_out(releases=("mine=agents:run", "incumbent"))
    assert [release["release"] for release in truth_of(campaign)["releases"]] == ["incumbent"]


@pytest.mark.parametrize(
    ("truth", "most", "is_written"), [(None, 20, True), (None, 19, False), (True, 19, True), (False, 20, False)]
)
def test_a_very_large_suite_gets_it_when_asked(
    truth: bool | None, most: int, is_written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(truth_file, "MOST_TASKS", most)
    assert (carried_out(truth=truth).folder / truth_file.FILE).exists() == is_written


def test_without_a_scripted_release_there_is_no_file() -> None:
    Path("others.py").write_text("def run(task, tools, ctx): pass\n")
    assert not (carried_out(releases=("mine=others:run",)).folder / truth_file.FILE).exists()


def test_no_report_reads_it() -> None:
    campaign = carried_out()
    before = report_campaign(campaign)
    (campaign.folder / truth_file.FILE).unlink()
    assert report_campaign(Campaign(campaign.folder)) == before
    launch.resume(Campaign(campaign.folder), HERE)
    assert not (campaign.folder / truth_file.FILE).exists()
