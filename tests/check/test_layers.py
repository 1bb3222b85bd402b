"""tests/check/layers finds each planted violation, at its line, and nothing in a clean tree."""
import os
import subprocess
import sys
import tempfile
import unittest

LAYERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "layers")

CLEAN = {
    "kernels/base/list.h": "#include <stdint.h>\n",
    "kernels/cpu/sum.h": '#include "kernels/base/list.h"\n',
    "kernels/cpu/sum.c": '#include "kernels/cpu/sum.h"\n#include <math.h>\n',
    "kernels/cuda/sum.cu": '#include <cuda_runtime.h>\n#include "kernels/base/list.h"\n',
    "kernels/kernels.h": '#include "kernels/cpu/sum.h"\n',
    "proto/include/adtopk/status.h": "enum status { OK };\n",
    "proto/codec.h": '#include <adtopk/status.h>\n#include "proto/control.pb-c.h"\n',
    "daemon/sparsify/sparsifier.h": '#include "kernels/kernels.h"\n',
    "daemon/collective/collective.h": '#include "proto/codec.h"\n#include "kernels/base/list.h"\n',
    "daemon/job/model.h": '#include "daemon/collective/collective.h"\n',
    "daemon/compute/work.h": '#include "daemon/job/model.h"\n',
    "daemon/core/step.c": '#include "daemon/compute/work.h"\n',
    "daemon/core/core.h": '#include "daemon/job/model.h"\n'
                          '#include "daemon/sparsify/sparsifier.h"\n',
    "daemon/local/local.h": '#include "daemon/core/core.h"\n#include <sys/socket.h>\n',
    "daemon/transport/zmq.c": '#include <zmq.h>\n#include "daemon/core/core.h"\n',
    "daemon/log.h": "int log_level;\n",
    "daemon/loop/loop.h": '#include "daemon/local/local.h"\n#include "daemon/log.h"\n',
    "daemon/main.c": '#include "daemon/loop/loop.h"\n#include <uv.h>\n',
    "daemon/core/step.h": '#include "daemon/core/core.h"\n',
    "daemon/planner/planner.h": '#include "daemon/policy/policy.h"\n',
    "daemon/policy/policy.h": "struct policy;\n",
    "client/adtopkctl/run.c": '#include "daemon/policy/policy.h"\n',
    "client/include/adtopk/client.h": "#include <adtopk/status.h>\n",
    "client/src/client.c": '#include <adtopk/client.h>\n#include "proto/codec.h"\n',
    "client/examples/digits/net.h": "int net;\n",
    "client/examples/common/loop.h": "int loop;\n",
    "client/examples/digits/main.c": '#include "net.h"\n#include "../common/loop.h"\n'
                                     '#include <adtopk/client.h>\n',
    "tests/unit/test_core.c": '#include <cmocka.h>\n#include "daemon/core/core.h"\n#include MACRO\n',
    "client/python/backend.py": "import zipfile\n",
    "client/python/adtopk/view.py": "import os, numpy.lib\nfrom . import library\n",
    "client/python/adtopk/torch/hook.py": "import torch\nfrom numpy import zeros\nfrom .. import view\n",
    "build/generated.c": '#include "nowhere.h"\n',
}

