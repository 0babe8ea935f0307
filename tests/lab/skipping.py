"""The lab for pytest: a machine that cannot carry it skips the test, with the reason."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from .kernel import LabUnavailable
from .lab import Lab
from .nfs import Guest, NfsServer


@contextlib.contextmanager
def lab_or_skip(count: int, isolated: bool | None = None, sshd: Mapping[str, str] | None = None) -> Iterator[Lab]:
    """A lab until the end of `with`; arguments as of `Lab`."""
    try:
        lab = Lab(count, isolated, sshd)
    except LabUnavailable as reason:
        pytest.skip(f"no lab of several hosts: {reason}")
    with lab:
        yield lab


@contextlib.contextmanager
def nfs_or_skip(command: str, hello: str) -> Iterator[tuple[Path, NfsServer, list[Guest]]]:
    """An exported folder, its server, and two guests that run `command`, each of which has printed `hello` and "up".

    Skips the test with the reason where NFS is unavailable.
    """
    folder = Path(tempfile.mkdtemp(prefix="zmqrl-export-", dir="/var/tmp"))
    guests: list[Guest] = []
    try:
        server = NfsServer(folder)
    except LabUnavailable as reason:
        folder.rmdir()
        pytest.skip(f"no NFS here: {reason}")
    try:
        guests += [Guest(server, number, command) for number in (1, 2)]
        for guest in guests:
            assert guest.hear(hello) == "up"
        yield folder, server, guests
    finally:
        for guest in guests:
            guest.close()
        server.close()
        shutil.rmtree(folder, ignore_errors=True)
