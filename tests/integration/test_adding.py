"""Adds a collective and a sparsifier to a copy of the tree, by the steps that the READMEs of their
rooms name, and runs the unit, combination and simulator tests on them.

usage: test_adding.py BUILD [TEST...]"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGE_LINES = 10  # at most, of "To add one"
LONG = bool(os.environ.get("ADTOPK_TEST_LONG"))
UNIT = ["collective", "combination", "sparsify", "sparsify_bands", "sparsify_job",
        "sparsify_turns"]

POLICY = '''"{\\"reduce\\":\\"sum\\",\\"density\\":0.1,%s,\\"values\\":\\"f32\\"}",\n    '''
RELATIVE = POLICY % '''\\"sparsifier\\":\\"relative\\"'''
RELAY = POLICY % '''\\"sparse_collective\\":\\"relay\\"'''
BOTH = POLICY % '''\\"sparsifier\\":\\"relative\\",\\"sparse_collective\\":\\"relay\\"'''

BAND = '''static bool relative_holds(struct plain *plain, uint64_t count)
{
    const uint64_t reached = plain_count(plain, plain->sorted[0] / 2);
    return count == (reached < plain->k ? reached : plain->k);
}

'''

# A policy of tests/sim/scenario.c.
INT8 = '"{\\"sparsifier\\":\\"adtopk\\",\\"density\\":0.05,\\"values\\":\\"int8\\"}"'

# Of each page: the file that is added, and what is inserted before a text of another file.
COLLECTIVE = ("collective", "relay.c", [
    ("daemon/collective/collective.h", "entry(balanced)", "entry(relay) "),
    ("daemon/collective/meson.build", "'ring.c'", "'relay.c', "),
    ("tests/unit/test_collective.c", "&collective_nccl_allgather,\n    };", "&collective_relay,\n        "),
    ("tests/unit/test_combination.c", '{"balanced", ', '{"relay", true, false, false},\n    '),
    ("tests/sim/test_vanish.c", 'SPARSE("balanced"),', 'SPARSE("relay"),\n    '),
    ("tests/sim/scenario.c", INT8, RELAY),
])
SPARSIFIER = ("sparsify", "relative.c", [
    ("daemon/sparsify/table.c", "entry(randomk)", "entry(relative) "),
    ("daemon/sparsify/meson.build", "'sidco.c'", "'relative.c', "),
    ("tests/unit/test_combination.c", '{"randomk", ', '{"relative", LISTS, false},\n    '),
    ("tests/unit/test_sparsify_bands.c", "static bool adtopk_holds", BAND),
    ("tests/unit/test_sparsify_bands.c", '{"adtopk", "k of every',
     '{"relative", "1 to k", 0, relative_holds, 0, 1},\n    '),
    ("tests/sim/scenario.c", INT8, RELATIVE + BOTH),
])


def page(room):
    """The numbered steps of "To add one" in the README of a room."""
    with open(os.path.join(ROOT, "daemon", room, "README.md"), encoding="utf-8") as file:
        text = file.read()
    return re.search(r"## To add one\n\n(1\. .*?)\n\n", text, re.DOTALL).group(1)


def insert(path, before, text):
    with open(path, encoding="utf-8") as file:
        old = file.read()
    assert old.count(before) == 1, f"{path} has {old.count(before)} times: {before}"
    with open(path, "w", encoding="utf-8") as file:
        file.write(old.replace(before, text + before))


class Pages(unittest.TestCase):
    def test_pages_are_short_and_name_every_file(self):
        for room, _, edits in (COLLECTIVE, SPARSIFIER):
            steps = page(room)
            self.assertLessEqual(len(steps.splitlines()), PAGE_LINES)
            for path, _, _ in edits:
                own = os.path.basename(path) if path.startswith("daemon/" + room) else path
                self.assertIn(f"`{own}`", steps)


class Adding(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = tempfile.TemporaryDirectory(prefix="adding-")
        cls.tree = os.path.join(cls.place.name, "tree")
        shutil.copytree(ROOT, cls.tree, symlinks=True,
                        ignore=shutil.ignore_patterns("build", ".*", "shared", "__pycache__"))
        # The copy of the build lies as the build lies to the tree: only what is new is compiled.
        cls.build = os.path.join(cls.tree, os.path.relpath(BUILD, ROOT))
        # Other tests have folders there, which may go meanwhile.
        shutil.copytree(BUILD, cls.build, symlinks=True,
                        ignore=shutil.ignore_patterns("bare", "meson-logs", "tmp*"))
        for room, name, edits in (COLLECTIVE, SPARSIFIER):
            shutil.copy(os.path.join(ROOT, "tests/integration/adding", name),
                        os.path.join(cls.tree, "daemon", room))
            for path, before, text in edits:
                insert(os.path.join(cls.tree, path), before, text)
        targets = [f"tests/unit/test_{name}" for name in UNIT] + ["tests/sim/test_sim"]
        if LONG:
            targets = []
        cls.must("meson", "setup", "--reconfigure", cls.build)
        cls.must("ninja", "-C", cls.build, *targets)

    @classmethod
    def tearDownClass(cls):
        cls.place.cleanup()

    @classmethod
    def must(cls, *command, **variables):
        environment = {**os.environ, **variables}
        environment.pop("ADTOPK_TEST_LONG", None)  # all tests of the copy in their usual form
        result = subprocess.run(command, cwd=cls.tree, env=environment, text=True, check=False,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if result.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: {result.stdout[-3000:]}")
        return result.stdout

    def program(self, path, *arguments, **variables):
        return self.must(os.path.join(self.build, path), *arguments, **variables)

    def test_unit_tests(self):
        for name in UNIT:
            self.assertIn("PASSED", self.program(f"tests/unit/test_{name}"))

    def test_simulator(self):
        for name in ("test_comes_back", "test_stays_away"):
            out = self.program("tests/sim/test_sim", ADTOPK_SIM_TEST=name)
            self.assertIn("1 test(s) run", out)
        self.program("tests/sim/test_sim", "1", "1000" if LONG else "100")

    @unittest.skipUnless(LONG, "in the long form")
    def test_documents(self):
        check = os.path.join(self.tree, "tests/check/documents")
        self.must(check, "--build", self.build, "--write")
        self.must(check, "--build", self.build)
        for suite in ("unit", "sim"):
            self.must("meson", "test", "-C", self.build, "--no-rebuild", "--suite", suite)


if __name__ == "__main__":
    BUILD = os.path.abspath(sys.argv.pop(1))
    unittest.main()
