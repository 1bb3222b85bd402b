"""tests/fuzz/run with programs that end as fuzzers do."""
import base64
import os
import stat
import subprocess
import tempfile
import unittest

RUN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../fuzz/run")

# A fuzzer's way to end: what it does with the prefix for its input in $prefix.
GOOD = """echo '#2	INITED cov: 7 ft: 8 corp: 1/1b exec/s: 0 rss: 30Mb'
sleep 1.2
echo '#40	NEW    cov: 9 ft: 9 corp: 2/2b lim: 4 exec/s: 0 rss: 30Mb L: 1/1 MS: 1 ChangeBit-'
sleep 1.2
echo '#64	REDUCE cov: 9 ft: 10 corp: 2/2b lim: 4 exec/s: 0 rss: 30Mb L: 1/1 MS: 1 EraseBytes-'
echo 'Done 75 runs in 2 second(s)'
echo 'stat::number_of_executed_units: 75'"""
CRASH = """printf 'bad input' >"${prefix}crash-1"
echo '==7==ERROR: AddressSanitizer: SEGV on unknown address'
echo 'SUMMARY: AddressSanitizer: SEGV daemon/a.c:7 in a'
echo "artifact_prefix='$prefix'; Test unit written to ${prefix}crash-1"
seq 50
exit 77"""
SLOW = """head -c 5000 /dev/zero >"${prefix}timeout-1"
echo '==7== ERROR: libFuzzer: timeout after 10 seconds'
echo 'SUMMARY: libFuzzer: timeout'
echo "artifact_prefix='$prefix'; Test unit written to ${prefix}timeout-1"
exit 70"""
KILLED = "kill -KILL $$"


class FuzzRun(unittest.TestCase):
    def run_fuzzers(self, fuzzers, *options):
        with tempfile.TemporaryDirectory() as build:
            os.makedirs(os.path.join(build, "tests/fuzz"))
            for name, end in fuzzers.items():
                path = os.path.join(build, "tests/fuzz", name)
                with open(path, "w", encoding="utf-8") as file:
                    file.write('#!/bin/bash\necho "arguments: $*"\nfor a; do case $a in '
                               f'-artifact_prefix=*) prefix=${{a#*=}};; esac; done\n{end}\n')
                os.chmod(path, stat.S_IRWXU)
            result = subprocess.run([RUN, *options, build, *fuzzers], capture_output=True,
                                    text=True, check=False)
            return result.returncode, result.stdout, build

    def test_good(self):
        status, out, build = self.run_fuzzers({"fuzz_policy": GOOD, "fuzz_other": GOOD},
                                              "--seed", "5", "--seconds", "3")
        self.assertEqual(status, 0)
        self.assertEqual(out.splitlines()[-1], "2 passed, 0 failed")
        self.assertIn("-seed=5 -runs=200000 -max_total_time=3 -dict=tests/fuzz/policy.dict", out)
        self.assertIn(f"{build}/corpus/fuzz_policy tests/fuzz/corpus/policy\n", out)
        self.assertIn(f"{build}/corpus/fuzz_other\n", out)
        self.assertRegex(out, r"fuzz_other: 75 inputs in [23] s, 9 edges, the last new one after [12] s\n")

    def test_faults_are_at_the_end(self):
        status, out, build = self.run_fuzzers({"fuzz_crash": CRASH, "fuzz_slow": SLOW,
                                               "fuzz_killed": KILLED, "fuzz_good": GOOD})
        self.assertEqual(status, 3)
        end = out.splitlines()[out.splitlines().index("1 passed, 3 failed") + 1:]
        self.assertEqual(end, [
            "fuzz_crash: exit status 77; SUMMARY: AddressSanitizer: SEGV daemon/a.c:7 in a; "
            f"input: {build}/crashes/fuzz_crash-crash-1",
            "    base64: " + base64.b64encode(b"bad input").decode(),
            "fuzz_slow: exit status 70; SUMMARY: libFuzzer: timeout; "
            f"input: {build}/crashes/fuzz_slow-timeout-1",
            "fuzz_killed: exit status 137; no sanitizer said why; input: none was left"])

    def test_misuse(self):
        for arguments in ([], ["build"], ["--seed"], ["--unknown", "1", "build", "fuzz_a"]):
            result = subprocess.run([RUN, *arguments], capture_output=True, check=False)
            self.assertEqual(result.returncode, 2, arguments)


if __name__ == "__main__":
    unittest.main()
