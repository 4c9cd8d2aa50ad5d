"""The campaign folder: nothing that was written is lost, whatever ends the process or fills the disk."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest

from passhat.runner.errors import Incomplete, InvalidFile, NotAcceptable, UsageError
from passhat.runner.plan import Plan
from passhat.runner.store import Campaign, create, find, find_all, read_log, writer_of, writing
from passhat.workers.frames import FrameHeader, pack_frame, parse, wrap
from passhat.workers.records import FIELDS, SCHEMA_VERSION, RunRecord, blank, pack_record, seal

PLAN = Plan(
    releases=("A",),
    tasks=("t",),
    cohorts=("all",),
    cohort=array("I", [0]),
    task_digests=(bytes(32),),
    runs_per_task=8,
    seed=1,
    stream="release",
)
MANIFEST = {"origin": "run", "suite": {"name": "s"}}
FOLDER = Path("c")


def record(run: int) -> RunRecord:
    return seal(blank(0, 0, run)._replace(turns=run))


def frame(run: int, note: str = "") -> bytes:
    return pack_frame(FrameHeader(0, 0, run, 1, 0.0, note), pack_record(record(run)))


def runs_in(campaign: Campaign) -> list[int]:
    return [each.run for payload in read_log(campaign).payloads for each in parse(payload).records]


@pytest.fixture
def campaign() -> Campaign:
    return create(FOLDER, PLAN, MANIFEST)


def append(campaign: Campaign, *frames: bytes) -> None:
    with writing(campaign) as (writer, _):
        for each in frames:
            writer.append(each)


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """A disk that is full beyond this size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# Making one


def test_plan_and_manifest_are_there_before_the_first_record(campaign: Campaign) -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == ["manifest.json", "plan.mpk", "records.mpk"]
    fresh = Campaign(FOLDER)
    assert fresh.plan == PLAN
    assert fresh.manifest | MANIFEST == fresh.manifest
    assert (fresh.manifest["schema"], fresh.manifest["id"]) == ("passhat.manifest/1", campaign.id)
    assert runs_in(fresh) == []
    assert fresh.events() == []


def test_a_log_begins_with_its_schema_and_the_names_of_its_fields(campaign: Campaign) -> None:
    expected = wrap(msgpack.packb({"schema": SCHEMA_VERSION, "fields": FIELDS}))
    assert campaign.log_path.read_bytes() == expected


@pytest.mark.parametrize("held", ["manifest.json", "records.mpk"])
def test_a_folder_that_holds_a_campaign_is_refused_and_left_alone(held: str) -> None:
    FOLDER.mkdir()
    (FOLDER / held).write_text("of someone else")
    with pytest.raises(UsageError, match="c holds a campaign already; choose another --out"):
        create(FOLDER, PLAN, MANIFEST)
    assert [path.name for path in FOLDER.iterdir()] == [held]
    assert (FOLDER / held).read_text() == "of someone else"


def test_a_log_may_begin_with_frames_and_is_there_whole_or_not_at_all() -> None:
    """An import whose disk was full must not look like a campaign with missing runs."""
    frames = [frame(run) for run in range(5)]
    with largest_file(500), pytest.raises(UsageError):
        create(FOLDER, PLAN, MANIFEST, frames)
    assert list(FOLDER.iterdir()) == []
    assert runs_in(create(FOLDER, PLAN, MANIFEST, frames)) == [0, 1, 2, 3, 4]


