"""Draws what was learnt against steps and against bytes: one SVG a task and density."""
from html import escape

import results  # finds plot
import plot

# (light, dark); dense is the first. A pattern of dashes tells apart what colours do not.
COLOURS = (("#30343b", "#e8eaee"), ("#2166ac", "#6db3f2"), ("#d95f02", "#ff9d4d"),
           ("#1b7837", "#63c384"), ("#762a83", "#c79bd6"), ("#b2182b", "#f4787f"),
           ("#01847f", "#4fd1cb"), ("#8c6d1f", "#e0c063"))
DASHES = ("", "7 4", "2 4")
LEGEND_COLUMNS, LEGEND_WIDTH, LEGEND_HEIGHT = 5, 182, 18


def mean_curve(runs):
    """Returns (steps, values): the mean over the seeds at each tested step."""
    by_step = {}
    for run in runs:
        for step, value in run.curve:
            by_step.setdefault(step, []).append(value)
    steps = sorted(step for step, values in by_step.items() if len(values) == len(runs))
    return steps, [sum(by_step[step]) / len(runs) for step in steps]


def collect(runs, density):
    """Returns (name, steps, bytes, values) of dense and each case of this density."""
    groups = {}
    for run in runs:
        if run.density in (None, density) and not run.diverged:
            groups.setdefault(run.case, []).append(run)
    curves = []
    for name, group in groups.items():
        steps, values = mean_curve(group)
        per_step = sum(run.bytes_sent / run.steps for run in group) / len(group)
        if steps:
            curves.append((name, steps, [step * per_step for step in steps], values))
    return curves


def style_sheet(count):
    def rules(index):
        return "".join(f".curve{number}{{stroke:{COLOURS[number % len(COLOURS)][index]}}}\n"
                       for number in range(count))
    dashes = "".join(f'.curve{number}{{stroke-dasharray:{DASHES[number // len(COLOURS) % 3]}}}\n'
                     for number in range(len(COLOURS), count))
    return (f"<style>{plot.STYLE}{rules(0)}{dashes}"
            f"@media (prefers-color-scheme:dark){{{plot.DARK_STYLE}{rules(1)}}}</style>")


def draw_legend(names, top):
    parts = []
    for number, name in enumerate(names):
        x = plot.PANELS[0][0] + number % LEGEND_COLUMNS * LEGEND_WIDTH
        y = top + number // LEGEND_COLUMNS * LEGEND_HEIGHT
        parts += [f'<path class="line curve{number}" d="M{x},{y} h26"/>',
                  plot.text_at(x + 34, y + 4.5, name)]
    return parts


def draw_panel(curves, column, edges, log, x_format, labels, more_is_better):
    """One panel; column: 1 for steps, 2 for bytes."""
    xs = [x for curve in curves for x in curve[column]]
    ys = [y for curve in curves for y in curve[3]]
    x_axis = plot.Axis(*plot.padded(min(xs) if log else 0, max(xs), log), *edges, log)
    # Logarithmic in what is missing would hide the start; the worst eighth of a linear one does.
    ys.sort()
    low, high = (ys[len(ys) // 8], ys[-1]) if more_is_better else (ys[0], ys[-1 - len(ys) // 8])
    y_axis = plot.Axis(*plot.padded(low, high, False), plot.BOTTOM, plot.TOP, False)
    parts = plot.draw_frame(x_axis, y_axis, x_format, *labels)
    for number, curve in enumerate(curves):
        # What lies outside at the start is left out, all but the last of it.
        outside = [not y_axis.low <= y <= y_axis.high for y in curve[3]]
        first = max(0, outside.index(False) - 1) if False in outside else 0
        line = " ".join(f"{x_axis.place(x):.1f},{y_axis.place(y):.1f}"
                        for x, y in list(zip(curve[column], curve[3]))[first:])
        parts.append(f'<path class="line curve{number}" d="M{line}"/>')
    return parts


def draw(task, runs, density):
    """Returns the SVG, or None where nothing was measured at this density."""
    curves = collect(runs, density)
    if not curves or all(name == "dense" for name, *_ in curves):
        return None
    _, _, words, more_is_better, _ = results.MEASURES[task.measure]
    legend_rows = (len(curves) - 1) // LEGEND_COLUMNS + 1
    height = plot.HEIGHT + 16 + legend_rows * LEGEND_HEIGHT
    title = f"{task.name}, density {100 * density:g}%: mean over seeds"
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{plot.WIDTH}" height="{height}" '
             f'viewBox="0 0 {plot.WIDTH} {height}" role="img">',
             f"<title>{escape(title)}</title>", style_sheet(len(curves)),
             f'<rect class="page" width="{plot.WIDTH}" height="{height}"/>',
             plot.text_at(plot.PANELS[0][0], 30, title, "title")]
    parts += draw_panel(curves, 1, plot.PANELS[0], False, "{:g}".format,
                        ("Against steps", "step", words), more_is_better)
    sent = [curve for curve in curves if curve[2][-1] > 0]
    if len(sent) == len(curves):
        parts += draw_panel(curves, 2, plot.PANELS[1], True, plot.format_bytes,
                            ("Against bytes", "bytes a node sent (logarithmic)", words),
                            more_is_better)
    parts += draw_legend([name for name, *_ in curves], plot.HEIGHT + 10)
    return "\n".join(parts + ["</svg>", ""])
