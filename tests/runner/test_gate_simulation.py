"""How often a gate passes what it should not: exactly for few outcomes, by simulation in the test marked slow.

The simulations are those of tests/benchmarks/gate_simulation.py.
"""

import importlib
import json
from collections.abc import Iterator
from math import factorial, prod
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from passhat.runner.gate import evaluate
from passhat.runner.gate_file import DEFAULT_ALPHA
from passhat.runner.importing import import_files
from passhat.runner.pairing import choose, pair

Law = tuple[float, float, float]  # shares of tasks that break, stay and are fixed


@pytest.fixture(scope="module")
def simulation() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[1] / "benchmarks")
        yield importlib.import_module("gate_simulation")


def chance_of_passing(simulation: ModuleType, tasks: int, law: Law, threshold: float) -> float:
    """The exact chance that the rule passes, over all suites of single runs."""
    folder = Path(f"{tasks} {law} {threshold}")
    folder.mkdir()
    bench = simulation.Bench(folder, tasks, 1)
    gate = bench.gate(1, threshold, ["task-dirichlet"])
    chance = 0.0
    for broken in range(tasks + 1):
        for fixed in range(tasks + 1 - broken):
            counts = (broken, tasks - broken - fixed, fixed)
            likelihood = factorial(tasks) * prod(p**n / factorial(n) for p, n in zip(law, counts, strict=True))
            if likelihood:
                base, candidate = np.repeat([[1, 1, 0], [0, 1, 1]], counts, axis=1)
                [passes] = bench.passes(gate, base, candidate)
                chance += passes * likelihood
    return chance


@pytest.mark.parametrize(
    ("tasks", "law", "threshold"),
    [
        (20, (0.2, 0.6, 0.2), 0.0),  # the same release twice
        (20, (0.02, 0.96, 0.02), 0.0),
        (20, (0.25, 0.7, 0.05), -0.2),  # a loss of all of the margin
        (20, (0.2, 0.8, 0.0), -0.2),
    ],
)
def test_a_rule_passes_no_more_often_than_its_level_where_it_should_not(
    simulation: ModuleType, tasks: int, law: Law, threshold: float
) -> None:
    assert 0 < chance_of_passing(simulation, tasks, law, threshold) <= DEFAULT_ALPHA


def test_where_tasks_break_or_stay_the_chance_is_that_none_breaks(simulation: ModuleType) -> None:
    """36 tasks pass a margin of .1 when none breaks; with one broken they do not, by the bound of Clopper-Pearson."""
    for share in (0.1, 0.05):
        chance = chance_of_passing(simulation, 36, (share, 1 - share, 0.0), -0.1)
        assert chance == pytest.approx((1 - share) ** 36, rel=1e-12)


def test_replaced_counts_are_decided_like_a_campaign_of_such_runs(simulation: ModuleType) -> None:
    setting = simulation.Setting("smooth Beta(1,1)", "every task a little", 5, 0.1, -0.1)
    [base], [candidate] = simulation.draw(setting, 1)
    rows: list[dict[str, Any]] = [
        {"release": release, "task": f"t{task:03}", "run": run, "passed": bool(run < passed)}
        for release, counts in (("A", base), ("B", candidate))
        for task, passed in enumerate(counts)
        for run in range(simulation.RUNS)
    ]
    Path("drawn.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    drawn = pair(*choose([import_files([Path("drawn.jsonl")], out=Path("drawn")).campaign], "A", "B"))
    bench = simulation.Bench(Path())
    gate = bench.gate(5, -0.1)
    fields = ("decision", "lower", "upper", "low", "high")
    expected, found = (
        [[rule[field] for field in fields] for rule in evaluate(gate, pairing)["rules"]]
        for pairing in (drawn, bench.pairing(base, candidate))
    )
    assert expected == found
    assert bench.passes(gate, base, candidate) == [rule[0] == "pass" for rule in expected]


@pytest.mark.parametrize("change", ["every task a little", "a few tasks break"])
@pytest.mark.parametrize("k", [1, 5])
def test_a_loss_is_exactly_what_it_is_said_to_be(simulation: ModuleType, change: str, k: int) -> None:
    for mixture in simulation.MIXTURES.values():
        changed = simulation.with_loss(mixture, change, k, 0.1)
        lost = changed.shares @ (changed.a**k - changed.b**k)
        assert lost == pytest.approx(0.1, rel=1e-12)
        assert changed.shares.sum() == pytest.approx(1)
        assert changed.shares @ changed.a == pytest.approx(mixture.shares @ mixture.a)
        assert (changed.b >= 0).all()


@pytest.mark.slow
def test_no_setting_passes_too_often(simulation: ModuleType) -> None:
    bench = simulation.Bench(Path())
    rates = [
        rate
        for setting in simulation.settings()
        if setting.should_not_pass
        for rate in simulation.measure(bench, setting, 100, ["task-dirichlet"])
    ]
    assert len(rates) == 40
    assert [rate for rate in rates if rate.exceeds()] == []
