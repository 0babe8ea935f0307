"""A program for a guest: saves and reads versions in a store on NFS as it is told, a line at a time."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from zmqrl.agent.store_token import sees_token, write_token
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.errors import StoreError
from zmqrl.types import Version

DEADLINE_S = 8.0


def main(folder: str) -> None:
    store = DirectoryStore(folder, keep=3)
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
        elif word == "token":
            said = write_token(Path(folder), "r")
        else:
            said = str(sees_token(Path(rest[0]), "r", rest[1]))
        print(f"CLIENT {time.monotonic() - begun:.3f} {said}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
