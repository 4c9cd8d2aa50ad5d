"""Figures draw the numbers they are given, say them in words too, and tell nothing by colour alone."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from passhat.runner.plots import (
    BASE,
    CANDIDATE,
    amounts,
    amounts_text,
    changes,
    curves,
    curves_text,
    forest,
    forest_text,
    heat_map,
    heat_map_text,
    movement,
    movement_text,
    quadrant,
    quadrant_text,
)

Row = dict[str, Any]


@pytest.fixture
def ax() -> Axes:
    axes = Figure().subplots()
    assert isinstance(axes, Axes)
    return axes


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def points_of(line: Line2D) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in line.get_xydata()]


def cohort(name: str, delta: float | None, lower: float | None = None, upper: float | None = None) -> Row:
    return {"cohort": name, "tasks": 4, "delta": delta, "lower": lower, "upper": upper}


# Cohorts

COHORTS = [cohort("routine", 0.25, -0.125, 0.5), cohort("rare", -0.5), cohort("short", None)]
OVERALL = {"tasks": 12, "estimate": 0.0625, "lower": 0.03125, "upper": 0.125}


def test_a_forest_has_a_mark_and_an_interval_for_every_cohort_and_a_diamond_for_all(ax: Axes) -> None:
    assert forest(COHORTS, ax=ax, overall=OVERALL) is ax
    zero, *lines = ax.lines
    assert zero.get_xdata() == [0, 0]
    assert [points_of(line) for line in lines] == [
        [(-12.5, 0), (50, 0)],
        [(25, 0)],
        [(-50, 1)],
        [(3.125, 3), (12.5, 3)],
        [(6.25, 3)],
    ]
    assert [line.get_marker() for line in lines if len(line.get_xydata()) == 1] == ["o", "o", "D"]
    assert texts(ax) == ["+25.0", "-50.0", " not estimable", "+6.2"]
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == ["routine (4)", "rare (4)", "short (4)", "all tasks (12)"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1], "the first cohort is on top"


def test_a_forest_in_words() -> None:
    assert forest_text(COHORTS, OVERALL) == (
        "Difference of the attempt rate, candidate minus baseline, in points: routine +25.0 (95 % -12.5 to +50.0); "
        "rare -50.0; short not estimable; all tasks +6.2 (95 % +3.1 to +12.5)."
    )


def test_names_are_written_as_they_are_and_no_formulas(ax: Axes) -> None:
    names = ["$x_{$", "a\u202eb\n\x00c", "n" * 500]
    forest([cohort(name, 0.5) for name in names], ax=ax)
    labels = ax.get_yticklabels()
    assert [label.get_text() for label in labels] == [
        "$x_{$ (4)",
        "a\\u202eb\\u000a\\u0000c (4)",
        f"{'n' * 32}… (500 characters) (4)",
    ]
    assert not any(label.get_parse_math() for label in labels)
    ax.get_figure().canvas.draw()


# pass^k and pass@k


def release(name: str, hats: list[float | None], ats: list[float]) -> Row:
    def items(values: list[Any]) -> list[Row]:
        return [
            {"k": k, "estimate": v, "lower": None if v is None else v / 2, "upper": None if v is None else (1 + v) / 2}
            for k, v in enumerate(values, 1)
        ]

    return {"release": name, "pass_hat": items(hats), "pass_at": items(ats)}


A, B = release("A", [0.5, 0.25, None], [0.5, 0.75, 0.875]), release("B", [0.75, 0.625, 0.5], [0.75, 0.8, 0.9])


def test_curves_leave_out_what_is_not_estimable_and_have_a_band_each(ax: Axes) -> None:
    assert curves(A, B, ax=ax) is ax
    assert [points_of(line) for line in ax.lines] == [[(1, 0.5), (2, 0.25)], [(1, 0.75), (2, 0.625), (3, 0.5)]]
    for band, of in zip(ax.collections, (A, B), strict=True):
        corners = {(float(x), float(y)) for x, y in band.get_paths()[0].vertices}
        ends = [(item["k"], item[end]) for item in of["pass_hat"] for end in ("lower", "upper") if item["estimate"]]
        assert set(ends) <= corners
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["A", "B"]
    assert ax.get_ylim()[0] == 0


def test_curves_are_told_apart_without_colour(ax: Axes) -> None:
    curves(A, B, ax=ax, curve="pass_at")
    base, candidate = ax.lines
    assert base.get_marker() != candidate.get_marker()
    assert (base.get_linestyle(), candidate.get_linestyle()) == ("--", "-")
    assert len({band.get_hatch() for band in ax.collections}) == 2
    assert points_of(candidate) == [(1, 0.75), (2, 0.8), (3, 0.9)]


def test_curves_in_words() -> None:
    assert curves_text(A, B) == (
        "All of k runs of a task pass (pass^k), and any of them does (pass@k): "
        "A pass^2 0.250 and pass@3 0.875; B pass^3 0.500 and pass@3 0.900. Bands: 95 %."
    )
    nothing = release("N", [None], [])
    assert "N not estimable; B pass^3" in curves_text(nothing, B)


# Movement

MOVES = [{"delta": delta} for delta in (0.5, 0.25, 0.25, -0.25, 1.0)]


def test_movement_has_a_bar_for_every_change_and_regressions_are_hatched(ax: Axes) -> None:
    assert movement(MOVES, ax=ax) is ax
    bars = {(float(bar.get_center()[0]), float(bar.get_height()), bar.get_hatch()) for bar in ax.patches}
    assert bars == {(-25, 1, "////"), (25, 2, None), (50, 1, None), (100, 1, None)}
    assert sorted(texts(ax)) == ["1", "1", "1", "2"]
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["regressions: 1 task", "fixes: 4 tasks"]
    assert movement_text(MOVES, 9) == "Of 9 tasks, 4 moved up (fixes), 1 down (regressions), 4 did not."


def test_very_many_kinds_of_changes_are_counted_by_tens() -> None:
    moves = [{"delta": sign * step / 100} for sign in (-1, 1) for step in range(1, 101)]
    assert changes(moves) == {float(ten): 10 for ten in (*range(-100, 0, 10), *range(10, 101, 10))}
    assert sum(changes([{"delta": 1 / 3}, {"delta": 1 / 3 + 1e-12}]).values()) == 2
    assert len(changes([{"delta": 1 / 3}, {"delta": 1 / 3 + 1e-12}])) == 1


# Outcome and trajectory

NAMES = ("right_sanctioned", "wrong_sanctioned", "right_unsanctioned", "wrong_unsanctioned")


def flows(*table: tuple[int, int, int, int]) -> Row:
    from_to = {name: dict(zip(NAMES, row, strict=True)) for name, row in zip(NAMES, table, strict=True)}
    into = sum(row[2] for i, row in enumerate(table) if i != 2)
    out = sum(table[2]) - table[2][2]
    cells = sum(map(sum, table))
    return {"from_to": from_to, "cells": cells, "into_right_unsanctioned": into, "out_of_right_unsanctioned": out}


FLOWS = flows((50, 6, 3, 1), (4, 10, 0, 0), (2, 1, 5, 0), (0, 0, 0, 7))


def test_the_quadrant_has_both_counts_of_every_cell_and_names_the_lucky_one(ax: Axes) -> None:
    assert quadrant(FLOWS, ax=ax) is ax
    where = {text.get_text(): text.get_position() for text in ax.texts}
    assert where.keys() == {
        *("60 → 56", "14 → 17", "8 → 8", "7 → 8"),
        *("50 stayed, 6 in, 10 out", "10 stayed, 7 in, 4 out", "5 stayed, 3 in, 3 out", "7 stayed, 1 in, 0 out"),
        "lucky and dangerous",
    }
    assert where["8 → 8"] == (1.5, 0.42), "right of it is unsanctioned, above is right"
    assert where["14 → 17"] == (0.5, 1.42)
    assert [patch.get_hatch() for patch in ax.patches if patch.get_hatch()] == ["//"]
    assert quadrant_text(FLOWS) == (
        "Of 89 cells, baseline to candidate: right and sanctioned 60 to 56, wrong and sanctioned 14 to 17, "
        "right and unsanctioned 8 to 8, wrong and unsanctioned 7 to 8; right by an unsanctioned route: 3 in and 3 out."
    )


# Task × run


def shapes(ax: Axes) -> list[str]:
    """Read the picture back: each cell as its 5 by 5 pixels, block by block."""
    pixels = np.asarray(ax.images[0].get_array())
    small = pixels[1::3, 1::3, 3] > 0
    return ["".join(".#"[int(on)] for on in row) for row in small]


def test_the_heat_map_draws_filled_hollow_crossed_half_and_dot(ax: Axes) -> None:
    rows = [{"task": "one", "base": "PF", "candidate": "I?."}, {"task": "two", "base": "P", "candidate": "PPP"}]
    assert heat_map(rows, ax=ax) is ax
    assert [row[: 7 * 6] for row in shapes(ax)[:5]] == [
        "#####.#####.......#...#.....#.............",
        "#####.#...#........#.#.....##.............",
        "#####.#...#.........#.....###...#.........",
        "#####.#...#........#.#...####.............",
        "#####.#####.......#...#.#####.............",
    ]
    pixels = np.asarray(ax.images[0].get_array())
    assert (to_hex(pixels[0, 0]), to_hex(pixels[6 * 3, 3 * 18])) == (BASE, CANDIDATE)
    assert pixels[6 * 3, 18, 3] == 0, "a run that was not planned is no cell"
    assert [label.get_text() for label in ax.get_yticklabels()] == ["one", "two"]
    assert heat_map_text(rows) == (
        "Runs of 2 tasks, filled: pass, hollow: fail, crossed: invalid, half: pending, dot: missing: "
        "A, the baseline, 2 of 3 pass; B, the candidate, 3 of 6 pass."
    )


@pytest.mark.parametrize(("tasks", "runs"), [(41, 1), (300, 1), (300, 8), (300, 40)])
def test_many_tasks_stand_in_blocks_and_none_is_lost(ax: Axes, tasks: int, runs: int) -> None:
    rows = [{"task": str(i), "base": "P" * runs, "candidate": "P" * runs} for i in range(tasks)]
    heat_map(rows, ax=ax)
    assert sum(row.count("#") for row in shapes(ax)) == tasks * 2 * runs * 25
    height, width, _ = np.asarray(ax.images[0].get_array()).shape
    assert 0.8 < width / height < 4
    assert len(ax.get_yticklabels()) == 0


# Cost, turns, latency

PERCENTILES = [{"percent": p, "base": 5 + p / 10, "candidate": 6 + p / 10} for p in range(101)]


def test_amounts_are_steps_from_the_least_to_the_most_with_the_medians_marked(ax: Axes) -> None:
    assert amounts(PERCENTILES, ax=ax, label="Turns") is ax
    base, base_median, candidate, candidate_median = ax.lines
    assert points_of(base) == [(row["base"], row["percent"]) for row in PERCENTILES]
    assert points_of(candidate)[100] == (16, 100)
    assert (points_of(base_median), points_of(candidate_median)) == ([(10, 50)], [(11, 50)])
    assert base.get_drawstyle() == "steps-post"
    assert base.get_linestyle() != candidate.get_linestyle()
    assert base_median.get_marker() != candidate_median.get_marker()
    assert ax.get_xlabel() == "Turns"
    assert amounts_text(PERCENTILES, "Turns") == "Turns: median 10 to 11, p95 14.5 to 15.5."
    assert amounts_text([{**row, "base": 12345.6} for row in PERCENTILES], "T").startswith("T: median 12,346 to 11")


def test_without_a_figure_nothing_of_matplotlib_is_loaded() -> None:
    code = "import sys, passhat.runner.plots; print([name for name in sys.modules if name.startswith('matplotlib')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
