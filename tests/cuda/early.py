#!/usr/bin/env python3
"""Writes the device code with one fault: a chunk is published before its elements are written.

usage: early.py DEVICE_CODE ALL ADD_STREAM OUTPUT
"""
import re
import sys

PUBLISH = re.compile(r"const uint32_t lies =\s*stream_end\([^;]*;")
ADD = "    stream_add(s, chunk,"


def early(source):
    """Moves the statement that publishes to before the one that adds."""
    found = PUBLISH.findall(source)
    if len(found) != 1 or source.count(ADD) != 1:
        sys.exit("early.py: add_stream.cu no longer publishes where this script looks")
    return PUBLISH.sub("", source).replace(
        ADD, f"    {found[0]}\n{ADD}")


def main():
    code, everything, stream = (open(path, encoding="utf-8").read() for path in sys.argv[1:4])
    everything = everything.replace('#include "kernels/cuda/add_stream.cu"\n', early(stream))
    with open(sys.argv[4], "w", encoding="utf-8") as output:
        output.write(code.replace('#include "kernels/cuda/all.cu"\n', everything))


if __name__ == "__main__":
    main()
