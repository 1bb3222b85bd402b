#!/usr/bin/env python3
"""Completion of adtopkctl's command line, by the shells that this machine has.

usage: test_completion.py BUILD [unittest's arguments]
"""
import os
import shlex
import shutil
import subprocess
import unittest

from control import Daemons

# What stands on the command line, and what the last word may become.
KEYS = ["policy", "set", "NAME", "dens"], ["density=", "dense_values=", "dense_collective="]
VALUES = ["policy", "set", "NAME", "values=b"], ["values=bf16"]
CASES = [(["sta"], ["status", "stats"]), (["policy", "g"], ["get"]), (["drain", "--u"], ["--undo"]),
         (["tensors", ""], ["NAME"]), (["stats", "--job", "NA"], ["NAME"]),
         (["policy", "set", "NAME", "nesterov=t"], ["nesterov=true"]), KEYS, VALUES]


class Completion(Daemons):
    def setUp(self):
        super().setUp()
        self.name = "NAME"
        job = self.joined()
        job.steps(1)
        self.addCleanup(job.end)

    def shell(self, *command):
        """Runs it with this build's adtopkctl first in the path; returns the lines."""
        daemon = self.cluster.daemons[0]
        if shutil.which(command[0]) is None:
            self.skipTest(f"{command[0]} is not installed")
        folder = os.path.dirname(daemon.programs["adtopkctl"])
        environment = {**os.environ, "ADTOPK_CONTROL_SOCKET": daemon.control,
                       "PATH": folder + ":" + os.environ["PATH"]}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60,
                              check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""), command)
        return done.stdout.split()

    def test_bash(self):
        for words, expected in CASES:
            last, equals, value = words[-1].partition("=")
            cut = ["adtopkctl", *words[:-1], last, *([equals] if equals else []),
                   *([value] if value else [])]  # as bash does at "="
            expected = [word.split("=", 1)[1] for word in expected] if equals else expected
            found = self.shell("bash", "--norc", "-c", f"""
                compopt() {{ :; }}
                . <(adtopkctl completion bash)
                COMP_WORDBREAKS=$' \\t\\n"\\'><=;|&(:'
                COMP_WORDS=({shlex.join(cut)})
                COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
                _adtopkctl adtopkctl
                printf '%s\\n' "${{COMPREPLY[@]}}" """)
            self.assertEqual(found, expected, words)

    def test_zsh(self):
        for words, expected in CASES:
            found = self.shell("zsh", "-f", "-c", f"""
                compadd() {{ while [[ $1 != -- ]]; do shift; done; shift; print -l -- $@ }}
                compdef() {{ : }}
                _files() {{ : }}
                . <(adtopkctl completion zsh)
                words=(adtopkctl {shlex.join(words)})
                CURRENT=${{#words}}
                _adtopkctl""")
            self.assertEqual(sorted(found), sorted(expected), words)

    def test_fish(self):
        for words, expected in CASES:
            line = " ".join(["adtopkctl", *words])
            found = self.shell("fish", "--no-config", "-c",
                               "adtopkctl completion fish | source; complete -C " +
                               shlex.quote(line))
            self.assertLessEqual(set(expected), set(found), words)

    def test_a_socket_that_was_typed(self):
        control = self.cluster.daemons[0].control
        for words in (["--socket", control], [f"--socket={control}"]):
            for typed in (words + ["ranks", ""], ["ranks"] + words + ["NA"]):
                self.assertEqual(self.ask("--socket", "/nowhere", "completion", "words", "--", *typed),
                                 (0, "NAME\n", ""), typed)
        self.assertEqual(self.ask("completion", "words", "--", "--socket", "/nowhere", "ranks", ""), (0, "", ""))

    def test_without_a_daemon(self):
        code, out, error = self.ask("--socket", "/nowhere", "completion", "words", "--", "tensors",
                                    "")
        self.assertEqual((code, out, error), (0, "", ""))
        self.fails(2, "completion", "tcsh", words=["bash, fish and zsh"])


if __name__ == "__main__":
    unittest.main()
