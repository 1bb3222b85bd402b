"""The example trainer on a cluster: its ranks, and the parameters that all of them end with."""
import gzip
import os
import re
import shutil
import subprocess

from build import BUILD
from cluster import die_with_parent

TRAINER = os.path.join(BUILD, "client", "adtopk-digits")
# The same with gradients on the GPU that a variable names (digits_device.c).
ON_DEVICE = os.path.join(BUILD, "tests", "integration", "test-digits-device")
PACKED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "digits.csv.gz")


def unpack(directory):
    """Returns the path of the data."""
    path = os.path.join(directory, "digits.csv")
    with gzip.open(PACKED, "rb") as packed, open(path, "wb") as out:
        shutil.copyfileobj(packed, out)
    return path


def start(test, cluster, homes, data, *options, devices=(), variables=None):
    """The processes of a training, one rank at each home; they end with the test. devices: the UUID of
    the GPU that has a rank's gradients, or None, by rank."""
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith("ADTOPK_")}
    processes = []
    for rank, home in enumerate(homes):
        device = devices[rank] if devices else None
        there = {**(variables or {}), "ADTOPK_TEST_DIGITS_DEVICE": device} if device else {}
        process = subprocess.Popen(
            [ON_DEVICE if device else TRAINER, "--data", data, "--rank", str(rank), "--world",
             str(len(homes)), *options],
            env={**environment, **there, "ADTOPK_ADDRESS": cluster.address(home)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=die_with_parent)
        test.addCleanup(process.wait)
        test.addCleanup(process.kill)
        test.addCleanup(process.stdout.close)
        processes.append(process)
    return processes


def parameters(test, processes):
    """Waits for the end; returns the hash that all ranks print."""
    outputs = [process.communicate(timeout=500)[0] for process in processes]
    test.assertEqual([process.returncode for process in processes], [0] * len(processes), outputs)
    hashes = {re.search(r"parameters ([0-9a-f]{16})", output).group(1) for output in outputs}
    test.assertEqual(len(hashes), 1, outputs)
    return hashes.pop()
