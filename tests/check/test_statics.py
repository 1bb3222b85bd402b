"""tests/check/statics finds static functions that have the same name."""
import importlib.machinery
import importlib.util
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
STATICS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "statics")
LOADER = importlib.machinery.SourceFileLoader("statics", STATICS)
statics = importlib.util.module_from_spec(importlib.util.spec_from_loader("statics", LOADER))
LOADER.exec_module(statics)

SOURCE = """
/* static int comment(void) { } */
static const char *const table[] = {"a", "b"};
static int declared(int a);
static const struct entry *find_it(
    const struct table *table, int (*compare)(int a, int b))
{
    return NULL;
}
static void take(void)
{
    return push(1);
}
int public_one(void)
{
    return 0;
}
"""


class Statics(unittest.TestCase):
    """What counts, and what is said of it."""

    def test_definitions(self):
        self.assertEqual(statics.static_functions(SOURCE), {"find_it", "take"})

    def test_tree(self):
        with tempfile.TemporaryDirectory() as root:
            for path in ("daemon/a.c", "client/src/b.c", "tests/c.c"):
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as source:
                    source.write(SOURCE)
            found = statics.homes(root)
        self.assertEqual(sorted(found["take"]), ["client/src/b.c", "daemon/a.c"])  # tests do not count
        said = list(statics.problems(found))
        self.assertEqual(len(said), 2)
        self.assertIn("take() is static in 2 files: ", said[1])


if __name__ == "__main__":
    unittest.main()
