#!/usr/bin/env python3
"""The package's ctypes declarations against the library's headers: a compiler says sizes, offsets and
numbers, the headers' text says the functions.

usage: test_abi.py BUILD [unittest's arguments]
"""
import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import interpreter

interpreter.use("numpy")

from adtopk import _abi, _library, errors  # noqa: E402

HEADERS = ["client/include/adtopk/adtopk.h", "client/include/adtopk/options.h", "client/include/adtopk/memory.h",
           "client/include/adtopk/stream.h", "client/include/adtopk/members.h", "client/include/adtopk/checkpoint.h",
           "proto/include/adtopk/status.h"]
FOLDERS = ["client/include", "proto/include"]
PREFIXES = {"adtopk_status": ("ADTOPK_ERR_", "ADTOPK_"), "adtopk_form": ("ADTOPK_FORM_",),
            "adtopk_dtype": ("ADTOPK_",), "adtopk_memory": ("ADTOPK_",)}

# How each type of the headers is declared. Memory is passed by its address.
TYPES = {"void": None, "int": ctypes.c_int, "unsigned": ctypes.c_uint, "float": ctypes.c_float,
         "size_t": ctypes.c_size_t, "uint16_t": ctypes.c_uint16, "uint32_t": ctypes.c_uint32,
         "uint64_t": ctypes.c_uint64, "char *": ctypes.c_char_p, "void *": ctypes.c_void_p,
         "float *": ctypes.c_void_p, "adtopk_context *": _abi.CONTEXT,
         "uint16_t *": ctypes.c_void_p,
         "adtopk_context **": ctypes.POINTER(_abi.CONTEXT),
         "int *": ctypes.POINTER(ctypes.c_int), "uint32_t *": ctypes.POINTER(ctypes.c_uint32)}
TYPES.update({f"struct {name} *": ctypes.POINTER(kind) for name, kind in _abi.STRUCTURES.items()})
TYPES.update({f"enum {name}": ctypes.c_int for name in _abi.ENUMS})


def header_text():
    parts = []
    for path in HEADERS:
        with open(os.path.join(interpreter.ROOT, path), encoding="utf-8") as header:
            parts.append(header.read())
    text = re.sub(r"/\*.*?\*/", " ", "\n".join(parts), flags=re.DOTALL)
    return re.sub(r"^#.*$", "", text, flags=re.MULTILINE)


def split_declaration(text):
    """(type, name) of "const char *name" or "uint64_t shape[8]"; the length of an array is dropped."""
    words = re.sub(r"\bconst\b|\[[^]]*\]", " ", text)
    match = re.fullmatch(r"\s*(.*?)(\w+)\s*", words.replace("\n", " "), re.DOTALL)
    kind = re.sub(r"\s+", " ", match[1]).strip()
    return re.sub(r"\s*(\*+)$", r" \1", kind), match[2]


def functions(text):
    """Yields (name, result, arguments), types as the header has them."""
    text = re.sub(r"\{[^{}]*\}", "{}", text)
    for match in re.finditer(r"^((?:enum |const )?\w+ \*?)(adtopk_\w+)\(([^()]*)\);", text, re.MULTILINE):
        result = split_declaration(match[1] + "x")[0]
        arguments = [split_declaration(part)[0] for part in match[3].split(",")
                     if match[3].strip() != "void"]
        yield match[2], result, arguments


def structures(text):
    """Yields (name, fields) of every structure, each field as (type, name)."""
    for match in re.finditer(r"^struct (\w+) \{(.*?)^\};", text, re.MULTILINE | re.DOTALL):
        yield match[1], [split_declaration(field) for field in match[2].split(";") if field.strip()]


def enums(text):
    """Yields (name, the names of its numbers)."""
    for match in re.finditer(r"^enum (\w+) \{(.*?)\};", text, re.MULTILINE | re.DOTALL):
        yield match[1], re.findall(r"(ADTOPK_\w+)\s*=", match[2])


