"""Which lines tests/mutants/mutants changes, and into what."""
import contextlib
import importlib.machinery
import importlib.util
import io
import os
import shutil
import tempfile
import types
import unittest
import unittest.mock

PROGRAM = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "mutants",
                       "mutants")
LOADER = importlib.machinery.SourceFileLoader("mutants", PROGRAM)
mutants = importlib.util.module_from_spec(importlib.util.spec_from_loader("mutants", LOADER))
LOADER.exec_module(mutants)

SOURCE = """#include "a < b.h"
#define LESS(a) (a < 1)
static const int table[] = {1, 2};

static int function(int a)
{
    const int b = a + 1; /* a < b */
    int c = 2;

    assert(a < b);
    call("a < b", a);
    c += hash_mix(a + c);
    if (a < b && table[0] == 1) {
        return b / c;
    }
    free(p);
    __builtin_prefetch(p + 1);
    return a;
}
"""


class Mutants(unittest.TestCase):
    def changes(self):
        return {(number, name, after.strip()) for number, changed in mutants.sites(SOURCE)
                for name, after in changed}

    def test_what_is_changed(self):
        changes = self.changes()
        for wanted in ((11, "dropped statement", ";"), (12, "dropped statement", ";"),
                       (12, "seed", "c += hash_mix(1 + a + c);"),
                       (13, "comparison", "if (a <= b && table[0] == 1) {"),
                       (13, "comparison", "if (a < b || table[0] == 1) {"),
                       (13, "comparison", "if (a < b && table[0] != 1) {"),
                       (14, "divisor", "return b / (2 * c);")):
            self.assertIn(wanted, changes)

    def test_what_is_left_alone(self):
        changed = {number for number, _, _ in self.changes()}
        self.assertTrue(changed.isdisjoint({1, 2, 3, 7, 10, 17}))
        self.assertFalse(any(name == "dropped statement" and number in (8, 14, 16, 18)
                             for number, name, _ in self.changes()))

    def tree(self, files):
        """A folder with these C files in the folders of which mutants are made."""
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        for name in mutants.FOLDERS:
            os.makedirs(os.path.join(folder, name))
        for name, text in files.items():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        return folder

    def test_the_draw_is_repeatable(self):
        first = list(mutants.draw(mutants.ROOT, "1"))
        self.assertGreater(len(first), 1000)
        self.assertEqual(first, list(mutants.draw(mutants.ROOT, "1")))
        self.assertNotEqual(first, list(mutants.draw(mutants.ROOT, "2")))

    def test_every_line_is_drawn_once(self):
        drawn = list(mutants.draw(self.tree({"daemon/core/a.c": SOURCE}), "1"))
        self.assertEqual(sorted(mutant.line for mutant in drawn), [8, 11, 12, 13, 14])

    def test_a_change_moves_no_other_draw(self):
        short = self.tree({"daemon/core/a.c": SOURCE})
        long = self.tree({"daemon/core/a.c": SOURCE.replace("    free(p);\n", "    p = a;\n"),
                          "daemon/core/b.c": SOURCE})
        def draws(tree):
            return [mutant for mutant in mutants.draw(tree, "1")
                    if mutant.file == "daemon/core/a.c" and mutant.line != 16]
        self.assertEqual(draws(short), draws(long))

    def test_listed_ones_are_there(self):
        self.assertGreaterEqual(len(list(mutants.listed_mutants(mutants.ROOT, "fixed.json"))), 2)
        self.assertEqual(len(list(mutants.listed_mutants(mutants.ROOT, "survivors.json"))),
                         len(mutants.listed("survivors.json")))

    def test_a_listed_line_that_is_gone(self):
        gone = [{"file": "daemon/core/a.c", "before": "c += 3;", "after": ";", "reason": "equal"}]
        with unittest.mock.patch.object(mutants, "listed", lambda _: gone):
            with self.assertRaises(SystemExit):
                list(mutants.listed_mutants(self.tree({"daemon/core/a.c": SOURCE}), "fixed.json"))

    def bench(self, verdicts):
        """Judges by the mutants' lines, and counts how often."""
        folder, judged = tempfile.mkdtemp(), []
        self.addCleanup(shutil.rmtree, folder)
        os.makedirs(os.path.join(folder, "results"))

        def judge(mutant):
            judged.append(mutant.line)
            return verdicts[mutant.line], "test_a"
        return types.SimpleNamespace(folder=folder, tree=folder, judge=judge, judged=judged)

    def judge_all(self, bench, count):
        drawn = [mutants.Mutant("f", line, "seed", f"a{line};", f"b{line};") for line in range(9)]
        with unittest.mock.patch.multiple(mutants, listed=lambda _: [], draw=lambda *_: drawn):
            with contextlib.redirect_stdout(io.StringIO()):
                return [result["line"] for result in mutants.judge_all(bench, "1", count)]

    def test_a_stopped_run_goes_on(self):
        bench = self.bench(["killed", "invalid", "survived", "equal", "killed", "killed"])
        self.assertEqual(self.judge_all(bench, 2), [0, 2])
        self.assertEqual(bench.judged, [0, 1, 2])
        self.assertEqual(self.judge_all(bench, 4), [0, 2, 4, 5])
        self.assertEqual(bench.judged, [0, 1, 2, 2, 3, 4, 5])  # survivors are judged anew

    def verdict(self, results, reasons=()):
        with unittest.mock.patch.object(mutants, "listed", lambda _: reasons):
            with contextlib.redirect_stdout(io.StringIO()) as text:
                status = mutants.verdict(results)
        return status, text.getvalue().splitlines()[-1]

    def test_verdict(self):
        killed = {"verdict": "killed", "file": "f", "line": 1, "before": "a", "after": "b",
                  "by": "test_a"}
        survived = {**killed, "verdict": "survived"}
        reasons = [{"file": "f", "before": "a", "after": "b", "reason": "equal"}]
        self.assertEqual(self.verdict([killed] * 5), (
            0, "mutants passed: 5 of 5 killed, 0 survived (at most 3 may), 0 of them without a "
               "reason, 0 stale reasons"))
        self.assertEqual(self.verdict([killed, survived])[0], 1)
        self.assertEqual(self.verdict([survived] * 3, reasons)[0], 0)
        self.assertEqual(self.verdict([survived] * 4, reasons)[0], 1)
        self.assertEqual(self.verdict([killed], reasons), (
            1, "mutants failed: 1 of 1 killed, 0 survived (at most 3 may), 0 of them without a "
               "reason, 1 stale reasons"))


if __name__ == "__main__":
    unittest.main()
