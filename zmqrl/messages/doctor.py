"""What `zmqrl doctor` and the agents that it examines hosts with send each other: JSON lines.

Before these come the handshake of the agent and the command `examine`. A change of a request or a reply takes another
`messages.command.EXAMINATION`: agents of other versions with the same number answer. The lines of the agent begin with
`MARK`. The three paragraphs of a docstring are columns of the tables in docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias, get_args

import msgspec
from msgspec import Struct

from zmqrl.messages.fields import Large, Port, Text, kinds_of
from zmqrl.messages.lines import decoded, line_of
from zmqrl.types import Count, Finite, Gpu, ModeName, Name

MARK = "ZMQRL-PROBE"
"""Begins every reply; what else comes along (a library's print) is noise."""


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
    """In that many levels above `path`: what is there already."""
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
    """Those that a process of the host sees, as nvidia-smi reports them."""


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
    """It is this user's."""
    pid: Count
    age_s: Finite
    workers: Count
    launcher: Name
    """User and machine that it was started from."""


class Locks(_Reply, frozen=True):
    """Who uses the host.

    Agent to doctor: in answer to `Examine`.

    A run of another user is a fault, a run of the same user a warning.
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
    """Of all addresses.

    Agent of a worker's host to doctor: in answer to `Reach`.

    It is shown; no address that answers is a fault.
    """

    answers: tuple[Answer, ...]


class Watching(_Reply, frozen=True):
    """It may be written now.

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
    """Of the observations of a fixed walk: equal hosts have equal ones."""
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

REQUESTS = kinds_of(get_args(Request))
REPLIES = kinds_of(get_args(Reply))
_request = msgspec.json.Decoder(Request).decode
_reply = msgspec.json.Decoder(Reply).decode


def request_line(request: Request) -> bytes:
    """For the stdin of an agent."""
    return line_of(request)


def read_request(line: str | bytes) -> Request:
    """What `request_line` wrote. WireError states what is wrong with the line."""
    found: Request = decoded(_request, line, "order", REQUESTS)
    return found


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
