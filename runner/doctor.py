"""What this machine has of what passhat needs. Changes nothing."""

import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from passhat.runner.store import RESULTS

_PACKAGES = ("passhat", "ray", "msgpack", "numpy", "scipy", "pydantic", "typer")
_LITTLE_DISK_BYTES = 1 << 30


def examine() -> dict[str, Any]:
    """Return the findings (passhat.doctor/1); `state` is ok, note (works, but know it) or bad."""
    checks = [
        _check("python", platform.python_version()),
        *(_package(name) for name in _PACKAGES),
        _msgpack(),
        _check("processors", str(os.cpu_count())),
        _ray_address(),
        _bubblewrap(),
        _results(),
        _disk(),
    ]
    return {"schema": "passhat.doctor/1", "checks": checks}


def _check(name: str, found: str, state: str = "ok") -> dict[str, str]:
    return {"check": name, "state": state, "found": found}


def _package(name: str) -> dict[str, str]:
    try:
        return _check(name, version(name))
    except PackageNotFoundError:
        return _check(name, "not installed", "bad")


def _msgpack() -> dict[str, str]:
    import msgpack

    is_compiled = msgpack.Packer.__module__ == "msgpack._cmsgpack"
    return _check(
        "msgpack speedups", "compiled" if is_compiled else "pure Python: slow", "ok" if is_compiled else "note"
    )


def _ray_address() -> dict[str, str]:
    address = os.environ.get("RAY_ADDRESS")
    return _check("Ray", f"joins {address} (RAY_ADDRESS)" if address else "starts one of its own on this machine")


def _bubblewrap() -> dict[str, str]:
    from passhat.workers.confine import obstacle

    problem = obstacle()
    found = f"environments cannot be confined: {problem}" if problem else str(shutil.which("bwrap"))
    return _check("bubblewrap", found, "note" if problem else "ok")


def _results() -> dict[str, str]:
    place = RESULTS if RESULTS.exists() else Path()
    is_writable = os.access(place, os.W_OK)
    return _check("results folder", str(RESULTS.resolve()), "ok" if is_writable else "bad")


def _disk() -> dict[str, str]:
    free = shutil.disk_usage(RESULTS if RESULTS.exists() else Path()).free
    return _check("free disk", f"{free / (1 << 30):.1f} GiB", "ok" if free > _LITTLE_DISK_BYTES else "note")
