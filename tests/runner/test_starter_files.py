"""What `passhat init` writes is valid, runs as it stands, and never takes the place of what is there."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from passhat.runner.errors import UsageError
from passhat.runner.gate_file import load_gate
from passhat.runner.schemas import schema
from passhat.runner.starter_files import write_starter_files
from passhat.runner.suite import load_suite
from passhat.runner.validation import validate_suite

FILES = [
    *("suite.yaml", "tasks.jsonl", "shop_world.py", "release.yaml", "shop_agent.py", "gate.yaml"),
    *("schemas/suite.json", "schemas/release.json", "schemas/gate.json"),
]


def passhat(*arguments: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "passhat.runner.cli", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stderr
    return ended.stdout


def counts(summary: str) -> dict[str, dict[str, Any]]:
    return {release["release"]: release["counts"] for release in json.loads(summary)["releases"]}


def test_it_says_what_it_wrote_and_what_comes_next() -> None:
    assert json.loads(passhat("init", "here", "--json")) == {
        "schema": "passhat.init/1",
        "folder": "here",
        "files": FILES,
    }
    assert sorted(path.relative_to("here").as_posix() for path in Path("here").rglob("*.*")) == sorted(FILES)
    assert "next     passhat run suite.yaml -r release.yaml --workers 0\n" in passhat("init")


def test_what_it_wrote_can_be_run_declared_and_decided() -> None:
    passhat("init")
    ran = counts(passhat("run", "suite.yaml", "-r", "release.yaml", "--workers", "0", "--json"))["1.0"]
    assert {name: number for name, number in ran.items() if number} == {"planned": 20, "passed": 16, "failed": 4}
    Path("next.yaml").write_text(Path("release.yaml").read_text().replace('"1.0"', '"1.1"'))
    declared = json.loads(passhat("declare", "gate.yaml", "--json"))
    assert [rule["fewest_tasks"] for rule in declared["rules"]] == [72, None, None, None]
    run = ("run", "suite.yaml", "-r", "release.yaml", "-r", "next.yaml", "--gate", "gate.yaml", "--workers", "0")
    passhat(*run)
    verdict = json.loads(passhat("gate", "gate.yaml", "--json", code=3))
    assert verdict["gate"]["status"] == "declared"
    assert [rule["decision"] for rule in verdict["rules"]] == ["inconclusive", "pass", "pass", "pass"]


def test_its_tasks_measure_an_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    write_starter_files(Path())
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path.cwd())])
    document = validate_suite("suite.yaml")
    assert (document["examined"], document["rejected"]) == (5, [])


def test_its_files_name_the_schemas_that_come_with_them() -> None:
    write_starter_files(Path())
    for kind in ("suite", "release", "gate"):
        first = Path(f"{kind}.yaml").read_text().splitlines()[0]
        named = re.fullmatch(r"# yaml-language-server: \$schema=(.+)", first)
        assert named is not None
        assert json.loads(Path(named[1]).read_text()) == schema(kind)
    assert load_gate(Path("gate.yaml")).names(None, None) == ("1.0", "1.1")
    assert {task.cohort for task in load_suite("suite.yaml").tasks} == {"routine", "unanswerable", "destructive"}


def test_what_is_there_is_not_overwritten() -> None:
    Path("gate.yaml").write_text("mine\n")
    with pytest.raises(UsageError, match=r"^gate.yaml: there already; --force overwrites$"):
        write_starter_files(Path())
    assert [path.name for path in Path().iterdir()] == ["gate.yaml"]
    assert Path("gate.yaml").read_text() == "mine\n"
    passhat("init", code=2)
    passhat("init", "--force")
    assert load_gate(Path("gate.yaml")).file.name == "shop-gate"


def test_a_folder_that_cannot_be_written_to_is_named() -> None:
    Path("file").write_text("")
    with pytest.raises(UsageError, match="file: cannot be written to"):
        write_starter_files(Path("file"))
