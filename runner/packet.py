"""The decision packet: a folder with a page, its data, the evidence it was made from, and digests of all of it.

What a packet says is a function of its evidence alone, so that verifying it is making it again. Nothing in it depends
on when or where it was made: the same records give the same bytes.
"""

import csv
import hashlib
import io
import json
import shutil
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from passhat.runner.declaration import declaration_path, read_declaration, refuse_change
from passhat.runner.errors import Incomplete, UsageError
from passhat.runner.files import read_json
from passhat.runner.gate_file import Gate, load_gate
from passhat.runner.packet_data import COLUMNS, EVIDENCE, GATE, REQUEST, REQUEST_SCHEMA, Contents, read_contents
from passhat.runner.packet_page import render_pages
from passhat.runner.pairing import choose
from passhat.runner.store import Campaign
from passhat.workers.traces import copy_traces

SCHEMA = "passhat.packet/1"
MANIFEST = "manifest.json"
PAGE = "index.html"

_CAMPAIGN_FILES = ("manifest.json", "plan.mpk", "records.mpk", "events.jsonl")
_VERSIONS = ("passhat", "numpy", "scipy", "matplotlib", "jinja2")

Document = dict[str, Any]


def build_packet(
    campaigns: list[Campaign],
    out: Path,
    *,
    base: str | None = None,
    candidate: str | None = None,
    gate: Path | None = None,
    common: bool = False,
) -> Document:
    """Make the packet of two releases in a new folder, whole or not at all; return what it holds (passhat.packet/1)."""
    if out.exists():
        raise UsageError(f"{out} exists already; choose another --out")
    if gate is not None:
        if common:
            raise UsageError("--common compares a part, and a gate decides on the whole: leave one of them out")
        base, candidate = _gate_as_declared(gate).names(base, candidate, campaigns=len(campaigns))
    sides = choose(campaigns, base, candidate)
    names = ["campaign"] if len(campaigns) == 1 else ["base", "candidate"]
    request = {
        "schema": REQUEST_SCHEMA,
        "campaigns": names,
        "base": sides[0].release,
        "candidate": sides[1].release,
        "common": common,
        "gate": gate is not None,
        "made_with": made_with(),
    }
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        _copy_evidence(part, dict(zip(names, campaigns, strict=True)), gate)
        _write(part / REQUEST, to_json(request))
        contents, files = derive(part)
        for name, data in files.items():
            _write(part / name, data)
        _write(part / MANIFEST, _manifest(part))
        part.rename(out)
    except OSError as error:
        raise Incomplete(f"{out}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return _described(out, contents)


def _gate_as_declared(path: Path) -> Gate:
    gate, declared = load_gate(path), read_declaration(declaration_path(path))
    if declared is not None:
        refuse_change(gate, declared)
    return gate


def made_with() -> dict[str, str]:
    """Return the versions that a packet's bytes depend on."""
    return {name: version(name) for name in _VERSIONS}


def _copy_evidence(packet: Path, campaigns: Mapping[str, Campaign], gate: Path | None) -> None:
    for name, campaign in campaigns.items():
        folder = packet / EVIDENCE / name
        folder.mkdir(parents=True)
        for file in _CAMPAIGN_FILES:
            if (campaign.folder / file).exists():
                shutil.copyfile(campaign.folder / file, folder / file)
        copy_traces(campaign.traces, folder / "traces")
    if gate is not None:
        shutil.copyfile(gate, packet / GATE)
        if declaration_path(gate).exists():
            shutil.copyfile(declaration_path(gate), declaration_path(packet / GATE))


def derive(packet: Path) -> tuple[Contents, dict[str, bytes]]:
    """Compute everything in a packet but evidence and manifest, by name of the file."""
    with TemporaryDirectory() as scratch:
        contents = read_contents(packet, Path(scratch))
        files = {f"data/{name}.json": to_json(document) for name, document in contents.documents().items()}
        files |= {f"data/{name}.csv": _csv(name, rows) for name, rows in contents.tables.items()}
        evidence = {path: entry["sha256"] for path, entry in digests_of(packet) if path.startswith(f"{EVIDENCE}/")}
        data = {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
        files |= render_pages(contents, {**data, **evidence})
        return contents, files


def to_json(document: Document) -> bytes:
    return json.dumps(document, indent=1, allow_nan=False).encode() + b"\n"


def _csv(name: str, rows: list[Document]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else COLUMNS[name], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def digests_of(packet: Path) -> Iterator[tuple[str, Document]]:
    """Yield every file of a packet but the manifest, with its size and digest."""
    names = sorted(path.relative_to(packet).as_posix() for path in packet.rglob("*") if not path.is_dir())
    for name in names:
        if name != MANIFEST:
            with (packet / name).open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
                yield name, {"bytes": stream.tell(), "sha256": digest}


def _manifest(packet: Path) -> bytes:
    return to_json({"schema": SCHEMA, "files": dict(digests_of(packet))})


def _described(packet: Path, contents: Contents) -> Document:
    manifest, page, tables = packet / MANIFEST, packet / PAGE, contents.tables
    files = read_json(manifest)["files"]
    return {
        "schema": SCHEMA,
        "folder": str(packet),
        "page": str(page),
        "page_bytes": page.stat().st_size,
        "files": len(files),
        "bytes": sum(file["bytes"] for file in files.values()),
        "manifest_sha256": hashlib.sha256(manifest.read_bytes()).hexdigest(),
        "verdict": contents.verdict["verdict"] if contents.verdict else None,
        "base": contents.comparison["base"],
        "candidate": contents.comparison["candidate"],
        "tasks": contents.comparison["tasks"],
        "tasks_moved": len(contents.comparison["moves"]),
        "runs_with_events": len(tables["events"]),
        "exclusions": len(tables["exclusions"]),
    }
