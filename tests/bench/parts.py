"""The parts of tests/bench/report: which command measures each, and what its document says.

A row is a figure beside others of the same run: the least that this machine needs (a floor), or what
another program needed (a peer). Figures are times in microseconds unless `unit` says otherwise.
"""
import dataclasses
import json
import os

HERE = os.path.dirname(os.path.abspath(__file__))
CLUSTER = os.path.join(HERE, "..", "integration", "cluster.py")
RANKS = """
rank() { RANK=$1 WORLD_SIZE=2 ADTOPK_ADDRESS=$2 ADTOPK_CONTROL_SOCKET=$3 "$PERF" cluster --json $ARGUMENTS; }
rank 1 "$ADTOPK_TEST_ADDRESS_1" "$ADTOPK_TEST_CONTROL_1" &
rank 0 "$ADTOPK_TEST_ADDRESS_0" "$ADTOPK_TEST_CONTROL_0" && wait
"""
PEERS = {"nth": "std::nth_element", "torch": "torch.topk"}


@dataclasses.dataclass
class Row:
    """beside: pairs of a name and its value, which may be missing (None)."""
    name: str
    value: float
    beside: list
    unit: str = "us"


@dataclasses.dataclass
class Part:
    """command(build, quick, scratch): a list of words. read(text, scratch): rows, from what it
    printed. about: what is measured, and beside what."""
    name: str
    title: str
    about: str
    command: object
    read: object


def perf(build):
    return os.path.join(build, "tests", "bench", "adtopk-perf")


def size_text(count):
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5 or unit == "GB":
            return f"{count:.3g} {unit}"
        count /= 1000
    return ""


def perf_rows(text, name):
    """Rows of a document of adtopk-perf, each beside its floor and its peers."""
    found = []
    for row in json.loads(text)["rows"]:
        if row["time_us"]["median"] is None or row["variant"].startswith("r+=g"):
            continue
        time = row["time_us"]["median"]
        found.append(Row(name(row), time, [(row["floor"], row["floor_us"]["median"])]))
        if row["peers"]:
            found.append(Row(f"{name(row)}, with the subtraction of what was sent",
                             time + row["settle_us"]["median"],
                             [(PEERS[peer["name"]], peer["time_us"]["median"]) for peer in row["peers"]]))
    return found


# ---------------------------------------------------------------- selection, payload, hand-over

def selection(build, quick, _):
    sizes = ["--size", "64K", "--iterations", "3"] if quick else ["--size", "100M", "--iterations", "15"]
    return [perf(build), "--json", "select", *sizes, "--view", "global,rows", "--density", "0.01",
            "--peers", "all", "--threads", "1" if quick else "1,2"]


def selection_rows(text, _):
    return perf_rows(text, lambda row: f"{row['variant']}, {100 * row['density']:g}% of "
                                       f"{size_text(row['size_bytes'])}, {row['threads']} thread"
                                       f"{'s' if row['threads'] > 1 else ''}")


def payload(build, quick, _):
    sizes = ["--size", "64K", "--iterations", "3"] if quick else ["--size", "100M", "--iterations", "15"]
    return [perf(build), "--json", "encode", "decode", *sizes, "--index", "auto,rice",
            "--value", "f32,bf16,two"]


def payload_rows(text, _):
    return perf_rows(text, lambda row: f"{row['benchmark']} {row['variant']}, {row['input'] or 'dense'}, "
                                       f"{row['bits_per_nonzero']:.1f} bits per value")


def handover(build, quick, _):
    return [perf(build), "--json", "handover", *(["--iterations", "40", "--warmup", "4"] if quick else [])]


def handover_rows(text, _):
    return perf_rows(text, lambda row: f"{row['variant']}, {row['input']}, "
                                       f"{'dense' if row['density'] == 1 else 'sparse'}, 4 KB")


# ---------------------------------------------------------------- several nodes

def collectives(build, quick, _):
    how = ["--nodes", "2", "--size", "1M", "--rate", "10gbit", "--turns", "2", "--warmup", "1"] if quick \
        else ["--nodes", "4", "--size", "100M", "--rate", "1gbit", "--turns", "5"]
    return [os.path.join(HERE, "cluster", "rounds"), "--build", build, "--json", *how]


