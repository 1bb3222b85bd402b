"""tests/model/check notices what the code declares and the models do not know, and searches that fail."""
import contextlib
import importlib.machinery
import importlib.util
import io
import os
import sys
import unittest

sys.dont_write_bytecode = True
CHECK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../model/check")
LOADER = importlib.machinery.SourceFileLoader("model", CHECK)
model = importlib.util.module_from_spec(importlib.util.spec_from_loader("model", LOADER))
LOADER.exec_module(model)

MOVE = "JOB_FORMING JOB_ON_PREPARE JOB_PREPARED"
KNOWN = f"[in view.pml]\n{MOVE}\nprepare.view\n[left out: later]\nfail.text\n"
TEXT = "job_fires(n, JOB_ON_PREPARE, JOB_PREPARED) /* prepare */"
NAMES = {MOVE, "prepare.view", "fail.text"}
TABLES = """#define JOB_FORMING 0
#define JOB_PREPARED 1
#define JOB_ON_PREPARE 0
#define job_moves(from, event, to) (0 \\
    || ((from) == 0 && (event) == 0 && (2 & (1 << (to)))) \\
    || ((from) == 1 && (event) == 0 && (2 & (1 << (to)))))
"""


class TestCompare(unittest.TestCase):
    def test_equal(self):
        self.assertEqual(model.compare(NAMES, KNOWN, TEXT), [])

    def test_the_code_declares_more(self):
        for name in ("JOB_ACTIVE JOB_ON_DRAIN JOB_FORMING", "prepare.base", "suspect.node"):
            with self.subTest(name=name):
                faults = model.compare(NAMES | {name}, KNOWN, TEXT)
                self.assertEqual(faults, [f'the code declares "{name}", which known.txt does not name'])

    def test_the_code_declares_less(self):
        self.assertEqual(len(model.compare(NAMES - {"fail.text"}, KNOWN, TEXT)), 1)

    def test_the_model_makes_other_moves(self):
        self.assertEqual(len(model.compare(NAMES, KNOWN, "prepare")), 1)
        self.assertEqual(len(model.compare(NAMES, KNOWN, TEXT + "job_fires(n, JOB_ON_FAIL, JOB_ENDED)")), 1)

    def test_the_model_has_no_such_message(self):
        self.assertEqual(len(model.compare(NAMES, KNOWN, TEXT.replace("prepare", "prepares"))), 1)

    def test_a_name_twice(self):
        with self.assertRaises(ValueError):
            model.read_known(KNOWN + "prepare.view\n")


class TestTables(unittest.TestCase):
    def test_a_move_is_taken_away(self):
        tables = model.without(TABLES, MOVE)
        self.assertIn("((from) == 0 && (event) == 0 && (0 & (1 << (to))))", tables)
        self.assertIn("((from) == 1 && (event) == 0 && (2 & (1 << (to))))", tables)


class TestJudge(unittest.TestCase):
    def judge(self, found, planted):
        keep = model.search
        model.search = lambda *_: found
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                return model.judge("view", "", planted, "", "gcc")
        finally:
            model.search = keep

    def test_a_sound_model(self):
        self.assertTrue(self.judge((True, 0, ""), False))
        self.assertFalse(self.judge((False, 0, ""), False), "an incomplete search")
        self.assertFalse(self.judge((True, 1, ""), False))
        self.assertFalse(self.judge((False, -1, ""), False), "the search did not run")

    def test_a_planted_fault(self):
        self.assertTrue(self.judge((False, 1, ""), True))
        self.assertFalse(self.judge((True, 0, ""), True))


if __name__ == "__main__":
    unittest.main()
