"""Functions that tests call in check processes."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Generator
from typing import Any

from zmqrl.errors import ArenaTooLarge, ConfigError, DamagedCheckpoints, EnvFault, HostFailed, ZmqrlError
from zmqrl.messages.check import Stage


def echoed(value: Any) -> Any:
    return value


def forked() -> str:
    if os.fork() == 0:
        return "the copy"
    os.wait()
    return "the process"


class OwnFault(EnvFault):
    pass


ERRORS: tuple[ZmqrlError, ...] = (
    HostFailed("host", "cause", "fix"),
    DamagedCheckpoints("none", ("a", "b")),
    EnvFault("fault", {"step": 3}),
    OwnFault("own", {"seed": 1 << 70}),
    ArenaTooLarge("too large"),
    ConfigError(
        "is large", key=("hosts", "n1.lab"), value="3", is_subject=True, fix="lower it", others=(("run", "seed"),)
    ).replaced(source="a.yaml:3", places=(("run.seed", "--set"),)),
)


IMPORTED = ("asyncio", "email.message", "http.client", "unittest.mock", "xml.dom.minidom")


def imports(seconds: float) -> bool:
    """As of a large package: code and frames come and go."""
    until, packages = time.monotonic() + seconds, {name.partition(".")[0] for name in IMPORTED}
    while time.monotonic() < until:
        for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
            del sys.modules[name]
        for name in IMPORTED:
            importlib.import_module(name)
    return True


def raises(which: int) -> None:
    raise ERRORS[which]


def crash_below(frames: int) -> None:
    """A crash next to another thread, deeper than a dump shows."""
    if frames:
        crash_below(frames - 1)
    threading.Thread(target=time.sleep, args=(600.0,), daemon=True).start()
    ctypes.string_at(0)


def bug() -> None:
    raise LookupError("of the user")


def stages() -> Generator[Stage, None, str]:
    yield Stage("first", json.dumps("known"), 0.05)
    yield Stage("second")
    return "known at last"
