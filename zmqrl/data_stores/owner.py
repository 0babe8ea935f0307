"""The owner record: which lineage writes into a directory of checkpoints, and which of its attempts."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from zmqrl.capacity import disk_error
from zmqrl.config.codec import from_json, to_json
from zmqrl.config.plan import Lineage
from zmqrl.data_stores import files
from zmqrl.data_stores.base import DataStore
from zmqrl.errors import ConfigError, StoreError, key_of

OWNER = "owner.json"
DELETE_OWNER = "delete it if the run is not active"


def take_over(store: DataStore, path: str, lineage: Lineage) -> None:
    """Make `lineage` the owner of `store`. ConfigError when it belongs to another, or cannot be written."""
    try:
        check_owner(store.place_key, path, store.owner(), lineage)
        store.set_owner(lineage)
    except StoreError as error:
        raise ConfigError(str(error), key=key_of(store.place_key)) from error


def check_owner(key: str, path: str, owner: Lineage | None, lineage: Lineage) -> None:
    """ConfigError when `owner` is another lineage, or another copy of this one that has gone further.

    `key`: of the configuration, which names `path`, a directory or a URL. `owner`: of the record there. `lineage`:
    which is to write there.
    """
    if owner is None:
        return
    named = f"attempt {owner.attempt} of {owner.id}, run directory {owner.run_dir} of {owner.host}"
    mine = f"attempt {lineage.attempt} of {lineage.id}, run directory {lineage.run_dir} of {lineage.host}"
    if owner.id != lineage.id:
        what, fix = f"belongs to {named}", f"this is {mine}: set another {key}"
        raise ConfigError(what, key=key_of(key), value=path, is_subject=True, fix=fix)
    is_here = (owner.host, owner.run_dir) == (lineage.host, lineage.run_dir)
    if owner.attempt >= lineage.attempt and not is_here:
        raise ConfigError(
            f"was continued elsewhere: {named}",
            key=key_of(key),
            value=f"the run in {path}",
            is_subject=True,
            fix=f"this is {mine}, an earlier copy: resume {owner.run_dir}, or start a new run from its weights with "
            "--init-from",
        )


def read_owner(path: str) -> Lineage | None:
    """The record in the directory; None when there is none. StoreError when it cannot be read."""
    try:
        os.listdir(path)  # NFS remembers that a name was absent
        return from_json(Lineage, json.loads(Path(path, OWNER).read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise StoreError("cannot be read", name=OWNER, place=path, cause=str(error), fix=DELETE_OWNER) from error


def write_owner(path: str, owner: Lineage) -> None:
    """Whole or not at all, and durable. StoreError when it cannot be written."""
    target, temporary = os.path.join(path, OWNER), os.path.join(path, f".{OWNER}.{os.getpid()}.tmp")
    content = (json.dumps(to_json(owner), indent=2) + "\n").encode()
    try:
        files.make_directory(os.path.abspath(path))
        files.replace(target, [(0, content)], temporary, durable=True)
    except OSError as error:
        with contextlib.suppress(OSError):
            files.unlink(temporary)
        raise StoreError("cannot be written", name=OWNER, place=path, cause=disk_error(error, path)) from error
