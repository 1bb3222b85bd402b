"""Which lines tests/mutants/mutants changes, and into what."""
import importlib.machinery
import importlib.util
import os
import unittest

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
    return a;
}
"""


class Mutants(unittest.TestCase):
    def changes(self):
        return {(number, name, after.strip()) for _, number, changed in mutants.sites("f.c", SOURCE)
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
        self.assertTrue({number for number, _, _ in self.changes()}.isdisjoint({1, 2, 3, 7, 10}))
        self.assertFalse(any(name == "dropped statement" and number in (8, 14, 16, 17)
                             for number, name, _ in self.changes()))

    def test_the_draw_is_repeatable(self):
        first = [mutants.draw(mutants.ROOT, "1", index, 0) for index in range(3)]
        self.assertEqual(first, [mutants.draw(mutants.ROOT, "1", index, 0) for index in range(3)])
        self.assertNotEqual(first, [mutants.draw(mutants.ROOT, "2", index, 0) for index in range(3)])

    def test_fixed_ones_are_there(self):
        self.assertGreaterEqual(len(list(mutants.fixed_mutants(mutants.ROOT))), 2)

    def test_verdict(self):
        killed = {"verdict": "killed", "file": "f", "line": 1, "before": "a", "after": "b"}
        survived = {**killed, "verdict": "survived"}
        self.assertEqual(mutants.verdict([killed] * 5), 0)
        self.assertEqual(mutants.verdict([killed, survived]), 1)
        mutants.reasons = lambda: [{"file": "f", "before": "a", "after": "b", "reason": "equal"}]
        self.assertEqual(mutants.verdict([survived] * 3), 0)
        self.assertEqual(mutants.verdict([survived] * 4), 1)


if __name__ == "__main__":
    unittest.main()
