#!/usr/bin/env python3
"""adtopkctl top in a terminal, and the widths of tables.

usage: test_top.py BUILD [unittest's arguments]
"""
import os
import re
import signal
import termios
import time
import unittest

from build import ADTOPKCTL, BUILD
from control import Daemons, Training
from ranks import Job
from screen import Screen
from service import wait_for

NAMES = ["a" * 63, "双幅文字" * 5, 'quo"te', "plain"]


class Top(Daemons):
    def screen(self, *options, columns=80, rows=24):
        daemon = self.cluster.daemons[0]
        screen = Screen([daemon.programs["adtopkctl"], "--socket", daemon.control, "top",
                         "--interval", "0.2", *options], columns, rows)
        self.addCleanup(screen.close)
        screen.wait_for(r"q quit")
        return screen

    def assert_restored(self, screen, before):
        self.assertFalse(screen.other)
        self.assertTrue(screen.cursor)
        self.assertEqual(screen.flags(), before)
        self.assertEqual(screen.unknown, [])

    def test_views_and_keys(self):
        job = self.joined((0, 0, 1))
        with Training(job):
            screen = self.screen()
            text = screen.wait_for(rf"{self.name} .*active +3 +\d+ +\d+\.\d +[\d.]+ .?B/s")
            self.assertRegex(text, r"\[1 jobs\]")
            self.assertRegex(text, "1 peer\n")
            screen.press("2")
            screen.wait_for(rf"\[2 ranks\].*:{self.name}/0(.*\n)+ *0 +0 +\d+ .*\n *1 +0 .*\n *2 +1 +\d+ ")
            screen.press("3")
            screen.wait_for(r"\[3 tensors\](.*\n)+embed.weight +4.10 k .*(.*\n)+layer.bias")
            screen.press("s" * 2)
            screen.wait_for(r"by elements(.*\n)+embed.weight .*\nlayer.weight .*\nlayer.bias")
            screen.press("/bias\n")
            text = screen.wait_for(r"filter: bias\n(.*\n)+layer.bias")
            self.assertNotIn("embed", text)
            screen.press("4")
            screen.wait_for(r"\[4 peers\](.*\n)+ *1 +up ")
            screen.press(" ")
            screen.wait_for("PAUSED")
            screen.press(" 1")
            screen.wait_for(rf"\[1 jobs\](.*\n)+{self.name} ")
        before = screen.flags() | termios.ICANON | termios.ECHO
        screen.press("q")
        self.assertEqual(screen.end(), 0)
        self.assert_restored(screen, before)
        job.end()

    def test_signals(self):
        with open(ADTOPKCTL, "rb") as program:
            sanitized = b"__asan_init" in program.read()  # a sanitizer takes SIGSEGV for itself
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) + (() if sanitized else (signal.SIGSEGV,)):
            screen = self.screen()
            before = screen.flags() | termios.ICANON | termios.ECHO
            self.assertTrue(screen.other)
            self.assertFalse(screen.cursor)
            os.kill(screen.process, number)
            self.assertEqual(screen.end(), -number if number == signal.SIGSEGV else 0)
            self.assert_restored(screen, before)

    def test_signal_while_the_daemon_hangs(self):
        screen = self.screen("--timeout", "60000")
        before = screen.flags() | termios.ICANON | termios.ECHO
        daemon = self.cluster.daemons[0]
        daemon.signal(signal.SIGSTOP)
        self.addCleanup(daemon.signal, signal.SIGCONT)
        time.sleep(2)  # it asks once per second
        began = time.monotonic()
        os.kill(screen.process, signal.SIGINT)
        self.assertEqual(screen.end(), 0)
        self.assertLess(time.monotonic() - began, 10)
        self.assert_restored(screen, before)
        daemon.signal(signal.SIGCONT)

    def test_keys_while_the_daemon_hangs(self):
        screen = self.screen("--timeout", "60000")
        daemon = self.cluster.daemons[0]
        daemon.signal(signal.SIGSTOP)
        self.addCleanup(daemon.signal, signal.SIGCONT)
        time.sleep(2)  # it asks once per second
        began = time.monotonic()
        screen.press("3")
        screen.wait_for(r"\[3 \w+\]")
        screen.press("q")
        self.assertEqual(screen.end(), 0)
        self.assertLess(time.monotonic() - began, 2)
        daemon.signal(signal.SIGCONT)

    def test_runs_of_one_name(self):
        """What the run that lives does is not told of the one before."""
        job = self.joined((0,))
        job.steps(5000)  # more than the run that lives has at the end
        job.end()
        job = self.joined((0,))
        with Training(job):
            _, out, _ = self.ask("top", "--interval", "0.5", "--wide")
        rows = {re.search("active|done", line)[0]: line.split() for line in out.splitlines()
                if line.startswith(self.name)}
        self.assertEqual(set(rows), {"active", "done"})
        self.assertGreater(float(rows["active"][6]), 0)
        self.assertEqual(rows["done"][6], "-")
        job.end()

    def test_signals_while_the_terminal_takes_nothing(self):
        screen = self.screen()
        before = screen.flags() | termios.ICANON | termios.ECHO
        side = os.open(f"/proc/{screen.process}/fd/1", os.O_RDWR | os.O_NOCTTY)
        termios.tcflow(side, termios.TCOOFF)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(screen.process, number)
            time.sleep(0.5)
        termios.tcflow(side, termios.TCOON)
        os.close(side)
        self.assertEqual(screen.end(), 0)
        self.assert_restored(screen, before)

    def test_stop(self):
        """Ctrl-Z gives the terminal back until the program goes on."""
        screen = self.screen()
        raw = screen.flags()
        screen.press("\x1a")
        self.assertTrue(os.WIFSTOPPED(os.waitpid(screen.process, os.WUNTRACED)[1]))
        screen.wait(lambda: screen.cursor and not screen.other, "the terminal is not given back")
        self.assert_restored(screen, raw | termios.ICANON | termios.ECHO)
        os.kill(screen.process, signal.SIGCONT)
        screen.wait_for("q quit")
        self.assertTrue(screen.other)
        self.assertEqual(screen.flags(), raw)
        screen.press("q")
        self.assertEqual(screen.end(), 0)

    @staticmethod
    def fits(screen, columns):
        """Whether it is drawn for this size: nothing lies beyond, and its lines are as long as can be."""
        try:
            return max(map(len, screen.lines())) >= min(columns, 40)
        except AssertionError:  # of the size before
            return False

    def test_sizes_and_names(self):
        """Nothing is wider than the terminal, whatever jobs are called."""
        test = self.name
        for name in NAMES:
            self.name = name
            self.joined((0,)).steps(1)
        self.name = test
        screen = self.screen("--count", "1000")
        for columns, rows in ((80, 24), (200, 50), (20, 6), (1, 1), (40, 3)):
            screen.resize(columns, rows)
            screen.wait(lambda: self.fits(screen, columns), f"not drawn for {columns} columns")
            if columns == 200:
                screen.wait_for("a" * 63)
                screen.wait_for("双幅文字" * 5)
        screen.press("q")
        self.assertEqual(screen.end(), 0)
        self.assertEqual(screen.unknown, [])
        for command in ("status", "jobs"):
            lines = self.text(command).splitlines()  # 80 columns in a pipe
            self.assertTrue(any("aa..aa" in line for line in lines), lines)
            code, out, _ = self.ask(command, "--wide")
            self.assertEqual(code, 0)
            self.assertIn("a" * 63, out)
        out = self.text("status", "--sort", "job")
        self.assertEqual([name for name in ("aaaaa", 'quo"te', "plain")
                          if f"\n{name}" in out], ["aaaaa", 'quo"te', "plain"])
        self.assertLess(out.index("\nplain"), out.index('\nquo"te'))
        self.assertRegex(out, r"\ntotal: \d+ jobs, \d+ ranks here")
        self.assertIn("none in state failed", self.text("jobs", "--state", "failed"))

    def test_words_that_no_table_has(self):
        """They are found before anything is asked or printed."""
        for words, said in (
                ("jobs --sort colour", '--sort: no column is called "colour": possible are job, run, owner, state and steps'),
                ("status --sort stpes", '--sort: no column is called "stpes"; did you mean "steps"?'),
                ("top --sort steps/ss", '--sort: no column is called "steps/ss"; did you mean "steps/s"?'),
                ("ranks j --sort rnak", '--sort: no column is called "rnak"; did you mean "rank"?'),
                ("tensors j --sort name", '--sort: no column is called "name": possible are '),
                ("peers --sort Peer", '--sort: no column is called "Peer"; did you mean "peer"?'),
                ("jobs --state actve", '--state: no job has the state "actve"; did you mean "active"?'),
                ("peers --state active", '--state: no peer has the state "active": possible are up and down'),
                ("status --state dwn", '--state: no job or peer has the state "dwn"; did you mean "down"?')):
            for more in ([], ["--json"] if words[:3] != "top" else []):
                code, out, error = self.ask(*more, *words.split())
                self.assertEqual((code, out), (2, ""))
                self.assertTrue(error.startswith(f"adtopkctl: {said}"), error)

    def test_many_tensors(self):
        """The daemon shows 1024 at once; the title says how many there are besides."""
        tensors = [(f"t{i:04}", "f32", "both", (8,)) for i in range(1030)]
        job = Job(self.cluster, BUILD, self.name, [0, 1], tensors, "-")
        self.addCleanup(job.kill)
        job.join()
        screen = self.screen()
        screen.press(f"/{self.name}\n3")
        screen.wait_for(rf"\[3 tensors\].*:{self.name}/0, 6 more")
        job.end()

    def test_without_a_terminal(self):
        """Whole, for a program or a wide window to read."""
        self.name = NAMES[0]
        job = self.joined(run="r" * 40)
        with Training(job):
            code, out, error = self.ask("top", "--interval", "0.1", "--count", "3")
        self.assertEqual(code, 0, error)
        tables = out.split("\n\n")
        self.assertEqual(len(tables), 3, out)
        for table in tables:
            self.assertRegex(table, rf"^job +.*steps/s.*waits for\n(.*\n)*{self.name} +{'r' * 40} ")
            self.assertNotIn("\x1b", table)
        job.end()


class Gone(Top):
    test_views_and_keys = test_signals = test_stop = test_sizes_and_names = None
    test_many_tensors = test_without_a_terminal = None

    def test_a_daemon_that_goes_away(self):
        screen = self.screen()
        daemon = self.cluster.daemons[0]
        daemon.stop()
        screen.wait_for("cannot connect")
        daemon.start()
        screen.wait_for(r"node 0, adtopkd .*, up \d+ s")
        wait_for(lambda: self.ask("peers")[0] == 0)
        screen.press("q")
        self.assertEqual(screen.end(), 0)
        self.fails(3, "--socket", "/nowhere", "top")


if __name__ == "__main__":
    unittest.main()
