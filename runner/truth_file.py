"""The truth of a campaign's scripted releases, written into its folder before the first run: what its results would be
with very many tasks and runs (passhat.truth/1).

For those who test statistics and gates. No report, comparison or verdict reads it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from passhat.runner.release import Release
from passhat.runner.store import Campaign, write_whole
from passhat.workers.contract import Task
from passhat.workers.truth import Cells, FlawModel, ReleaseTruth, ScorerTruth, Truths, truths

FILE = "truth.json"
MOST_TASKS = 20_000  # of a suite whose truth is written unasked; it takes about 0.2 ms a task and release

Document = dict[str, Any]


def write_truth(
    campaign: Campaign, tasks: Iterable[Task], releases: Sequence[Release], retries: int, *, wanted: bool | None
) -> None:
    """Work out the truth of the scripted releases and write it, unless there are none or it is not wanted.

    Not to have said (None) is to want it of a suite that is not very large. The tasks are made one by one, and none is
    kept.
    """
    from passhat.runner.report import ks_up_to

    plan = campaign.plan
    scripted = [release for release in releases if release.kind == "scripted"]
    if not scripted or not (len(plan.tasks) <= MOST_TASKS if wanted is None else wanted):
        return
    ks = ks_up_to(plan.runs_per_task)
    models = [FlawModel(release.flaws, release.latent) for release in scripted]
    digests = zip(tasks, plan.task_digests, strict=True)
    both = truths(models, digests, ks, attempts=retries + 1, common=plan.stream == "common")
    document = {
        "schema": "passhat.truth/1",
        "tasks": len(plan.tasks),
        "runs_per_task": plan.runs_per_task,
        "stream": plan.stream,
        "retries": retries,
        "releases": [_flaws(release) for release in scripted],
        **{
            name: _truths(truth, scripted, plan.runs_per_task)
            for name, truth in zip(("population", "this_suite"), both, strict=True)
        },
    }
    write_whole(campaign.folder / FILE, json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n")


def _flaws(release: Release) -> Document:
    flaws = {name: {"p": p, "rho": rho} for name, (p, rho) in release.flaws.items()}
    return {"release": release.name, "latent": release.latent, "flaws": flaws}


def _truths(truth: Truths, releases: Sequence[Release], runs: int) -> Document:
    names = [release.name for release in releases]
    return {
        "releases": [_release(name, found, runs) for name, found in zip(names, truth.releases, strict=True)],
        "pairs": [
            {"base": names[one], "candidate": names[other], "cells": None if cells is None else _cells(cells)}
            for (one, other), cells in truth.pairs.items()
        ],
    }


def _release(name: str, truth: ReleaseTruth, runs: int) -> Document:
    return {
        "release": name,
        "scorers": {scorer: _scorer(found, runs) for scorer, found in truth.scorers.items()},
        "quadrant": dict(truth.quadrant),
        "terminal": dict(truth.terminal),
        "cost_usd": {"mean": truth.cost_usd},
        "invalid": truth.invalid,
    }


def _scorer(truth: ScorerTruth, runs: int) -> Document:
    return {
        "pass_rate": truth.pass_rate,
        "pass_hat": [{"k": k, "value": value} for k, value in truth.pass_hat.items() if k <= runs],
        "variance": {"between": truth.between, "within": truth.within},
        "icc": truth.icc,
        "design_effect": truth.design_effect(runs),
    }


def _cells(cells: Mapping[str, Cells]) -> Document:
    return {scorer: asdict(found) for scorer, found in cells.items()}
