"""A unit's SystemCallFilter=, put on a process of a test: whatever it does not
allow kills."""
import ctypes
import pathlib
import re
import struct
import subprocess

import pytest

LD_WORD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06  # of classic BPF
ALLOW, KILL = 0x7fff0000, 0x80000000
SET_NO_NEW_PRIVS, SET_SECCOMP, MODE_FILTER = 38, 22, 2


def members(analyze, group):
    """The system calls of a group of systemd's, nested groups resolved."""
    text = subprocess.run([analyze, "--no-pager", "syscall-filter", group],
                          stdout=subprocess.PIPE, check=True,
                          text=True).stdout
    found = set()
    for word in re.findall(r"^ +(@?\w[\w-]*)", text, re.M):
        found |= members(analyze, word) if word.startswith("@") else {word}
    return found


def allowed_by_unit(analyze, lines):
    """Line by line, as systemd does: ~ takes away, the rest adds. What every
    process needs is always in."""
    allowed = members(analyze, "@default")
    for line in lines:
        names = set()
        for word in line.lstrip("~").split():
            names |= (members(analyze, word) if word.startswith("@")
                      else {word})
        allowed = allowed - names if line.startswith("~") else allowed | names
    return allowed


def numbers(names):
    """Of this machine; a name that it does not have is left out."""
    for path in pathlib.Path("/usr/include").glob("*/asm/unistd_64.h"):
        text = path.read_text()
        break
    else:
        pytest.skip("no asm/unistd_64.h: apt-get install linux-libc-dev, and "
                    "x86-64 only")
    table = dict(re.findall(r"#define __NR_(\w+) (\d+)", text))
    return sorted(int(table[name]) for name in names if name in table)


def install(allowed):
    """In the process that is to be held: between fork and exec."""
    # The architecture is not looked at: nothing here runs 32-bit code.
    code = [struct.pack("HBBI", LD_WORD, 0, 0, 0)]
    for number in allowed:
        code += [struct.pack("HBBI", JUMP_EQUAL, 0, 1, number),
                 struct.pack("HBBI", RETURN, 0, 0, ALLOW)]
    code.append(struct.pack("HBBI", RETURN, 0, 0, KILL))
    filter_bytes = ctypes.create_string_buffer(b"".join(code))
    program = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(code), ctypes.addressof(filter_bytes)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or \
            libc.prctl(SET_SECCOMP, MODE_FILTER, program, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
