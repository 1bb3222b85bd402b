"""What must hold, with the runs that show it."""
from runs import OVERLAP, arguments, numel_of

K_PER_NODE = 200  # entries of a node by nodes, of the claims on Ok-Topk's volume
STEPS, DRIFTS = 200, (1.05, 0.95)
DRIFT_NODES, DRIFT_ENTRIES = 32, 3200
SKEW_NODES, SKEW_ENTRIES = 32, 25600
SKEW = {"first_eighth": 0.6}
FORMULAS_WITHIN = 0.02
FORMULAS_FROM, FORMULAS_BY_NODE = 1000, 10  # entries; with fewer the lists' heads weigh something


def volume_runs(nodes):
    return [arguments("oktopk", count, K_PER_NODE * count, raw=1) for count in nodes]


def drift_runs():
    return [arguments("oktopk", DRIFT_NODES, DRIFT_ENTRIES, steps=STEPS, drift=drift)
            for drift in DRIFTS]


def skew_run():
    return arguments("balanced", SKEW_NODES, SKEW_ENTRIES, **SKEW)


def wanted(nodes, collectives):
    runs = []
    if "oktopk" in collectives:
        runs += volume_runs(nodes) + drift_runs()
    if "balanced" in collectives:
        runs.append(skew_run())
    return runs


def formula(collective, result):
    """Words that a node receives, by the field's formulas; None where there is none. The balanced
    one's has the entries of the sum in it, which only a run shows."""
    nodes, entries, others = result["nodes"], result["entries"], result["nodes"] - 1
    if collective == "allgather":
        return 2 * entries * others
    if collective == "balanced":
        return 2 * (entries + result["update"]) * others / nodes
    if collective == "oktopk":
        return 6 * entries * others / nodes
    if collective == "hierarchical" and nodes & others == 0:
        return sum(min(2 * expected_sum(result, 2**hop), result["numel"])
                   for hop in range(nodes.bit_length() - 1))
    return None


def expected_sum(result, nodes):
    """Entries of the sum of so many nodes' lists, expected: each has one in every stretch of
    numel / entries positions, the same as all others or one of its own."""
    width = result["numel"] / result["entries"]
    return result["entries"] * (OVERLAP + (1 - OVERLAP) * width * (1 - (1 - 1 / width) ** nodes))


def dense_words(entries, nodes):
    return 2 * numel_of(entries) * (nodes - 1) / nodes


def volume(runs, nodes):
    """The largest share of the bound, and of headers, over all numbers of nodes."""
    made = [runs.need(run) for run in volume_runs(nodes)]
    words = max(result["bytes_max"] / 4 / formula("oktopk", result) for result in made)
    headers = max(result["headers"] / result["bytes"] for result in made)
    most = max(result["nodes"] for result in made)
    said = f"oktopk, k = {K_PER_NODE} P, to P = {most}: "
    return [(said + "the most words of a node, by 6k(P-1)/P", words, "<=", 1),
            (said + "frame headers, by what they head", headers, "<", 0.1)]


def drift(runs):
    rows = []
    for factor, run in zip(DRIFTS, drift_runs()):
        result = runs.need(run)
        off = max(abs(result[key] / result["entries"] - 1) for key in ("update_min", "update_max"))
        rows.append((f"oktopk, P = {DRIFT_NODES}, magnitudes x {factor} a step: selected counts "
                     f"off k, worst of {STEPS} steps", off, "<=", 0.05))
    return rows


def fits(runs, sizes, nodes, collectives):
    rows = []
    for name in ("allgather", "balanced", "hierarchical"):
        made = [runs.get(name, count, entries, raw=1) for entries in sizes for count in nodes
                if name in collectives
                and entries >= max(FORMULAS_FROM, FORMULAS_BY_NODE * count)]
        off = [abs(result["bytes"] / 4 / words - 1) for result in made
               if result is not None and (words := formula(name, result)) is not None]
        if off:
            rows.append((f"{name}, k >= {FORMULAS_BY_NODE} P: words off the formula, the worst",
                         max(off), "<=", FORMULAS_WITHIN))
    return rows


def check(runs, sizes, nodes, collectives):
    """Returns (what, figure, relation, limit, holds) of each claim."""
    rows = []
    if "oktopk" in collectives:
        rows += volume(runs, nodes) + drift(runs)
    if "balanced" in collectives:
        rows.append((f"balanced, P = {SKEW_NODES}, 60% of the entries in the first eighth: "
                     "imbalance", runs.need(skew_run())["imbalance"], "<", 1.1))
    rows += fits(runs, sizes, nodes, collectives)
    return [(*row, row[1] <= row[3] if row[2] == "<=" else row[1] < row[3]) for row in rows]
