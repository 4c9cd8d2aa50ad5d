"""Who may import whom (style.md, "Who knows what"), and what a command costs before it does anything."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[1]
FOLDERS = ("runner", "workers", "stats")
RAY_MODULES = {"runner/dispatch.py", "workers/actor.py"}
HEAVY = ("ray", "numpy", "scipy", "matplotlib", "jinja2", "pandas")


def modules() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (TOP / folder).rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Every module a file imports, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def uses(path: Path, package: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for name in imported(path))


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(TOP).as_posix())
def test_imports_run_one_way(path: Path) -> None:
    folder = path.relative_to(TOP).parts[0]
    forbidden = {"runner": (), "workers": ("runner", "stats"), "stats": ("runner", "workers")}[folder]
    assert [name for name in forbidden if uses(path, f"passhat.{name}")] == []


def test_only_two_modules_import_ray() -> None:
    assert {path.relative_to(TOP).as_posix() for path in modules() if uses(path, "ray")} == RAY_MODULES


def test_statistics_do_no_input_or_output() -> None:
    allowed = {"numpy", "scipy", "passhat", "bisect", "collections", "dataclasses", "itertools", "functools", "math"}
    for path in (TOP / "stats").rglob("*.py"):
        roots = {name.split(".")[0] for name in imported(path)}
        assert roots <= allowed, path


def test_records_can_be_read_with_the_standard_library_and_msgpack_alone() -> None:
    roots = {name.split(".")[0] for name in imported(TOP / "workers/records.py")}
    assert roots - set(sys.stdlib_module_names) == {"msgpack"}


def test_the_command_line_loads_nothing_heavy() -> None:
    code = f"import sys, passhat.runner.cli; print([name for name in {HEAVY} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_a_run_in_process_does_without_ray() -> None:
    code = (
        "import sys\n"
        "from passhat.runner import launch\n"
        "import tempfile, pathlib\n"
        "request = launch.Request(suite='desk', releases=('incumbent',), runs=1, tasks=2)\n"
        "launch.run(request, launch.Place(workers=0), out=pathlib.Path(tempfile.mkdtemp()) / 'c')\n"
        "print('ray' in sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "False"
