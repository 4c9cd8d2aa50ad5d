"""What `from passhat.stats import …` offers: every public name, each with its contract and an example that runs."""

import ast
import doctest
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from passhat import stats

MODULES = sorted(path.stem for path in Path(stats.__file__).parent.glob("*.py") if path.stem != "__init__")
# types of arguments, not results
ARRAY_TYPES = {"IntArray", "FloatArray", "BoolArray"}


def defined(name):
    """Public names that a module defines itself."""
    names = set()
    for node in ast.parse(Path(stats.__file__).with_name(f"{name}.py").read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def test_the_package_offers_what_its_modules_define_and_nothing_else():
    modules = [defined(name) for name in MODULES]
    assert sorted(stats.__all__) == sorted(set().union(*modules) - ARRAY_TYPES)
    assert sum(len(names - ARRAY_TYPES) for names in modules) == len(stats.__all__)
    assert set(stats.__all__).isdisjoint(MODULES), "a function in the place of a module"


@pytest.mark.parametrize("name", stats.__all__)
def test_a_public_name_states_its_contract_and_a_function_shows_an_example(name):
    public = getattr(stats, name)
    if name.isupper():
        return
    assert public.__doc__
    # a dataclass without one is given its signature
    assert not public.__doc__.startswith(f"{name}(")
    if inspect.isfunction(public):
        assert doctest.DocTestParser().get_examples(public.__doc__)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_run(name):
    result = doctest.testmod(importlib.import_module(f"passhat.stats.{name}"))
    assert (result.failed, result.attempted > 0) == (0, True)


def test_the_functions_of_the_table_of_questions_exist():
    functions = re.findall(r"\w+_\w+", stats.__doc__)
    assert len(functions) > 30
    assert [name for name in functions if not callable(getattr(stats, name, None))] == []


def test_importing_loads_numpy_and_nothing_else_that_is_installed():
    code = (
        "import sys; before = set(sys.modules); import passhat.stats\n"
        "roots = {name.split('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)\n"
        # numpy.random brings Cython's run time, which is part of it
        "print(sorted(name for name in roots if 'cython' not in name))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "['numpy', 'passhat']"
