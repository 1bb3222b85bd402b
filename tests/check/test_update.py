"""tests/bench/update: it replaces the tables of README files and nothing else."""
import os
import subprocess
import tempfile
import unittest

UPDATE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../bench/update")
BEFORE = """# Title

    $ adtopk-perf sum --size 1M
    # what  size
    old        1

    $ adtopk-perf link

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

    $ other program
    stays
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
        self.build = folder.name
        self.readme = os.path.join(self.build, "README.md")
        self.program = os.path.join(self.build, "tests", "bench", "adtopk-perf")
        os.makedirs(os.path.dirname(self.program))
        self.write(self.readme, BEFORE)
        self.write(self.program, PROGRAM)
        os.chmod(self.program, 0o755)

    def write(self, path, text):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def update(self, *options):
        done = subprocess.run([UPDATE, self.build, *options, self.readme], capture_output=True,
                              text=True, check=False)
        with open(self.readme, encoding="utf-8") as readme:
            return done, readme.read()

    def test_update(self):
        done, text = self.update()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(text, AFTER)
        self.assertEqual(self.update("--through", "env A=b")[1], AFTER)

    def test_list(self):
        done, text = self.update("--list")
        self.assertEqual(text, BEFORE)
        self.assertEqual([line.split(": ")[1] for line in done.stdout.splitlines()],
                         ["adtopk-perf sum --size 1M", "adtopk-perf link"])

    def test_failure(self):
        for program in ("#!/bin/sh\nexit 1\n", "#!/bin/sh\necho nothing\n"):
            self.write(self.program, program)
            done, text = self.update()
            self.assertNotEqual(done.returncode, 0)
            self.assertEqual(text, BEFORE)


if __name__ == "__main__":
    unittest.main()
