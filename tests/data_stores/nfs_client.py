"""A program for a guest: saves and reads versions in a store on NFS as it is told, a line at a time."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from zmqrl.config.plan import Lineage
from zmqrl.data_stores.base import Full
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.data_stores.owner import take_over
from zmqrl.errors import ConfigError, StoreError
from zmqrl.supervision.run_owner import RunOwner
from zmqrl.types import Version

DEADLINE_S = 15.0


def main(folder: str) -> None:
    store, owners = DirectoryStore(folder, keep=3), list[RunOwner]()
    print("CLIENT up", flush=True)
    for line in sys.stdin:
        word, *rest = line.split()
        begun = time.monotonic()
        if word == "save":
            number, size = map(int, rest)
            saved = store.save(Version(0, number), {"w": np.full(size, number, "f4")}, {})
            store.retire()
            said = f"{saved.key} {saved.nbytes} {saved.sha256}"
        elif word == "read":
            try:
                said = f"read {len(store.read(rest[0], int(rest[1]), rest[2], DEADLINE_S))}"
            except StoreError as error:
                said = f"StoreError {str(error)[:80]}"
        elif word == "full":
            store.save_full(Full(Version(0, int(rest[0])), {"w": np.zeros(1000)}, {}), durable=True)
            said = "saved"
        elif word == "newest":
            full = DirectoryStore(folder, keep=3).newest_full()
            said = "none" if full is None else str(full.version)
        elif word == "own":
            try:
                take_over(store, folder, Lineage(rest[0], int(rest[1]), rest[2], rest[3]))
                said = "owned"
            except ConfigError as error:
                said = str(error)
        elif word == "acquire":
            Path(rest[0]).mkdir(exist_ok=True)
            try:
                owners.append(RunOwner.acquire(Path(rest[0]), rest[1]))
                said = "acquired"
            except ConfigError as error:
                said = str(error)
        elif word == "token":
            said = DirectoryStore(folder, 2).leave_token("r")
        else:
            said = str(DirectoryStore(rest[0], 2).sees_token("r", rest[1]))
        print(f"CLIENT {time.monotonic() - begun:.3f} {said}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
