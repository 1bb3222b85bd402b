"""Draws training runs as an SVG of two panels: loss against steps and against time.

The axis of loss is logarithmic (linear where loss reaches zero). The picture
needs no font, script or file beside it, and follows the viewer's light or dark colours.
"""
import math
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 1000, 464
TOP, BOTTOM = 118, 406  # of the panels
PANELS = ((74, 486), (574, 986))  # their left and right edges
MOST_POINTS = 1500  # raw points drawn of a curve
MOST_LOG_RANGE = 1e12  # highest loss by lowest on a logarithmic axis

# (light, dark) colours of the runs, told apart by people who see few colours too
COLOURS = (("#2166ac", "#6db3f2"), ("#d95f02", "#ff9d4d"))

STYLE = """
.page{fill:#ffffff} .frame{fill:none;stroke:#8a8f98} .grid{stroke:#e4e6ea}
text{font-family:system-ui,-apple-system,'Segoe UI','DejaVu Sans',Helvetica,Arial,sans-serif;
font-size:12.5px;fill:#454b54} .title{font-size:15px;font-weight:600;fill:#14171c}
.middle{text-anchor:middle} .right{text-anchor:end} .raw{opacity:.22} .end{stroke:#ffffff}
.line{fill:none;stroke-width:2.2;stroke-linejoin:round;stroke-linecap:round}
"""
DARK_STYLE = """
.page{fill:#14171c} .frame{stroke:#7d838d} .grid{stroke:#2b3038} text{fill:#b9bfc8}
.title{fill:#f2f4f7} .raw{opacity:.28} .end{stroke:#14171c}
"""


@dataclass
class Curve:
    """A run: its loss after each step, the bytes a node sent, and how long a step takes."""
    name: str
    losses: list
    bytes_sent: float
    seconds_per_step: float

    def steps(self):
        return list(range(1, len(self.losses) + 1))

    def times(self):
        return [step * self.seconds_per_step for step in self.steps()]


@dataclass
class Axis:
    """Maps values between low and high to pixels between start and end."""
    low: float
    high: float
    start: float
    end: float
    log: bool

    def place(self, value):
        value = min(max(value, self.low), self.high)
        if self.log:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self):
        ticks = log_ticks(self.low, self.high) if self.log else []
        return ticks if len(ticks) > 1 else linear_ticks(self.low, self.high)


# ---------------------------------------------------------------- numbers

def format_bytes(count):
    """Writes a number of bytes with three digits and a decimal unit."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            return f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def linear_ticks(low, high):
    """Returns about six round values between low and high."""
    raw = (high - low) / 6
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def log_ticks(low, high):
    """Returns powers of ten between low and high, with twos and fives where there are few."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    span = math.log10(high / low)
    factors = (1,) if span > 3 else (1, 3) if span > 2 else (1, 2, 5)
    every = max(1, math.ceil(span / 6))
    ticks = [factor * 10.0 ** decade for decade in decades if decade % every == 0
             for factor in factors]
    return [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]


def smooth(values):
    """Returns a centred moving mean over a thirtieth of the values."""
    half = len(values) // 60
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    smoothed = []
    for index in range(len(values)):
        # At the start, where loss falls fast, the window shrinks on both sides so that the line
        # does not lean. At the flat end it is cut, so that the line does not end on noise.
        first = index - min(half, index)
        last = min(index + min(half, index), len(values) - 1)
        smoothed.append((sums[last + 1] - sums[first]) / (last + 1 - first))
    return smoothed


def padded(low, high, log):
    """Widens a range a little, and an empty one enough to be drawn."""
    if log:
        margin = max((high / low) ** 0.03, 1.02)
        return low / margin, high * margin
    margin = max(0.03 * (high - low), 1e-9, 1e-3 * abs(high))
    return low, high + margin


# ---------------------------------------------------------------- drawing

def loss_axis(curves):
    """A logarithmic axis where every loss allows it: late training shows, too."""
    losses = [loss for curve in curves for loss in curve.losses]
    lines = [loss for curve in curves for loss in smooth(curve.losses)]
    # Raw points below half of the lowest line are noise: drawn at the edge, not zoomed out for.
    low = max(min(losses), 0.5 * min(lines))
    log = min(losses) > 0 and max(losses) / low < MOST_LOG_RANGE
    low = low if log else min(0.0, min(losses))
    return Axis(*padded(low, max(losses), log), BOTTOM, TOP, log)


