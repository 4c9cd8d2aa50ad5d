"""A campaign that the first record schema wrote reads as it did then, and is not continued in another schema."""

import runpy
import shutil
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from passhat.runner.columns import Columns, from_payloads
from passhat.runner.errors import NotAcceptable
from passhat.runner.render_show import render_shown
from passhat.runner.report import load_account, report_campaign
from passhat.runner.show import show
from passhat.runner.store import Campaign, read_log, writing
from passhat.runner.tables import records_digest
from passhat.workers.frames import wrap
from passhat.workers.records import FIELDS, Safety, fields_of

GOLDEN = Path(__file__).parents[1] / "golden"
MADE = runpy.run_path(str(GOLDEN / "make_schema_1.py"))
LATER = set(FIELDS) - set(MADE["FIELDS"])


@pytest.fixture
def campaign(own_folder: Path) -> Campaign:
    shutil.copytree(GOLDEN / "schema-1", own_folder / "c")
    return Campaign(Path("c"))


def unsaid(value: Any) -> bool:
    return bool(np.isnan(value)) if isinstance(value, np.floating) else int(value) == -1


def test_the_golden_folder_is_what_its_script_makes() -> None:
    found = {str(path.relative_to(GOLDEN / "schema-1")): path for path in (GOLDEN / "schema-1").rglob("*.*")}
    assert {name: path.read_bytes() for name, path in found.items()} == MADE["files"]()


def test_the_fields_of_the_first_schema_are_those_its_logs_have() -> None:
    assert fields_of(1) == MADE["FIELDS"]
    assert {"watched", "retries", "env_requested", "agent_requested"} == LATER


def test_every_value_is_read_and_what_came_later_is_not_said(campaign: Campaign) -> None:
    log = read_log(campaign)
    columns = from_payloads(log.payloads, log.schema)
    assert (log.schema, columns.schema, list(columns.fields), len(columns)) == (1, 1, list(FIELDS), 8)
    for row, said in enumerate(MADE["RECORDS"]):
        for name, value in said.items():
            found = columns[name][row]
            assert unsaid(found) if value is None else found == value or value == bytes(range(8)), name
    assert columns["state_digest"][0] == int.from_bytes(bytes(range(8)))
    assert columns["retries"].tolist() == [-1] * 8
    assert columns["env_requested"].tolist() == columns["agent_requested"].tolist() == [0] * 8


def test_from_the_cache_it_is_the_same(campaign: Campaign) -> None:
    def account_columns() -> Columns:
        return load_account(campaign)[0].columns

    first, again = account_columns(), account_columns()
    assert campaign.cache_path.exists()
    assert again.schema == first.schema == 1
    for name in FIELDS:
        np.testing.assert_array_equal(first[name], again[name])


def test_its_digest_is_still_the_one_that_was_published(campaign: Campaign) -> None:
    account, torn_at = load_account(campaign)
    assert torn_at is None
    assert records_digest(account) == MADE["RECORDS_DIGEST"]
    assert account.columns.take(np.arange(3)).schema == 1


def test_it_is_reported_and_shown(campaign: Campaign) -> None:
    first, second = report_campaign(campaign)["releases"]
    assert [first["counts"][name] for name in ("planned", "passed", "pending", "retried")] == [4, 3, 1, 1]
    assert [second["counts"][name] for name in ("failed", "invalid", "missing")] == [2, 1, 1]
    assert (second["safety"]["forbidden_calls"], second["safety"]["wrong_tenant_writes"]) == (1, None)
    run = show("c/B/credit/0")
    assert run["attempts"][0]["safety"] == [flag.name for flag in Safety(1 | 8 | 16 | 32)]
    finding = {"scorer": "trajectory", "text": "writes_are_verified does not hold: CR-0001", "call": None}
    calls = [{"facts": [], **call} for call in MADE["TRACE"]["calls"]]
    effects = [{"call": None, **effect} for effect in MADE["TRACE"]["effects"]]
    said_by_call = {"calls": calls, "effects": effects, "findings": [finding], "violations": []}
    assert run["trace"] == MADE["TRACE"] | said_by_call
    assert "missed      trajectory: writes_are_verified does not hold: CR-0001" in render_shown(run)


def test_it_is_not_continued(campaign: Campaign) -> None:
    before = campaign.log_path.read_bytes()
    with (
        pytest.raises(NotAcceptable, match=r"record schema 1 can be read but not continued: this version writes 2"),
        writing(campaign),
    ):
        pass
    assert campaign.log_path.read_bytes() == before


@pytest.mark.parametrize("header", [{"schema": 3, "fields": list(FIELDS)}, {"schema": 1, "fields": list(FIELDS)}])
def test_a_schema_that_is_not_known_is_refused(campaign: Campaign, header: dict[str, Any]) -> None:
    campaign.log_path.write_bytes(wrap(msgpack.packb(header)))
    with pytest.raises(NotAcceptable, match=rf"found record schema {header['schema']}, this version reads 1 to 2"):
        read_log(campaign)
