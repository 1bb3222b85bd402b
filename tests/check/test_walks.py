"""tests/check/walks: what it writes it reads, and each kind of difference counts."""
import contextlib
import importlib.machinery
import importlib.util
import io
import os
import unittest

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "walks")
LOADER = importlib.machinery.SourceFileLoader("walks", PATH)
WALKS = importlib.util.module_from_spec(importlib.util.spec_from_loader("walks", LOADER))
LOADER.exec_module(WALKS)

NAME = "a policy change"
FILES = {"daemon/core/step.c", "daemon/core/agree/view.c", "daemon/core/round.c"}


def document_of(files):
    return f"text\n<!-- {NAME} -->\n{WALKS.text_of(files)}<!-- end -->\nmore text\n"


def lines(files, count):
    return {path: count for path in files}


class Documents(unittest.TestCase):
    def compare(self, sure, perhaps):
        """sure, perhaps: by file, lines."""
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            count = WALKS.compare(NAME, document_of(FILES), sure, perhaps)
        return count, errors.getvalue()

    def test_what_is_written_is_read(self):
        self.assertEqual(WALKS.listed(document_of(FILES), NAME), FILES)
        self.assertEqual(WALKS.listed(document_of(set()), NAME), set())
        written = WALKS.section(NAME).sub(lambda at: at[1] + at[3], document_of(FILES))
        self.assertEqual(written, f"text\n<!-- {NAME} -->\n<!-- end -->\nmore text\n")

    def test_differences(self):
        few, many = WALKS.LEAST_LINES - WALKS.SLACK, WALKS.LEAST_LINES + WALKS.SLACK
        other = {"daemon/log.c"}
        self.assertEqual(self.compare(lines(FILES, many), lines(FILES, many)), (0, ""))
        self.assertEqual(self.compare(lines(other, many - 1), lines(FILES, few)), (0, ""))
        count, errors = self.compare(lines(FILES | other, many), lines(FILES | other, many))
        self.assertEqual(count, 1)
        self.assertIn("daemon/log.c is on the walk and not in the list", errors)
        count, errors = self.compare({}, {**lines(FILES, few), "daemon/core/step.c": few - 1})
        self.assertEqual(count, 1)
        self.assertIn("daemon/core/step.c is in the list and not on the walk", errors)

    def test_limit(self):
        files = {f"daemon/core/file{i}.c" for i in range(WALKS.MOST[NAME] + 1)}
        with contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(WALKS.compare(NAME, document_of(files), {}, lines(files, 99)), 1)


if __name__ == "__main__":
    unittest.main()
