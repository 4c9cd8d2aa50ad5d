"""What the README tells people to do works as it stands there."""

import json
import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).resolve().parents[1] / "README.md").read_text("utf-8")
PASSHAT = [sys.executable, "-m", "passhat.runner.cli"]


def block(language: str, containing: str) -> str:
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.S)
    return str(next(text for text in blocks if containing in text))


def test_the_two_set_up_lines_are_there() -> None:
    lines = re.findall(r"^python -m pip install -e .*$", README, re.M)
    assert lines == ["python -m pip install -e . && passhat demo", "python -m pip install -e '.[test]' && pytest"]


def test_the_agent_of_the_readme_is_short_and_runs_on_ray() -> None:
    agent = block("python", "def run(task, tools, ctx)")
    assert len([line for line in agent.splitlines() if line.strip()]) < 12
    Path("my_agent.py").write_text(agent)
    command = re.search(r"^passhat (run desk --release mine=\S+ .*)$", README, re.M)
    assert command is not None
    run = subprocess.run(
        [*PASSHAT, *command[1].split(), "--workers", "1", "--json"], capture_output=True, text=True, check=True
    )
    counts = json.loads(run.stdout)["releases"][0]["counts"]
    assert (counts["planned"], counts["invalid"], counts["missing"]) == (80, 0, 0)
    shown = subprocess.run(
        [*PASSHAT, "show", "results/latest/mine", "--json"], capture_output=True, text=True, check=True
    )
    assert not [g["signature"] for g in json.loads(shown.stdout)["failures"] if "AGENT_ERROR" in g["signature"]]


def test_the_suite_and_release_of_the_readme_are_valid() -> None:
    Path("my_agent.py").write_text(block("python", "def run(task, tools, ctx)"))
    Path("suite.yaml").write_text(block("yaml", "environment: desk"))
    Path("release.yaml").write_text(block("yaml", "agent: my_agent:run"))
    Path("tasks.jsonl").write_text('{"id": "t", "request": "Do it.", "world": {"today": "2026-06-01", "tables": {}}}\n')
    command = [*PASSHAT, "run", "suite.yaml", "-r", "release.yaml", "--workers", "0", "--json"]
    run = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert run["releases"][0]["release"] == "1.4.0"
    assert run["releases"][0]["counts"]["planned"] == 8


def test_the_page_of_the_readme_is_what_demo_prints() -> None:
    page = re.search(r"```\n(── candidate.*?)```", README, re.S)
    assert page is not None
    printed = subprocess.run([*PASSHAT, "demo", "--workers", "0"], capture_output=True, text=True, check=True).stdout
    candidate = printed[printed.index("── candidate") :].splitlines()
    assert [line for line in page[1].splitlines() if line not in candidate] == []


def test_the_statistics_of_the_readme_print_what_stands_below_them() -> None:
    example = block("python", "from passhat.stats import")
    printed = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=True).stdout
    assert f"```python\n{example}```\n\n```\n{printed}```" in README
