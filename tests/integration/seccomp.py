"""Runs a program under the system call filter of a unit file, without systemd as process 1.

The names come from systemd-analyze, the numbers from the kernel's header. What the filter does not
list fails with EPERM, as SystemCallErrorNumber= of the unit says.
"""
import ctypes
import os
import platform
import re
import struct
import subprocess

HEADER = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1  # from Linux 6.3 on
LOAD_NUMBER = (0x20, 0, 0, 0)  # the system call's number is the first word
ALLOW, REFUSE = (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050001)  # EPERM


def possible():
    return platform.machine() == "x86_64" and os.path.exists(HEADER)


def members(name):
    """The system calls of a set such as @system-service."""
    listing = subprocess.run(["systemd-analyze", "syscall-filter", name], capture_output=True,
                             text=True, check=True).stdout
    found = set()
    for line in listing.splitlines()[1:]:
        word = line.strip()
        if word.startswith("@"):
            found |= members(word)
        elif word and not word.startswith("#"):
            found.add(word)
    return found


def allowed(unit):
    """The names that the SystemCallFilter= lines of a unit file leave."""
    names = members("@default")
    for value in re.findall(r"^SystemCallFilter=(.*)$", unit, re.MULTILINE):
        listed = set()
        for word in value.lstrip("~").split():
            listed |= members(word) if word.startswith("@") else {word}
        names = names - listed if value.startswith("~") else names | listed
    return names


def numbers(names):
    with open(HEADER, encoding="utf-8") as header:
        defined = dict(re.findall(r"#define __NR_(\w+)\s+(\d+)", header.read()))
    return sorted(int(defined[name]) for name in names if name in defined)


def program(names):
    """A BPF program: each allowed number is compared in turn."""
    steps = [LOAD_NUMBER]
    for number in numbers(names):
        steps += [(0x15, 0, 1, number), ALLOW]  # not equal: skip the next one
    steps.append(REFUSE)
    return b"".join(struct.pack("=HBBI", *step) for step in steps), len(steps)


def limit_to(names, makes_code=True):
    """Returns a function for the child, between fork and exec. makes_code: MemoryDenyWriteExecute= is off."""
    code, count = program(names)
    libc = ctypes.CDLL(None, use_errno=True)
    text = ctypes.create_string_buffer(code, len(code))
    filter_program = ctypes.create_string_buffer(
        struct.pack("@HP", count, ctypes.addressof(text)))

    def apply():
        if not makes_code:
            libc.prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0)
        if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or \
                libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter_program, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "cannot set the filter")
    apply.keeps = text  # until the function is gone
    return apply
