"""Declarations: a gate is fixed once, before the runs, and a campaign may be begun under it."""

import json
import shutil
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from passhat.runner import launch
from passhat.runner.declaration import declaration_path, declare, read_declaration, standing
from passhat.runner.errors import InvalidFile, NotAcceptable, UsageError
from passhat.runner.gate_file import Gate, load_gate
from passhat.runner.importing import import_files
from passhat.runner.pairing import Pairing, choose, pair
from passhat.runner.report import summarise
from passhat.runner.request import Request
from passhat.runner.store import Campaign

GATE = Path("gate.yaml")
MARGIN = {"id": "margin", "metric": "delta_attempt_rate", "at_least": -0.05}
VETO = {"id": "veto", "metric": "new_forbidden_calls", "at_most": 0}


def gate(*rules: dict[str, Any], path: Path = GATE, **fields: Any) -> Gate:
    content = {"name": "g", "baseline": "incumbent", "candidate": "candidate", "rules": rules or (MARGIN, VETO)}
    path.write_text(json.dumps({**content, **fields}))
    return load_gate(path)


def desk(out: str, gate: Path | None = None, releases: tuple[str, ...] = ("incumbent", "candidate")) -> Campaign:
    return launch.run(desk_request(gate, releases), launch.Place(workers=0), out=Path("results", out))


def desk_request(gate: Path | None = None, releases: tuple[str, ...] = ("incumbent", "candidate")) -> Request:
    path = None if gate is None else str(gate)
    return Request(suite="desk", releases=releases, runs=1, tasks=5, gate=path, folder=str(Path.cwd()))


def paired(*campaigns: Campaign) -> Pairing:
    return pair(*choose(list(campaigns), None, None))


def declared_at(moment: datetime) -> None:
    """Give the declaration another time."""
    path = declaration_path(GATE)
    content = json.loads(path.read_text())
    content["declared_at"] = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    path.write_text(json.dumps(content))


def created_at(campaign: Campaign) -> datetime:
    return datetime.fromisoformat(campaign.manifest["created_at"])


# The declaration


def test_a_declaration_holds_digest_time_and_content() -> None:
    document = declare(gate(), Path("results"))
    content = json.loads(Path("gate.yaml.declared.json").read_text())
    assert content["schema"] == document["schema"] == "passhat.declaration/1"
    assert content["digest"] == document["digest"] == load_gate(GATE).digest
    assert content["content"] == load_gate(GATE).content
    assert content["earlier_campaigns"] == []
    assert datetime.fromisoformat(content["declared_at"]).tzinfo is not None


def test_declaring_again_keeps_the_first_time() -> None:
    first = declare(gate(), Path("results"))
    content = declaration_path(GATE).read_bytes()
    GATE.write_text("# the same in other words\n" + GATE.read_text().replace('": ', '":   '))
    assert declare(load_gate(GATE), Path("results")) == first
    assert declaration_path(GATE).read_bytes() == content


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"rules": [{**MARGIN, "at_least": -0.06}, VETO]}, "rule margin"),
        ({"rules": [MARGIN]}, "rule veto"),
        ({"rules": [MARGIN, VETO, {"id": "more", "metric": "tasks", "at_least": 9}]}, "rule more"),
        ({"rules": [VETO, MARGIN]}, "the order of the rules"),
        ({"alpha": 0.05}, "alpha"),
        ({"candidate": "other"}, "candidate"),
    ],
)
def test_a_gate_that_was_changed_since_is_refused_with_what_changed(changed: dict[str, Any], named: str) -> None:
    declare(gate(), Path("results"))
    before = declaration_path(GATE).read_bytes()
    with pytest.raises(NotAcceptable, match=rf"^gate.yaml: changed after it was declared at .*: {named}\. Other rules"):
        declare(gate(**{"rules": [MARGIN, VETO], **changed}), Path("results"))
    assert declaration_path(GATE).read_bytes() == before


def test_a_field_that_was_taken_out_is_a_change_too() -> None:
    declare(gate(alpha=0.05, weights={"all": 1}), Path("results"))
    with pytest.raises(NotAcceptable, match=r"declared.json\): alpha, weights\. Other rules"):
        declare(gate(), Path("results"))


def test_a_declaration_that_was_edited_is_not_valid() -> None:
    declare(gate(), Path("results"))
    path = declaration_path(GATE)
    path.write_text(path.read_text().replace("-0.05", "-0.5"))
    with pytest.raises(InvalidFile, match=r"gate.yaml.declared.json  digest: found sha256:.*, but its content has sha"):
        read_declaration(path)


def test_rules_say_how_few_tasks_they_can_pass_with_and_which_never_can() -> None:
    rules = (
        MARGIN,
        {"id": "m10", "metric": "delta_attempt_rate", "at_least": -0.1},
        {"id": "floor", "metric": "attempt_rate", "at_least": 0.9},
        {"id": "certain", "metric": "attempt_rate", "at_least": 1},
        {"id": "none", "metric": "forbidden_calls", "at_most": 0, "max_rate": 0.02, "alpha": 0.05},
        {"id": "here", "metric": "delta_attempt_rate", "at_least": -0.05, "by": "estimate"},
    )
    needs = {rule["id"]: rule for rule in declare(gate(*rules), Path("results"))["rules"]}
    fewest = {name: rule["fewest_tasks"] for name, rule in needs.items()}
    assert fewest == {"margin": 72, "m10": 36, "floor": 36, "certain": None, "none": 149, "here": None}
    assert [name for name, rule in needs.items() if not rule["can_pass"]] == ["certain"]


