"""tests/check/shape finds files of code that are too long, wherever they are, and nothing else."""
import importlib.machinery
import importlib.util
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
SHAPE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shape")
LOADER = importlib.machinery.SourceFileLoader("shape", SHAPE)
shape = importlib.util.module_from_spec(importlib.util.spec_from_loader("shape", LOADER))
LOADER.exec_module(shape)


class TooLong(unittest.TestCase):
    def sentences(self, *files):
        """What the check says of a tree with these files: (path, first line, lines in all)."""
        with tempfile.TemporaryDirectory(prefix="adtopk-", dir="/tmp") as root:
            for path, first, lines in files:
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(first + "\n" + "x\n" * (lines - 1))
            return list(shape.too_long(root))

    def test_code(self):
        for path, first in (("daemon/a.c", ""), ("tests/unit/b.h", ""), ("tests/cuda/c.cpp", ""),
                            ("client/python/d.py", ""), ("deploy/script", "#!/bin/sh")):
            self.assertEqual(self.sentences((path, first, 700)), [])
            self.assertEqual(self.sentences((path, first, 701)),
                             [f"{path}: 701 lines (at most 700)"])

    def test_other_files(self):
        self.assertEqual(self.sentences(("README.md", "", 2000), ("tests/data/list", "1", 2000),
                                        ("build/made.c", "", 2000), (".git/old.c", "", 2000)), [])


if __name__ == "__main__":
    unittest.main()
