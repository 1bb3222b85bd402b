#!/usr/bin/env python3
"""What people look at, in a browser: the exporter's page, `adtopkctl top`, a trace, a plot and the report of
the benchmarks, with one job and with 64. Nothing scrolls sideways, no text is cut or covered, and all
of it stands out.

usage: test_pictures.py BUILD [unittest's arguments]; with ADTOPK_TEST_LONG=1, or to make the pictures: with
ADTOPK_TEST_PICTURES=FOLDER, and one for the documents. Skips (77) otherwise, and without chromium
(deploy/setup pages). The pictures are kept in FOLDER, or BUILD/pictures.
"""
import contextlib
import html
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from browser import CHROMIUM, Browser
from build import ADTOPKCTL, BUILD
from cluster import Cluster, die_with_parent
from ranks import Job
from screen import Screen
from service import wait_for

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
EXPORTER = os.path.join(BUILD, "client", "exporter", "adtopk-exporter")
ASKED = os.environ.get("ADTOPK_TEST_PICTURES")
KEPT = ASKED or os.path.join(BUILD, "pictures")
MANY = 64
SHAPES = [("embed.weight", "f32", "both", (64, 256)), ("layer.bias", "f32", "dense", (64,))]
WIDTHS = (1280, 400)
# An hour of the job, made of what its first sample says: the page has nothing to draw otherwise.
AN_HOUR = """
const answer_ = window.fetch;
window.fetch = async path => {
  const got = await answer_(path);
  if (path !== "/api/history") return got;
  const history = await got.json(), last = history.samples[history.samples.length - 1];
  const steps = i => Math.round(4000 * i + 900 * Math.sin(i / 9));
  history.samples = [...Array(361).keys()].map(i => ({...last, t: 10 * i, jobs: last.jobs.map(job => ({
    ...job, steps: steps(i), wire_bytes_sent: 21000 * steps(i), nonzeros_sent: 0.01 * job.sparse_elements * steps(i),
    phase_seconds: Object.fromEntries(Object.keys(job.phase_seconds).map((name, at) =>
      [name, 1e-4 * (at + 1) * (steps(i) + 12000 * Math.sin(i / 30))])),
    residual_mean: 2e-3 * (1 - Math.exp(-i / 60))}))}));
  return new Response(JSON.stringify(history), {headers: {"Content-Type": "application/json"}});
};
"""
SHOWN = "document.querySelectorAll('#jobs tr').length >= %d && document.querySelectorAll('svg path').length >= 6"
TERMINAL = """<!doctype html><html lang="en"><meta charset="utf-8"><title>top</title>
<style>body { margin: 0; background: #14171b; color: #eceff3; } pre { margin: 0; padding: 10px;
font: 13px/1.35 monospace; width: max-content; }</style><pre>%s</pre></html>"""


