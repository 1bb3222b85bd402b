#!/usr/bin/env python3
"""Writes the device code with one fault: chunks are published before their elements are written.

usage: early.py DEVICE_CODE ALL ADD_PLAIN ADD_STREAM OUTPUT
"""
import re
import sys

# What publishes, and before which text it gets.
PLAIN = (re.compile(r"    if \(device_warp\(\) == chunk % WARPS\) \{\s*plain_publish\([^}]*\}\n"),
         "    const uint32_t spare = shared->spare;\n", False)
STREAM = (re.compile(r"    return stream_end\([^;]*;"), "    stream_add(s, chunk,", True)


def early(source, statement, place, returns):
    """Moves the statement that publishes."""
    found = statement.findall(source)
    if len(found) != 1 or source.count(place) != 1:
        sys.exit("early.py: the device code no longer publishes where this script looks")
    if returns:
        return statement.sub("    return lies;", source).replace(
            place, found[0].replace("return", "const uint32_t lies =") + "\n" + place)
    return statement.sub("", source).replace(place, place + found[0])


def main():
    code, everything, plain, stream = (
        open(path, encoding="utf-8").read() for path in sys.argv[1:5])
    everything = everything.replace('#include "kernels/cuda/add_plain.cu"\n', early(plain, *PLAIN))
    everything = everything.replace('#include "kernels/cuda/add_stream.cu"\n',
                                    early(stream, *STREAM))
    with open(sys.argv[5], "w", encoding="utf-8") as output:
        output.write(code.replace('#include "kernels/cuda/all.cu"\n', everything))


if __name__ == "__main__":
    main()
