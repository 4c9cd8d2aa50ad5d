"""What the README tells people to do works as it stands there."""

import json
import re
import subprocess
import sys
from pathlib import Path

from passhat.workers.flaws import FLAWS

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


def test_the_environment_of_the_readme_is_short_passes_check_env_and_runs() -> None:
    library = block("python", "class Library(World)")
    assert len([line for line in library.splitlines() if line.strip()]) <= 40
    Path("library.py").write_text(library)
    Path("librarian.py").write_text(block("python", 'tools.call("lend"'))
    Path("library.yaml").write_text(block("yaml", "environment: library:Library"))
    Path("library.jsonl").write_text(block("json", '"id": "lend"'))
    check, run = re.findall(r"^passhat (check-env library:.*|run library.*)$", README, re.M)
    checked = subprocess.run([*PASSHAT, *check.split()], capture_output=True, text=True, check=True).stdout
    assert checked.endswith("\nnothing speaks against this environment\n")
    assert "\nnever done" not in checked
    ran = subprocess.run([*PASSHAT, *run.split(), "--json"], capture_output=True, text=True, check=True).stdout
    counts = json.loads(ran)["releases"][0]["counts"]
    assert (counts["planned"], counts["passed"]) == (8, 8)


def test_the_page_of_the_readme_is_what_demo_prints() -> None:
    page = re.search(r"```\n(── candidate.*?)```", README, re.S)
    verdict = re.search(r"```\n(incumbent → candidate.*?)```", README, re.S)
    assert page is not None
    assert verdict is not None
    printed = subprocess.run([*PASSHAT, "demo", "--workers", "0"], capture_output=True, text=True, check=True).stdout
    candidate = printed[printed.index("── candidate") :].splitlines()
    assert [line for line in page[1].splitlines() if line not in candidate] == []
    assert verdict[1] in printed


def test_the_statistics_of_the_readme_print_what_stands_below_them() -> None:
    example = block("python", "from passhat.stats import")
    printed = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=True).stdout
    assert f"```python\n{example}```\n\n```\n{printed}```" in README


def test_the_scripted_release_of_the_readme_runs_and_names_every_flaw() -> None:
    Path("flawed.yaml").write_text(block("yaml", "agent: scripted"))
    run = [*PASSHAT, "run", "desk", "-r", "flawed.yaml", "--tasks", "20", "--runs", "2", "--workers", "0", "--out", "c"]
    subprocess.run(run, capture_output=True, check=True)
    truth = json.loads(Path("c/truth.json").read_text())
    assert truth["releases"][0]["latent"] == "comonotone"
    assert set(truth["releases"][0]["flaws"]) == {"wrong_amount", "follow_injection", "timeout"}
    listed = re.search(r"The flaws are (.*?), which", README, re.S)
    assert listed is not None
    assert re.findall(r"\w+_\w+|\w+", listed[1].replace(" and ", ", ")) == list(FLAWS)


def test_the_gate_of_the_readme_can_be_declared_and_evaluated() -> None:
    Path("gate.yaml").write_text(block("yaml", "name: release-gate"))
    assert subprocess.run([*PASSHAT, "declare", "gate.yaml"], capture_output=True, check=True).returncode == 0
    run = [*PASSHAT, "run", "desk", "--tasks", "20", "--runs", "4", "--workers", "0"]
    subprocess.run(run, capture_output=True, check=True)
    verdict = subprocess.run([*PASSHAT, "gate", "gate.yaml", "--json"], capture_output=True, text=True, check=False)
    document = json.loads(verdict.stdout)
    assert document["gate"]["status"] == "declared"
    assert verdict.returncode == {"GO": 0, "NO_GO": 1, "INCONCLUSIVE": 3}[document["verdict"]]
    assert [rule["decision"] for rule in document["rules"]].count("inconclusive") >= 1  # 20 tasks are few