def test_other_files_in_the_folder_are_no_obstacle() -> None:
    FOLDER.mkdir()
    (FOLDER / "notes.txt").write_text("mine")
    assert create(FOLDER, PLAN, MANIFEST).plan == PLAN
    assert (FOLDER / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("full", ["plan.mpk", "records.mpk", "manifest.json"])
def test_a_disk_that_is_full_at_the_start_leaves_nothing_behind(full: str) -> None:
    """Whichever of the files is the one that does not fit."""
    long = MANIFEST | {"sources": ["x" * 1000]}
    create(Path("d"), PLAN, long)
    size_bytes = Path("d", full).stat().st_size - 1
    with largest_file(size_bytes), pytest.raises(UsageError, match=r"^c: cannot be written to: File too large$"):
        create(FOLDER, PLAN, long)
    assert list(FOLDER.iterdir()) == []
    assert create(FOLDER, PLAN, long).plan == PLAN


def test_a_file_in_the_way_is_named() -> None:
    FOLDER.write_text("a file")
    with pytest.raises(UsageError, match=r"^c is a file; --out names a folder"):
        create(FOLDER, PLAN, MANIFEST)
    assert FOLDER.read_text() == "a file"


# Finding one


def test_without_a_folder_it_is_in_results_under_its_id_and_latest() -> None:
    first, second = create(None, PLAN, MANIFEST), create(None, PLAN, MANIFEST)
    assert first.folder == Path("results") / first.id
    assert find(None).id == second.id
    assert find(Path(first.id)).id == first.id
    assert find(first.folder).id == first.id
    assert find(Path("results/latest")).id == second.id
    assert {each.id for each in find_all()} == {first.id, second.id}


def test_find_all_passes_over_what_is_no_campaign(campaign: Campaign) -> None:
    Path("results/empty").mkdir(parents=True)
    Path("results/file").write_text("")
    Path("results/link").symlink_to(Path("c").resolve())
    kept = create(Path("results/kept"), PLAN, MANIFEST)
    assert [each.id for each in find_all()] == [kept.id]
    assert find_all(Path("nowhere")) == []


def test_what_cannot_be_found_is_named() -> None:
    with pytest.raises(InvalidFile, match="no campaign yet: results/latest is missing"):
        find(None)
    with pytest.raises(InvalidFile, match="nowhere: no such campaign folder"):
        find(Path("nowhere"))
    FOLDER.mkdir()
    with pytest.raises(InvalidFile, match="c: no campaign here"):
        find(FOLDER)


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[]", b'{"schema": "passhat.manifest/9"}', b"null"])
def test_a_manifest_that_is_none_is_refused_by_name(campaign: Campaign, content: bytes) -> None:
    (FOLDER / "manifest.json").write_bytes(content)
    with pytest.raises(InvalidFile, match=r"^c/manifest.json: "):
        find(FOLDER)


def test_a_plan_with_any_byte_flipped_is_refused_by_name(campaign: Campaign) -> None:
    """It is the denominator of everything: a cohort or a name that changed by itself must not go unseen."""
    path = FOLDER / "plan.mpk"
    whole = path.read_bytes()
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 0x01
        path.write_bytes(flipped)
        with pytest.raises(InvalidFile, match=r"c/plan.mpk: cannot be read"):
            _ = Campaign(FOLDER).plan


# Writing and reading


def test_what_is_appended_is_read_back_in_order(campaign: Campaign) -> None:
    append(campaign, frame(0), frame(1))
    append(campaign, frame(2))
    assert runs_in(campaign) == [0, 1, 2]
    assert read_log(campaign).torn_at is None


def test_a_reader_never_waits_for_the_writer(campaign: Campaign) -> None:
    with writing(campaign) as (writer, _):
        for run in range(3):
            writer.append(frame(run))
            assert runs_in(Campaign(FOLDER)) == list(range(run + 1))


def test_a_second_writer_is_refused_and_told_who_is_writing(campaign: Campaign) -> None:
    me = f"process {os.getpid()} on {socket.gethostname()}"
    with writing(campaign), pytest.raises(UsageError, match=rf"another process writes this campaign \({me}\)"):
        append(Campaign(FOLDER), frame(0))
    append(Campaign(FOLDER), frame(0))
    assert runs_in(campaign) == [0]


def test_a_writer_that_was_killed_holds_nothing(campaign: Campaign) -> None:
    code = (
        "from pathlib import Path; from passhat.runner.store import Campaign, writing\n"
        "with writing(Campaign(Path('c'))) as (writer, _):\n"
        f"    writer.append({frame(0)!r}); print('writing', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "writing\n"
        with pytest.raises(UsageError, match=f"process {other.pid}"):
            append(campaign, frame(1))
        assert writer_of(campaign) == f"process {other.pid} on {socket.gethostname()}"
        other.send_signal(signal.SIGKILL)
    assert (campaign.folder / ".writer").exists()
    assert writer_of(campaign) is None
    append(campaign, frame(1))
    assert runs_in(campaign) == [0, 1]


def test_whoever_looks_for_a_writer_is_in_no_writers_way(campaign: Campaign) -> None:
    assert writer_of(campaign) is None
    with writing(campaign):
        assert writer_of(Campaign(FOLDER)) == f"process {os.getpid()} on {socket.gethostname()}"
    assert writer_of(campaign) is None
    (campaign.folder / ".writer").write_text("process 1 on gone")  # as one that was killed leaves it
    assert writer_of(campaign) is None
    append(campaign, frame(0))
    assert runs_in(campaign) == [0]


# Torn and damaged logs


def test_a_log_that_is_cut_anywhere_in_its_last_frame_loses_that_frame_alone(campaign: Campaign) -> None:
    """Readers report the cut and change nothing; the next writer takes the tail off, says so, and goes on."""
    append(campaign, frame(0), frame(1))
    start = campaign.log_path.stat().st_size
    append(campaign, frame(2, note="é"))
    whole = campaign.log_path.read_bytes()
    for cut in range(start + 1, len(whole)):
        campaign.log_path.write_bytes(whole[:cut])
        assert read_log(campaign).torn_at == start
        assert runs_in(campaign) == [0, 1]
        assert campaign.log_path.read_bytes() == whole[:cut]
        with writing(campaign) as (writer, log):
            assert (log.torn_at, log.end) == (start, start)
            writer.append(frame(3))
        assert runs_in(campaign) == [0, 1, 3]
        event = campaign.events()[-1]
        assert (event["event"], event["offset"], event["bytes"]) == ("torn_tail", start, cut - start)
    assert len(campaign.events()) == len(whole) - start - 1


def test_a_log_that_ends_with_a_whole_frame_is_reported_as_nothing_else(campaign: Campaign) -> None:
    append(campaign, frame(0), frame(1), frame(2))
    append(campaign, frame(3))
    assert runs_in(campaign) == [0, 1, 2, 3]
    assert campaign.events() == []


def test_damage_before_the_tail_is_refused_with_its_place_and_left_as_it_is(campaign: Campaign) -> None:
    start = campaign.log_path.stat().st_size
    append(campaign, frame(0), frame(1))
    damaged = bytearray(campaign.log_path.read_bytes())
    for position in range(start, start + len(frame(0))):
        flipped = bytes(damaged[:position]) + bytes([damaged[position] ^ 0x80]) + bytes(damaged[position + 1 :])
        campaign.log_path.write_bytes(flipped)
        with pytest.raises(NotAcceptable, match=f"c/records.mpk: the frame at byte {start} "):
            read_log(campaign)
        with pytest.raises(NotAcceptable), writing(campaign):
            pass
        assert campaign.log_path.read_bytes() == flipped
    campaign.log_path.write_bytes(damaged)
    append(campaign, frame(2))
    assert runs_in(campaign) == [0, 1, 2]


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ({"schema": 99, "fields": list(FIELDS)}, "99"),
        ({"schema": 1, "fields": ["release"]}, "1"),
        ([1], "no header"),
        (None, "no header"),
    ],
)
def test_a_log_of_another_schema_is_refused_by_name(campaign: Campaign, header: Any, found: str) -> None:
    campaign.log_path.write_bytes(b"" if header is None else wrap(msgpack.packb(header)))
    with pytest.raises(NotAcceptable, match=f"c/records.mpk: found record schema {found}, this version reads 1"):
        read_log(campaign)


