"""What `RunMachine` takes in and what it decides: plain data. `ActionRunner` carries the actions out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

from zmqrl.config.plan import Boot
from zmqrl.config.sections import Config, HostSection
from zmqrl.errors import WireError
from zmqrl.launch.stop_signals import StopRequest
from zmqrl.messages.command import Command, Join
from zmqrl.messages.files import RequestAnswer, ScaleRequest
from zmqrl.orchestrators.base import HostEvent


@dataclass(frozen=True)
class Deploy:
    """Begin to start the agents of these hosts."""

    boots: Mapping[str, Boot]


@dataclass(frozen=True)
class Send:
    """A command for the agent of a host, or of all hosts (None). `Join` gets the addresses that this host reaches."""

    host: str | None
    command: Command


@dataclass(frozen=True)
class WriteInvitation:
    """Write the connection file of a host, by which its user joins it. `Performed` follows."""

    boot: Boot
    join: Join


@dataclass(frozen=True)
class RemoveInvitation:
    """The connection file of a host admits no host any more."""

    host: str


@dataclass(frozen=True)
class RecordConfig:
    """Write the configuration with the hosts that a request adds; nothing starts there before. `Performed` follows."""

    path: Path
    """Path of the request."""
    request: ScaleRequest
    sections: Mapping[str, HostSection]
    """Sections of the hosts that the request adds."""
    config: Config
    """Configuration with these hosts."""


@dataclass(frozen=True)
class Respond:
    """The answer to a request."""

    path: Path
    answer: RequestAnswer


@dataclass(frozen=True)
class Show:
    """A line for the user."""

    text: str


@dataclass(frozen=True)
class Leave:
    """Nothing more is waited for: the end of all processes is verified, and the run is summed up."""


Action: TypeAlias = Deploy | Send | WriteInvitation | RemoveInvitation | RecordConfig | Respond | Show | Leave


@dataclass(frozen=True)
class Begin:
    """The run begins, at this time of day."""

    wall: datetime


@dataclass(frozen=True)
class TimePassed:
    """Time has passed. Comes several times a second."""

    wall: datetime
    """For the windows of hosts."""
    request: StopRequest = StopRequest.NONE
    """What the user has requested so far."""
    same_presses: int = 0
    """Interrupts that counted as the first one."""
    addresses: Sequence[str] = ()
    """Addresses of this machine, where they were read."""


@dataclass(frozen=True)
class RequestReceived:
    """A request of another command, or why its file is none."""

    path: Path
    """What its answer is named by."""
    request: ScaleRequest | WireError


@dataclass(frozen=True)
class Performed:
    """What became of an action that may fail."""

    action: WriteInvitation | RecordConfig
    error: str | None
    """None: it is done."""
    place: Path | None = None
    """Path of the connection file."""


Input: TypeAlias = HostEvent | Begin | TimePassed | RequestReceived | Performed
