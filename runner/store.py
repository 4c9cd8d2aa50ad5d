"""The campaign folder: what lies where, the log that is the truth, and who may write.

    manifest.json   what was to be run, under which policies, with which versions; never changed
    plan.mpk        every planned run
    records.mpk     the log: a header frame, then frames of records as the workers sent them
    columns.mpk     a cache made from the log
    traces/         what was kept of single runs, unless the manifest names another place
    events.jsonl    starts, losses, retries, interruptions, resumes

Plan and manifest are on disk before the first run. One process writes, whoever reads never waits. A frame that a
crash cut short is the log's torn tail: readers pass over it and say so, the next writer takes it off.
"""

import json
import os
import secrets
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import msgpack
from filelock import FileLock, Timeout

from passhat.runner.errors import Incomplete, InvalidFile, NotAcceptable, UsageError
from passhat.runner.plan import Plan
from passhat.workers import frames
from passhat.workers.records import FIELDS, SCHEMA_VERSION, fields_of

MANIFEST_SCHEMA = "passhat.manifest/1"
RESULTS = Path("results")
_LATEST = "latest"


class Campaign:
    """A campaign folder that exists."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log_path = folder / "records.mpk"
        self.cache_path = folder / "columns.mpk"
        self._events = folder / "events.jsonl"

    @cached_property
    def manifest(self) -> dict[str, Any]:
        path = self.folder / "manifest.json"
        try:
            data: dict[str, Any] = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            raise InvalidFile(f"{self.folder}: no campaign here (manifest.json is missing)") from None
        except (OSError, ValueError) as error:
            raise InvalidFile(f"{path}: cannot be read: {error}") from None
        if not isinstance(data, dict) or data.get("schema") != MANIFEST_SCHEMA:
            raise InvalidFile(f"{path}: not a manifest of schema {MANIFEST_SCHEMA}")
        return data

    @cached_property
    def plan(self) -> Plan:
        path = self.folder / "plan.mpk"
        try:
            with path.open("rb") as stream:
                return Plan.from_data(msgpack.unpackb(frames.read_one(stream)))
        except (OSError, ValueError) as error:
            raise InvalidFile(f"{path}: cannot be read: {error}") from None

    @property
    def id(self) -> str:
        return str(self.manifest["id"])

    @property
    def traces(self) -> str:
        """Folder or URL of the traces: where the manifest says, unless they have been brought here."""
        own, place = self.folder.resolve() / "traces", self.manifest.get("traces")
        return str(own) if place is None or own.exists() else f"{place}/{self.id}"

    def note(self, event: str, **details: Any) -> None:
        """Add an event to the campaign's history; where it cannot be written the campaign goes on without it."""
        with suppress(OSError):
            self.write_event(event, **details)

    def write_event(self, event: str, **details: Any) -> None:
        """Add an event to the campaign's history, on a line of its own even after one that a crash cut short."""
        line = json.dumps({"at": now(), "event": event, **details}).encode()
        with self._events.open("a+b") as stream:
            if stream.tell():
                stream.seek(-1, os.SEEK_END)
                line = line if stream.read() == b"\n" else b"\n" + line
            stream.write(line + b"\n")

    def events(self) -> list[dict[str, Any]]:
        """Return the history, without the lines that a crash cut short."""
        try:
            lines = self._events.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        return [event for line in lines if (event := _event(line)) is not None]


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def now() -> str:
    """Return the time in UTC, to the millisecond, in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def new_id() -> str:
    """Return an id that sorts by time and ends at random."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


def refuse_taken(folder: Path) -> None:
    """Raise UsageError when a folder cannot be a new campaign's."""
    if (folder / "manifest.json").exists() or (folder / "records.mpk").exists():
        raise UsageError(f"{folder} holds a campaign already; choose another --out, or continue it with --resume")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; --out names a folder")


def create(folder: Path | None, plan: Plan, manifest: dict[str, Any], log: Iterable[bytes] = ()) -> Campaign:
    """Make a campaign folder with plan, manifest and a log of these frames; refuse one that holds a campaign already.

    It is there whole or not at all. Without a folder it is results/<id>, and results/latest leads to it.
    """
    campaign_id = new_id()
    target = RESULTS / campaign_id if folder is None else folder
    campaign = Campaign(target)
    content = {"schema": MANIFEST_SCHEMA, "id": campaign_id, "created_at": now(), **manifest}
    header = frames.wrap(msgpack.packb({"schema": SCHEMA_VERSION, "fields": FIELDS}))
    contents = {
        target / "plan.mpk": frames.wrap(msgpack.packb(plan.to_data())),
        campaign.log_path: b"".join([header, *log]),
        # the last one: with it the folder holds a campaign
        target / "manifest.json": json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n",
    }
    made: list[Path] = []
    try:
        refuse_taken(target)
        target.mkdir(parents=True, exist_ok=True)
        for path, data in contents.items():
            write_whole(path, data)
            made.append(path)
    except OSError as error:
        with suppress(OSError):
            for path in made:
                path.unlink()
        raise UsageError(f"{target}: cannot be written to: {error.strerror or error}") from None
    if folder is None:
        _point_latest_at(target)
    return campaign


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that after a crash it is there whole or not at all."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def _point_latest_at(folder: Path) -> None:
    link = folder.parent / _LATEST
    part = folder.parent / f".{_LATEST}-{os.getpid()}"
    part.unlink(missing_ok=True)
    try:
        part.symlink_to(folder.name)
        part.replace(link)
    except OSError:
        part.unlink(missing_ok=True)  # a file system without links: RUN has to be given


