"""Breaks the scorers one check at a time and shows that the tests notice: `python tests/mutate_scoring.py [N …]`.

Every condition of workers/scoring.py is made true, false and its opposite, every comparison moved by one, every part
of an `and` or `or` left out, every count or finding dropped, every number and every arithmetic sign changed. Each
mutant runs against the scoring tests in a process of its own. Prints who killed it; fails when one survives.
"""

import ast
import os
import signal
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis  # noqa: F401 - once, before the processes part
import pytest

import passhat.workers.contract
import passhat.workers.evidence  # noqa: F401

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "workers" / "scoring.py"
MODULE = "passhat.workers.scoring"
TESTS = ("tests/workers/test_scoring.py", "tests/workers/test_scoring_safety.py")
_PATIENCE_S = 120

# Mutants that no test can tell from the original, and why.
EQUIVALENT = {
    "module: 4096 → 4097": "how many patterns are kept ready changes no result",
    "module: 1024 → 1025": "how many names are kept ready changes no result",
}

_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_BY_ONE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_OTHER_SIGN: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_OTHER_NAME = {"any": "all", "all": "any", "min": "max", "max": "min"}


class Change(NamedTuple):
    """A value of the tree that is replaced by another; undone by putting back what was there."""

    node: Any  # what a reader would call changed
    owner: ast.AST
    field: str
    value: Any


@dataclass(frozen=True)
class Mutant:
    number: int
    line: int
    name: str  # function: what was there → what is there now
    tree: ast.Module  # shared by all mutants
    change: Change

    def code(self) -> types.CodeType:
        """Return the mutated module; the tree is not put right again."""
        setattr(self.change.owner, self.change.field, self.change.value)
        return compile(ast.fix_missing_locations(self.tree), str(SOURCE), "exec")


def mutants(source: str) -> list[Mutant]:
    """Return every mutant of a module, in the order of its lines."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    changes = sorted(_changes(tree), key=lambda change: change.node.lineno)
    return [
        Mutant(number, change.node.lineno, _name(functions, change), tree, change)
        for number, change in enumerate(changes)
    ]


def _name(functions: list[Any], change: Change) -> str:
    node, owner, field = change.node, change.owner, change.field
    around = [one.name for one in functions if one.lineno <= node.lineno <= one.end_lineno]
    before, was = ast.unparse(node), getattr(owner, field)
    setattr(owner, field, change.value)
    after = ast.unparse(node)
    setattr(owner, field, was)
    shown = "(left out)" if after == before else _short(after)
    return f"{around[-1] if around else 'module'}: {_short(before)} → {shown}"


def _short(code: str) -> str:
    first, *more = code.splitlines()
    return first + (" …" if more else "")


def _changes(tree: ast.AST) -> Iterator[Change]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp):
            for value in (False, True):
                yield Change(node, node, "test", ast.Constant(value))
        elif isinstance(node, ast.Compare):
            for table in (_OPPOSITE, _BY_ONE):
                if (other := table.get(type(node.ops[0]))) is not None:
                    yield Change(node, node, "ops", [other()])
        elif isinstance(node, ast.BoolOp):
            for part in node.values:
                rest = [value for value in node.values if value is not part]
                yield Change(node, node, "values", rest if len(rest) > 1 else rest * 2)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield Change(node, node, "operand", ast.UnaryOp(ast.Not(), node.operand))
        elif isinstance(node, ast.BinOp) and type(node.op) in _OTHER_SIGN and not _is_type(node):
            yield Change(node, node, "op", _OTHER_SIGN[type(node.op)]())
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield Change(node, node, "value", node.value + 1)
        elif isinstance(node, ast.Name) and node.id in _OTHER_NAME:
            yield Change(node, node, "id", _OTHER_NAME[node.id])
        elif isinstance(node, ast.comprehension):
            for part in node.ifs:
                yield Change(part, node, "ifs", [condition for condition in node.ifs if condition is not part])
        yield from _statements(node)


def _is_type(node: ast.BinOp) -> bool:
    """Whether this is a union of types, which says nothing at run time."""
    return isinstance(node.op, ast.BitOr) and all(
        isinstance(side, ast.Name) or (isinstance(side, ast.Constant) and side.value is None)
        for side in (node.left, node.right)
    )


def _statements(node: ast.AST) -> Iterator[Change]:
    """Yield the counts and findings in a block, to be left out."""
    for field in ("body", "orelse"):
        block = getattr(node, field, None)
        for part in block if isinstance(block, list) else ():
            is_call = isinstance(part, ast.Expr) and isinstance(part.value, ast.Call)
            if is_call or isinstance(part, ast.AugAssign):
                yield Change(part, node, field, [ast.Pass() if one is part else one for one in block])


def killer(mutant: Mutant) -> str | None:
    """Return the test that fails with this module in the place of the scorers, or what else stopped it; else None."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(_PATIENCE_S)
        os.close(reading)
        os.write(writing, (_first_failure(mutant) or "").encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as stream:
        name = stream.read().decode()
    _, status = os.waitpid(child, 0)
    return name or (None if status == 0 else f"ended by signal {os.WTERMSIG(status)}")


def _first_failure(mutant: Mutant) -> str | None:
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    module = types.ModuleType(MODULE)
    sys.modules[MODULE] = module
    try:
        exec(mutant.code(), module.__dict__)
    except Exception as error:
        return f"does not import: {error!r}"
    failures = _Failures()
    options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", f"--rootdir={ROOT}"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    code = pytest.main([*options, *(str(ROOT / test) for test in TESTS)], plugins=[failures])
    return failures.names[0] if failures.names else None if code == 0 else f"pytest ended with {code!r}"


class _Failures:
    """Takes down which tests fail."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.names.append(report.nodeid.split("/")[-1])


def main(numbers: list[int]) -> int:
    everyone = mutants(SOURCE.read_text())
    chosen = [everyone[number] for number in numbers] if numbers else everyone
    survivors, excused = 0, 0
    for mutant in chosen:
        by = killer(mutant)
        if by is None and mutant.name in EQUIVALENT:
            excused += 1
            verdict = f"equivalent: {EQUIVALENT[mutant.name]}"
        else:
            survivors += by is None
            verdict = "SURVIVES" if by is None else f"killed by {by}"
        print(f"{mutant.number:>4}  line {mutant.line:<4} {mutant.name}\n              {verdict}", flush=True)
    print(
        f"{len(chosen)} mutants: {len(chosen) - survivors - excused} killed, {excused} equivalent, {survivors} survive"
    )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main([int(number) for number in sys.argv[1:]]))