# (what is wrong, file, its text, line of the report, words in the report)
VIOLATIONS = [
    ("kernels use the daemon", "kernels/cpu/a.c", '\n#include "daemon/core/core.h"\n', 2,
     "kernels/cpu may not include daemon/core/core.h"),
    ("kernels use proto", "kernels/cpu/a.c", '#include "proto/codec.h"\n', 1, "kernels/cpu may not"),
    ("a CUDA kernel uses one of the CPU", "kernels/cuda/a.cu", '#include "kernels/cpu/sum.h"\n', 1,
     "kernels/cuda may not"),
    ("a collective sees inside the kernels", "daemon/collective/a.c",
     '#include "kernels/cpu/sum.h"\n', 1, "daemon/collective may not"),
    ("proto uses the core", "proto/a.c", '#include "daemon/core/core.h"\n', 1, "proto may not"),
    ("sparsify uses a collective", "daemon/sparsify/a.c",
     '#include "daemon/collective/collective.h"\n', 1, "daemon/sparsify may not"),
    ("sparsify uses proto", "daemon/sparsify/a.c", '#include "proto/codec.h"\n', 1,
     "daemon/sparsify may not"),
    ("a collective uses a sparsifier", "daemon/collective/a.c",
     '#include "daemon/sparsify/sparsifier.h"\n', 1, "daemon/collective may not"),
    ("the core uses local", "daemon/core/a.c", '#include "daemon/local/local.h"\n', 1,
     "daemon/core may not"),
    ("the planner uses the core", "daemon/planner/a.c", '#include "daemon/core/core.h"\n', 1,
     "daemon/planner may not"),
    ("a policy uses the planner", "daemon/policy/a.c", '#include "daemon/planner/planner.h"\n', 1,
     "daemon/policy may not"),
    ("a link uses the core", "daemon/link/a.c", '#include "daemon/core/core.h"\n', 1,
     "daemon/link may not"),
    ("main uses a session", "daemon/a.c", '#include "daemon/local/local.h"\n', 1, "daemon may not"),
    ("admin sees inside the core", "daemon/admin/a.c", '#include "daemon/core/step.h"\n', 1,
     "daemon/core/step.h is no interface of daemon/core"),
    ("local uses transport", "daemon/transport/a.c", '#include "daemon/local/local.h"\n', 1,
     "daemon/transport may not"),
    ("angle brackets hide nothing", "daemon/core/a.c", "#include <daemon/local/local.h>\n", 1,
     "daemon/core may not"),
    ("the client uses the daemon", "client/src/a.c", '#include "daemon/core/core.h"\n', 1,
     "client/src may not"),
    ("the client uses kernels", "client/src/a.c", '#include "kernels/cpu/sum.h"\n', 1,
     "client/src may not"),
    ("adtopkctl uses more of the core", "client/adtopkctl/a.c", '#include "daemon/core/core.h"\n', 1,
     "client/adtopkctl may not include daemon/core/core.h"),
    ("the daemon uses the client", "daemon/a.c", "#include <adtopk/client.h>\n", 1,
     "daemon may not include client/include/adtopk/client.h"),
    ("an example uses proto", "client/examples/digits/a.c", '#include "proto/codec.h"\n', 1,
     "may include only <adtopk/...>"),
    ("an example uses another", "client/examples/text/a.c", '#include "../digits/net.h"\n', 1,
     "may include only <adtopk/...>"),
    ("an example knows the tree", "client/examples/digits/a.c",
     '#include "client/include/adtopk/client.h"\n', 1, "may include only <adtopk/...>"),
    ("admin sees inside what is known of a job", "daemon/admin/a.c",
     '#include "daemon/job/model.h"\n', 1, "daemon/job/model.h is no interface of daemon/job"),
    ("a job uses the work on it", "daemon/job/a.c", '#include "daemon/compute/work.h"\n', 1,
     "daemon/job may not"),
    ("work uses the core", "daemon/compute/a.c", '#include "daemon/core/core.h"\n', 1,
     "daemon/compute may not"),
    ("admin uses work", "daemon/admin/a.c", '#include "daemon/compute/work.h"\n', 1,
     "daemon/admin may not"),
    ("a job uses the core", "daemon/job/a.c", '#include "daemon/core/core.h"\n', 1,
     "daemon/job may not"),
    ("a path that climbs", "daemon/core/a.c", '#include "../local/local.h"\n', 1,
     "write its path from the root"),
    ("a name without its path", "daemon/core/a.c", '#include "core.h"\n', 1,
     "write its path from the root"),
    ("a public header that is not there", "client/src/a.c", "#include <adtopk/none.h>\n", 1,
     "is no file of the project"),
    ("a macro", "daemon/core/a.c", "#include HEADER\n", 1, "through a macro"),
    ("a folder of its own", "extra/a.c", "int a;\n", 1, "lies in no folder"),
    ("libuv in the core", "daemon/core/a.c", "#include <uv.h>\n", 1, "does no I/O but includes uv.h"),
    ("a clock in a collective", "daemon/collective/a.c", "\n\n#include <time.h>\n", 3, "time.h"),
    ("threads in a sparsifier", "daemon/sparsify/a.c", "# include <pthread.h>\n", 1, "pthread.h"),
    ("sockets in a kernel", "kernels/cpu/a.c", "#include <sys/socket.h>\n", 1, "sys/socket.h"),
    ("CUDA outside its kernels", "kernels/cpu/a.c", "#include <cuda_runtime.h>\n", 1, "cuda_runtime.h"),
    ("CUDA kernels that do I/O", "kernels/cuda/a.cu", "#include <unistd.h>\n", 1, "unistd.h"),
    ("after a comment", "daemon/core/a.c", '/* one\n two */ #include <zmq.h>\n', 2, "zmq.h"),
    ("the package needs torch", "client/python/adtopk/a.py", "import os\nimport torch.nn\n", 2,
     "may not import torch"),
    ("the package needs a module of PyPI", "client/python/adtopk/torch/a.py",
     "def f():\n    from yaml import load\n", 2, "may not import yaml"),
    ("the package's builder needs numpy", "client/python/a.py", "import numpy as np\n", 1,
     "may not import numpy"),
    ("after a literal like a comment", "daemon/core/a.c",
     'const char *all = "proto/*";\n#include <zmq.h>\n/* end */\n', 2, "zmq.h"),
]

NOT_VIOLATIONS = [
    ("in a comment", "daemon/core/a.c", "/*\n#include <zmq.h>\n*/\n// #include <uv.h>\n"),
    ("a name that only looks alike", "daemon/core/a.c", "#include <stdtime.h>\n"),
]


def check(files):
    """Writes files (path to text) as a tree and returns the exit status and stderr lines."""
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            path = os.path.join(root, path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        run = subprocess.run([sys.executable, LAYERS, root], capture_output=True, text=True)
        return run.returncode, run.stderr.splitlines()


class Layers(unittest.TestCase):
    def test_clean_tree(self):
        self.assertEqual(check(CLEAN), (0, []))

    def test_empty_tree(self):
        self.assertEqual(check({})[0], 1)

    def test_violations(self):
        for what, path, text, line, words in VIOLATIONS:
            with self.subTest(what):
                status, report = check({**CLEAN, path: text})
                self.assertEqual(status, 1)
                for entry in report[:-1]:
                    self.assertTrue(entry.startswith(f"{path}:{line}: "), report)
                self.assertIn(words, report[0])

    def test_not_violations(self):
        for what, path, text in NOT_VIOLATIONS:
            with self.subTest(what):
                self.assertEqual(check({**CLEAN, path: text}), (0, []))

    def test_io_through_another_room(self):
        tree = {**CLEAN, "proto/clock.h": "#include <time.h>\n",
                "daemon/core/a.c": '#include "proto/clock.h"\n'}
        status, report = check(tree)
        self.assertEqual(status, 1)
        self.assertIn("daemon/core/a.c:1: daemon/core does no I/O but includes "
                      "proto/clock.h -> time.h", report)


if __name__ == "__main__":
    unittest.main()
