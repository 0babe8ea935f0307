"""A number for each copy of an env, for ports, displays and files."""

from __future__ import annotations

import errno
import itertools
import os
import socket
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

VARIABLE = "ZMQRL_ENV_INDEX"
_releases: dict[int, Callable[[], object]] = {}
"""Release of the number by the id of an env without its wrappers; of a deleted one it has no effect."""


def _close(held: socket.socket) -> None:
    with suppress(OSError):  # the user's code may have closed all descriptors
        held.close()


def release(env: Any) -> None:
    """Another env may have the number of `env`."""
    _releases.pop(id(getattr(env, "unwrapped", env)), lambda: None)()


class EnvIndex:
    """The lowest number that no other env of this machine has, in `VARIABLE` while the env is constructed.

    An abstract socket with the number in its name holds it: the kernel frees it with the last process that has it, and
    containers with a network of their own have numbers of their own, as they have ports.
    """

    def __enter__(self) -> EnvIndex:
        for self.number in itertools.count():
            self._held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                self._held.bind(f"\0zmqrl-env-{self.number}")
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    break  # such sockets are forbidden here: the number is not reserved
                self._held.close()
        self._before, self._keeps = os.environ.get(VARIABLE), False
        os.environ[VARIABLE] = str(self.number)
        return self

    def keep_for(self, env: Any) -> Any:
        """`env`, which has the number until `release`, or until it is deleted."""
        inner = getattr(env, "unwrapped", env)
        with suppress(TypeError):  # a class without weak references
            _releases[id(inner)] = weakref.finalize(inner, _close, self._held)
            self._keeps = True
        return env

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.environ.pop(VARIABLE, None)  # the user's code may have removed it
        if self._before is not None:
            os.environ[VARIABLE] = self._before
        if not self._keeps:
            _close(self._held)