class Pictures(unittest.TestCase):
    """One cluster and one browser for all."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="adtopk-pictures-", dir="/tmp")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.cluster = Cluster(BUILD, nodes=2, settings={"user_jobs": 100, "user_sessions": 400})
        cls.addClassCleanup(cls.cluster.close)
        cls.cluster.start()
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)
        cls.jobs = []
        cls.addClassCleanup(lambda: [job.kill() for job in cls.jobs])

    def train(self, count):
        """As many jobs train, the first on both nodes, some with long names, and then rest."""
        for number in range(len(self.jobs), count):
            name = "digits" if number == 0 else f"llama-3-70b-finetune-{number:02}-" + "x" * (number % 40)
            self.jobs.append(Job(self.cluster, BUILD, name, [0, 1] if number == 0 else [0], SHAPES))
            self.jobs[-1].join()
            self.assertEqual(self.jobs[-1].steps(40 if number == 0 else 2)[0], "ok")

    def look(self, name, address, width, height=None, **more):
        self.browser.open(address, width, **more)
        self.assertEqual(self.browser.faults(), [], name)
        path = os.path.join(KEPT, f"{name}.png")
        self.browser.picture(path, height)
        self.assertGreater(os.path.getsize(path), 2000)

    def page(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return f"file://{path}"

    @contextlib.contextmanager
    def exporter(self, script=AN_HOUR):
        """The address of its page, in which this runs first."""
        with subprocess.Popen([EXPORTER, "--socket", self.cluster.daemons[0].control, "--listen", "127.0.0.1:0"],
                              stderr=subprocess.PIPE, text=True, preexec_fn=die_with_parent) as exporter:
            script = self.browser.ask("Page.addScriptToEvaluateOnNewDocument", source=script)["identifier"]
            yield f"http://{exporter.stderr.readline().split()[-1]}/"
            self.browser.ask("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
            exporter.kill()

    def exporter_page(self, jobs):
        self.train(jobs)
        with self.exporter() as address:
            for width in WIDTHS:
                for dark in (False, True):
                    self.look(f"exporter-{jobs}-{width}{'-dark' if dark else ''}", address, width, 3000, dark=dark,
                              ready=SHOWN % jobs)

    def top(self, jobs):
        self.train(jobs)
        for columns in (80, 200):
            screen = Screen([ADTOPKCTL, "--socket", self.cluster.daemons[0].control, "top"], columns=columns, rows=24)
            text = self.jobs[0].steps_while(lambda shown=screen: shown.wait_for(r"digits.* active +\d+ +\d+ +[1-9](.*\n)+q quit"))
            screen.press("q")
            screen.end()
            screen.close()
            self.look(f"top-{jobs}-{columns}", self.page("top.html", TERMINAL % html.escape(text)), 9 * columns)

    @unittest.skipUnless(ASKED, "makes a picture for the documents")
    def test_0_of_the_documents(self):
        """A minute and a half of a real job."""
        self.train(1)
        with self.exporter("") as address:
            self.jobs[0].steps_while(lambda: time.sleep(95))
            self.look("exporter", address, 1100, 560, ready=SHOWN % 1)

    def test_1_one_job(self):
        self.exporter_page(1)
        self.top(1)

    def test_2_trace_and_plot(self):
        self.train(1)
        path = os.path.join(self.folder, "plot.svg")
        control = self.cluster.daemons[0].control
        self.jobs[0].steps_while(lambda: subprocess.run(
            [ADTOPKCTL, "--socket", control, "plot", "digits", "--seconds", "2", "--out", path], check=True))
        self.look("plot", f"file://{path}", 900)
        trace = self.jobs[0].steps_while(lambda: subprocess.run(
            [ADTOPKCTL, "--socket", control, "trace", "digits"], check=True, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True).stdout)
        self.look("trace", self.page("trace.html", drawn(json.loads(trace)["traceEvents"])), 1280)

    def test_3_report(self):
        path = os.path.join(self.folder, "report.html")
        subprocess.run([os.path.join(ROOT, "tests/bench/report"), "--build", BUILD, "--quick", "--parts", "selection",
                        "payload", "handover", "--out", path], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, preexec_fn=die_with_parent)
        for width in WIDTHS:
            for dark in (False, True):
                self.look(f"report-{width}{'-dark' if dark else ''}", f"file://{path}", width, 3000, dark=dark)

    def test_4_many_jobs(self):
        self.exporter_page(MANY)
        self.top(MANY)

    def test_5_by_keyboard(self):
        """Each job and the link are reached by Tab, in order and with an outline; Enter chooses a job. What
        is chosen and has the focus stays so when the numbers are asked for again."""
        self.train(3)
        focus = "document.activeElement.textContent"
        with self.exporter() as address:
            self.browser.open(address, 1280, ready=SHOWN % 3)
            jobs = self.browser.run("[...document.querySelectorAll('#jobs button')].map(one => one.textContent)")
            reached = []
            for _ in range(len(jobs) + 1):
                self.browser.press("Tab")
                reached.append(self.browser.run(focus))
                self.assertEqual(self.browser.run("getComputedStyle(document.activeElement).outlineStyle"), "solid")
            self.assertEqual(reached, [*jobs, "/metrics"])
            self.browser.open(address, 1280, ready=SHOWN % 3)
            for _ in range(2):
                self.browser.press("Tab")
            self.browser.press("Enter")
            for _ in range(2):  # the page that the key asked for, and the next one
                self.browser.run("window.before = document.querySelector('#jobs tr')")
                wait_for(lambda: self.browser.run("document.querySelector('#jobs tr') !== before"))
                self.assertEqual(self.browser.run("document.querySelector('#chosen').textContent"),
                                 f"The last hour of {jobs[1]}")
                self.assertEqual(self.browser.run(focus), jobs[1])
                self.assertEqual(self.browser.run("document.querySelector('[aria-pressed=true]').textContent"), jobs[1])

    def test_what_it_would_find(self):
        """Or the checks above would say nothing."""
        for body, words in (('<p style="color: #999">pale</p>', "contrast 2.85: pale"),
                            ('<p style="width: 3000px">wide</p>', "scrolls sideways: 3008 of 400 pixels"),
                            ('<p style="width: 20px; overflow: hidden; white-space: nowrap">hidden away</p>',
                             "cut: hidden away"),
                            ('<p>below<br></p><p style="margin-top: -30px">above</p>', "overlap: below | above")):
            self.browser.open(self.page("bad.html", f"<!doctype html><html lang=en><title>x</title>{body}"), 400)
            self.assertEqual(self.browser.faults(), [words])


def drawn(events):
    """A page with the spans of a trace, a line for each thread, as a viewer of traces draws them."""
    names = {(one["pid"], one.get("tid")): one["args"]["name"] for one in events if one["ph"] == "M"
             and one["name"] in ("process_name", "thread_name")}
    spans = [one for one in events if one["ph"] == "X"]
    first, last = min(one["ts"] for one in spans), max(one["ts"] + one["dur"] for one in spans)
    rows = []
    for pid, tid in sorted({(one["pid"], one["tid"]) for one in spans}):
        bars = "".join(
            f'<i style="left:{100 * (one["ts"] - first) / (last - first):.3f}%;'
            f'width:{100 * one["dur"] / (last - first):.3f}%" title="{html.escape(one["name"])}"></i>'
            for one in spans if (one["pid"], one["tid"]) == (pid, tid))
        rows.append(f"<p>{html.escape(names.get((pid, tid), str(tid)))}</p><div>{bars}</div>")
    return ("<!doctype html><html lang=en><meta charset=utf-8><title>trace</title><style>"
            "body{font:13px sans-serif;display:grid;grid-template-columns:max-content 1fr;gap:2px 10px}"
            "p{margin:0}div{position:relative;height:15px;background:#eceff3}"
            "i{position:absolute;top:1px;bottom:1px;background:#0b5cad;min-width:1px;outline:1px solid #fff}"
            f"</style>{''.join(rows)}</html>")


if __name__ == "__main__":
    if ASKED is None and "ADTOPK_TEST_LONG" not in os.environ:
        print("skipped: tests/run --long runs this")
        sys.exit(77)
    if CHROMIUM is None:
        print("skipped: there is no chromium (deploy/setup pages)")
        sys.exit(77)
    os.makedirs(KEPT, exist_ok=True)
    unittest.main()
