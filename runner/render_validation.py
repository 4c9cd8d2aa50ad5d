"""What `passhat suite validate` prints: the tasks by cohort and template, and every rejection with its reason.

Knows the document only.
"""

from collections.abc import Iterator
from typing import Any

from passhat.runner.render import short, table


def render_validation(document: dict[str, Any]) -> str:
    """Return the validation of a suite as text."""
    return "\n".join(_lines(document)) + "\n"


def _lines(document: dict[str, Any]) -> Iterator[str]:
    suite, examined, admitted = document["suite"], document["examined"], document["admitted"]
    yield f"suite    {suite['name']} {suite['version']}   {short(suite['digest'])}   environment {suite['environment']}"
    yield f"tasks    {examined} examined, {admitted} admitted, {examined - admitted} rejected"
    for check, tasks in document["unchecked"].items():
        yield f"         not checked for want of an oracle: {check}, in {tasks} of {examined} tasks"
    yield ""
    templates = document["templates"]
    width = max(len(place["cohort"]) for place in templates)
    rows = [(f"{'cohort':<{width}}  template", "tasks", "admitted")]
    for place in templates:
        name = f"{place['cohort']:<{width}}  {place['template'] or '—'}"
        rows.append((name, str(place["tasks"]), str(place["admitted"])))
    yield from table(rows)
    if document["rejected"]:
        yield ""
        yield "rejected"
    for problem in document["rejected"]:
        yield f"  {problem['task']}  {problem['check']}: {problem['reason']}"
