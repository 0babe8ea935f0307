"""Functions that tests call in check processes."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

from zmqrl.errors import ArenaTooLarge, DamagedCheckpoints, EnvFault, HostFailed, ZmqrlError
from zmqrl.messages.check import Stage


def command_lines() -> list[list[str]]:
    return [Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0") for pid in (os.getpid(), os.getppid())]


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
)


def raises(which: int) -> None:
    raise ERRORS[which]


def bug() -> None:
    raise LookupError("of the user")


def stages() -> Generator[Stage, None, str]:
    yield Stage("first", json.dumps("known"), 0.05)
    yield Stage("second")
    return "known at last"