def find(run: Path | None) -> Campaign:
    """Return the campaign in a folder, by its id under results/, or the latest one."""
    folder = RESULTS / _LATEST if run is None else run
    if run is not None and not folder.exists() and (RESULTS / run).exists():
        folder = RESULTS / run
    if not folder.exists():
        missing = "no campaign yet: results/latest is missing" if run is None else f"{run}: no such campaign folder"
        raise InvalidFile(missing)
    campaign = Campaign(folder.resolve() if run is None else folder)
    _ = campaign.manifest
    return campaign


def find_all(results: Path = RESULTS) -> list[Campaign]:
    """Return the campaigns under a results folder, oldest first."""
    if not results.is_dir():
        return []
    return [Campaign(f) for f in sorted(results.iterdir()) if not f.is_symlink() and _may_hold_campaign(f)]


def _may_hold_campaign(folder: Path) -> bool:
    try:
        return (folder / "manifest.json").exists()
    except OSError:
        return True  # whoever reads it will hear why it cannot be read


@dataclass(frozen=True, slots=True)
class Log:
    """The bytes of a log and its frames; `torn_at` is the offset of a tail that a crash cut short."""

    schema: int  # of its records
    data: bytes
    payloads: list[memoryview]  # without the header
    end: int  # where the last whole frame ends
    torn_at: int | None


def read_log(campaign: Campaign) -> Log:
    """Return the log; raise NotAcceptable when it is damaged elsewhere than at its tail."""
    path = campaign.log_path
    try:
        data = path.read_bytes()
        payloads, end = frames.split(data)
        header = msgpack.unpackb(payloads[0]) if payloads else None
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be read: {error.strerror}") from None
    except (frames.DamagedFrame, ValueError) as error:
        raise NotAcceptable(f"{path}: {error}") from None
    found = header.get("schema") if isinstance(header, dict) else "no header"
    known = {schema: list(fields_of(schema)) for schema in range(1, SCHEMA_VERSION + 1)}
    if found not in known or header != {"schema": found, "fields": known[found]}:
        raise NotAcceptable(f"{path}: found record schema {found}, this version reads 1 to {SCHEMA_VERSION}")
    return Log(found, data, payloads[1:], end, None if end == len(data) else end)


class LogWriter:
    """The only one who appends to a log. Made by `writing`."""

    def __init__(self, path: Path, end: int) -> None:
        self._path = path
        self._fd = os.open(path, os.O_WRONLY)
        self._end = end
        self._synced = end
        os.ftruncate(self._fd, end)

    def append(self, frame: bytes) -> None:
        """Write a frame; raise Incomplete, with the log whole up to the frame before, when it cannot be written."""
        with _writes_to(self._path):
            try:
                written = 0
                while written < len(frame):
                    written += os.pwrite(self._fd, memoryview(frame)[written:], self._end + written)
            except OSError:
                os.ftruncate(self._fd, self._end)
                raise
        self._end += len(frame)

    def sync(self) -> None:
        """Have what was written survive a loss of power; raise Incomplete when that cannot be had."""
        if self._synced != self._end:
            with _writes_to(self._path):
                os.fsync(self._fd)
            self._synced = self._end

    def close(self) -> None:
        try:
            self.sync()
        finally:
            os.close(self._fd)


@contextmanager
def _writes_to(path: Path) -> Iterator[None]:
    """Turn an error of the disk into Incomplete, which names the path."""
    try:
        yield
    except OSError as error:
        cause = error.strerror or error
        raise Incomplete(f"{path}: cannot be written to: {cause}; what was written is kept") from None


_LOCK, _WRITER = ".lock", ".writer"
_LOOK_S = 0.1  # longer than whoever looks for a writer holds the lock


def writer_of(campaign: Campaign) -> str | None:
    """Return who writes a campaign at this moment; None when nobody does."""
    try:
        who = (campaign.folder / _WRITER).read_text()
    except OSError:
        return None
    try:
        with FileLock(campaign.folder / _LOCK, timeout=0):
            return None  # left behind by one that was killed
    except (Timeout, OSError):
        return who


@contextmanager
def writing(campaign: Campaign) -> Iterator[tuple[LogWriter, Log]]:
    """Hold the campaign for writing, with its torn tail taken off; give the writer and the log as it was.

    Raise NotAcceptable for a log of an older schema: its records and new ones would not be of one kind.
    """
    lock = FileLock(campaign.folder / _LOCK)
    holder = campaign.folder / _WRITER
    with _writes_to(campaign.folder):
        try:
            lock.acquire(timeout=_LOOK_S)
        except Timeout:
            who = holder.read_text() if holder.exists() else "unknown"
            raise UsageError(f"{campaign.folder}: another process writes this campaign ({who})") from None
    try:
        with _writes_to(campaign.folder):
            holder.write_text(f"process {os.getpid()} on {socket.gethostname()}")
            log = read_log(campaign)
            if log.schema != SCHEMA_VERSION:
                raise NotAcceptable(
                    f"{campaign.log_path}: record schema {log.schema} can be read but not continued: "
                    f"this version writes {SCHEMA_VERSION}"
                )
            if log.torn_at is not None:
                campaign.write_event("torn_tail", offset=log.torn_at, bytes=len(log.data) - log.torn_at)
            writer = LogWriter(campaign.log_path, log.end)
        try:
            yield writer, log
        finally:
            writer.close()
    finally:
        with suppress(OSError):
            holder.unlink(missing_ok=True)
        lock.release()
