"""Objects of a user's own, named "module:function" in suite and release files, checked before a worker needs them."""

import contextlib
import importlib
import importlib.machinery
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from passhat.runner.errors import InvalidFile
from passhat.runner.files import nearest
from passhat.workers.loading import file_digest
from passhat.workers.session import describe

_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def is_target(text: str) -> bool:
    """Whether a text has the form "module:function"."""
    return _TARGET.fullmatch(text) is not None


def check_target(target: str, folders: Sequence[Path]) -> None:
    """Raise InvalidFile unless "module:function" can be imported, with the folders searched first, and called.

    What the user's code prints while it is imported goes to stderr; of its errors, text and place are told, never the
    values of variables.
    """
    module_name, _, name = target.partition(":")
    with _searching(folders), contextlib.redirect_stdout(sys.stderr):
        module = _import(module_name, target, folders)
    if not hasattr(module, name):
        public = [known for known in vars(module) if not known.startswith("_")]
        raise InvalidFile(f"{target}: {module.__file__} has no {name}; {nearest(name, public)}")
    value: Any = getattr(module, name)
    if not callable(value):
        raise InvalidFile(f"{target}: found {type(value).__name__}, expected a function")
    if inspect.iscoroutinefunction(value):
        raise InvalidFile(f"{target}: found an async function, expected an ordinary one")


def refuse_ambiguous_modules(folders: Sequence[Path]) -> None:
    """Raise InvalidFile when two folders hold different modules of one name.

    All releases run in one process, which can load only one of them: the other release would silently run with it.
    """
    first: dict[str, Path] = {}
    for folder in dict.fromkeys(folder.resolve() for folder in folders):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if not _is_module(path):
                continue
            other = first.setdefault(path.stem, path)
            if other != path and not (path.is_file() and other.is_file() and path.read_bytes() == other.read_bytes()):
                raise InvalidFile(f"module {path.stem} of {path} cannot be used beside the one of {other}; rename one")


def _is_module(path: Path) -> bool:
    if path.stem in ("setup", "conftest") or path.stem.startswith("test_"):
        return False  # not what an agent imports
    return path.suffix == ".py" or (path / "__init__.py").is_file()


def code_digest(target: str) -> str | None:
    """Return "sha256:…" of the module file of a target that has been checked; None where it has no file.

    It covers that one file, not what the file imports.
    """
    file = getattr(sys.modules[target.partition(":")[0]], "__file__", None)
    return None if file is None else file_digest(file)


@contextlib.contextmanager
def _searching(folders: Sequence[Path]) -> Iterator[None]:
    before = list(sys.path)
    sys.path[:0] = [str(folder.resolve()) for folder in folders]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before


def _import(name: str, target: str, folders: Sequence[Path]) -> ModuleType:
    _refuse_namesake(name.partition(".")[0], target)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise InvalidFile(f"{target}: cannot be imported: {describe(error)}") from error
        known = [module.name for module in pkgutil.iter_modules(map(str, folders))]
        searched = " or ".join(map(str, folders))
        raise InvalidFile(f"{target}: no module {error.name} in {searched}; {nearest(error.name, known)}") from None
    except (Exception, SystemExit) as error:
        raise InvalidFile(f"{target}: cannot be imported: {describe(error)}") from error


def _refuse_namesake(name: str, target: str) -> None:
    """Raise InvalidFile when another module of this name is loaded: Python would silently use that one."""
    loaded = sys.modules.get(name)
    spec = importlib.machinery.PathFinder.find_spec(name)
    ours = getattr(loaded, "__file__", None)
    theirs = None if spec is None else spec.origin
    if ours and theirs and Path(ours).resolve() != Path(theirs).resolve():
        raise InvalidFile(f"{target}: module {name} of {theirs} cannot be used beside the one of {ours}; rename one")
