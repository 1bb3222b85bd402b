#!/usr/bin/env python3
"""adtopk.torch under FSDP2: four processes on two nodes, each node with a replica of two shards.

usage: test_sharded.py BUILD [unittest's arguments]

The cases are in sharded_cases.py, whose numbers are compared here. Debian's torch has no FSDP2; the
stage `torch` of tests/run runs this with a later one.
"""
import sys
import unittest

import interpreter

interpreter.use("numpy", "torch")

from torchranks import PYTHON, TorchScene  # noqa: E402

LIMITS = {"as_without_shards": 1e-6, "used_on_one_replica": 1e-6, "accumulation": 1e-6,
          "sparse_and_equal": 1e-5, "not_a_number": 0, "refusals": 0}


class Sharded(TorchScene):
    script = "sharded_cases.py"

    def test_cases(self):
        self.compare(LIMITS, homes=(0, 0, 1, 1))


if __name__ == "__main__":
    if not interpreter.has(PYTHON, ["torch.distributed.device_mesh"]):
        print("SKIP: this torch has no FSDP2")
        sys.exit(interpreter.SKIPPED)
    unittest.main()
