"""The declaration of a gate: that its rules were fixed, and when, in a file of its own beside it.

A verdict says how the declaration and the runs stand in time. A gate whose content has changed since is refused: other
rules need another name and another declaration.
"""

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from passhat.runner.errors import InvalidFile, NotAcceptable, PasshatError, UsageError
from passhat.runner.files import Document as FileDocument
from passhat.runner.files import read_json, validate
from passhat.runner.gate_file import Gate, Kind, Rule, digest_of
from passhat.runner.gate_words import required
from passhat.runner.pairing import Pairing
from passhat.runner.store import Campaign, find_all, now
from passhat.stats.planning import fewest_tasks_for_margin

SCHEMA: Literal["passhat.declaration/1"] = "passhat.declaration/1"

Document = dict[str, Any]


class Declaration(BaseModel):
    """What was declared, and when: the content of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    document: Literal["passhat.declaration/1"] = Field(alias="schema")
    name: str
    digest: str
    declared_at: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]  # in UTC
    content: dict[str, Any]
    earlier_campaigns: list[str]  # that were there already and hold the candidate


def declaration_path(gate: Path) -> Path:
    """Where the declaration of a gate file lies: release.yaml → release.yaml.declared.json."""
    return gate.with_name(f"{gate.name}.declared.json")


def declare(gate: Gate, results: Path) -> Document:
    """Write the declaration of a gate, or find that it stands; return it with what is known at this time.

    Raise NotAcceptable when other rules were declared under this file name.
    """
    path = declaration_path(gate.path)
    rules = [_needs(rule) for rule in gate.rules]
    declared = read_declaration(path)
    if declared is not None:
        refuse_change(gate, declared)
    else:
        at = now()
        declared = Declaration(
            schema=SCHEMA,
            name=gate.file.name,
            digest=gate.digest,
            declared_at=at,
            content=gate.content,
            earlier_campaigns=_earlier(gate, results, at),
        )
        try:
            with path.open("x", encoding="utf-8") as stream:
                stream.write(declared.model_dump_json(by_alias=True, indent=1) + "\n")
        except OSError as error:
            raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
    return {**declared.model_dump(by_alias=True, exclude={"content"}), "file": str(path), "rules": rules}


def _needs(rule: Rule) -> Document:
    """A rule, with the fewest tasks with which it can pass at all: fewer need not be run."""
    fewest, can_pass = None, True
    if rule.reads_bound and rule.file.interval == "task-dirichlet" and not rule.file.standardised:
        room = _room(rule.kind, rule.is_floor, float(rule.threshold))
        can_pass = room > 0 or (rule.kind is Kind.DIFFERENCE and room > -1)
        fewest = fewest_tasks_for_margin(room, rule.alpha) if 0 < room < 1 else None
    if rule.file.max_rate is not None:
        fewest = fewest_tasks_for_margin(rule.file.max_rate, rule.alpha)
    return {
        "id": rule.file.id,
        "metric": rule.file.metric,
        "cohort": rule.file.cohort,
        "required": required(rule),
        "alpha": rule.alpha if rule.reads_bound or rule.file.max_rate else None,
        "fewest_tasks": fewest,
        "can_pass": can_pass,
    }


def _room(kind: Kind, is_floor: bool, threshold: float) -> float:
    """How far the threshold lies from the best that is likely: no difference, or a rate of 1 (0 for a ceiling)."""
    if kind is Kind.DIFFERENCE:
        return -threshold if is_floor else threshold
    return 1 - threshold if is_floor else threshold


def _earlier(gate: Gate, results: Path, declared_at: str) -> list[str]:
    """Campaigns that were there before and hold the candidate, or any where the gate names none."""
    earlier = []
    for campaign in find_all(results):
        try:
            is_earlier = campaign.manifest["created_at"] <= declared_at
            if is_earlier and gate.file.candidate in (None, *campaign.plan.releases):
                earlier.append(campaign.id)
        except (PasshatError, KeyError):
            earlier.append(campaign.folder.name)  # whatever it holds, it was there
    return earlier


def read_declaration(path: Path) -> Declaration | None:
    """Return what a declaration file says, None when there is none; raise InvalidFile for one that was edited."""
    if not path.exists():
        return None
    declared = validate(Declaration, FileDocument(path, read_json(path), {}))
    if digest_of(declared.content) != declared.digest:
        raise InvalidFile(f"{path}  digest: found {declared.digest}, but its content has {digest_of(declared.content)}")
    return declared


def refuse_change(gate: Gate, declared: Declaration) -> None:
    """Raise NotAcceptable when the gate is not what was declared, with the parts that differ."""
    if gate.digest == declared.digest:
        return
    now_says, then_said = gate.content, declared.content
    fields = {**then_said, **now_says}.keys() - {"rules"}
    changed = sorted(field for field in fields if now_says.get(field) != then_said.get(field))
    rules = [{rule["id"]: rule for rule in content.get("rules", [])} for content in (now_says, then_said)]
    changed += [f"rule {name}" for name in {**rules[1], **rules[0]} if rules[0].get(name) != rules[1].get(name)]
    raise NotAcceptable(
        f"{gate.path}: changed after it was declared at {declared.declared_at} ({declaration_path(gate.path)}): "
        f"{', '.join(changed) or 'the order of the rules'}. Other rules need a file of another name"
    )


def sealed(gate: Gate) -> Document:
    """Return what a campaign keeps of the gate it is begun under; raise NotAcceptable unless it stands declared."""
    declared = read_declaration(declaration_path(gate.path))
    if declared is None:
        again = f"passhat declare {shlex.quote(str(gate.path))}"
        raise NotAcceptable(f"{gate.path}: not declared, and runs can only be begun under a gate that is: {again}")
    refuse_change(gate, declared)
    return {"name": gate.file.name, "digest": gate.digest, "declared_at": declared.declared_at}


def standing(gate: Gate, pairing: Pairing) -> Document:
    """Say how gate, declaration and runs stand in time; raise NotAcceptable when the gate was changed since.

    `status`: "declared" before the candidate's runs, "exploratory" after them, "undeclared", or "unknown" where the
    runs come from an import, which does not say when they were made. A campaign that carries the gate's digest was
    begun under it, whatever clocks and declaration files say; one that carries another's was not: "other".
    """
    declared = read_declaration(declaration_path(gate.path))
    if declared is not None:
        refuse_change(gate, declared)
    candidate = pairing.candidate.campaign
    seal = candidate.manifest.get("gate") or {}
    at, status = (declared.declared_at, _status(declared, candidate)) if declared else (None, "undeclared")
    if seal.get("digest") == gate.digest:
        at, status = seal["declared_at"], "declared"
    return {
        "name": gate.file.name,
        "digest": gate.digest,
        "file": str(gate.path),
        "declared_at": at,
        "status": status,
        "earlier_campaigns": declared.earlier_campaigns if declared else [],
    }


def _status(declared: Declaration, candidate: Campaign) -> str:
    manifest = candidate.manifest
    if manifest.get("gate"):
        return "other"
    if candidate.id in declared.earlier_campaigns or declared.declared_at > manifest["created_at"]:
        return "exploratory"
    return "declared" if manifest["origin"] == "run" else "unknown"
