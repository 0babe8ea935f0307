"""Command line and environment of this process as /proc shows them to `ps`, to the reaper and to `zmqrl down`.

The kernel shows the memory that the start of the program has filled. A process that was forked has those of its parent
until it names other memory, which every process may since Linux 4.3 (a kernel with CONFIG_CHECKPOINT_RESTORE).
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

PR_SET_MM, PR_SET_MM_MAP = 35, 14
AREAS: Mapping[str, int] = {
    "start_code": 26, "end_code": 27, "start_data": 45, "end_data": 46, "start_brk": 47, "start_stack": 28,
}  # fmt: skip
"""What stays as it is, by its field in /proc/PID/stat."""
NAMES = ("start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack")
ROLE = 3
"""Place of the role in a command line: PYTHON -m zmqrl.entry ROLE RUN INDEX."""

Packed: TypeAlias = tuple[tuple[str, ...], tuple[tuple[str, str], ...]]
"""Words of a command line, and variables, as messages have them."""


class _MemoryMap(ctypes.Structure):
    """`struct prctl_mm_map` of linux/prctl.h."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in (*NAMES, "arg_start", "arg_end", "env_start", "env_end", "auxv")),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    ]


def show(words: Sequence[str], environment: Mapping[bytes, bytes]) -> None:
    """Show `words` as the command line of this process, and `environment`.

    Raises:
        OSError: The kernel refuses it; both are as before.
    """
    command = b"".join(os.fsencode(word) + b"\0" for word in words)
    variables = b"".join(name + b"=" + value + b"\0" for name, value in environment.items())
    content = ctypes.create_string_buffer(command + variables, len(command) + len(variables))
    library = ctypes.CDLL(None, use_errno=True)
    library.sbrk.restype = ctypes.c_void_p
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    areas = {name: int(fields[number - 3]) for name, number in AREAS.items()}
    begin = ctypes.addressof(content)
    middle = begin + len(command)
    ends = {"arg_start": begin, "arg_end": middle, "env_start": middle, "env_end": middle + len(variables)}
    given = _MemoryMap(**areas, brk=library.sbrk(ctypes.c_long(0)), **ends, exe_fd=ctypes.c_uint32(-1).value)
    numbers = map(ctypes.c_ulong, (PR_SET_MM_MAP, ctypes.addressof(given), ctypes.sizeof(given), 0))
    if library.prctl(PR_SET_MM, *numbers) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_MM_MAP)")
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(content))  # the kernel reads it until the end of the process


def packed(words: Sequence[str], environment: Mapping[str, str]) -> Packed:
    """A command line and an environment for a message."""
    return tuple(map(_packed, words)), tuple((_packed(name), _packed(value)) for name, value in environment.items())


def assume(command: Packed) -> None:
    """Have this command line, also in `sys.orig_argv`, this environment, and no other variable.

    Raises:
        OSError: See `show`.
    """
    words, pairs = unpacked(command[0]), command[1]
    sys.orig_argv[:] = words
    variables = {name.encode("latin-1"): value.encode("latin-1") for name, value in pairs}
    os.environb.clear()
    os.environb.update(variables)
    show(words, variables)


def unpacked(words: Sequence[str]) -> list[str]:
    """Words of a message as those of a command line."""
    return [os.fsdecode(word.encode("latin-1")) for word in words]


def _packed(word: str) -> str:
    return os.fsencode(word).decode("latin-1")
