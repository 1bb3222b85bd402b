"""tests/check/fatbin reads the architectures of device code, and refuses what is no fatbin."""
import importlib.machinery
import importlib.util
import os
import struct
import sys
import unittest

sys.dont_write_bytecode = True
FATBIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fatbin")
LOADER = importlib.machinery.SourceFileLoader("fatbin", FATBIN)
fatbin = importlib.util.module_from_spec(importlib.util.spec_from_loader("fatbin", LOADER))
LOADER.exec_module(fatbin)


def entry(kind, arch, header=64, payload=b"code"):
    start = struct.pack("<HHIQ", kind, 0x101, header, len(payload)) + bytes(12)
    return (start + struct.pack("<I", arch)).ljust(header, b"\0") + payload


def whole(*parts):
    body = b"".join(parts)
    return struct.pack("<IHHQ", fatbin.MAGIC, 1, 16, len(body)) + body


class Fatbin(unittest.TestCase):
    def test_lists_kinds_and_architectures(self):
        data = whole(entry(fatbin.SASS, 75), entry(fatbin.PTX, 80, header=128), entry(fatbin.SASS, 90))
        self.assertEqual(list(fatbin.entries(data)),
                         [(fatbin.SASS, 75), (fatbin.PTX, 80), (fatbin.SASS, 90)])

    def test_refuses_other_files(self):
        data = whole(entry(fatbin.SASS, 75))
        for bad in (b"", b"\x7fELF" + data[4:], data[:-1], data + b"x", data[:20]):
            with self.subTest(length=len(bad)), self.assertRaises(ValueError):
                list(fatbin.entries(bad))


if __name__ == "__main__":
    unittest.main()
