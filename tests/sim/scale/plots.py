"""Draws volume and time against the number of nodes."""
import os
import sys
from dataclasses import dataclass
from html import escape

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../deploy"))
import plot  # pylint: disable=wrong-import-position
import tables  # pylint: disable=wrong-import-position

COLOURS = (("#2166ac", "#6db3f2"), ("#d95f02", "#ff9d4d"), ("#1b7837", "#63c384"),
           ("#762a83", "#c79bd6"), ("#b2182b", "#f4787f"), ("#01847f", "#4fd1cb"))
DASHED = "stroke-dasharray:5 4;stroke-width:1.3"
GAP = 72


@dataclass
class NodesAxis(plot.Axis):
    """Ticks where there are powers of two."""

    def ticks(self):
        powers = [2 ** power for power in range(1, 11) if self.low <= 2 ** power <= self.high]
        return powers[:: 2 if len(powers) > 5 else 1]


def style_sheet(names):
    def rules(index):
        lines = [f".curve{i}{{stroke:{COLOURS[i % len(COLOURS)][index]}}}"
                 for i in range(len(names))]
        return "".join(lines) + ".dense{stroke:" + ("#30343b", "#e8eaee")[index] + "}"
    return (f"<style>{plot.STYLE}{rules(0)}.formula{{{DASHED}}}"
            f"@media (prefers-color-scheme:dark){{{plot.DARK_STYLE}{rules(1)}}}</style>")


def panel(curves, edges, title, label):
    """curves: (style, [(nodes, value)])."""
    points = [point for _, line in curves for point in line]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    x_axis = NodesAxis(*plot.padded(min(xs), max(xs), True), *edges, True)
    y_axis = plot.Axis(*plot.padded(min(ys), max(ys), True), plot.BOTTOM, plot.TOP, True)
    parts = plot.draw_frame(x_axis, y_axis, "{:g}".format, title, "nodes (logarithmic)", label)
    for style, line in curves:
        path = " ".join(f"{x_axis.place(x):.1f},{y_axis.place(y):.1f}" for x, y in line)
        parts.append(f'<path class="line {style}" d="M{path}"/>')
    return parts


def legend(names):
    parts = []
    for i, (style, name) in enumerate([*((f"curve{i}", name) for i, name in enumerate(names)),
                                       ("dense formula", "dense, by its formula")]):
        x, y = 74 + i % 5 * 185, plot.HEIGHT + 14 + i // 5 * 18
        parts += [f'<path class="line {style}" d="M{x},{y} h26"/>',
                  plot.text_at(x + 34, y + 4.5, name)]
    return parts


def page(title, names, panels):
    """panels: (title, label, curves), side by side."""
    width = (plot.WIDTH - GAP * len(panels) - 14) / len(panels)
    height = plot.HEIGHT + 50
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{plot.WIDTH}" height="{height}" '
             f'viewBox="0 0 {plot.WIDTH} {height}" role="img">', f"<title>{escape(title)}</title>",
             style_sheet(names), f'<rect class="page" width="{plot.WIDTH}" height="{height}"/>',
             plot.text_at(74, 30, title, "title"),
             plot.text_at(plot.WIDTH - 14, 30, "dashed: formulas", "right")]
    for i, (head, label, curves) in enumerate(panels):
        left = GAP + i * (width + GAP)
        parts += panel(curves, (left, left + width), head, label)
    return "\n".join(parts + legend(names) + ["</svg>", ""])


def curves_of(rows, names, value, formula=None):
    """A line a collective, one of dense, and dashed ones of formulas."""
    lines = []
    for i, name in enumerate([*names, tables.DENSE]):
        style = "dense formula" if name == tables.DENSE else f"curve{i}"
        for show, dash in ((value, ""), (formula, " formula")):
            line = [(row["nodes"], show(row)) for row in rows if show and row["collective"] == name
                    and show(row)]
            if len(line) > 1:
                lines.append((style + dash, line))
    return lines


def draw(runs, collectives, entries, nodes):
    """Returns the SVGs by name: volume and time of one number of entries."""
    rows = tables.rows_of(runs, collectives, entries, nodes)
    said = f"k = {entries:,} of n = {entries * 100:,}"
    volume = [("As (position, value) in two words", "words that a node receives",
               curves_of(rows, collectives, lambda row: row["words"],
                         lambda row: row.get("formula"))),
              ("Encoded: bf16, positions packed", "bytes that a node receives",
               curves_of(rows, collectives, lambda row: row["encoded"]))]
    time = [(tables.HEADS[name], "seconds", curves_of(rows, collectives,
                                                      lambda row, name=name: row["times"][name]))
            for name in tables.HEADS]
    return {f"volume-k{entries}.svg": page(f"Volume of a step, {said}", collectives, volume),
            f"time-k{entries}.svg": page(f"Time of a step, {said}", collectives, time)}
