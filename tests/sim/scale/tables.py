"""The tables, as text of at most 100 columns."""
import math
import textwrap

import claims
from runs import LATENCY, NETWORKS

HEADS = {"10G": "10 Gbit/s", "1G": "1 Gbit/s", "racks": "racks 4:1"}
DENSE = "(dense, bf16)"


def number(value, suffixes=("", "k", "M", "G", "T")):
    """Three digits and a suffix."""
    for suffix in suffixes:
        if value < 999.5 or suffix == suffixes[-1]:
            return f"{value:.3g}{suffix}"
        value /= 1000
    raise AssertionError("unreachable")


def seconds(value):
    if value is None:
        return "-"
    for unit, size in (("s", 1), ("ms", 1e-3)):
        if value >= 0.9995 * size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e6:.3g} us"


def dense_time(entries, nodes, network):
    """A dense all-reduce of bf16 by the formulas: the better of ring and halving-doubling; where
    nodes stand in narrow racks the ring, which crosses a rack's link once."""
    transfer = claims.dense_words(entries, nodes) * 2 / (network["gbit"] * 1e9 / 8)
    hops = 2 * (nodes - 1)
    if nodes <= network.get("rack", nodes):
        hops = min(hops, 2 * math.ceil(math.log2(nodes)))
    return transfer + hops * LATENCY


def row_of(runs, collective, entries, nodes):
    """One collective among so many nodes; None where it could not be run at all."""
    raw = runs.get(collective, nodes, entries, raw=1)
    real = {name: runs.get(collective, nodes, entries, **network)
            for name, network in NETWORKS.items()}
    some = next((result for result in real.values() if result is not None), None)
    if raw is None and some is None:
        return None
    row = {"collective": collective, "nodes": nodes,
           "times": {name: result and result["seconds"] for name, result in real.items()},
           "encoded": some and some["bytes_max"], "words": None}
    if raw is not None:
        row |= {"words": raw["bytes_max"] / 4, "formula": claims.formula(collective, raw),
                "headers": raw["headers"] / raw["bytes"], "update": raw["update"]}
    return row


def dense_row(entries, nodes):
    words = claims.dense_words(entries, nodes)
    return {"collective": DENSE, "nodes": nodes, "words": None, "formula": words, "headers": None,
            "encoded": 2 * words, "update": None,
            "times": {name: dense_time(entries, nodes, network)
                      for name, network in NETWORKS.items()}}


def rows_of(runs, collectives, entries, nodes):
    rows = []
    for count in nodes:
        rows += [row for name in collectives
                 if (row := row_of(runs, name, entries, count)) is not None]
        rows.append(dense_row(entries, count))
    return rows


def cells(row, fastest):
    def if_there(key, show):
        return "-" if row.get(key) is None else show(row[key])
    share = (f"{row['words'] / row['formula']:.2f}" if row["words"] and row.get("formula") else "-")
    return [str(row["nodes"]), row["collective"], if_there("words", number),
            if_there("formula", number), share, if_there("headers", "{:.1%}".format),
            if_there("update", number), if_there("encoded", number),
            *(seconds(row["times"][name]) + ("*" if fastest[name] is row else " ")
              for name in HEADS)]


def fastest_of(rows):
    """By network, the row of the least time."""
    return {name: min((row for row in rows if row["times"][name] is not None),
                      key=lambda row, name=name: row["times"][name]) for name in HEADS}


def lay_out(heads, table):
    widths = [max(len(line[column]) for line in [heads, *table]) for column in range(len(heads))]
    lines = ["  ".join(cell.ljust(width) if column == 1 else cell.rjust(width)
                       for column, (cell, width) in enumerate(zip(line, widths))).rstrip()
             for line in [heads, *table]]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]


def winners(rows, nodes, name):
    """Who is the fastest from which number of nodes on, in words."""
    spans = []
    for count in nodes:
        here = [row for row in rows if row["nodes"] == count]
        best = fastest_of(here)[name]["collective"]
        if not spans or spans[-1][0] != best:
            spans.append([best, count, count])
        spans[-1][2] = count
    return ", ".join(f"{best} at P = {first}" + (f" to {last}" if last > first else "")
                     for best, first, last in spans)


def whole_sums(rows):
    """Those that deliver everything that was contributed, and not only the largest sums."""
    most = {}
    for row in rows:
        most[row["nodes"]] = max(most.get(row["nodes"], 0), row.get("update") or 0)
    return [row for row in rows if row.get("update") in (None, most[row["nodes"]])]


def size_text(runs, collectives, entries, nodes):
    """The table of one number of entries, and where each wins."""
    rows = rows_of(runs, collectives, entries, nodes)
    heads = ["P", "collective", "words", "formula", "of it", "headers", "sum", "bytes",
             *(head + " " for head in HEADS.values())]
    table = []
    for count in nodes:
        here = [row for row in rows if row["nodes"] == count]
        fastest = fastest_of(here)
        table += [cells(row, fastest) for row in here]
    lines = [f"k = {entries:,} of n = {entries * 100:,} (1%), half of them the same on all nodes",
             "", *lay_out(heads, table), ""]
    for name, head in HEADS.items():
        lines += textwrap.wrap(f"fastest, {head}: {winners(rows, nodes, name)}; of the whole sum: "
                               f"{winners(whole_sums(rows), nodes, name)}", 98,
                               subsequent_indent="  ")
    return "\n".join(lines)


def headers_text(runs, wanted):
    """How Ok-Topk's volume depends on k."""
    table = []
    for per_node, step, run in wanted:
        result = runs.need(run)
        words = result["bytes_max"] / 4
        share = words / claims.formula("oktopk", result)
        table.append([f"{per_node} P", step, number(words), f"{share:.2f}",
                      f"{result['headers'] / result['bytes']:.1%}"])
    return "\n".join([f"oktopk, P = {result['nodes']}: words and headers by k", "",
                      *lay_out(["k", "step", "words", "of 6k(P-1)/P", "headers"], table)])


def claims_text(checked):
    lines = []
    for what, figure, relation, limit, holds in checked:
        lines += textwrap.wrap(f"{'holds' if holds else 'FAILS'}: {what}: {figure:.3g} {relation} "
                               f"{limit:g}", 98, subsequent_indent="       ")
    return "\n".join(lines)


def refused_text(runs):
    """What could not be run, a line for each collective, number of entries and reason."""
    groups = {}
    for run, text in runs.refused.items():
        given = dict(argument[2:].split("=") for argument in run)
        key = given["collective"], int(given["entries"]), text.removeprefix("scale-run: ")
        groups.setdefault(key, set()).add(int(given["nodes"]))
    return "\n".join(f"not run: {name}, k = {entries:,}, P = "
                     f"{', '.join(map(str, sorted(nodes)))}: {text}"
                     for (name, entries, text), nodes in groups.items())