def line_at(x1, y1, x2, y2, style):
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def text_at(x, y, words, style=""):
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def draw_frame(x_axis, y_axis, x_format, title, x_label, y_label="training loss"):
    """Draws title, grid, ticks, labels and the frame of one panel."""
    left, right = x_axis.start, x_axis.end
    parts = [text_at(left, TOP - 16, title, "title"),
             text_at((left + right) / 2, BOTTOM + 42, x_label, "middle")]
    for tick in x_axis.ticks():
        x = x_axis.place(tick)
        parts += [line_at(x, TOP, x, BOTTOM, "grid"),
                  text_at(x, BOTTOM + 19, x_format(tick), "middle")]
    for tick in y_axis.ticks():
        y = y_axis.place(tick)
        parts += [line_at(left, y, right, y, "grid"),
                  text_at(left - 8, y + 4, f"{tick:.3g}", "right")]
    parts.append(f'<rect class="frame" x="{left}" y="{TOP}" width="{right - left}" '
                 f'height="{BOTTOM - TOP}"/>')
    middle = (TOP + BOTTOM) / 2
    parts.append(f'<text class="middle" transform="translate({left - 52} {middle}) rotate(-90)">'
                 f"{escape(y_label)}</text>")
    return parts


def draw_curve(number, xs, losses, x_axis, y_axis):
    """Draws faint raw points, the smoothed line over them and a dot at its end."""
    every = max(1, len(losses) // MOST_POINTS)
    dots = "".join(f'<circle cx="{x_axis.place(x):.1f}" cy="{y_axis.place(y):.1f}" r="1.4"/>'
                   for x, y in list(zip(xs, losses))[::every])
    line = [(x_axis.place(x), y_axis.place(y)) for x, y in zip(xs, smooth(losses))]
    path = "M" + " ".join(f"{x:.1f},{y:.1f}" for x, y in line)
    end_x, end_y = line[-1]
    return [f'<g class="raw fill{number}">{dots}</g>',
            f'<path class="line stroke{number}" d="{path}"/>',
            f'<circle class="end fill{number}" cx="{end_x:.1f}" cy="{end_y:.1f}" r="4"/>']


def draw_panel(curves, edges, xs, title, x_label):
    """Draws one panel; xs gives the x values of each curve."""
    x_axis = Axis(*padded(0, max(max(values) for values in xs), False), *edges, False)
    y_axis = loss_axis(curves)
    parts = draw_frame(x_axis, y_axis, "{:g}".format, title, x_label)
    for number, (curve, values) in enumerate(zip(curves, xs)):
        parts += draw_curve(number, values, curve.losses, x_axis, y_axis)
    return parts


def draw_legend(curves):
    parts, x = [], PANELS[0][0]
    for number, curve in enumerate(curves):
        words = f"{curve.name}: each node sent {format_bytes(curve.bytes_sent)}"
        parts += [f'<path class="line stroke{number}" d="M{x},60 h26"/>',
                  f'<circle class="end fill{number}" cx="{x + 26}" cy="60" r="4"/>',
                  text_at(x + 38, 64.5, words)]
        x += 70 + 7.2 * len(words)
    parts.append(text_at(PANELS[1][1], 64.5, "points: every step; lines: moving mean", "right"))
    return parts


def style_sheet():
    def colours(index):
        return "".join(f".stroke{number}{{stroke:{pair[index]}}} .fill{number}{{fill:{pair[index]}}}\n"
                       for number, pair in enumerate(COLOURS))
    return (f"<style>{STYLE}{colours(0)}"
            f"@media (prefers-color-scheme:dark){{{DARK_STYLE}{colours(1)}}}</style>")


def draw(curves, title, link):
    """Returns the SVG of up to two curves. title: what was trained; link: at which rate it took the
    times of the curves."""
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
             f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
             f"<title>Training loss of {escape(' and '.join(c.name for c in curves))}</title>",
             style_sheet(), f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
             text_at(PANELS[0][0], 30, title, "title")]
    parts += draw_legend(curves)
    parts += draw_panel(curves, PANELS[0], [curve.steps() for curve in curves], "Loss against steps", "step")
    parts += draw_panel(curves, PANELS[1], [curve.times() for curve in curves],
                        f"Loss against time on a link of {link}",
                        "seconds: each step as measured here, and its bytes at that rate")
    return "\n".join(parts + ["</svg>", ""])
