"""The directory store on a real NFS mount with default options, between two clients with kernels of their own."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.lab.nfs import MOUNT, Guest, NfsServer
from tests.lab.skipping import nfs_or_skip
from tests.support.waiting import WAIT_S
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.testing.expect import assert_within
from zmqrl.types import Version

pytestmark = [pytest.mark.whole, pytest.mark.timed]
ROOT = Path(__file__).parents[2]
CLIENT = str(Path(__file__).with_name("nfs_client.py"))
AWAY_S = 5.0
RACES = 3


class Lab:
    """A server, a writer and a reader."""

    def __init__(self, server: NfsServer, writer: Guest, reader: Guest) -> None:
        self.server, self.writer, self.reader = server, writer, reader

    def save(self, number: int, size: int = 20_000) -> str:
        """A version; what its notice says: key, bytes, sha256."""
        return self.writer.ask(f"save {number} {size}", "CLIENT").partition(" ")[2]

    def read(self, notice: str) -> tuple[float, str]:
        """Seconds, and what came of it."""
        took, _, said = self.reader.ask(f"read {notice}", "CLIENT").partition(" ")
        return float(took), said


@pytest.fixture(scope="module")
def nfs() -> Iterator[Lab]:
    command = f"env PYTHONPATH={ROOT} {sys.executable} {CLIENT} {MOUNT}/store"
    with nfs_or_skip(command, "CLIENT") as (_, server, guests):
        yield Lab(server, *guests)


def test_a_new_version_is_loaded_within_a_second_of_its_notice(nfs: Lab) -> None:
    for number in range(5):
        took, said = nfs.read(nfs.save(number))
        assert said.startswith("read "), (took, said)
        assert_within(took, 1.0)
    took, said = nfs.read(nfs.save(5, 2_500_000))
    assert said.startswith("read 1000"), (took, said)
    assert_within(took, 1.0)


def test_a_name_resolved_too_early_is_resolved_again_soon(nfs: Lab, tmp_path: Path) -> None:
    """Polling that name would show it half a minute late: the client remembers that it was absent."""
    same = DirectoryStore(str(tmp_path), 3).save(Version(0, 30), {"w": np.full(20_000, 30, "f4")}, {})
    notice = f"{same.key} {same.nbytes} {same.sha256}"
    nfs.reader.say(f"read {notice}")
    timer = threading.Timer(2.0, nfs.writer.say, ["save 30 20000"])
    timer.start()
    took, _, said = nfs.reader.hear("CLIENT").partition(" ")
    timer.join()
    assert nfs.writer.hear("CLIENT").partition(" ")[2] == notice
    assert said.startswith("read "), (took, said)
    assert_within(float(took), 3.0)


def test_a_file_that_was_deleted_meanwhile_breaks_nothing(nfs: Lab) -> None:
    gone = nfs.save(40)
    assert nfs.read(gone)[1].startswith("read ")
    until = time.monotonic() + WAIT_S
    for number in itertools.count(41):
        kept = nfs.save(number)
        took, said = nfs.read(gone)
        if said.startswith("StoreError"):
            break
        assert time.monotonic() < until, (number, took, said)
        time.sleep(0.5)  # a version stays for some time after it was superseded
    assert nfs.read(kept)[1].startswith("read ")


def test_a_server_that_is_away_stalls_a_reader_and_breaks_nothing(nfs: Lab) -> None:
    notice = nfs.save(60, 500_000)
    nfs.server.pause()
    timer = threading.Timer(AWAY_S, nfs.server.go_on)
    timer.start()
    took, said = nfs.read(notice)
    timer.join()
    assert said.startswith("read "), said
    assert took > AWAY_S / 2, "it was away"
    assert nfs.read(nfs.save(61))[1].startswith("read ")


def test_a_token_distinguishes_two_trees(nfs: Lab) -> None:
    token = nfs.writer.ask("token", "CLIENT").partition(" ")[2]
    assert nfs.reader.ask(f"sees {MOUNT}/store {token}", "CLIENT").partition(" ")[2] == "True"
    assert nfs.reader.ask(f"sees /tmp {token}", "CLIENT").partition(" ")[2] == "False"


def test_the_next_attempt_takes_over_from_another_host_and_another_run_does_not(nfs: Lab) -> None:
    def own(guest: Guest, *owner: object) -> str:
        return guest.ask(" ".join(["own", *map(str, owner)]), "CLIENT").partition(" ")[2]

    def newest(guest: Guest) -> str:
        return guest.ask("newest", "CLIENT").partition(" ")[2]

    assert newest(nfs.reader) == "none", "it remembers that the names were absent"
    assert own(nfs.writer, "run-a", 1, "first", "/mnt/a") == "owned"
    nfs.writer.ask("full 70", "CLIENT")
    assert "run-a" in own(nfs.reader, "run-b", 1, "second", "/mnt/b")
    assert own(nfs.reader, "run-a", 2, "second", "/mnt/a") == "owned"
    assert newest(nfs.reader) == "0-70"
    assert "second" in own(nfs.writer, "run-a", 2, "first", "/mnt/a"), "it went on elsewhere"


def test_of_two_hosts_that_want_a_run_directory_at_the_same_time_one_has_it(nfs: Lab) -> None:
    """Whole runs that do so: tests/system/stores/test_shared_store_nfs.py."""
    guests = {"first": nfs.writer, "second": nfs.reader}
    for race in range(RACES):
        for name, guest in guests.items():
            guest.say(f"acquire {MOUNT}/race{race} {name}")
        said = {name: guest.hear("CLIENT").partition(" ")[2] for name, guest in guests.items()}
        (winner,) = [name for name, text in said.items() if text == "acquired"]
        (refusal,) = [text for text in said.values() if text != "acquired"]
        assert f"in use by run {winner}" in refusal, said
