#!/usr/bin/env python3
"""adtopk.torch's optimisers, without DistributedDataParallel: two processes on two nodes.

usage: test_optimiser.py BUILD [unittest's arguments]

The cases are in optimiser_cases.py and lookahead_cases.py, whose numbers are compared here.
"""
import unittest

import interpreter

interpreter.use("numpy", "torch")

from torchranks import TorchScene  # noqa: E402

# The largest number that a case may give. 0: nothing is rounded twice.
LIMITS = {
    "momentum": 1e-6, "without_lookahead": 1e-6, "adam_under_dense": 1e-6, "accumulation": 1e-6,
    "clipping": 1e-6, "schedules": 1e-6, "hooks": 1e-6, "closures": 1e-6, "unused_on_one_rank": 1e-6,
    "odd_parameters": 1e-6, "channels_last": 1e-6, "names_are_optional": 0, "steps_of_sgd": 1e-6,
    "local_steps": 1e-6, "local_steps_go_on": 1e-6, "local_steps_after_a_failure": 1e-6,
    "local_steps_of_16_bits": 0, "local_steps_channels_last": 1e-6, "outer_momentum": 1e-6, "shared_parameters": 0, "methods": 0,
    "frozen_parameters": 0, "beside_ddp": 0, "models_differ": 0, "options_differ": 0,
    "layout_changes": 0, "gradients_go_on": 1e-6, "refusals": 0, "not_a_number": 0, "scalers": 1e-6,
    "resumed": 1e-5, "velocity_is_kept": 1e-6, "equal_beginnings": 0}
LIFE = {"frozen_midway": 1e-6, "changed_after_the_push": 0, "made_twice": 0, "dropped": 0, "converted": 0,
        "taken_local_steps": 0, "taken_gradients": 0, "named_twice": 0, "compiled_steps": 0,
        "group_is_removed": 0, "resumed_by_another_method": 0}
LOOKAHEAD = {"lookahead_of_sgd": 1e-6, "weights_that_hooks_compute": 0, "lookahead_of_adamw": 1e-6, "lookahead_of_steps": 1e-6,
             "lookahead_of_options": 1e-6, "rate_of_a_loaded_state": 0, "momentum_under_adam": 0,
             "written_while_ahead": 0}


class Optimiser(TorchScene):
    script = "optimiser_cases.py"

    def test_cases(self):
        self.compare(LIMITS)


class Life(TorchScene):
    script = "life_cases.py"

    def test_cases(self):
        self.compare(LIFE)


class Lookahead(TorchScene):
    script = "lookahead_cases.py"

    def test_cases(self):
        self.compare(LOOKAHEAD)


if __name__ == "__main__":
    unittest.main()
