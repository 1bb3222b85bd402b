#!/usr/bin/env python3
"""How many times as long another way of selecting takes as adtopk's pass, for the same sizes and
densities. First that program runs, which prints a JSON line per size and density, then the pass.

usage: beside.py BUILD GPU LEAST PROGRAM [--brief]; LEAST is the ratio that is wanted. Ends as
PROGRAM does if that has failed, or cannot run here (77).
"""
import json
import os
import subprocess
import sys


def contender(program, brief):
    """What it says of itself, and its rows."""
    command = [sys.executable, program] if program.endswith(".py") else [program]
    done = subprocess.run(command + brief, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, end="", flush=True)
    if done.returncode != 0:
        sys.exit(done.returncode)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [line for line in lines if "elements" in line]


def the_pass(build, gpu, row, brief):
    """The median of adtopk's pass, and of r += g beside it."""
    command = [os.path.join(build, "tests/bench/adtopk-perf"), "select", "--device", gpu, "--json",
               "--view", "global", "--size", str(4 * row["elements"]), "--density", str(row["density"])]
    done = subprocess.run(command + (["--iterations", "3", "--warmup", "1"] if brief else []),
                          stdout=subprocess.PIPE, text=True, check=True)
    found = [one for one in json.loads(done.stdout)["rows"] if one["variant"] == "global"]
    assert len(found) == 1 and found[0]["count"] == row["elements"], found
    return found[0]["time_us"]["median"], found[0]["floor_us"]["median"]


def main():
    build, gpu, least, program, *brief = sys.argv[1:]
    name = os.path.splitext(os.path.basename(program))[0]
    for row in contender(program, brief):
        took, floor = the_pass(build, gpu, row, brief)
        print(f"{name} {row['elements']} {row['density']}: {row['median_us']:.1f} us, floor "
              f"{row['floor_us']:.1f} us; pass {took:.1f} us, floor {floor:.1f} us; ratio "
              f"{row['median_us'] / took:.3f}, at least {least}", flush=True)


main()