def collectives_rows(text, _):
    rows = json.loads(text)["rows"]
    peers = {row["contender"]: row["step_ms"]["median"] * 1000 for row in rows if row["adtopk"] is None}
    found = []
    for row in rows:
        if row["adtopk"] is None:
            continue
        floor = row["wire_ms"] + (row["loops_ms"] or 0)
        beside = [("the wire time of its bytes, and r += g", floor * 1000 or None),
                  *((f"{name}, all bytes", time) for name, time in peers.items())]
        found.append(Row(f"{row['contender']}, {size_text(row['sent_bytes'])} sent per node",
                         row["step_ms"]["median"] * 1000, beside))
    return found


def cluster(build, quick, _):
    arguments = "--max 64K --iterations 3" if quick else "--min 64K --max 64M --iterations 11"
    return ["env", f"PERF={perf(build)}", f"ARGUMENTS={arguments}", CLUSTER, "--build", build,
            "--nodes", "2", "--", "sh", "-c", RANKS]


def cluster_rows(text, _):
    return perf_rows(text, lambda row: f"{row['variant']}, {size_text(row['size_bytes'])}, two nodes of "
                                       f"this machine")


# ---------------------------------------------------------------- learning, planning

def convergence(build, quick, scratch):
    how = ["--seeds", "1", "--steps", "15", "--sparsifiers", "dense", "topk", "adtopk"] if quick \
        else ["--seeds", "2"]
    return [os.path.join(HERE, "convergence", "study"), "--build", build, "--out", scratch,
            "--tasks", "digits", "--densities", "0.01", *how]


def convergence_rows(_, scratch):
    with open(os.path.join(scratch, "results.json"), encoding="utf-8") as file:
        task, = json.load(file)["tasks"]
    dense = next((row for row in task["rows"] if row["density"] is None), {})
    found = []
    for row in task["rows"]:
        if row is dense or "result" not in row:
            continue
        found.append(Row(f"{row['case']}: accuracy on the test set", row["result"],
                         [("dense, same seeds", dense["result"])], "%"))
        found.append(Row(f"{row['case']}: bytes that a node sent", row["bytes"],
                         [("dense, same seeds", dense["bytes"])], "B"))
    return found


def planner(build, quick, _):
    how = ["--nodes", "2", "--size", "1M", "--turns", "2", "--warmup", "0", "--pass-ms", "5", "--models",
           "lstm", "--rates", "1gbit", "--settle", "5", "--still", "3", "--contenders", "dense-4m",
           "oktopk-1m", "auto"] if quick \
        else ["--models", "vgg16", "lstm", "--rates", "1gbit", "--turns", "5", "--settle", "300"]
    return [os.path.join(HERE, "cluster", "regret"), "--build", build, "--json", *how]


def planner_rows(text, _):
    found = []
    for cell in json.loads(text)["cells"]:
        times = {row["contender"]: row["step_ms"]["median"] * 1000 for row in cell["rows"]}
        if "auto" in times and cell["best"] is not None:
            rate = f"{cell['rate_bit_s'] / 1e9:g} Gbit/s" if cell["rate_bit_s"] else "no limit"
            found.append(Row(f"{cell['model']}, {rate}: policy auto", times["auto"],
                             [(f"the best of {len(times) - 1} fixed policies, {cell['best']}",
                               times[cell["best"]])]))
    return found


PARTS = (
    Part("selection", "Selection", "One pass adds a gradient to the residual and selects the largest "
         "entries exactly. The floor is the fastest loop r += g on the same memory.", selection,
         selection_rows),
    Part("payload", "Payload", "A list of 1% of the entries is written into a frame, and read from it. "
         "The floor reads the list, or copies the frame.", payload, payload_rows),
    Part("handover", "Hand-over", "The time from the push of a 4 KB tensor to its completion, on one "
         "node. The floor is a round trip through shared memory between two processes.", handover,
         handover_rows),
    Part("collectives", "Collectives", "Whole steps of several nodes on a network in a box. They stand "
         "beside the least that wire and memory need, and beside other programs on the same links.",
         collectives, collectives_rows),
    Part("cluster", "Cluster", "adtopk-perf cluster with two daemons of this machine, over loopback. The "
         "floor is the time in which their link carries a node's bytes.", cluster, cluster_rows),
    Part("convergence", "Convergence", "A network learns handwritten digits at 1% density. Each "
         "sparsifier stands beside the dense run with the same seeds.", convergence, convergence_rows),
    Part("planner", "Planner", "Steps under the policy auto, beside those of the best fixed policy.",
         planner, planner_rows),
)
