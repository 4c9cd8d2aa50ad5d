"""Figures of a comparison: functions that take the rows of documents and `ax=`, draw, and return it.

    fig, ax = plt.subplots(); forest(comparison["cohorts"], ax=ax)

Each figure has a sentence that says what it shows, by the same name with `_text`. Nothing is told by colour alone:
markers, dashes, hatches and words say it too. Knows documents, but neither campaigns nor pages.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import ceil, sqrt
from typing import TYPE_CHECKING, Any, Literal

from passhat.runner.render import count, number
from passhat.runner.render_compare import points
from passhat.runner.render_show import clipped, printable
from passhat.workers.scoring import QUADRANTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

Row = Mapping[str, Any]

INK, FAINT, BASE, CANDIDATE = "#1c1c1c", "#c8c8c8", "#0072b2", "#d55e00"
PASS, FAIL, INVALID, PENDING, MISSING = "PFI?."  # a letter a run in the rows of `heat_map`

_LABEL = 32  # letters of a name
_CURVES = {"pass_hat": "pass^k: all of k runs pass", "pass_at": "pass@k: any of k runs passes"}
_MOST_LABELLED = 40  # tasks of a heat map
_MOST_BARS = 41
_WIDEST_BAR = 40  # percentage points
_SHAPE = 1.8  # a heat map's width over its height
_CELL = {  # 5 by 5 pixels and a gap: filled, hollow, crossed, half, a dot
    PASS: "##### ##### ##### ##### #####",
    FAIL: "##### #...# #...# #...# #####",
    INVALID: "#...# .#.#. ..#.. .#.#. #...#",
    PENDING: "....# ...## ..### .#### #####",
    MISSING: "..... ..... ..#.. ..... .....",
}
_SCALE = 3  # pixels of one of those
_PITCH = 6 * _SCALE
_MIDDLE = 5 / 12  # of a cell without its gap
_STATES = "filled: pass, hollow: fail, crossed: invalid, half: pending, dot: missing"


def _name(text: str) -> str:
    """Keep a name from a file on one line, and short."""
    return clipped(printable(text), _LABEL)


def _write(ax: "Axes", x: float, y: float, text: str, **options: Any) -> "Text":
    """Write a text as it is: a name with dollar signs is no formula."""
    return ax.text(x, y, text, color=INK, parse_math=False, **options)


def _plain(ax: "Axes", *, grid: Literal["x", "y", "both"] | None = None) -> "Axes":
    ax.patch.set_alpha(0)
    ax.tick_params(colors=INK, which="both")
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)
    for label in (ax.xaxis.label, ax.yaxis.label):
        label.set_color(INK)
    if grid:
        ax.grid(axis=grid, color=FAINT, linewidth=0.6)
        ax.set_axisbelow(True)
    return ax


def _legend(ax: "Axes", **options: Any) -> None:
    legend = ax.legend(frameon=False, labelcolor=INK, **options)
    for text in legend.get_texts():
        text.set_parse_math(False)


# Cohorts


def forest(cohorts: Sequence[Row], *, ax: "Axes", overall: Row | None = None) -> "Axes":
    """Draw the paired difference of every cohort with its interval, and that of all tasks as a diamond.

    Takes `cohorts` of a comparison and, for all tasks, its `delta["attempt_rate"]`.
    """
    rows = [(row["cohort"], row["tasks"], row["delta"], row) for row in cohorts]
    if overall is not None:
        rows.append(("all tasks", overall["tasks"], overall["estimate"], overall))
    ax.axvline(0, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    for y, (_, _, delta, row) in enumerate(rows):
        is_all = row is overall
        if delta is None:
            _write(ax, 0, y, " not estimable", va="center", fontsize=8)
            continue
        if row["lower"] is not None:
            ax.plot([100 * row["lower"], 100 * row["upper"]], [y, y], color=CANDIDATE, linewidth=3 if is_all else 1.6)
        ax.plot([100 * delta], [y], marker="D" if is_all else "o", color=CANDIDATE, markersize=8 if is_all else 6)
        _write(ax, 100 * delta, y - 0.28, points(delta), ha="center", va="bottom", fontsize=8)
    labels = [f"{_name(name)} ({tasks})" for name, tasks, _, _ in rows]
    ax.set_yticks(range(len(rows)), labels, parse_math=False)
    ax.set_ylim(len(rows) - 0.4, -0.8)
    ax.set_xlabel("candidate minus baseline, percentage points")
    return _plain(ax, grid="x")


def forest_text(cohorts: Sequence[Row], overall: Row | None = None) -> str:
    """Say the differences in words."""
    rows = [(row["cohort"], row["delta"], row) for row in cohorts]
    if overall is not None:
        rows.append(("all tasks", overall["estimate"], overall))
    said = [f"{_name(name)} {_points_text(delta, row)}" for name, delta, row in rows]
    return f"Difference of the attempt rate, candidate minus baseline, in points: {'; '.join(said)}."


def _points_text(delta: float | None, row: Row) -> str:
    if delta is None:
        return "not estimable"
    ends = "" if row["lower"] is None else f" (95 % {points(row['lower'])} to {points(row['upper'])})"
    return f"{points(delta)}{ends}"


# pass^k and pass@k


def curves(base: Row, candidate: Row, *, ax: "Axes", curve: str = "pass_hat") -> "Axes":
    """Draw pass^k ("pass_hat") or pass@k ("pass_at") of two releases of reports, with the bands of their intervals."""
    for release, color, dash, marker, hatch in (
        (base, BASE, (0, (4, 2)), "s", "\\\\\\"),
        (candidate, CANDIDATE, "-", "o", "///"),
    ):
        shown = [item for item in release[curve] if item["estimate"] is not None]
        ks, estimates = [item["k"] for item in shown], [item["estimate"] for item in shown]
        name = _name(release["release"])
        ax.plot(ks, estimates, color=color, linestyle=dash, linewidth=2, marker=marker, markersize=5, label=name)
        banded = [item for item in shown if item["lower"] is not None]
        k, lower, upper = ([item[end] for item in banded] for end in ("k", "lower", "upper"))
        ax.fill_between(
            k, lower, upper, facecolor="none", edgecolor=color, alpha=0.4, hatch=hatch, linewidth=0.8, linestyle=dash
        )
    most = max((item["k"] for item in (*base[curve], *candidate[curve])), default=1)
    ax.set_xticks(sorted({1, *range(1, most + 1, ceil(most / 12)), most}))
    ax.set_ylim(0, 1.02)
    ax.set_xlabel("k")
    ax.set_ylabel(_CURVES[curve])
    _legend(ax, loc="lower left", fontsize=8)
    return _plain(ax, grid="y")


def curves_text(base: Row, candidate: Row) -> str:
    """Say where both curves of both releases end, in words."""
    said = []
    for release in (base, candidate):
        ends = {name: [item for item in release[name] if item["estimate"] is not None] for name in _CURVES}
        marks = (f"pass{mark}{of[-1]['k']} {number(of[-1]['estimate'])}"
                 for mark, of in zip("^@", ends.values(), strict=True) if of)  # fmt: skip
        said.append(f"{_name(release['release'])} {' and '.join(marks) or 'not estimable'}")
    return f"All of k runs of a task pass (pass^k), and any of them does (pass@k): {'; '.join(said)}. Bands: 95 %."


# Movement


def movement(moves: Sequence[Row], *, ax: "Axes") -> "Axes":
    """Draw how many tasks moved by how much, from the `moves` of a comparison: regressions hatched, fixes filled."""
    tasks = changes(moves)
    width = 0.8 * min([_WIDEST_BAR, *(b - a for a, b in pairwise(tasks))])
    for sign, color, hatch, label in ((-1, BASE, "////", "regressions"), (1, CANDIDATE, None, "fixes")):
        side = {change: n for change, n in tasks.items() if change * sign > 0}
        face = "none" if hatch else color
        bars = ax.bar(list(side), list(side.values()), width, facecolor=face, edgecolor=color, hatch=hatch)
        bars.set_label(f"{label}: {count(sum(side.values()), 'task')}")
        ax.bar_label(bars, color=INK, fontsize=8)
    ax.axvline(0, color=INK, linewidth=0.8)
    ax.set_xlim(-_WIDEST_BAR / 2 - 100, _WIDEST_BAR / 2 + 100)
    ax.margins(y=0.15)
    ax.locator_params(axis="y", integer=True)
    ax.set_xlabel("change of a task's share of passes, percentage points")
    ax.set_ylabel("tasks")
    _legend(ax, loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=2, fontsize=8)
    return _plain(ax, grid="y")


def changes(moves: Sequence[Row]) -> dict[float, int]:
    """Return the number of tasks by their change in points; in tens of points where there are very many kinds."""
    exact = Counter(round(100 * move["delta"], 6) for move in moves)
    if len(exact) <= _MOST_BARS:
        return dict(sorted(exact.items()))
    tens: Counter[float] = Counter()
    for change, tasks in exact.items():
        away = 10 * ceil(abs(change) / 10)
        tens[away if change > 0 else -away] += tasks
    return dict(sorted(tens.items()))


def movement_text(moves: Sequence[Row], tasks: int) -> str:
    """Say the movement in words."""
    up, down = (sum(move["delta"] * sign > 0 for move in moves) for sign in (1, -1))
    return f"Of {count(tasks, 'task')}, {up} moved up (fixes), {down} down (regressions), {tasks - up - down} did not."


# Outcome and trajectory


def quadrant(flows: Row, *, ax: "Axes") -> "Axes":
    """Draw the four cells of outcome and trajectory, each with its runs under both, from a comparison's `movement`.

    The cell "right, unsanctioned" is hatched and named.
    """
    table = flows["from_to"]
    for name in QUADRANTS:
        outcome, _, route = name.partition("_")
        x, y = float(route == "unsanctioned"), float(outcome == "wrong")
        is_lucky = name == "right_unsanctioned"
        corners = [x, x + 1, x + 1, x], [y, y, y + 1, y + 1]
        if is_lucky:
            ax.fill(*corners, facecolor="none", edgecolor=CANDIDATE, hatch="//", linewidth=0, alpha=0.35)
        ax.fill(*corners, facecolor="none", edgecolor=CANDIDATE if is_lucky else INK, linewidth=2.5 if is_lucky else 1)
        before, after = _totals(table, name)
        stayed = table[name][name]
        _write(ax, x + 0.5, y + 0.42, f"{before} → {after}", ha="center", va="center", fontsize=15, fontweight="bold")
        moved = f"{stayed} stayed, {after - stayed} in, {before - stayed} out"
        _write(ax, x + 0.5, y + 0.68, moved, ha="center", va="center", fontsize=8)
        if is_lucky:
            _write(ax, x + 0.5, y + 0.16, "lucky and dangerous", ha="center", va="center", fontsize=9)
    ax.set_xticks([0.5, 1.5], ["sanctioned route", "unsanctioned route"])
    ax.set_yticks([0.5, 1.5], ["right\noutcome", "wrong\noutcome"])
    ax.set_xlim(-0.01, 2.01)
    ax.set_ylim(2.01, -0.01)
    ax.tick_params(length=0)
    ax.xaxis.tick_top()
    _plain(ax)
    for spine in ax.spines.values():
        spine.set_visible(False)
    return ax


def _totals(table: Row, name: str) -> tuple[int, int]:
    """Runs in a quadrant under the baseline and under the candidate."""
    return sum(table[name].values()), sum(row[name] for row in table.values())


def quadrant_text(flows: Row) -> str:
    """Say the four cells in words."""
    cells = ((name.replace("_", " and "), *_totals(flows["from_to"], name)) for name in reversed(QUADRANTS))
    said = ", ".join(f"{name} {before} to {after}" for name, before, after in cells)
    lucky = f"{flows['into_right_unsanctioned']} in and {flows['out_of_right_unsanctioned']} out"
    return (
        f"Of {count(flows['cells'], 'cell')}, baseline to candidate: {said}; right by an unsanctioned route: {lucky}."
    )


# Task × run


def heat_map(tasks: Sequence[Row], *, ax: "Axes") -> "Axes":
    """Draw every run of the tasks as a small square: the baseline's runs to the left, the candidate's to the right.

    A row is {task, base, candidate}, with a letter a run: PASS, FAIL, INVALID, PENDING or MISSING.
    """
    import numpy as np

    runs = [max((len(row[side]) for row in tasks), default=0) for side in ("base", "candidate")]
    width = sum(runs) + 3  # a gap between the releases, and a wider one between the blocks
    blocks = 1 if len(tasks) <= _MOST_LABELLED else ceil(sqrt(_SHAPE * len(tasks) / width))
    height = ceil(len(tasks) / blocks)
    pixels = np.zeros((height * _PITCH, blocks * width * _PITCH, 4))
    ink = {
        state: np.kron([[mark == "#" for mark in line] for line in cell.split()], np.ones((_SCALE, _SCALE))) > 0
        for state, cell in _CELL.items()
    }
    for number_, row in enumerate(tasks):
        block, line = divmod(number_, height)
        for side, start, color in (("base", 0, BASE), ("candidate", runs[0] + 1, CANDIDATE)):
            rgba = [*(int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)), 1.0]
            for run, state in enumerate(row[side]):
                x, y = (block * width + start + run) * _PITCH, line * _PITCH
                pixels[y : y + 5 * _SCALE, x : x + 5 * _SCALE][ink[state]] = rgba
    ax.imshow(pixels, extent=(0, blocks * width, height, 0), interpolation="none", aspect="equal")
    ax.set_xlim(0, blocks * width - 2)
    middles = [block * width + at for block in range(blocks) for at in (runs[0] / 2, runs[0] + 1 + runs[1] / 2)]
    ax.set_xticks(middles, ["A", "B"] * blocks)
    ax.xaxis.tick_top()
    labels = [_name(row["task"]) for row in tasks] if blocks == 1 else []
    ax.set_yticks([line + _MIDDLE for line in range(len(labels))], labels, parse_math=False)
    ax.tick_params(length=0, labelsize=8)
    _plain(ax)
    for spine in ax.spines.values():
        spine.set_visible(False)
    return ax


def heat_map_text(tasks: Sequence[Row]) -> str:
    """Say what the heat map comes to in words."""
    letters = {side: "".join(row[side] for row in tasks) for side in ("base", "candidate")}
    said = (
        f"{label} {letters[side].count(PASS)} of {len(letters[side])} pass"
        for side, label in (("base", "A, the baseline,"), ("candidate", "B, the candidate,"))
    )
    return f"Runs of {count(len(tasks), 'task')}, {_STATES}: {'; '.join(said)}."


# Cost, turns, latency


def amounts(percentiles: Sequence[Row], *, ax: "Axes", label: str) -> "Axes":
    """Draw which share of the runs used no more than how much; a row is {percent, base, candidate}."""
    for side, name, color, dash in (
        ("base", "baseline", BASE, (0, (4, 2))),
        ("candidate", "candidate", CANDIDATE, "-"),
    ):
        values = [row[side] for row in percentiles]
        ax.step(values, [row["percent"] for row in percentiles], where="post", color=color, linestyle=dash, label=name)
        median = next(row for row in percentiles if row["percent"] == 50)
        ax.plot([median[side]], [50], color=color, marker="s" if side == "base" else "o", markersize=6)
    ax.set_ylim(0, 102)
    ax.set_xlim(left=0)
    ax.locator_params(axis="x", nbins=4)
    ax.set_xlabel(label)
    ax.set_ylabel("% of runs at or below")
    _legend(ax, loc="lower right", fontsize=8)
    return _plain(ax, grid="both")


def amount(value: float) -> str:
    """Return an amount with four digits, or as a whole number."""
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def amounts_text(percentiles: Sequence[Row], label: str) -> str:
    """Say median and 95th percentile in words."""
    rows = {row["percent"]: row for row in percentiles}
    said = (
        f"{name} {amount(rows[p]['base'])} to {amount(rows[p]['candidate'])}"
        for p, name in ((50, "median"), (95, "p95"))
    )
    return f"{label}: {', '.join(said)}."