def test_a_log_that_is_missing_is_named(campaign: Campaign) -> None:
    campaign.log_path.unlink()
    with pytest.raises(InvalidFile, match=r"c/records.mpk: cannot be read: No such file"):
        read_log(campaign)


# Disks


def test_a_full_disk_ends_it_as_incomplete_and_keeps_every_frame_before(campaign: Campaign) -> None:
    append(campaign, frame(0))
    size = campaign.log_path.stat().st_size
    with largest_file(size + 20), pytest.raises(Incomplete, match=r"c/records.mpk: cannot be written to: .*is kept"):
        append(campaign, frame(1))
    assert campaign.log_path.stat().st_size == size
    append(campaign, frame(2))
    assert runs_in(campaign) == [0, 2]


def test_a_frame_that_still_fits_after_one_that_did_not_leaves_no_hole(campaign: Campaign) -> None:
    large, small = frame(1, note="x" * 500), frame(2)
    with writing(campaign) as (writer, log):
        with largest_file(log.end + len(small) + 50):
            with pytest.raises(Incomplete):
                writer.append(large)
            writer.append(small)
        writer.append(frame(3))
    assert runs_in(campaign) == [2, 3]
    assert read_log(campaign).torn_at is None


def test_a_full_disk_keeps_a_torn_tail_until_it_can_be_noted(campaign: Campaign) -> None:
    append(campaign, frame(0))
    torn = campaign.log_path.read_bytes()[:-1]
    campaign.log_path.write_bytes(torn)
    with largest_file(10), pytest.raises(Incomplete, match=r"^c: cannot be written to"), writing(campaign):
        pass
    assert campaign.log_path.read_bytes() == torn
    append(campaign, frame(1))
    assert runs_in(campaign) == [1]


