"""The command line as a user meets it: what goes to which stream, with which exit code."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from passhat.runner import cli

README = Path(__file__).resolve().parents[2] / "README.md"


Passhat = Callable[..., Any]


def run_desk(passhat: Passhat, *more: str) -> Any:
    return passhat("run", "desk", "--tasks", "10", "--runs", "3", "--workers", "0", *more)


def test_a_run_answers_on_stdout_and_reports_progress_on_stderr(passhat: Passhat) -> None:
    answer = run_desk(passhat, "--out", "c")
    assert answer.code == 0
    assert answer.out.splitlines()[0].split() == ["release", "passed", "failed", "invalid", "missing", "pass", "rate"]
    assert "next     passhat report c" in answer.out
    assert "60 of 60 runs to do in this process" in answer.err
    assert "60/60" in answer.err


def test_json_of_a_run_is_one_document_with_exact_counts(passhat: Passhat) -> None:
    document = run_desk(passhat, "--out", "c", "--json").document
    assert document["schema"] == "passhat.summary/1"
    for release in document["releases"]:
        counts = release["counts"]
        assert counts["planned"] == 30 == counts["passed"] + counts["failed"]


def test_without_out_the_campaign_is_the_latest_in_results(passhat: Passhat) -> None:
    folder = Path(run_desk(passhat, "--json").document["folder"])
    assert folder.parent == Path("results")
    assert Path("results/latest").resolve() == folder.resolve()
    assert passhat("report", "--json").document["campaign"]["id"] == folder.name
    assert passhat("report", folder.name, "--json").document["campaign"]["id"] == folder.name


def test_list_names_every_campaign_with_its_digest(passhat: Passhat) -> None:
    first, second = (run_desk(passhat, "--seed", seed, "--json").document for seed in ("1", "2"))
    listed = passhat("list", "--json").document["campaigns"]
    assert {c["id"]: c["records_digest"] for c in listed} == {
        first["id"]: first["records_digest"],
        second["id"]: second["records_digest"],
    }
    assert first["id"] in passhat("list").out


def test_a_folder_that_holds_a_campaign_is_refused(passhat: Passhat) -> None:
    run_desk(passhat, "--out", "c")
    again = run_desk(passhat, "--out", "c")
    assert again.code == 2
    assert "c holds a campaign already" in again.err
    assert again.out == ""


def test_a_dry_run_prints_the_plan_and_makes_nothing(passhat: Passhat) -> None:
    plan = run_desk(passhat, "--dry-run", "--json").document
    assert plan["schema"] == "passhat.plan/1"
    assert plan["runs"] == 10 * 3 * 2
    assert sum(plan["cohorts"].values()) == 10
    assert [first["run"] for first in plan["first_runs"]] == ["incumbent/routine-0000/0", "candidate/routine-0000/0"]
    assert plan["first_runs"][0]["env_seed"] == plan["first_runs"][1]["env_seed"]
    assert plan["first_runs"][0]["agent_seed"] != plan["first_runs"][1]["agent_seed"]
    assert os.listdir() == []


def test_common_noise_gives_both_releases_the_same_agent_seed(passhat: Passhat) -> None:
    first = run_desk(passhat, "--dry-run", "--stream", "common", "--json").document["first_runs"]
    assert first[0]["agent_seed"] == first[1]["agent_seed"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run",), "Missing argument"),
        (("run", "desk", "--workers", "-1"), "--workers: found -1"),
        (("run", "desk", "--runs", "0", "--workers", "0"), "--runs: found 0, expected at least 1"),
        (("run", "desk", "--tasks", "0", "--workers", "0"), "--tasks: found 0, expected at least 1"),
        (("run", "desk", "--retries", "-1", "--workers", "0"), "--retries: found -1"),
        (("run", "desk", "--timeout", "0", "--workers", "0"), "--timeout: found 0"),
        (("run", "desk", "--stream", "mixed"), "neither release nor common"),
        (("run", "nowhere.yaml", "-r", "m:f"), "nowhere.yaml: no such suite file"),
        (("run", "desk", "-r", "nowhere.yaml", "--workers", "0"), "nowhere.yaml"),
        (("run", "desk", "--workers", "0", "--address", "1.2.3.4:5"), "leave --address and --working-dir out"),
        (("run", "desk", "--address", "ray://127.0.0.1:1"), "ray job submit"),
        (("run", "desk", "--resume", "--workers", "0"), "--resume needs --out"),
        (("schema", "suit"), "did you mean suite?"),
        (("nonsense",), "No such command"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_was_found(
    passhat: Passhat, arguments: tuple[str, ...], message: str
) -> None:
    answer = passhat(*arguments)
    assert answer.code == 2
    assert message in answer.err
    assert answer.out == ""


def test_an_invalid_file_ends_with_1_and_names_file_line_and_field(passhat: Passhat) -> None:
    Path("s.yaml").write_text('name: s\nversion: "1"\nenviroment: desk\ngenerate: {tasks: 3}\n')
    answer = passhat("run", "s.yaml", "-r", "incumbent", "--workers", "0")
    assert answer.code == 1
    assert "s.yaml:3  enviroment: unknown key; did you mean environment?" in answer.err


def test_nothing_matched_ends_with_5(passhat: Passhat) -> None:
    assert run_desk(passhat, "--filter", "no-such-*").code == 5


def test_a_missing_campaign_ends_with_1(passhat: Passhat) -> None:
    answer = passhat("report")
    assert (answer.code, answer.out) == (1, "")
    assert "results/latest is missing" in answer.err


def test_an_import_is_an_ordinary_campaign_and_says_what_it_lacks(passhat: Passhat) -> None:
    Path("r.csv").write_text("release,task,run,passed,turns,colour\nA,t,0,true,3,red\nA,t,1,false,,blue\n")
    imported = passhat("import", "r.csv", "--out", "c")
    assert imported.code == 0
    assert "not kept    colour" in imported.out
    assert "1 rows: turns" in imported.out
    page = passhat("report", "c", "--json").document["releases"][0]
    assert page["counts"]["planned"] == 2
    assert [item["estimate"] for item in page["pass_hat"]] == [0.5, 0.0]


def test_show_walks_from_the_campaign_to_one_run(passhat: Passhat) -> None:
    run_desk(passhat, "--out", "c")
    assert passhat("show", "c", "--json").document["kind"] == "campaign"
    release = passhat("show", "c/candidate", "--json").document
    report = passhat("report", "c", "--json").document["releases"][1]
    assert [(g["signature"], len(g["runs"])) for g in release["failures"]] == [
        (g["signature"], g["runs"]) for g in report["failures"]
    ]
    task = passhat("show", "c/candidate/routine-0000", "--json").document
    assert [run["run"] for run in task["runs"]] == [0, 1, 2]
    failed = next(
        f"c/{page['release']}/{name}"
        for page in (passhat("show", f"c/{name}", "--json").document for name in ("incumbent", "candidate"))
        for group in page["failures"]
        for name in group["runs"]
    )
    run = passhat("show", failed, "--json").document
    assert run["status"] == "fail"
    assert run["trace"]["findings"]
    assert run["trace"]["calls"]
    assert "FAIL" in passhat("show", failed).out


@pytest.mark.parametrize(
    ("what", "code", "message"),
    [
        ("c/candidat", 5, "did you mean candidate?"),
        ("c/candidate/routine-9999", 5, "no such task"),
        ("c/candidate/routine-0000/99", 5, "was not planned"),
        ("c/candidate/routine-0000/x", 5, "expected a run-index"),
        ("elsewhere/candidate", 1, "no part of it is a campaign folder"),
    ],
)
def test_show_says_what_it_cannot_find(passhat: Passhat, what: str, code: int, message: str) -> None:
    run_desk(passhat, "--out", "c")
    answer = passhat("show", what)
    assert (answer.code, answer.out) == (code, "")
    assert message in answer.err


RUDE = "\x1b[2J\u202e gone\x00\x7f\x9b\U000e0001 naïve"


def test_control_characters_in_a_trace_do_not_reach_the_terminal(passhat: Passhat) -> None:
    Path("rude.py").write_text(
        "from passhat.workers.agent import Final\n"
        f"def run(task, tools, ctx):\n    return Final('COMPLETED', {RUDE!a})\n"
    )
    passhat("run", "desk", "-r", "rude=rude:run", "--tasks", "1", "--runs", "1", "--workers", "0", "--out", "c")
    shown = passhat("show", "c/rude/routine-0000/0").out
    assert "final       COMPLETED  \\u001b[2J\\u202e gone" in shown
    answer = passhat("show", "c/rude/routine-0000/0", "--json")
    assert answer.document["trace"]["final"]["message"] == RUDE
    for text in (shown, answer.out):
        assert all(line.isprintable() for line in text.split("\n"))


def test_schemas_are_json_schemas_of_the_files(passhat: Passhat) -> None:
    assert "runs" in passhat("schema", "suite").document["properties"]
    assert "agent" in passhat("schema", "release").document["properties"]
    assert "contract" in passhat("schema", "task").document["properties"]


def test_doctor_finds_what_is_needed(passhat: Passhat) -> None:
    states = {check["check"]: check["state"] for check in passhat("doctor", "--json").document["checks"]}
    assert states["ray"] == states["msgpack"] == states["results folder"] == "ok"
    assert passhat("doctor").code == 0


def test_a_bug_ends_with_70_and_never_shows_the_values_of_variables(
    passhat: Passhat, monkeypatch: pytest.MonkeyPatch
) -> None:
    from passhat.runner import doctor

    def broken() -> dict[str, Any]:
        key = os.environ["JUDGE_API_KEY"]
        raise RuntimeError(f"no answer ({len(key)} characters)")

    monkeypatch.setenv("JUDGE_API_KEY", "sk-test-not-real")
    monkeypatch.setattr(doctor, "examine", broken)
    answer = passhat("doctor")
    assert answer.code == 70
    assert "no answer" in answer.err
    assert "bug in passhat" in answer.err
    assert "sk-test-not-real" not in answer.out + answer.err


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m passhat.runner.cli schema task | head -c 1; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("columns", ["40", "200"])
def test_help_names_every_exit_code_at_any_width(columns: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "passhat.runner.cli", "--help"],
        capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": columns, "NO_COLOR": "1"},
    )  # fmt: skip
    words = " ".join(ended.stdout.split())
    assert "\x1b" not in ended.stdout
    for code in (0, 1, 2, 3, 4, 5, 6, 70, 130):
        assert re.search(rf"\b{code} ", words)


def test_output_survives_a_terminal_that_knows_ascii_only(passhat: Passhat) -> None:
    run_desk(passhat, "--out", "c")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(
        [sys.executable, "-m", "passhat.runner.cli", "report", "c"], capture_output=True, text=True, env=environment
    )
    assert ended.returncode == 0
    assert "attempt rate" in ended.stdout


def test_json_is_whole_where_the_terminal_knows_ascii_only() -> None:
    Path("r.jsonl").write_text('{"release": "é", "task": "t", "run": 0, "passed": true}\n', "utf-8")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "passhat.runner.cli", "import", "r.jsonl", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert json.loads(ended.stdout)["releases"] == ["é"]


def test_the_readme_has_every_command_and_no_other() -> None:
    rows = re.search(r"\| command \| does \|\n.*?\n\n", README.read_text("utf-8"), re.S)
    assert rows is not None
    named = set(re.findall(r"`([\w-]+)", "\n".join(line.split("|")[1] for line in rows[0].strip().splitlines()[2:])))
    commands = {
        command.name or command.callback.__name__ for command in cli.app.registered_commands if command.callback
    }
    assert named == commands | {group.name for group in cli.app.registered_groups}


def test_an_interrupt_outside_of_a_campaign_ends_with_130_too(
    passhat: Passhat, monkeypatch: pytest.MonkeyPatch
) -> None:
    from passhat.runner import doctor

    def interrupted() -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "examine", interrupted)
    answer = passhat("doctor")
    assert (answer.code, answer.out) == (130, "")
    assert "interrupted" in answer.err


def test_a_dry_run_of_a_users_environment_is_one_document_or_a_clear_refusal(passhat: Passhat) -> None:
    Path("loud_env.py").write_text(
        "from passhat.workers.desk import Desk\n\ndef build():\n    print('hello')\n    return Desk()\n"
    )
    Path("broken_env.py").write_text("def build():\n    raise RuntimeError('no database here')\n")
    Path("an_agent.py").write_text("def run(task, tools, ctx):\n    return None\n")
    Path("t.jsonl").write_text('{"id": "t", "request": "Do it.", "world": {"today": "2026-06-01", "tables": {}}}\n')
    for name in ("loud_env", "broken_env"):
        Path(f"{name}.yaml").write_text(f'name: s\nversion: "1"\nenvironment: {name}:build\ntasks: t.jsonl\n')
    loud = passhat("run", "loud_env.yaml", "-r", "an_agent:run", "--dry-run", "--json")
    assert loud.document["admission"]["rejected"]["t"]
    broken = passhat("run", "broken_env.yaml", "-r", "an_agent:run", "--dry-run")
    assert (broken.code, broken.out) == (1, "")
    assert "no database here" in broken.err
