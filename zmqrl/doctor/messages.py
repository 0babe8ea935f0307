"""What the doctor and its probes say to each other: JSON lines, one dataclass each; standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from zmqrl.config.codec import from_json, to_json

MARK = "ZMQRL-PROBE"
"""Begins every line of a probe; what else comes along (a shell's greeting) is noise."""

# what the doctor says


@dataclass(frozen=True)
class Echo:
    """Answer with `Clock` at once."""


@dataclass(frozen=True)
class Listen:
    """Be the learner's host for the time of the check. Keys are Z85 text."""

    ports: tuple[int, ...]
    """0: any free one."""
    server_public: str
    server_secret: str = field(repr=False)
    allowed: Mapping[str, str] = field(default_factory=dict)
    """Public key to host."""


@dataclass(frozen=True)
class Examine:
    """Look at this host: everything that needs no other."""

    workdir: str
    store: str | None
    """None: nothing to look at."""
    env: Mapping[str, Any] | None
    """`EnvSection` as JSON data."""
    mode: str
    seed: int
    env_limit_s: float
    """The env is looked at no longer than this."""
    listen: Listen | None = None
    code: str | None = None
    """The user's own modules: a tar archive, base64."""


@dataclass(frozen=True)
class Reach:
    """Try every port at every address, as a worker of this host would."""

    addresses: tuple[str, ...]
    ports: tuple[int, ...]
    server_public: str
    public: str
    secret: str = field(repr=False)
    limit_s: float = 3.0


@dataclass(frozen=True)
class Watch:
    """Look into the store until a file of this name holds this token."""

    path: str
    up: int
    """In that many levels above `path`: what is there already."""
    name: str
    token: str
    limit_s: float


@dataclass(frozen=True)
class Write:
    """Put such a file there; `Forget` takes it away."""

    path: str
    name: str
    token: str


@dataclass(frozen=True)
class Forget:
    """Remove a file that `Write` made."""

    path: str
    name: str


@dataclass(frozen=True)
class Finish:
    """No more questions: say what the env check has found, and end."""


Order: TypeAlias = Echo | Examine | Reach | Watch | Write | Forget | Finish

# what a probe says


@dataclass(frozen=True)
class Hello:
    """The first line, before anything is read and before anything heavy is imported."""

    node: str
    user: str
    python: str
    """The interpreter's path."""
    versions: Mapping[str, str | None]


@dataclass(frozen=True)
class Broken:
    """The probe cannot go on: what it raised."""

    cause: str


@dataclass(frozen=True)
class Clock:
    """Unix time of this host."""

    time_s: float


@dataclass(frozen=True)
class Machine:
    """What the machine offers."""

    cores: int
    """Physical ones that may be used."""
    load: float
    """Processes that ran or wanted to, mean of the last minute."""
    available_bytes: int
    """Memory that may still be taken."""
    nvidia: bool


@dataclass(frozen=True)
class Folder:
    """A directory that the run writes into, or the nearest that exists above it."""

    path: str
    there: str
    """What exists of it."""
    free_bytes: int
    error: str | None
    """Why it cannot be written, if so."""


@dataclass(frozen=True)
class Folders:
    """Where this host writes."""

    workdir: Folder
    store: Folder | None


@dataclass(frozen=True)
class Lock:
    """A live run on this host."""

    run_id: str
    user: str
    own: bool
    """It is this user's."""
    pid: int
    age_s: float
    workers: int


@dataclass(frozen=True)
class Locks:
    """Who uses this host."""

    held: tuple[Lock, ...]


@dataclass(frozen=True)
class Curve:
    """Encryption: whether libzmq has it, and how fast it is over loopback."""

    has: bool
    mb_per_s: float | None
    """10^6 bytes."""


@dataclass(frozen=True)
class Listening:
    """The learner's host can be tried now, or why not."""

    ports: tuple[int, ...]
    addresses: tuple[str, ...]
    error: str | None = None


@dataclass(frozen=True)
class Examined:
    """All of `Examine` was answered but the env, which takes its time."""


@dataclass(frozen=True)
class Answer:
    """What became of the ports at one address."""

    address: str
    ports: Mapping[str, str | None]
    """Port to what is wrong with it; None: it answers."""
    round_trip_ms: float | None
    """Least of several, encrypted."""


@dataclass(frozen=True)
class Reached:
    """Of all addresses."""

    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Watching:
    """It may be written now."""

    error: str | None
    """Why this host cannot see the directory at all."""


@dataclass(frozen=True)
class Written:
    """When a file was there under its name, by this host's clock."""

    name: str
    time_s: float
    error: str | None


@dataclass(frozen=True)
class Seen:
    """When a file was seen, by this host's clock; None: not within the limit."""

    name: str
    time_s: float | None


@dataclass(frozen=True)
class EnvFacts:
    """What is known of the env on this host; None is not known (yet)."""

    stage: str = "import"
    """How far it came: import, steps, repeat, checker, done."""
    error: str | None = None
    """Why it cannot be used."""
    spaces: str | None = None
    steps_per_s: float | None = None
    """One process, random actions."""
    repeats: bool | None = None
    """Whether seed and actions bring back the same observations."""
    differing: str | None = None
    digest: str | None = None
    """Of the observations of a fixed walk: equal hosts have equal ones."""
    checker: str | None = None
    """What `gymnasium.utils.env_checker` refuses; empty: nothing."""
    advice: tuple[str, ...] = ()
    """What it would rather see otherwise."""


Word: TypeAlias = (
    Hello
    | Broken
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

ORDERS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in (Echo, Examine, Reach, Watch, Write, Forget, Finish)}
WORDS: Mapping[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        Hello,
        Broken,
        Clock,
        Machine,
        Folders,
        Locks,
        Curve,
        Listening,
        Examined,
        Reached,
        Watching,
        Written,
        Seen,
        EnvFacts,
    )
}


def order_line(order: Order) -> bytes:
    """For a probe's stdin."""
    return json.dumps([type(order).__name__, to_json(order)]).encode() + b"\n"


def read_order(line: str) -> Order:
    """What `order_line` wrote. ValueError, KeyError or TypeError when it is something else."""
    name, data = json.loads(line)
    found: Order = from_json(ORDERS[name], data)
    return found


def word_line(word: Word) -> str:
    """For a probe's stdout, without the line's end."""
    return f"{MARK} {json.dumps([type(word).__name__, to_json(word)])}"


def read_word(line: str) -> Word | None:
    """What `word_line` wrote; None for noise."""
    mark, _, text = line.partition(" ")
    if mark != MARK:
        return None
    try:
        name, data = json.loads(text)
        found: Word = from_json(WORDS[name], data)
    except (ValueError, KeyError, TypeError):
        return None
    return found
