"""Gets what a work order names: the built-in environment, or an object of a module of the user's own."""

import hashlib
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from passhat.workers.environment import Environment
from passhat.workers.session import describe

T = TypeVar("T")

DESK = "desk"  # the built-in environment


class WorkerError(Exception):
    """The work cannot be done here, whatever the run: an agent that cannot be imported, a full disk."""


def load_object(target: str) -> Any:
    """Return what "module:name" names; raise WorkerError that says which part is missing."""
    module_name, _, name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise WorkerError(f"{target}: cannot import {module_name!r}: {describe(error)}") from error
    try:
        return getattr(module, name)
    except AttributeError:
        raise WorkerError(f"{target}: {module_name!r} has no {name!r}") from None


def file_digest(path: str) -> str:
    """Return "sha256:…" of a file."""
    return f"sha256:{hashlib.sha256(Path(path).read_bytes()).hexdigest()}"


def check_code(planned: Mapping[str, str]) -> None:
    """Raise WorkerError when a module's file is not the one that was planned with: another wheel, an edited file.

    Nothing is imported but the packages that modules are in; what is not here at all is found out when it is loaded.
    """
    for target, digest in planned.items():
        try:
            spec = importlib.util.find_spec(target.partition(":")[0])
        except (Exception, SystemExit):  # of a package it is in; loading it tells
            continue
        if spec is not None and spec.has_location and spec.origin and file_digest(spec.origin) != digest:
            raise WorkerError(f"{target}: {spec.origin} is not what the campaign was begun with")


def build_environment(target: str) -> Environment:
    """Return an instance of the built-in desk, or of the user's "module:factory"."""
    if target == DESK:
        from passhat.workers.desk import Desk

        return Desk()
    environment: Environment = set_up(target, load_object(target))
    return environment


def set_up(target: str, step: Callable[[], T]) -> T:
    """Carry out a step of setting up the user's environment; raise WorkerError when it cannot be done."""
    try:
        return step()
    except (Exception, SystemExit) as error:
        raise WorkerError(f"{target}: the environment cannot be set up: {describe(error)}") from error
