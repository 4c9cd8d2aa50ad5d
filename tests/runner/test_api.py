"""The Python API: its examples run, its tables are the documents' numbers, and it starts no Ray."""

import doctest
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import passhat.runner.api as ph
from passhat.runner import launch
from passhat.runner.errors import NothingMatched, UsageError
from passhat.runner.gate_file import load_gate
from passhat.runner.importing import import_files
from passhat.runner.request import Request
from passhat.runner.store import Campaign

RUNS = {"A": {"t": "PP", "u": "FF", "v": "PP", "w": "PF"}, "B": {"t": "PP", "u": "PP", "v": "PF", "w": "PP"}}
RULES = [
    {"id": "better", "metric": "delta_attempt_rate", "at_least": 0.2, "by": "estimate"},
    {"id": "flaky", "metric": "flaky_rate", "at_most": 0, "by": "estimate"},
]


@pytest.fixture(autouse=True)
def evidence() -> Campaign:
    """Two releases, four tasks, two runs each, and a gate."""
    rows = [
        {"release": release, "task": task, "run": i, "passed": letter == "P", "cost_usd": 0.5}
        for release, tasks in RUNS.items()
        for task, letters in tasks.items()
        for i, letter in enumerate(letters)
    ]
    Path("gate.yaml").write_text(json.dumps({"name": "g", "baseline": "A", "candidate": "B", "rules": RULES}))
    return imported(rows, "evidence")


def imported(rows: list[dict[str, Any]], name: str) -> Campaign:
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return import_files([Path("rows.jsonl")], out=Path(name)).campaign


@pytest.mark.parametrize("name", ["open", "report", "compare", "gate", "packet"])
def test_every_function_has_an_example_that_runs(name: str) -> None:
    [example] = doctest.DocTestFinder(recurse=False).find(getattr(ph, name), name, globs={})
    result = doctest.DocTestRunner().run(example)
    assert (result.failed, result.attempted > 0) == (0, True)


def test_the_example_of_the_readme_runs() -> None:
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text("utf-8")
    [example] = [text for text in re.findall(r"```python\n(.*?)```", readme, re.S) if "passhat.runner.api" in text]
    ran = Request(suite="desk", releases=("incumbent", "candidate"), runs=2, tasks=10, folder=str(Path.cwd()))
    launch.run(ran, launch.Place(workers=0))
    Path("gate.yaml").write_text(
        json.dumps({"name": "g", "baseline": "incumbent", "candidate": "candidate", "rules": RULES})
    )
    printed = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=True).stdout
    cohorts, verdict = printed.splitlines()
    assert cohorts.startswith("[('routine', ")
    assert verdict.split()[0] in ("GO", "NO_GO", "INCONCLUSIVE")


