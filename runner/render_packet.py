"""What `passhat packet` prints: where the packet is and what it holds, or what speaks against one."""

from typing import Any

from passhat.runner.render import count
from passhat.runner.render_gate import WORDS
from passhat.runner.render_show import printable

Document = dict[str, Any]

_MOST_PROBLEMS = 100


def render_packet(packet: Document) -> str:
    """Return what making a packet prints."""
    verdict = WORDS[packet["verdict"]] if packet["verdict"] else "made without a gate"
    moved = f"{packet['tasks_moved']} of {count(packet['tasks'], 'task')} moved"
    events = f"{count(packet['runs_with_events'], 'run')} with a safety event"
    lines = [
        f"{packet['base']} → {packet['candidate']}   {verdict}",
        f"holds    {moved}, {events}, {count(packet['exclusions'], 'exclusion')}",
        f"page     {packet['page']}   {_size(packet['page_bytes'])}",
        f"files    {packet['files']}, {_size(packet['bytes'])}   manifest sha256:{packet['manifest_sha256']}",
        f"check    passhat packet --verify {packet['folder']}",
    ]
    return "\n".join(map(printable, lines)) + "\n"


def render_verification(verification: Document) -> str:
    """Return what `--verify` prints: one line a problem, the file first."""
    problems = verification["problems"]
    lines = [
        f"{problem['file']}  {problem['field'] + ': ' if problem['field'] else ''}{problem['problem']}"
        for problem in problems[:_MOST_PROBLEMS]
    ]
    if len(problems) > _MOST_PROBLEMS:
        lines.append(f"… and {len(problems) - _MOST_PROBLEMS} more: see --json")
    lines += [f"note  {note}" for note in verification["notes"]]
    lines.append(f"{count(verification['files'], 'file')}   manifest sha256:{verification['manifest_sha256']}")
    if problems:
        lines.append(f"{count(len(problems), 'problem')}: this packet does not say what its evidence does")
    else:
        lines.append("every file is as listed, and the evidence comes to all that the packet says")
    return "\n".join(map(printable, lines)) + "\n"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB" if size_bytes >= 100_000 else f"{size_bytes / 1e3:.1f} kB"
