"""One HTML page of the results of tests/bench/report. It needs no font, script or file beside it, and
follows the viewer's light or dark colours."""
import html
import json

STYLE = """
:root { color-scheme: light dark; --back: #ffffff; --text: #1b1f24; --quiet: #505a66; --line: #c6ccd4;
  --ours: #0b5cad; --other: #8b95a1; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --back: #14171b; --text: #eceff3; --quiet: #a9b4c0;
  --line: #414a55; --ours: #6cb2ff; --other: #6d7885; --bad: #ff8a80; } }
body { margin: 0 auto; max-width: 1100px; padding: 1rem; background: var(--back); color: var(--text);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 .3rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .3rem; }
p { margin: .3rem 0; } .quiet { color: var(--quiet); } .bad { color: var(--bad); font-weight: 600; }
code { font-size: .85em; overflow-wrap: anywhere; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; margin-top: .5rem; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { color: var(--quiet); font-weight: 600; } .number { text-align: right; white-space: nowrap; }
.bar { display: block; height: .5rem; margin: .2rem 0; border-radius: 2px; background: var(--other); }
.bar.ours { background: var(--ours); } .bars { width: 22%; min-width: 90px; }
@media (max-width: 640px) { .bars { display: none; }
  th, td { padding: .25rem .2rem; font-size: .78rem; } td:first-child { overflow-wrap: anywhere; } }
"""


def scaled(value, units, step=1000):
    at = 0
    while abs(value) >= step and at < len(units) - 1:
        value, at = value / step, at + 1
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}", units[at]


def figure(value, unit):
    """A figure as people read it."""
    if value is None:
        return "–"
    if unit == "%":
        return f"{value:.2f}%"
    return " ".join(scaled(value, ("µs", "ms", "s") if unit == "us" else ("B", "kB", "MB", "GB")))


def ratio(value, other):
    return "–" if not other else scaled(value / other, ("",))[0]


def bars(value, other):
    most = max(value, other or 0) or 1
    found = f'<span class="bar ours" style="width:{100 * value / most:.1f}%"></span>'
    if other is not None:
        found += f'<span class="bar" style="width:{100 * other / most:.1f}%"></span>'
    return found


def lines(row):
    """A line per figure that it stands beside."""
    beside = row.beside or [("–", None)]
    for at, (name, value) in enumerate(beside):
        head = (f'<td rowspan="{len(beside)}">{html.escape(row.name)}</td>'
                f'<td rowspan="{len(beside)}" class="number">{figure(row.value, row.unit)}</td>') \
            if at == 0 else ""
        yield (f'<tr>{head}<td>{html.escape(name)}</td><td class="number">{figure(value, row.unit)}</td>'
               f'<td class="number">{ratio(row.value, value)}</td>'
               f'<td class="bars">{bars(row.value, value)}</td></tr>')


def section(outcome):
    part = outcome.part
    found = [f'<section id="{part.name}"><h2>{html.escape(part.title)}</h2>',
             f"<p>{html.escape(part.about)}</p>",
             f'<p class="quiet">{outcome.seconds:.0f} s: <code>{html.escape(outcome.shown)}</code></p>']
    if outcome.problem:
        found.append(f'<p class="bad">{html.escape(outcome.problem)}</p>')
    if outcome.rows:
        found.append('<div class="wide"><table><thead><tr><th>what</th><th class="number">measured</th>'
                     '<th>beside</th><th class="number"></th><th class="number">ratio</th><th></th></tr>'
                     '</thead><tbody>')
        found += [line for row in outcome.rows for line in lines(row)]
        found.append("</tbody></table></div>")
    return "\n".join([*found, "</section>"])


def data(head, outcomes):
    """The same for programs. No "<" in it can end the element."""
    document = {"schema": 1, **head, "parts": [
        {"name": outcome.part.name, "command": outcome.shown, "seconds": round(outcome.seconds, 1),
         "problem": outcome.problem, "rows": [
             {"name": row.name, "unit": row.unit, "value": row.value,
              "beside": [{"name": name, "value": value} for name, value in row.beside]}
             for row in outcome.rows]} for outcome in outcomes]}
    return json.dumps(document).replace("<", "\\u003c")


def render(head, outcomes):
    host = head["machine"]
    about = (f"{host['cpu']}, {host['cores']} cores, Linux {host['kernel']}, load {host['load']:.2f} at the "
             f"start. adtopk {head['version']}, {head['date']}, {head['seconds'] / 60:.0f} min in all.")
    quick = '<p class="bad">A smoke test: sizes are tiny, and the figures say nothing.</p>' \
        if head["quick"] else ""
    return "\n".join([
        '<!doctype html>', '<html lang="en">', '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">', "<title>adtopk, measured</title>",
        f"<style>{STYLE}</style>", "<h1>adtopk, measured</h1>", f"<p>{html.escape(about)}</p>", quick,
        '<p class="quiet">Each figure is a median, beside a floor or a peer of the same run. The ratio is '
        'the figure divided by that. The upper bar is ours.</p>',
        *map(section, outcomes),
        f'<script type="application/json" id="data">{data(head, outcomes)}</script>', "</html>", ""])