def test_campaigns_that_hold_the_candidate_and_were_there_before_are_named() -> None:
    desk("with")
    desk("without", releases=("incumbent",))
    Path("results/broken").mkdir()
    Path("results/broken/manifest.json").write_text("{}")
    earlier = declare(gate(), Path("results"))["earlier_campaigns"]
    assert sorted(earlier) == sorted([Campaign(Path("results/with")).id, "broken"])


# How it stands to the runs


def test_without_a_declaration_a_gate_is_exploratory() -> None:
    assert standing(gate(), paired(desk("c"))) == {
        "name": "g",
        "digest": load_gate(GATE).digest,
        "file": "gate.yaml",
        "declared_at": None,
        "status": "undeclared",
        "earlier_campaigns": [],
    }


def test_before_the_runs_it_is_declared_and_after_them_exploratory() -> None:
    declare(gate(), Path("results"))
    campaign = desk("c")
    pairing = paired(campaign)
    assert standing(load_gate(GATE), pairing)["status"] == "declared"
    declared_at(created_at(campaign) + timedelta(milliseconds=1))
    assert standing(load_gate(GATE), pairing)["status"] == "exploratory"


def test_a_campaign_that_was_there_is_exploratory_whatever_the_time_is_set_to() -> None:
    campaign = desk("c")
    declare(gate(), Path("results"))
    declared_at(created_at(campaign) - timedelta(days=1))
    stands = standing(load_gate(GATE), paired(campaign))
    assert (stands["status"], stands["earlier_campaigns"]) == ("exploratory", [campaign.id])


def test_of_two_campaigns_the_candidates_counts() -> None:
    base = desk("base", releases=("incumbent",))
    declare(gate(), Path("results"))
    candidate = desk("candidate", releases=("candidate",))
    assert standing(load_gate(GATE), paired(base, candidate))["status"] == "declared"


def test_an_import_does_not_say_when_its_runs_were_made() -> None:
    declare(gate(), Path("results"))
    rows = ({"release": r, "task": "t", "run": 0, "passed": True} for r in ("incumbent", "candidate"))
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    imported = import_files([Path("rows.jsonl")], out=Path("results/import")).campaign
    assert standing(load_gate(GATE), paired(imported))["status"] == "unknown"


def test_a_gate_that_was_changed_gives_no_standing() -> None:
    declare(gate(), Path("results"))
    pairing = paired(desk("c"))
    with pytest.raises(NotAcceptable, match="rule margin"):
        standing(gate({**MARGIN, "at_least": -0.5}, VETO), pairing)


# Campaigns that are begun under a gate


def test_a_campaign_begun_under_a_gate_carries_it_whatever_clocks_and_files_say() -> None:
    document = declare(gate(), Path("results"))
    campaign = desk("c", GATE)
    seal = {name: document[name] for name in ("name", "digest", "declared_at")}
    assert campaign.manifest["gate"] == seal
    declared_at(created_at(campaign) + timedelta(days=1))
    assert standing(load_gate(GATE), paired(campaign))["status"] == "declared"
    declaration_path(GATE).unlink()
    stands = standing(load_gate(GATE), paired(campaign))
    assert (stands["status"], stands["declared_at"]) == ("declared", document["declared_at"])
    assert standing(gate(VETO), paired(campaign))["status"] == "undeclared"


def test_a_gate_is_not_chosen_among_several_after_the_runs() -> None:
    declare(gate(), Path("results"))
    other = gate(VETO, path=Path("lenient.yaml"))
    declare(other, Path("results"))
    pairing = paired(desk("c", GATE))
    assert standing(load_gate(GATE), pairing)["status"] == "declared"
    assert standing(other, pairing)["status"] == "other"


def test_a_campaign_without_a_gate_says_so() -> None:
    assert desk("c").manifest["gate"] is None


def test_runs_are_not_begun_under_a_gate_that_is_not_declared_or_was_changed() -> None:
    gate()
    with pytest.raises(NotAcceptable, match=r"gate.yaml: not declared, .*: passhat declare gate.yaml$"):
        desk("c", GATE)
    declare(load_gate(GATE), Path("results"))
    gate({**MARGIN, "at_least": -0.5}, VETO)
    with pytest.raises(NotAcceptable, match="changed after it was declared"):
        desk("c", GATE)
    assert not Path("results/c").exists()


def test_a_gate_about_other_releases_is_refused() -> None:
    declare(gate(baseline="1.0", candidate="1.1"), Path("results"))
    with pytest.raises(UsageError, match=r"--gate gate.yaml: is about 1.0 and 1.1, to be run are incumbent, candidate"):
        desk("c", GATE)


def test_resuming_asks_nothing_about_the_gate() -> None:
    declare(gate(), Path("results"))
    campaign = desk("c", GATE)
    log = campaign.log_path.read_bytes()
    campaign.log_path.write_bytes(log[: len(log) - 5])
    shutil.copytree("results/c", "results/again")
    gate(VETO)
    declaration_path(GATE).unlink()
    resumed = launch.resume(Campaign(campaign.folder), launch.Place(workers=0))
    assert {release["counts"]["missing"] for release in summarise(resumed)["releases"]} == {0}
    launch.run(desk_request(), launch.Place(workers=0), out=Path("results/again"), resume=True)
    assert Campaign(Path("results/again")).manifest["gate"]["name"] == "g"
