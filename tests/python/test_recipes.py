#!/usr/bin/env python3
"""The recipes of guide.md for Lightning, Accelerate and Transformers: two processes on two nodes.

usage: test_recipes.py BUILD [unittest's arguments]

The cases are in recipe_cases.py. A package that is not installed is skipped by name.
"""
import sys
import unittest

import interpreter

interpreter.use("numpy", "torch")

from torchranks import PYTHON, TorchScene  # noqa: E402

PACKAGES = ("lightning", "accelerate", "transformers")


class Recipes(TorchScene):
    script = "recipe_cases.py"

    def test_cases(self):
        self.compare(dict.fromkeys(PACKAGES, 0))


if __name__ == "__main__":
    if not any(interpreter.has(PYTHON, [package]) for package in PACKAGES):
        print(f"SKIP: {PYTHON} has none of {', '.join(PACKAGES)}")
        sys.exit(interpreter.SKIPPED)
    unittest.main()
