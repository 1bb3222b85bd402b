"""What is made of the samples: rows of a document, and the tables that people read."""
import os

from conductor import quartiles

SCHEMA = 1
PHASES = ("select", "exchange", "reduce", "settle")
BASE = "gloo-f32"  # what others are compared with
COLUMNS = ("contender", "step", "spread", "sent", "payload", "wire", "loops", "x floor", "gain", "cpu")
UNITS = ("", "(ms)", "", "(MB)", "(MB)", "(ms)", "(ms)", "", "", "(ms)")


def median(values):
    return quartiles(values)[1]


def summary(values):
    low, middle, high = quartiles(values)
    return {"median": middle, "min": min(values), "max": max(values),
            "spread": (high - low) / middle if middle else 0, "samples": values}


def per_step(before, after):
    """What the daemons counted, a step, from two lists of their stats by node."""
    steps = after[0]["steps"] - before[0]["steps"]

    def grown(key):
        return [(new[key] - old[key]) / steps for new, old in zip(after, before)]

    nonzeros = sum(grown("nonzeros_sent"))
    return {"wire_bytes": max(grown("wire_bytes_sent")), "payload_bytes": max(grown("payload_bytes")),
            "bits_per_nonzero": 8 * sum(grown("sparse_bytes_sent")) / nonzeros if nonzeros else None,
            "buckets": after[0]["buckets"], "tensors": after[0]["tensors"],
            "phase_ms": {phase: sum(new["phase_seconds"][phase] - old["phase_seconds"][phase]
                                    for new, old in zip(after, before)) / len(after) / steps * 1e3
                         for phase in PHASES}}


def make_row(name, samples, counted, loops, rate):
    """A contender's row. counted: what adtopk's daemons counted; None for peers, which exchange and
    do nothing else, so their floor is the wire alone. loops: the floor's samples. The wire time is that
    of what a node sent: as the daemons count it, without headers of TCP and below, else as the kernel
    counts it."""
    row = {"contender": name, "step_ms": summary([one["ms"] for one in samples]),
           "cpu_ms": summary([one["cpu_ms"] for one in samples]),
           "sent_bytes": median([max(one["sent"]) for one in samples]),
           "received_bytes": median([max(one["received"]) for one in samples]), "adtopk": counted}
    payload = counted["wire_bytes"] if counted else row["sent_bytes"]
    row["wire_ms"] = 8e3 * payload / rate if rate else 0
    row["loops_ms"] = median([one["ms"] for one in loops]) if counted else None
    floor = row["wire_ms"] + (row["loops_ms"] or 0)
    row["ratio"] = row["step_ms"]["median"] / floor if floor else None
    return row


def compare(rows):
    """How many times longer the peer took than each row; None without the peer."""
    base = next((row["step_ms"]["median"] for row in rows if row["contender"] == BASE), None)
    for row in rows:
        row["gain"] = base / row["step_ms"]["median"] if base else None


def machine():
    cpu = "unknown"
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
    return {"cpu": cpu, "cores": len(os.sched_getaffinity(0)), "kernel": os.uname().release,
            "load": os.getloadavg()[0]}


def trained_rows(samples, batch, speed, alone):
    """Rows of contenders that train: a step is what lies between two ends of steps. `speed` names the
    key of what they learn from per second; `alone` is the contender without an exchange."""
    rows = [trained_row(name, taken, batch, speed) for name, taken in samples.items()]
    base = next((row["step_ms"]["median"] for row in rows if row["contender"] == alone), None)
    for row in rows:
        row["share"] = base / row["step_ms"]["median"] if base else None
    return rows


def trained_row(name, samples, batch, speed):
    """Bytes and cores' time are means of turns."""
    steps = [step for sample in samples for step in sample["each_ms"]]
    row = {"contender": name, "step_ms": summary(steps)}
    row[speed] = 1e3 * batch / row["step_ms"]["median"]
    row["sent_bytes"] = sum(max(sample["sent"]) for sample in samples) / len(steps)
    row["cpu_ms"] = sum(sample["cpu_ms"] for sample in samples) / len(steps)
    return row


# ---------------------------------------------------------------- text

def number(value, digits=3):
    """Three digits, without an exponent; "-" for what does not apply."""
    if value is None:
        return "-"
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e" in text else text


def cells(row):
    counted = row["adtopk"]
    return (row["contender"], number(row["step_ms"]["median"]), f"{row['step_ms']['spread']:.0%}",
            number(row["sent_bytes"] / 1e6), number(counted and counted["wire_bytes"] / 1e6),
            number(row["wire_ms"]), number(row["loops_ms"]), number(row["ratio"]),
            number(row["gain"]), number(row["cpu_ms"]["median"]))


def table(lines):
    """Lines of cells, the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(cell.ljust(width) if at == 0 else cell.rjust(width)
                               for at, (cell, width) in enumerate(zip(line, widths))).rstrip()
                     for line in lines)


def trained_table(rows, speed, unit):
    """The table of contenders that train."""
    lines = [("contender", "step", "spread", "speed", "of compute", "sent", "cpu", "steps"),
             ("", "(ms)", "", f"({unit})", "", "(MB)", "(ms)", "")]
    lines += [(row["contender"], number(row["step_ms"]["median"]), f"{row['step_ms']['spread']:.0%}",
               number(row[speed]), f"{row['share']:.1%}" if row["share"] else "-",
               number(row["sent_bytes"] / 1e6), number(row["cpu_ms"]),
               str(len(row["step_ms"]["samples"]))) for row in rows]
    return table(lines) if rows else "nothing was measured"


def phases(rows):
    """Where adtopk's time went; None without adtopk."""
    own = [row for row in rows if row["adtopk"]]
    if not own:
        return None
    lines = [("ms a step, sum of buckets", *PHASES, "buckets", "bits/nnz")]
    lines += [(row["contender"], *(number(row["adtopk"]["phase_ms"][phase]) for phase in PHASES),
               str(row["adtopk"]["buckets"]), number(row["adtopk"]["bits_per_nonzero"]))
              for row in own]
    return table(lines)


def headline(document):
    box, gradient, host = document["box"], document["gradient"], document["machine"]
    rate = f"{box['rate_bit_s'] / 1e6:g} Mbit/s, bursts of {box['burst_bytes'] / 1e3:.3g} kB" \
        if box["rate_bit_s"] else "not limited"
    return (f"nodes: {box['nodes']}; ranks of each: {box['ranks']}; links: {rate}\n"
            f"gradient: {gradient['bytes'] / 1e6:.4g} MB, {gradient['tensors']} tensors of "
            f"{gradient['model']}; {document['turns']} turns\n"
            f"{host['cpu']}, {host['cores']} cores for all nodes, load {host['load']:.2f}")


def text(document):
    rows = document["rows"]
    parts = [headline(document), ""]
    parts += [f"{one['contender']} is missing: {one['reason']}" for one in document["missing"]]
    parts += [table([COLUMNS, UNITS, *map(cells, rows)])] if rows else ["nothing was measured"]
    where = phases(rows)
    return "\n".join(parts + (["", where] if where else []))