READ_ONLY = """
import os
from pathlib import Path
from passhat.runner.errors import Incomplete, UsageError
from passhat.runner.report import load_account
from passhat.runner.store import Campaign, create, writing

campaign = Campaign(Path("."))
os.chmod(".", 0o555)
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
account, torn_at = load_account(campaign)
print(len(account.columns), torn_at)
campaign.note("somebody looked")
for attempt in (lambda: writing(campaign).__enter__(), lambda: create(Path("new"), campaign.plan, {})):
    try:
        attempt()
    except (Incomplete, UsageError) as error:
        print(int(error.exit_code), error)
"""


def test_a_read_only_folder_can_be_read_and_refuses_a_writer_by_name(campaign: Campaign) -> None:
    append(campaign, frame(0))
    before = {path.name: path.read_bytes() for path in FOLDER.iterdir()}
    try:
        ended = subprocess.run(
            [sys.executable, "-c", READ_ONLY], cwd=FOLDER, capture_output=True, text=True, check=True
        )
    finally:
        FOLDER.chmod(0o755)
    assert ended.stdout.splitlines() == [
        "1 None",
        "6 .: cannot be written to: Permission denied; what was written is kept",
        "2 new: cannot be written to: Permission denied",
    ]
    assert {path.name: path.read_bytes() for path in FOLDER.iterdir()} == before


# The history


def test_events_are_lines_of_json_with_the_time(campaign: Campaign) -> None:
    campaign.note("start", slots=2, where="nöwhere", pid=1)
    [event] = campaign.events()
    assert event.pop("at").endswith("Z")
    assert event == {"event": "start", "slots": 2, "where": "nöwhere", "pid": 1}


def test_an_event_that_a_crash_cut_short_spoils_no_other(campaign: Campaign) -> None:
    path = FOLDER / "events.jsonl"
    for name in ("start", "worker_lost"):
        campaign.note(name, cause="é")
    whole = path.read_bytes()
    second = whole.index(b"\n") + 1
    for cut in range(second, len(whole)):
        path.write_bytes(whole[:cut])
        campaign.note("start again")
        names = [event["event"] for event in campaign.events()]
        assert [name for name in names if name != "worker_lost"] == ["start", "start again"]
        assert json.loads(path.read_bytes().split(b"\n")[-2])["event"] == "start again"


def test_an_event_that_cannot_be_written_ends_nothing(campaign: Campaign) -> None:
    with largest_file(0):
        campaign.note("start")
    assert campaign.events() == []
    campaign.note("end")
    assert [event["event"] for event in campaign.events()] == ["end"]
