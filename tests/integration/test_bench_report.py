#!/usr/bin/env python3
"""tests/bench/report: tiny runs of all its parts, and the page that they become. No time decides
anything.

usage: test_bench_report.py BUILD [unittest's arguments]
"""
import html.parser
import json
import os
import subprocess
import tempfile
import unittest

from build import BUILD
from cluster import die_with_parent

REPORT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../bench/report"))
PARTS = ["selection", "payload", "handover", "collectives", "cluster", "convergence", "planner"]
IN_A_BOX = {"collectives", "planner"}  # they need namespaces
EMPTY = {"meta", "br"}


class Page(html.parser.HTMLParser):
    """Its elements, checked to nest, and the texts of some."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.tags, self.fetched, self.data = [], [], [], [], ""
        self.feed(text)
        assert self.open == ["html"] or not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        attributes = dict(attrs)
        self.fetched += [value for name, value in attrs if name in ("src", "href")]
        self.ids += [attributes["id"]] if "id" in attributes else []
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, (tag, self.open)

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.data += data


class Reports(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="adtopk-report-test-")
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "page.html")

    def run_it(self, *arguments, code=0):
        done = subprocess.run([REPORT, "--build", BUILD, "--out", self.path, *arguments],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, preexec_fn=die_with_parent, timeout=280, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def page(self):
        with open(self.path, encoding="utf-8") as file:
            text = file.read()
        page = Page(text)
        self.assertEqual(page.fetched, [])
        self.assertIn("prefers-color-scheme: dark", text)
        return page, text, json.loads(page.data)

    def test_all_parts(self):
        done = self.run_it("--quick")
        self.assertEqual(done.stdout, self.path + "\n")
        page, text, document = self.page()
        self.assertEqual([one for one in page.ids if one != "data"], PARTS)
        self.assertIn("A smoke test", text)
        self.assertEqual([part["name"] for part in document["parts"]], PARTS)
        for part in document["parts"]:
            with self.subTest(part["name"]):
                if part["name"] in IN_A_BOX and part["problem"]:
                    self.assertIn("Not measured: ", part["problem"])
                    continue
                self.assertEqual(part["problem"], "")
                self.assertTrue(part["rows"])
                for row in part["rows"]:
                    self.assertGreaterEqual(row["value"], 0)
                    self.assertTrue(any(beside["value"] is not None for beside in row["beside"]), row)
                    self.assertIn(row["name"].replace("&", "&amp;"), text)

    def test_a_limit(self):
        """A part that takes longer is stopped, and shows what it has."""
        self.run_it("--parts", "handover", "--limit", "0.03")
        _, text, document = self.page()
        part, = document["parts"]
        self.assertEqual(part["problem"], "It was stopped after 0.03 minutes (--limit).")
        self.assertIn(part["problem"], text)

    def test_failures(self):
        with tempfile.TemporaryDirectory() as empty:
            done = subprocess.run([REPORT, "--build", empty, "--out", self.path, "--parts", "payload"],
                                  capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn("No such file", done.stderr)
        for arguments, words in ((["--parts", "nothing"], "invalid choice: 'nothing'"),
                                 (["--limit", "0"], "0 is not above 0")):
            self.assertIn(words, self.run_it(*arguments, code=2).stderr)
        self.assertFalse(os.path.exists(self.path))


if __name__ == "__main__":
    unittest.main()
