"""The figures of a packet as SVG to put into its page: the same bytes for the same rows, colours that follow the page.

Knows how the functions of runner/plots.py are put on a page; what they draw is theirs.
"""

import io
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from passhat.runner import plots
from passhat.runner.packet_data import Contents, Row
from passhat.runner.render_show import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "passhat",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "hatch.linewidth": 0.7,
    "axes.unicode_minus": False,
}
_COLORS = {
    plots.INK: "currentColor",
    plots.FAINT: "var(--line)",
    plots.BASE: "var(--base)",
    plots.CANDIDATE: "var(--cand)",
}
_PIXELATED = "image-rendering:crisp-edges;image-rendering:pixelated"
MOST_COHORTS = 40  # in the figure; the table has all
AMOUNT_LABELS = {"cost_usd": "Cost, US dollars", "turns": "Turns", "latency_ms": "Time in the environment, ms"}


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure, and the sentence that says what it shows."""

    id: str
    svg: Markup
    text: Markup


def draw_figures(contents: Contents, heat_rows: list[Row]) -> dict[str, Drawn]:
    """Return every figure that has something to show, by name."""
    comparison = contents.comparison
    cohorts, overall = comparison["cohorts"][:MOST_COHORTS], comparison["delta"]["attempt_rate"]
    moves, flows = comparison["moves"], comparison["movement"]
    base, candidate = contents.release("base"), contents.release("candidate")
    amounts = _by_amount(contents.tables["amounts"])

    def forest(figure: "Figure") -> None:
        plots.forest(cohorts, ax=figure.subplots(), overall=overall)

    def curves(figure: "Figure") -> None:
        for ax, curve in zip(figure.subplots(1, 2), ("pass_hat", "pass_at"), strict=True):
            plots.curves(base, candidate, ax=ax, curve=curve)

    def used(figure: "Figure") -> None:
        for ax, (name, rows) in zip(figure.subplots(1, len(amounts), squeeze=False)[0], amounts.items(), strict=True):
            plots.amounts(rows, ax=ax, label=AMOUNT_LABELS[name])

    heat_size = (9, max(1.5, min(7.0, 0.24 * len(heat_rows) + 0.6)))
    figures = {
        "forest": _drawn("forest", (8, 1.5 + 0.45 * len(cohorts)), forest, plots.forest_text(cohorts, overall)),
        "heat": _drawn(
            "heat",
            heat_size,
            lambda figure: plots.heat_map(heat_rows, ax=figure.subplots()),
            plots.heat_map_text(heat_rows),
        ),
    }
    if len(base["pass_hat"]) > 1 or len(candidate["pass_hat"]) > 1:
        figures["curves"] = _drawn("curves", (9, 3.6), curves, plots.curves_text(base, candidate))
    if moves:
        text = plots.movement_text(moves, comparison["tasks"])
        figures["movement"] = _drawn(
            "movement", (8, 3.2), lambda figure: plots.movement(moves, ax=figure.subplots()), text
        )
    if flows:
        figures["quadrant"] = _drawn(
            "quadrant",
            (6.5, 3.6),
            lambda figure: plots.quadrant(flows, ax=figure.subplots()),
            plots.quadrant_text(flows),
        )
    if amounts:
        said = (plots.amounts_text(rows, AMOUNT_LABELS[name]) for name, rows in amounts.items())
        text = f"Share of the runs that used no more, baseline to candidate. {' '.join(said)}"
        figures["amounts"] = _drawn("amounts", (9, 3.2), used, text)
    return figures


def _by_amount(rows: list[Row]) -> dict[str, list[Row]]:
    return {name: [row for row in rows if row["amount"] == name] for name in dict.fromkeys(r["amount"] for r in rows)}


def _drawn(name: str, size: tuple[float, float], draw: Callable[["Figure"], Any], text: str) -> Drawn:
    """Draw a figure under settings of our own: what a user has set for other plots does not change a packet."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # the reader's fonts may have it
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)  # type: ignore[arg-type]
        figure = Figure(figsize=size, layout="constrained")
        figure.patch.set_alpha(0)
        draw(figure)
        data = io.BytesIO()
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(data, format="svg", metadata=metadata, bbox_inches="tight", pad_inches=0.05)
    return Drawn(name, Markup(_for_page(data.getvalue().decode(), name)), escape(printable(text)))


def _for_page(svg: str, name: str) -> str:
    """Take off the XML prolog, make ids unique, name the text alternative, and let the page's colours in."""
    body = svg[svg.index("<svg ") :]
    body = re.sub(r"<[^!>]+>", lambda tag: _tag(tag[0], name), body)
    return body.replace("<svg ", f'<svg role="img" aria-labelledby="{name}-text" ', 1)


def _tag(tag: str, name: str) -> str:
    tag = tag.replace(_PIXELATED, "")
    tag = re.sub(r'( id="|url\(#|href="#)', rf"\1{name}-", tag)
    for color, variable in _COLORS.items():
        tag = tag.replace(color, variable)
    return tag
