"""What `passhat check-env` prints: every check with its promise, and of one that failed what was found, and where.

Knows the document only.
"""

import json
from collections.abc import Iterator
from typing import Any

from passhat.runner.render import count, entry

Document = dict[str, Any]

_STATES = {"pass": "ok", "fail": "FAILED", "note": "note", "skipped": "skipped"}
_NAME = 22


def render_check(document: Document) -> str:
    """Return the examination of an environment as text."""
    return "\n".join(line.rstrip() for line in _lines(document)) + "\n"


def _lines(document: Document) -> Iterator[str]:
    environment, tools = document["environment"], document["tools"]
    calls = sum(tool["calls"] for tool in tools.values())
    yield f"environment   {environment['name']} {environment['version']}   {environment['target']}"
    tried = f"{count(document['runs'], 'run')} in {count(document['worlds'], 'world')}"
    yield f"tried         {tried}: {count(calls, 'call')} of {count(len(tools), 'tool')}, each run again in other ways"
    barren = [name for name, tool in tools.items() if not tool["answered"]]
    if not document["runs"]:
        yield from entry("no world", "none could be reset: name others with --suite or --world")
    elif barren:
        yield from entry("never done", f"{', '.join(barren)}: no call went through, so little is known of what it does")
    yield ""
    for check in document["checks"]:
        yield f"{_STATES[check['state']]:<9}{check['check']:<{_NAME}}{check['promise']}"
        if check["found"]:
            yield from entry("", check["found"])
        if check["first"]:
            yield from entry("", _where(check["first"], check["times"]))
    failed = [check["check"] for check in document["checks"] if check["state"] == "fail"]
    yield ""
    summary = f"{len(failed)} of {len(document['checks'])} checks failed: {', '.join(failed)}"
    yield summary if failed else "nothing speaks against this environment"


def _where(first: Document, times: int) -> str:
    """Name the call that showed it first."""
    what = first["tool"] and f" {first['tool']} {json.dumps(first['arguments'], ensure_ascii=False)}"
    step = f"call {first['call']}" if first["tool"] else "the end" if first["call"] else "the reset"
    often = f"   ({times} times in all)" if times > 1 else ""
    return f"at {step} in world {first['world']}, seed {first['seed']}{':' if what else ''}{what}{often}"