def test_it_starts_no_ray() -> None:
    code = (
        "import sys, passhat.runner.api as ph\n"
        "ph.report('evidence'), ph.compare('evidence'), ph.gate('gate.yaml', 'evidence')\n"
        "print([name for name in ('ray', 'matplotlib', 'pandas') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_run_is_a_folder_an_id_a_campaign_or_the_latest(evidence: Campaign) -> None:
    Path("results").mkdir()
    Path("evidence").rename(Path("results", evidence.id))
    Path("results/latest").symlink_to(evidence.id)
    folder = Campaign(Path("results", evidence.id))
    found = [ph.report(run).document for run in (str(folder.folder), folder.folder, evidence.id, folder, None)]
    assert all(document == found[0] for document in found)


def test_two_campaigns_are_compared_like_one(evidence: Campaign) -> None:
    for release, tasks in RUNS.items():
        rows = [
            {"release": release, "task": task, "run": i, "passed": letter == "P", "cost_usd": 0.5}
            for task, letters in tasks.items()
            for i, letter in enumerate(letters)
        ]
        imported(rows, release)
    one, two = ph.compare(evidence), ph.compare("A", "B")
    assert one.rows() == two.rows()
    assert ph.gate("gate.yaml", "A", "B").verdict == "NO_GO"


def test_tables_hold_the_numbers_of_the_document() -> None:
    report, comparison = ph.report("evidence"), ph.compare("evidence")
    assert [(row["release"], row["k"], row["estimate"]) for row in report.rows("pass_hat")] == [
        ("A", 1, 0.625),
        ("A", 2, 0.5),
        ("B", 1, 0.875),
        ("B", 2, 0.75),
    ]
    assert [(row["release"], row["signature"], row["runs"]) for row in report.rows("failures")] == [
        ("A", "unspecified", 3),
        ("B", "unspecified", 1),
    ]
    sign_flip = comparison.document["delta"]["pass_hat"][0]["sign_flip"]
    assert comparison.rows("deltas")[0]["p_value"] == sign_flip["p_value"] == 0.75  # 6 of the 8 signs of 1, .5, .5
    [cohort] = comparison.rows("cohorts")
    assert (cohort["delta"], cohort["p_holm"]) == (0.25, 0.75)
    assert [row["task"] for row in comparison.rows("moves")] == ["u", "v", "w"]
    [cost] = comparison.rows("efficiency")
    assert (cost["amount"], cost["base_median"], cost["candidate_p95"], cost["estimate"]) == ("cost_usd", 0.5, 0.5, 0.0)
    results = (report, comparison, ph.gate("gate.yaml", "evidence"))
    values = [
        value for result in results for name in result.tables() for row in result.rows(name) for value in row.values()
    ]
    assert all(value is None or isinstance(value, str | int | float) for value in values)
    with pytest.raises(UsageError, match=r'table "delta": no such table; did you mean deltas\?'):
        comparison.rows("delta")


def test_a_verdict_is_what_the_command_line_gives() -> None:
    verdict = ph.gate(load_gate(Path("gate.yaml")), "evidence")
    assert (verdict.verdict, verdict.exit_code, verdict.document["gate"]["status"]) == ("NO_GO", 1, "undeclared")
    command = [sys.executable, "-m", "passhat.runner.cli", "gate", "gate.yaml", "evidence"]
    printed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (printed.stdout, printed.returncode) == (str(verdict), verdict.exit_code)


def test_a_gate_without_names_takes_them_from_the_caller() -> None:
    Path("gate.yaml").write_text(json.dumps({"name": "g", "rules": RULES}))
    with pytest.raises(UsageError, match="names neither baseline nor candidate"):
        ph.gate("gate.yaml", "evidence")
    assert ph.gate("gate.yaml", "evidence", base="B", candidate="A").document["candidate"] == "A"


def test_a_release_that_is_not_there_is_named() -> None:
    with pytest.raises(NothingMatched, match=r'"C": no such release; allowed are A, B'):
        ph.report("evidence", "C")


def test_pandas_gets_the_same_table() -> None:
    pandas = pytest.importorskip("pandas")
    report = ph.report("evidence")
    frame = report.to_pandas("cohorts")
    assert isinstance(frame, pandas.DataFrame)
    assert frame.to_dict("records") == report.rows("cohorts")


def test_without_pandas_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        UsageError, match=r"to_pandas needs pandas: python -m pip install pandas; rows\(\) has the same"
    ):
        ph.report("evidence").to_pandas()


class Table(HTMLParser):
    """What a table has of tags with their attributes, and the text in them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_a_notebook_shows_an_escaped_table_with_caption_and_headers() -> None:
    hostile = "<script>alert(1)</script>\u202e&"
    imported([{"release": hostile, "task": "t", "run": 0, "passed": True}], "hostile")
    table = Table(ph.report("hostile")._repr_html_())
    assert {tag for tag, _ in table.tags} == {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    assert "<script>alert(1)</script>\\u202e&" in table.text
    assert table.text[0] == "Report: releases"
    scopes = [attributes["scope"] for tag, attributes in table.tags if tag == "th"]
    assert (scopes.count("col"), scopes.count("row")) == (len(ph.report("hostile").rows()[0]), 1)


def test_a_long_table_is_cut_and_says_so() -> None:
    rules = [{**RULES[1], "id": f"r{i}"} for i in range(60)]
    Path("gate.yaml").write_text(json.dumps({"name": "g", "baseline": "A", "candidate": "B", "rules": rules}))
    table = Table(ph.gate("gate.yaml", "evidence")._repr_html_())
    assert table.text[0] == "Verdict: rules (the first 50 of 60 rows)"
    assert [tag for tag, _ in table.tags].count("tr") == 51
    assert "—" in table.text  # a rule by estimate has no level


def test_an_empty_table_is_a_table() -> None:
    rows = [{"release": release, "task": "t", "run": 0, "passed": True} for release in "AB"]
    comparison = ph.compare(imported(rows, "same"))
    assert comparison.rows("moves") == comparison.rows("efficiency") == []
    assert comparison.to_pandas("moves").empty
