#!/usr/bin/env python3
"""adtopkctl plot: what it asks of a daemon while a job trains, and the picture that it makes of that.

usage: test_plot.py BUILD [unittest's arguments]
"""
import os
import shutil
import tempfile
import threading
import time
import unittest
import xml.etree.ElementTree as ElementTree

from control import Daemons, NOBODY, REFUSED, Training, UNKNOWN, user
from screen import Screen
from service import wait_for

UNREACHABLE = 3
SVG = "{http://www.w3.org/2000/svg}"
PANELS = ["Density: entries sent per element of sparse tensors", "Bytes sent by this node",
          "Residual: mean magnitude of its elements on this node", "Time of a step, and the planner's part of it"]


class Plots(Daemons):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(prefix="adtopk-plot-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def picture(self, text):
        """Titles of panels, and the number of points of each line in the order of the document."""
        root = ElementTree.fromstring(text)
        self.assertEqual(root.tag, SVG + "svg")
        for banned in ("script", "image", "a", "use"):
            self.assertEqual(list(root.iter(SVG + banned)), [])
        titles = [item.text for item in root.iter(SVG + "text") if item.get("class") == "name"]
        lines = [path.get("d").count("L") + path.get("d").count("M")
                 for path in root.iter(SVG + "path")]
        self.assertEqual(len(list(root.iter(SVG + "rect"))), 1 + len(titles))
        return root, titles, lines

    def test_a_job_that_trains(self):
        job = self.joined(policy='{"density":0.05,"sparsifier":"topk"}')
        with Training(job):
            code, out, error = self.ask("plot", self.name, "--seconds", "2")
            self.assertEqual((code, error), (0, ""))
            root, titles, lines = self.picture(out)
            self.assertEqual(titles, PANELS)
            self.assertEqual(root.find(SVG + "title").text, f"adtopk job {os.getuid()}:{self.name}/0")
            self.assertGreaterEqual(len(lines), 4)
            self.assertEqual(lines[1], 8, "sent: one point per quarter of a second")
            self.assertGreaterEqual(lines[2], 4, "readings of the residual")
            self.assertIn("no prediction", out)
            path = os.path.join(self.folder, "plot.svg")
            self.assertEqual(self.ask("plot", self.name, "--seconds", "0.3", "--out", path), (0, "", ""))
            with open(path, encoding="utf-8") as file:
                self.picture(file.read())
            self.fails(REFUSED, "plot", self.name, "--seconds", "0.3", "--out", "/nowhere/x",
                       words=["/nowhere/x: No such file"])
        job.end()

    def test_out_stays_what_it_is(self):
        """A link to a file, a pipe and a device are written in place."""
        job = self.joined(policy='{"density":0.05,"sparsifier":"topk"}')
        target, link, pipe, full = (os.path.join(self.folder, name) for name in ("target", "link", "pipe", "full"))
        with open(target, "w", encoding="utf-8"):
            os.symlink(target, link)
        os.mkfifo(pipe)
        os.symlink("/dev/full", full)
        read = []

        def reader():
            with open(pipe, encoding="utf-8") as file:
                read.append(file.read())

        thread = threading.Thread(target=reader, daemon=True)
        thread.start()
        with Training(job):
            for path in (link, pipe):
                self.assertEqual(self.ask("plot", self.name, "--seconds", "0.3", "--out", path), (0, "", ""))
            self.fails(REFUSED, "plot", self.name, "--seconds", "0.3", "--out", full, words=["No space left"])
        thread.join()
        self.assertTrue(os.path.islink(link) and os.path.islink(full) and not os.path.isfile(pipe))
        self.picture(read[0])
        with open(target, encoding="utf-8") as file:
            self.picture(file.read())
        job.end()

    def test_prediction(self):
        """The planner's numbers, of a policy that leaves it something to choose."""
        job = self.joined(policy='{"sparse_collective":"auto"}')
        with Training(job):
            code, out, error = self.ask("plot", self.name, "--seconds", "3")
        self.assertEqual((code, error), (0, ""))
        plan = self.document("plan", self.name)
        if plan["predicted_us"] is not None:
            self.assertNotIn("no prediction", out)
        self.picture(out)
        job.end()

    def test_another_user(self):
        self.need_other_users()
        job = self.joined()
        with Training(job):
            code, out, error = self.ask("plot", self.name, "--seconds", "1", become=user(NOBODY))
        self.assertEqual(code, 0, error)
        self.assertTrue(error.startswith("adtopkctl: the plot is without the residual: "), error)
        self.assertEqual(error.count("may not"), 1, error)  # it does not ask again and again
        self.assertIn("it could not be read", out)
        self.assertEqual(self.picture(out)[1], PANELS)
        job.end()

    def test_a_job_that_ends(self):
        job = self.joined()
        job.steps(3)

        def end():
            """After the first point, before which the residuals are read."""
            wait_for(lambda: self.document("stats", self.name)["jobs"][0]["residual_mean"] is not None)
            time.sleep(2)
            job.end()

        thread = threading.Thread(target=end)
        thread.start()
        code, out, _ = self.ask("plot", self.name, "--seconds", "60")
        thread.join()
        self.assertEqual(code, 0)
        self.picture(out)
        self.fails(REFUSED, "plot", self.name, words=[f'job "{self.name}" has ended'])

    def test_a_daemon_that_dies(self):
        """What it said until then is drawn; the exit status tells that it was not all."""
        job = self.joined(policy='{"density":0.05,"sparsifier":"topk"}')
        path = os.path.join(self.folder, "plot.svg")
        timer = threading.Timer(1.2, self.cluster.daemons[0].kill)
        timer.start()
        code, out, error = self.ask("plot", self.name, "--seconds", "60", "--out", path)
        timer.join()
        self.cluster.restart(0)
        wait_for(lambda: self.ask("peers")[0] == 0)
        job.kill()
        self.assertEqual((code, out), (UNREACHABLE, ""), error)
        self.assertEqual(error.count("\n"), 1, error)
        with open(path, encoding="utf-8") as file:
            self.assertEqual(self.picture(file.read())[1], PANELS)

    def test_too_late(self):
        """The job ends when plot has found it, and before the first point, after 8 s."""
        job = self.joined()
        job.steps(3)
        timer = threading.Timer(4, job.end)
        timer.start()
        self.fails(UNKNOWN, "plot", self.name, "--seconds", "960", words=["ended before"])
        timer.join()

    def test_usage(self):
        for arguments, words in ((["plot"], "needs JOB"), (["plot", "x", "y"], "unexpected"),
                                 (["plot", "x", "--seconds", "0"], "from 0.01 to 86400"),
                                 (["plot", "x", "--json"], "--json does not belong to plot")):
            self.fails(2, *arguments, words=[words])

    def test_a_terminal(self):
        """Nobody reads a picture or a trace there."""
        daemon = self.cluster.daemons[0]
        for command in ("plot", "trace"):
            screen = Screen([daemon.programs["adtopkctl"], "--socket", daemon.control, command, "x"])
            self.addCleanup(screen.close)
            screen.wait_for("cannot show this: write it to a file, with --out FILE")
            self.assertEqual(screen.end(), 2)


if __name__ == "__main__":
    unittest.main()
