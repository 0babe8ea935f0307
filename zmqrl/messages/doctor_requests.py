"""Requests of `zmqrl doctor` to the agents that it examines hosts with, see `zmqrl.messages.doctor`."""

from __future__ import annotations

from typing import TypeAlias, get_args

import msgspec
from msgspec import Struct

from zmqrl.messages.fields import Large, Port, Text, kinds_of
from zmqrl.messages.lines import decoded, line_of
from zmqrl.types import Count, Finite, ModeName, Name


class _Request(Struct, frozen=True, forbid_unknown_fields=True, tag_field="order", tag=True):
    """Unknown fields are refused."""


class Echo(_Request, frozen=True):
    """Answer with `Clock` at once.

    Doctor to agent: five times, after `examine`.

    The shortest of the round trips counts.
    """


class Listen(_Request, frozen=True):
    """Be the learner's host for the time of the check, with a key pair of its own.

    Doctor to the agent of the learner's host: within `Examine`.

    A port that is taken is reported in `Listening`.
    """

    ports: tuple[Port, ...]
    """0: any free one."""


class Examine(_Request, frozen=True):
    """Look at this host: everything that needs no other.

    Doctor to agent: once, after the clock.

    A path or an env that cannot be used is reported, and ends nothing.
    """

    workdir: Text
    store: Text | None
    """None: no store to check."""
    env: Text | None
    """`EnvSection` as JSON text, since integers in it may have more than 64 bits."""
    mode: ModeName
    seed: Text
    """Decimal, for the same reason."""
    env_limit_s: Finite
    """Time limit of the env check."""
    listen: Listen | None = None
    code: Large | None = None
    """The user's own modules: a tar archive, base64."""


class Reach(_Request, frozen=True):
    """Try every port at every address, as a worker of this host would.

    Doctor to the agent of a worker's host: once the learner's host listens.

    What does not answer is reported by address and port.
    """

    addresses: tuple[Name, ...]
    ports: tuple[Port, ...]
    server: Name
    """The public key of the agent that listens there."""
    limit_s: Finite = 3.0


class Watch(_Request, frozen=True):
    """Look into the store until a file of this name holds this token.

    Doctor to the agent of a worker's host: after `Reach`.

    A store that is not shared gives `Seen` without a time.
    """

    path: Text
    up: Count
    """Levels from `path` up to the directory that is there already, in which the file is looked for."""
    name: Name
    token: Name
    limit_s: Finite


class Write(_Request, frozen=True):
    """Put such a file there; `Forget` takes it away.

    Doctor to the agent of the learner's host: once a host watches for it.

    One that cannot be written is reported in `Written`.
    """

    path: Text
    name: Name
    token: Name


class Forget(_Request, frozen=True):
    """Remove a file that `Write` made.

    Doctor to the agent of the learner's host: at the end.

    A file that is not there is left out.
    """

    path: Text
    name: Name


class Finish(_Request, frozen=True):
    """The last request: report what the env check has found, and end.

    Doctor to agent: the last line.

    Without it the agent ends with its stdin, or after 150 s.
    """


Request: TypeAlias = Echo | Examine | Reach | Watch | Write | Forget | Finish
REQUESTS = kinds_of(get_args(Request))
_request = msgspec.json.Decoder(Request).decode


def request_line(request: Request) -> bytes:
    """For the stdin of an agent."""
    return line_of(request)


def read_request(line: str | bytes) -> Request:
    """What `request_line` wrote. WireError states what is wrong with the line."""
    found: Request = decoded(_request, line, "order", REQUESTS)
    return found
