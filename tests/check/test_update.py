"""tests/bench/update: it replaces the tables of README files and nothing else."""
import os
import shutil
import subprocess
import tempfile
import unittest

UPDATE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../bench/update")
BEFORE = """# Title

    $ adtopk-perf sum --size 1M
    # what  size
    old        1

    $ adtopk-perf link

    $ tests/bench/other --policy 'x={
          "y": 1}'
    old

    too

    $ tests/sim/other --build BUILD --quick
    $ other program
    stays
"""
AFTER = """# Title

    $ adtopk-perf sum --size 1M
    # what  size
    #        (B)
    sum --size 1M

    $ adtopk-perf link
    # what  size
    #        (B)
    link

    $ tests/bench/other --policy 'x={
          "y": 1}'
    first

    --policy x={           "y": 1} --build FOLDER

    $ tests/sim/other --build BUILD --quick
    first

    --build FOLDER --quick
    $ other program
    stays
"""
OTHER = """#!/bin/sh
echo first
echo
echo "$*" | tr '\\n' ' '
"""
PROGRAM = """#!/bin/sh
echo '# adtopk-perf 1.0: some machine'
echo '# what  size'
echo '#        (B)   '
echo "$*"
"""


class Update(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        self.build = os.path.join(self.root, "build")
        self.readme = os.path.join(self.root, "README.md")
        self.program = os.path.join(self.build, "tests", "bench", "adtopk-perf")
        self.write(self.readme, BEFORE)
        self.write(self.program, PROGRAM)
        for folder in ("bench", "sim"):
            self.write(os.path.join(self.root, "tests", folder, "other"), OTHER)
        shutil.copy(UPDATE, os.path.join(self.root, "tests", "bench"))

    def write(self, path, text):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def update(self, *options):
        done = subprocess.run([os.path.join(self.root, "tests", "bench", "update"), self.build, *options,
                               self.readme], capture_output=True, text=True, check=False)
        with open(self.readme, encoding="utf-8") as readme:
            return done, readme.read()

    def test_update(self):
        done, text = self.update()
        self.assertEqual(done.returncode, 0, done.stderr)
        after = AFTER.replace("FOLDER", self.build)
        self.assertEqual(text, after)
        self.assertEqual(self.update("--through", "env A=b")[1], after)

    def test_match(self):
        """Only one command is run, and its table is replaced."""
        done, text = self.update("--match", "link")
        self.assertEqual(done.returncode, 0, done.stderr)
        old = "    $ adtopk-perf link\n"
        self.assertEqual(text, BEFORE.replace(old, old + "    # what  size\n    #        (B)\n    link\n"))

    def test_list(self):
        done, text = self.update("--list")
        self.assertEqual(text, BEFORE)
        self.assertEqual([line.split("README.md: ")[1] for line in done.stdout.splitlines() if ".md" in line],
                         ["adtopk-perf sum --size 1M", "adtopk-perf link",
                          "tests/bench/other --policy 'x={", "tests/sim/other --build BUILD --quick"])

    def test_failure(self):
        for program in ("#!/bin/sh\nexit 1\n", "#!/bin/sh\necho nothing\n"):
            self.write(self.program, program)
            done, text = self.update()
            self.assertNotEqual(done.returncode, 0)
            self.assertEqual(text, BEFORE)


if __name__ == "__main__":
    unittest.main()
