#!/usr/bin/env python3
"""overlap="forward" of adtopk.torch's DistributedOptimizer: two processes on two nodes.

usage: test_forward.py BUILD [unittest's arguments]

The cases are in forward_cases.py. Each trains twice: overlap changes no bit of the parameters.
"""
import unittest

import interpreter

interpreter.use("numpy", "torch")

from torchranks import TorchScene  # noqa: E402

LIMITS = dict.fromkeys((
    "momentum", "plain_sgd", "one_rank_watches", "adam", "default_policy", "groups", "accumulation",
    "tied_and_called_twice", "some_are_not_called", "modules_that_are_never_called", "weights_that_hooks_compute",
    "without_calls_of_modules", "a_use_that_comes_unexpected", "checkpointed", "compiled",
    "group_is_removed", "evaluation_in_inference_mode", "evaluation_and_dictionaries", "clipping_in_some_steps", "closures", "other_types_and_layouts",
    "not_a_number", "copies_and_files", "nobody_waits", "leaves_first", "policy_is_changed", "refusals"), 0)


class Forward(TorchScene):
    script = "forward_cases.py"

    def test_cases(self):
        self.compare(LIMITS)


if __name__ == "__main__":
    unittest.main()
