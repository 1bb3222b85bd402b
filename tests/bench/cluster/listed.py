"""The policies that the planner is compared with, and the table that people read: for `regret` here and
for that of tests/sim."""
import report

AUTO = "auto"
RECORDED = ("vgg16", "bert-base", "lstm")
FIXED = {"dense": {"sparsifier": "dense"}, "bf16": {"sparsifier": "dense", "dense_values": "bf16"}}
FIXED.update((name, {"sparsifier": "adtopk", "sparse_collective": name})
             for name in ("allgather", "balanced", "oktopk", "hierarchical"))
BUCKETS = {"1m": 1 << 20, "4m": 1 << 22, "16m": 1 << 24}
FREE = {key: AUTO for key in ("sparsifier", "sparse_collective", "dense_values", "bucket_bytes")}


def policies(density, more=None):
    """All by name: the fixed ones, auto, and what the caller adds or replaces."""
    fixed = {f"{name}-{bucket}": {**keys, "bucket_bytes": size}
             for name, keys in FIXED.items() for bucket, size in BUCKETS.items()}
    return {name: {"density": density, **keys}
            for name, keys in {**fixed, AUTO: FREE, **(more or {})}.items()}


def compare(rows):
    """The fixed policy with the least median, and by how much auto's is more; None for what was not
    measured."""
    times = {row["contender"]: row["step_ms"]["median"] for row in rows}
    auto = times.pop(AUTO, None)
    best = min(times, key=times.get) if times else None
    return best, auto / times[best] - 1 if auto and best else None


def rate_text(rate):
    return f"{rate / 1e9:g} Gbit/s" if rate else "no limit"


def table(cells):
    """One model: a line a policy, a column a rate."""
    lines = [("step (ms)", *(rate_text(cell["rate_bit_s"]) for cell in cells))]
    times = [{row["contender"]: report.number(row["step_ms"]["median"]) for row in cell["rows"]}
             for cell in cells]
    lines += [(name, *(of.get(name, "-") for of in times)) for name in times[0]]
    lines.append(("best fixed", *(cell["best"] or "-" for cell in cells)))
    lines.append(("regret of auto", *("-" if cell["regret"] is None else f"{cell['regret']:+.1%}"
                                      for cell in cells)))
    lines.append(("steps to settle", *(str(cell["settled"]["steps"]) if cell["settled"] else "-"
                                       for cell in cells)))
    return report.table(lines)
