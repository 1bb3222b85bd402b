#!/usr/bin/env python3
"""Writes the device code with one fault: chunks are published before their elements are written.

usage: early.py DEVICE_CODE ALL ADD_PLAIN ADD_STREAM OUTPUT
"""
import re
import sys

LATE = re.compile(r"    if \((follows && )?plain_publishes\(chunk - 1\)\) \{[^}]*\}\n")
PLAIN = ((LATE, "    (void)follows;\n"), (LATE, ""),
         (re.compile(r"    const uint32_t spare = shared->spare;\n"),
          r"\g<0>    __syncthreads();\n    if (plain_publishes(chunk)) {\n"
          r"        plain_publish(p, chunk);\n    }\n"))
STREAM = ((re.compile(r"    return stream_end\(([^;]*;)"), "    return lies;"),
          (re.compile(r"    stream_add\(s, chunk,"),
           "    const uint32_t lies = stream_end(&s->slots, &tensor->entry[chunk], tensor->stamp, "
           r"&way, spare);\n\g<0>"))


def early(source, changes):
    """Moves what publishes."""
    for statement, becomes in changes:
        source, count = statement.subn(becomes, source, 1)
        if count != 1:
            sys.exit("early.py: the device code no longer publishes where this script looks")
    return source


def main():
    code, everything, plain, stream = (
        open(path, encoding="utf-8").read() for path in sys.argv[1:5])
    everything = everything.replace('#include "kernels/cuda/add_plain.cu"\n', early(plain, PLAIN))
    everything = everything.replace('#include "kernels/cuda/add_stream.cu"\n',
                                    early(stream, STREAM))
    with open(sys.argv[5], "w", encoding="utf-8") as output:
        output.write(code.replace('#include "kernels/cuda/all.cu"\n', everything))


if __name__ == "__main__":
    main()
