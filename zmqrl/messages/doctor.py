"""What the agents that `zmqrl doctor` examines hosts with reply to `messages/doctor_requests.py`: JSON lines.

Before these come the handshake of the agent and the command `examine`. A change of a request or a reply takes another
`messages.command.EXAMINATION`: agents of other versions with the same number answer. The lines of the agent begin with
`MARK`. The three paragraphs of a docstring are columns of the tables in docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias, get_args

import msgspec
from msgspec import Struct

from zmqrl.messages.fields import Port, Text, kinds_of
from zmqrl.messages.lines import decoded, line_of
from zmqrl.types import Count, Finite, Gpu, Name

MARK = "ZMQRL-PROBE"
"""Begins every reply; what else comes along (a library's print) is noise."""


class _Reply(Struct, frozen=True, forbid_unknown_fields=True, tag_field="word", tag=True):
    """Unknown fields are refused."""


class Broken(_Reply, frozen=True):
    """The examination cannot continue: what it raised.

    Agent to doctor: before it ends.

    The host counts as not examined.
    """

    cause: Text


class Clock(_Reply, frozen=True):
    """Unix time of the host.

    Agent to doctor: in answer to `Echo`.

    A wrong one shows a wrong skew.
    """

    time_s: Finite


class Machine(_Reply, frozen=True):
    """What the machine offers.

    Agent to doctor: in answer to `Examine`.

    It is shown, and compared with what the run needs.
    """

    cores: Count
    """Physical ones that may be used."""
    load: Finite
    """Processes that ran or wanted to, mean of the last minute."""
    available_bytes: Count
    """Memory that may still be taken."""
    nvidia: bool
    acting: Mapping[Name, Name]
    """Digests of what acting computes, by its runtime (`zmqrl.acting.digest`)."""
    gpus: tuple[Gpu, ...]
    """GPUs that a process of the host sees, as nvidia-smi reports them."""


class Folder(Struct, frozen=True, forbid_unknown_fields=True):
    """A directory that the run writes into, or the nearest that exists above it."""

    path: Text
    there: Text
    """What exists of it."""
    free_bytes: Count
    free_inodes: Count | None
    """Files that may still be created; None where the file system has no limit."""
    error: Text | None
    """Why it cannot be written, if so."""


class Folders(_Reply, frozen=True):
    """Where the host writes.

    Agent to doctor: in answer to `Examine`.

    It is shown, and compared with what the run needs.
    """

    workdir: Folder
    store: Folder | None


class Lock(Struct, frozen=True, forbid_unknown_fields=True):
    """A live run on the host."""

    run_id: Name
    user: Name
    own: bool
    """Whether the run is this user's."""
    pid: Count
    age_s: Finite
    workers: Count
    launcher: Name
    """User and machine that it was started from."""


class Locks(_Reply, frozen=True):
    """Who uses the host.

    Agent to doctor: in answer to `Examine`.

    A run of another user is a fault where it keeps the run from the host; any other run is a warning.
    """

    held: tuple[Lock, ...]


class Curve(_Reply, frozen=True):
    """Encryption: whether libzmq has it, and how fast it is over loopback.

    Agent to doctor: in answer to `Examine`.

    It is shown; without CURVE the host cannot participate.
    """

    has: bool
    mb_per_s: Finite | None
    """10^6 bytes."""


class Listening(_Reply, frozen=True):
    """The learner's host can be tried now, or why not.

    Agent of the learner's host to doctor: in answer to `Examine` with `listen`.

    Wrong ports or addresses show other hosts as cut off.
    """

    ports: tuple[Port, ...]
    addresses: tuple[Name, ...]
    server: Name
    """The public key of what listens."""
    error: Text | None = None


class Examined(_Reply, frozen=True):
    """All of `Examine` was answered but the env, which takes its time.

    Agent to doctor: after the other answers.

    An early one moves the host to its next request.
    """


class Answer(Struct, frozen=True, forbid_unknown_fields=True):
    """What became of the ports at one address."""

    address: Name
    ports: Mapping[Name, Text | None]
    """Port to what is wrong with it; None: it answers."""
    round_trip_ms: Finite | None
    """Least of several, encrypted."""


class Reached(_Reply, frozen=True):
    """Results for all addresses.

    Agent of a worker's host to doctor: in answer to `Reach`.

    It is shown; no address that answers is a fault.
    """

    answers: tuple[Answer, ...]


class Watching(_Reply, frozen=True):
    """The host looks into the store: the file may be written now.

    Agent of a worker's host to doctor: in answer to `Watch`.

    With an error nothing is written for the host.
    """

    error: Text | None
    """Why the host cannot see the directory at all."""


class Written(_Reply, frozen=True):
    """When a file was there under its name, by the host's clock.

    Agent of the learner's host to doctor: in answer to `Write`.

    One of an unknown name is kept and compared with nothing.
    """

    name: Name
    time_s: Finite
    error: Text | None


class Seen(_Reply, frozen=True):
    """When a file was seen, by the host's clock; None: not within the limit.

    Agent of a worker's host to doctor: after `Watching`.

    A wrong time shows a wrong delay of the store.
    """

    name: Name
    time_s: Finite | None


class EnvFacts(_Reply, frozen=True):
    """What is known of the env on the host; None is not known (yet).

    Agent to doctor: in answer to `Finish`; its check process to it: after each stage.

    The last one counts.
    """

    stage: Name = "import"
    """How far it came: import, steps, repeat, checker, done."""
    error: Text | None = None
    """Why it cannot be used."""
    spaces: Text | None = None
    steps_per_s: Finite | None = None
    """One process, random actions."""
    repeats: bool | None = None
    """Whether seed and actions bring back the same observations."""
    differing: Text | None = None
    digest: Name | None = None
    """Digest of the observations of a fixed walk: equal hosts have equal ones."""
    checker: Text | None = None
    """What `gymnasium.utils.env_checker` refuses; empty: nothing."""
    advice: tuple[Text, ...] = ()
    """What it would rather see otherwise."""


Reply: TypeAlias = (
    Broken
    | Clock
    | Machine
    | Folders
    | Locks
    | Curve
    | Listening
    | Examined
    | Reached
    | Watching
    | Written
    | Seen
    | EnvFacts
)

REPLIES = kinds_of(get_args(Reply))
_reply = msgspec.json.Decoder(Reply).decode


def reply_line(reply: Reply) -> str:
    """For the stdout of an agent, without the line's end."""
    return f"{MARK} {line_of(reply).decode().rstrip()}"


def read_reply(line: str) -> Reply | None:
    """What `reply_line` wrote; None for what a shell wrote.

    Raises:
        WireError: It has the mark of a message and is invalid.
    """
    mark, _, text = line.partition(" ")
    if mark != MARK:
        return None
    found: Reply = decoded(_reply, text, "word", REPLIES)
    return found
