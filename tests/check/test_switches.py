"""The daemon and the simulator set the same switches of the core, but for those that a document lists."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DRIVERS = {"daemon": ["daemon/loop/loop_open.c", "daemon/loop/loop_device.c"],
           "simulator": ["tests/sim/node.c"]}
KEEPS_NOTHING = "core_config_keep_nothing("


def read(*paths):
    return "\n".join((ROOT / path).read_text(encoding="utf-8") for path in paths)


def fields(header):
    """The names of struct core_config's members."""
    body = re.search(r"^struct core_config \{\n(.*?)^\};", header, re.S | re.M)[1]
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
    members = [one.strip() for one in body.split(";") if one.strip()]
    return {(re.search(r"\(\*(\w+)\)", one) or re.search(r"(\w+)$", one))[1] for one in members}


def settings(code, names):
    """Those of the names that the code sets."""
    return {name for name in names if re.search(rf"[.>]{name} =[^=]|&core\.{name}\b", code)}


def listed(document):
    """From the table: each field and who sets it."""
    return dict(re.findall(r"^\| `(\w+)` \| (daemon|simulator) \|", document, re.M))


class Switches(unittest.TestCase):
    """What differs is listed, and nothing else is."""

    @classmethod
    def setUpClass(cls):
        cls.names = fields(read("daemon/job/config.h"))
        cls.code = {driver: read(*paths) for driver, paths in DRIVERS.items()}
        cls.sets = {driver: settings(code, cls.names) for driver, code in cls.code.items()}

    def test_found(self):
        self.assertLessEqual({"node", "transmit", "stuck_us", "range", "trace_context"}, self.names)
        for driver in DRIVERS:
            self.assertLessEqual({"node", "memory", "threads", "carrier", "trace_context"}, self.sets[driver])

    def test_differences(self):
        only = {name: "daemon" for name in self.sets["daemon"] - self.sets["simulator"]}
        only.update({name: "simulator" for name in self.sets["simulator"] - self.sets["daemon"]})
        self.assertEqual(only, listed(read("tests/sim/README.md")))

    def test_both_keep_nothing(self):
        for code in self.code.values():
            self.assertEqual(code.count(KEEPS_NOTHING), 1)


if __name__ == "__main__":
    unittest.main()
