"""A campaign's digest is the same whatever the process that carries it out was started with."""

import os
import shutil
import subprocess
import sys

import pytest

CAMPAIGN = """
import sys
from pathlib import Path
from passhat.runner.request import Request
from passhat.runner import launch
from passhat.runner.report import summarise

releases = ("incumbent", "candidate")
request = Request(suite="desk", releases=releases, runs=3, tasks=12, seed=7, hermetic=sys.argv[1], folder=".")
print(summarise(launch.run(request, launch.Place(workers=0), out=Path("c")))["records_digest"])
"""
PROCESSORS = ["taskset", "-c", "0"]
ELSEWHERE = {
    "hash seed": ({"PYTHONHASHSEED": "1"}, [], "guarded"),
    "random hash seed": ({"PYTHONHASHSEED": "random"}, [], "guarded"),
    "time zone": ({"TZ": "XXX-13:45"}, [], "guarded"),
    "locale": ({"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, [], "guarded"),
    "one processor": ({}, PROCESSORS, "guarded"),
    "optimised": ({"PYTHONOPTIMIZE": "2"}, [], "guarded"),
    "level 0": ({"PYTHONHASHSEED": "3", "TZ": "XXX11"}, [], "declared"),
}


def digest(folder, variables, prefix, level):
    folder.mkdir()
    ran = subprocess.run(
        [*prefix, sys.executable, "-c", CAMPAIGN, level],
        env={**os.environ, **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    return digest(tmp_path_factory.mktemp("here") / "c", {"PYTHONHASHSEED": "0", "TZ": "UTC"}, [], "guarded")


@pytest.mark.parametrize("name", ELSEWHERE)
def test_the_digest_is_the_same_with_another(here, tmp_path, name):
    variables, prefix, level = ELSEWHERE[name]
    if prefix and shutil.which(prefix[0]) is None:
        pytest.skip("there is no taskset here to take processors away")
    assert here.startswith("sha256:")
    assert digest(tmp_path / "c", variables, prefix, level) == here