class Declarations(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.text = header_text()

    def compiled(self, expressions):
        """The numbers that a C compiler gives to expressions about the headers."""
        compiler = next(filter(shutil.which, ("cc", "gcc", "clang")), None)
        if compiler is None:
            self.skipTest("no C compiler here")
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(folder, "numbers.c")
            with open(source, "w", encoding="utf-8") as out:
                out.writelines(f"#include <{name}>\n" for name in ("adtopk/stream.h", "adtopk/members.h",
                                                                    "adtopk/checkpoint.h", "stdio.h"))
                out.write("int main(void)\n{\n")
                out.writelines(f'    printf("%lld\\n", (long long)({one}));\n' for one in expressions)
                out.write("    return 0;\n}\n")
            program = os.path.join(folder, "numbers")
            includes = ["-I" + os.path.join(interpreter.ROOT, folder) for folder in FOLDERS]
            subprocess.run([compiler, *includes, source, "-o", program], check=True)
            output = subprocess.run([program], check=True, capture_output=True, text=True).stdout
        return dict(zip(expressions, map(int, output.split())))

    def test_structures(self):
        found = dict(structures(self.text))
        self.assertEqual(set(found), set(_abi.STRUCTURES))
        wanted = {}
        for name, kind in _abi.STRUCTURES.items():
            declared = [field for field, _ in kind._fields_]
            self.assertEqual(declared, [field for _, field in found[name]], name)
            wanted[f"sizeof(struct {name})"] = ctypes.sizeof(kind)
            for field in declared:
                place = getattr(kind, field)
                wanted[f"offsetof(struct {name}, {field})"] = place.offset
                wanted[f"sizeof(((struct {name} *)0)->{field})"] = place.size
        self.assertEqual(self.compiled(list(wanted)), wanted)

    def test_fields(self):
        """Signs and pointers, which sizes do not show."""
        for name, fields in structures(self.text):
            declared = dict(_abi.STRUCTURES[name]._fields_)
            for kind, field in fields:
                ours = declared[field]
                ours = getattr(ours, "_type_", ours) if issubclass(ours, ctypes.Array) else ours
                wanted = ctypes.c_void_p if kind == "uint32_t *" else TYPES[kind]
                self.assertIs(ours, wanted, f"{name}.{field}")

    def test_numbers(self):
        found = dict(enums(self.text))
        self.assertEqual(set(found), set(_abi.ENUMS))
        wanted = {"ADTOPK_MAX_DIMS": _abi.MAX_DIMS}
        for name, numbers in found.items():
            ours = dict(_abi.ENUMS[name].__members__)
            for number in numbers:
                short = number
                for prefix in PREFIXES[name]:
                    short = short[len(prefix):] if short.startswith(prefix) else short
                self.assertIn(short, ours, number)
                wanted[number] = int(ours.pop(short))
            self.assertEqual(ours, {}, f"numbers that enum {name} lacks")
        self.assertEqual(self.compiled(list(wanted)), wanted)

    def test_functions(self):
        found = {name: (TYPES[result], [TYPES[one] for one in arguments])
                 for name, result, arguments in functions(self.text)}
        self.assertEqual(set(found), set(_abi.FUNCTIONS))
        for name, (result, arguments) in found.items():
            self.assertIs(_abi.FUNCTIONS[name][0], result, name)
            self.assertEqual(_abi.FUNCTIONS[name][1], arguments, name)

    def test_every_function_is_used(self):
        """The package calls each function, or its form with a time-out."""
        folder = os.path.join(interpreter.ROOT, "client/python/adtopk")
        text = ""
        for name in os.listdir(folder):
            if name.endswith(".py") and name != "_abi.py":
                with open(os.path.join(folder, name), encoding="utf-8") as source:
                    text += source.read()
        for name in _abi.FUNCTIONS:
            if f"{name}_for" not in _abi.FUNCTIONS and name != "adtopk_push_tensor":
                self.assertRegex(text, rf"\b{name}\b")

    def test_every_status_has_a_class(self):
        self.assertEqual(set(errors.CLASSES), set(_abi.Status) - {_abi.Status.OK})
        for status, kind in errors.CLASSES.items():
            self.assertIsInstance(errors.make(status, "why"), errors.Error)
            self.assertIs(kind.status, status)
            self.assertEqual(str(errors.make(status, "why")), "why")

    def test_versions(self):
        for good in ("1.1.0", "1.1.7", "1.3.0"):
            _library.check_version(good)
        for bad in ("2.0.0", "1.0.7", "0.9.0", "", "new", "1"):
            with self.assertRaises(errors.ProtocolError):
                _library.check_version(bad)


class Loading(unittest.TestCase):
    def load(self, library):
        done = subprocess.run([sys.executable, "-c", "import adtopk; print(adtopk.version())"],
                              env={**os.environ, "ADTOPK_LIBRARY": library}, capture_output=True,
                              text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def test_loads(self):
        status, output = self.load(os.environ["ADTOPK_LIBRARY"])
        self.assertEqual((status, output.strip()), (0, "1.1.0"))

    def test_no_library(self):
        status, output = self.load("/nowhere/libadtopk-client.so")
        self.assertEqual(status, 1)
        self.assertIn("UnreachableError: the library /nowhere/libadtopk-client.so cannot be", output)

    def test_another_library(self):
        """A library that is not adtopk's lacks its functions."""
        status, output = self.load("libc.so.6")
        self.assertEqual(status, 1)
        self.assertRegex(output, "ProtocolError: libc.so.6 is another version of adtopk: .*; install the same")


if __name__ == "__main__":
    unittest.main()
