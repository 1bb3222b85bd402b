"""What the commands of this folder have in common: options, programs, progress, how they end."""
import argparse
import json
import os
import re
import subprocess
import sys

import box
import field
import teams
from conductor import TeamError

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../../.."))
PROGRAMS = ("daemon/adtopkd", "client/adtopkctl/adtopkctl", "client/adtopk-text",
            "tests/bench/cluster-adtopk",
            "tests/bench/cluster-floor", "tests/bench/cluster-training",
            "tests/bench/cluster-training-peer")
MODELS = ("vgg16", "resnet50", "bert-base", "gpt2", "lstm")
BITS = 26  # of an entry with its index, about: for the default burst only
LEAST_BURST = 4 * box.MTU


def progress(words, detail=""):
    """Where nobody watches, without the detail and nothing twice."""
    if sys.stderr.isatty():
        print(f"\r\033[K{words}{detail}", end="", file=sys.stderr, flush=True)
    elif words != progress.last:
        print(words, file=sys.stderr, flush=True)
    progress.last = words


progress.last = None


# ---------------------------------------------------------------- how commands run and end

def attempt(name, work):
    """Does the work, in the box. Returns the exit status and whether it was interrupted; what failed
    has been said."""
    try:
        work()
        return 0, False
    except box.Interrupted:
        return 1, True
    except box.Impossible as error:
        print(f"{name}: cannot make such a network here: {error}", file=sys.stderr)
        return 77, False
    except (TeamError, teams.ClusterError, OSError, subprocess.CalledProcessError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1, False
    finally:
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr)


def measure(name, options, measurement, scratch, text):
    """What every command does in the box: measurement.run(scratch), then prints its document(), or
    what text() makes of it, also when it was interrupted. Returns the exit status."""
    code, measurement.interrupted = attempt(name, lambda: measurement.run(scratch))
    if code and not measurement.interrupted:
        return code
    document = measurement.document()
    print(json.dumps(document) if options.json else text(document), flush=True)
    if measurement.interrupted:
        print(f"{name}: interrupted: this is what was measured so far", file=sys.stderr)
    return code


def ask(command):
    """What a program prints."""
    return subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE,
                          text=True).stdout


def run(name, options, work):
    """Makes programs unless --build names them, then calls work(scratch) in the box and exits with
    what it returns."""
    try:
        if options.build is None:
            options.build = os.path.join(ROOT, "build", "release")
            make_programs(options.build)
        options.build = os.path.abspath(options.build)
        box.enclose(work)
    except box.Impossible as error:
        print(f"{name}: cannot make network namespaces here: {error}; it takes root, or a kernel that "
              "lets users make them", file=sys.stderr)
        sys.exit(77)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"{name}: {error}")
    except KeyboardInterrupt:
        sys.exit(1)


def make_programs(build):
    """Builds what the commands need as deploy/quickstart does, into its folder."""
    subprocess.run([os.path.join(ROOT, "deploy", "setup"), "build"], check=True, stdout=sys.stderr)
    if not os.path.exists(os.path.join(build, "build.ninja")):
        subprocess.run(["meson", "setup", "-Dbuildtype=release", "-Dtests=disabled",
                        "-Dwerror=false", build, ROOT], check=True, stdout=sys.stderr)
    targets = ask(["meson", "introspect", build, "--targets"])
    wanted = PROGRAMS + (("tests/bench/cluster-mpi",) if '"cluster-mpi"' in targets else ())
    subprocess.run(["ninja", "-C", build, *wanted], check=True, stdout=sys.stderr)


def tensors_of(options, program, *arguments):
    """A model's tensors, elements by name, as a program of ours says that they are."""
    said = ask([os.path.join(options.build, "tests/bench", program), "--shape", *arguments])
    return {name: int(elements) for name, elements in map(str.split, said.splitlines())}


def take_shape(options, tensors):
    """What follows from the gradient's real size."""
    options.tensors, options.elements = len(tensors), sum(tensors.values())
    options.list_bytes = 8 * max(1, round(options.elements * options.density))
    if options.burst is None:
        sent = options.elements * 0.01 * BITS / 8 * max(1, options.nodes - 1)
        options.burst = max(LEAST_BURST, round(0.02 * sent))


# ---------------------------------------------------------------- options

def quantity(text, units):
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([a-zA-Z]*)", text)
    if not match or match[2] not in units:
        known = ", ".join(unit for unit in units if unit)
        raise argparse.ArgumentTypeError(f"'{text}' is not a number with one of {known} behind it")
    return int(float(match[1]) * units[match[2]])


def size(text):
    return quantity(text, {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9})


def bits(text):
    return quantity(text, {"": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9})


def between(low, high):
    def check(text):
        if not text.isdigit() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from {low} to {high}")
        return int(text)
    return check


def density(text):
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not above 0 and at most 1")
    return value


def policy(text):
    name, equals, document = text.partition("=")
    if not equals or not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,30}", name) or name in field.PEERS:
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=JSON, with a name of its own")
    try:
        return name, dict(json.loads(document))
    except (ValueError, TypeError):
        raise argparse.ArgumentTypeError(f"'{document}' is no JSON object") from None


def add_box_options(parser, rate):
    """Options of every command. rate: whether links have one, which the user may choose."""
    parser.add_argument("--build", help="use the programs built there; build nothing")
    parser.add_argument("--nodes", type=between(1, 64), default=4, help="1 to 64 (4)")
    if rate:
        parser.add_argument("--rate", type=bits, default=10**9, help="of every link in both "
                            "directions: 100mbit, 2.5gbit; 0: unlimited (1gbit)")
    parser.add_argument("--burst", type=size, metavar="BYTES",
                        help="sent at once after a pause (2%% of what a node sends at 1%%)")
    parser.add_argument("--policy", type=policy, action="append", default=[], metavar="NAME=JSON",
                        help="one more contender, with this policy")
    parser.add_argument("--json", action="store_true", help="print a document")


def check_box_options(parser, options, rates):
    if any(0 < rate < 10**6 for rate in rates):
        parser.error("--rate: at least 1mbit, or 0")
    if options.burst is not None and options.burst < LEAST_BURST:
        parser.error(f"--burst: at least {LEAST_BURST} bytes, four packets")
