"""Whether hosts see one store, and how soon: one writes a token, the others look for it by listing the directory."""

from __future__ import annotations

import os
import time
from pathlib import Path

from zmqrl.messages.doctor import Forget, Seen, Watch, Watching, Write, Written

PAUSE_S = 0.005


def prepare(order: Watch) -> Watching:
    """Whether there is a directory to look into."""
    try:
        os.listdir(_watched(order))
    except OSError as error:
        return Watching(f"{_watched(order)}: {error.strerror}")
    return Watching(None)


def watch(order: Watch) -> Seen:
    """List until it is there. A name is never polled: NFS remembers for 30 s that it was absent."""
    until = time.monotonic() + order.limit_s
    folder = _watched(order)
    while True:
        try:
            if order.name in os.listdir(folder) and (folder / order.name).read_text() == order.token:
                return Seen(order.name, time.time())
        except OSError:
            pass  # replaced or stale in this moment: the next listing says
        if time.monotonic() >= until:
            return Seen(order.name, None)
        time.sleep(PAUSE_S)


def write(order: Write) -> Written:
    """As the store writes: a temporary file, then its name."""
    folder = Path(order.path)
    temporary = folder / f"{order.name}.tmp"
    try:
        temporary.write_text(order.token)
        temporary.rename(folder / order.name)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        return Written(order.name, time.time(), f"{folder}: {error.strerror}")
    return Written(order.name, time.time(), None)


def forget(order: Forget) -> None:
    """Safe when it is not there."""
    try:
        Path(order.path, order.name).unlink(missing_ok=True)
    except OSError:
        return


def _watched(order: Watch) -> Path:
    whole = Path(order.path).expanduser().absolute()
    return whole if order.up == 0 else whole.parents[order.up - 1]
