"""What `passhat init` writes: a small suite with its world, an agent, a release and a gate, for others to grow from.

The files themselves lie in starter/. With them come the JSON Schemas that their first lines name, for editors.
"""

import json
from pathlib import Path
from typing import Any

from passhat.runner.errors import UsageError
from passhat.runner.schemas import schema

_STARTER = Path(__file__).with_name("starter")
_FILES = ("suite.yaml", "tasks.jsonl", "shop_world.py", "release.yaml", "shop_agent.py", "gate.yaml")
_SCHEMAS = ("suite", "release", "gate")


def write_starter_files(folder: Path, *, force: bool = False) -> dict[str, Any]:
    """Write the files into a folder and return which (passhat.init/1).

    UsageError, and nothing written, where one of them is there already and `force` does not say to overwrite it.
    """
    contents = {name: (_STARTER / name).read_bytes() for name in _FILES}
    contents |= {f"schemas/{kind}.json": json.dumps(schema(kind), indent=1).encode() + b"\n" for kind in _SCHEMAS}
    taken = [str(folder / name) for name in contents if (folder / name).exists()]
    if taken and not force:
        raise UsageError(f"{', '.join(taken)}: there already; --force overwrites")
    try:
        for name, data in contents.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written to: {error.strerror or error}") from None
    return {"schema": "passhat.init/1", "folder": str(folder), "files": list(contents)}
