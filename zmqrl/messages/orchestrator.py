"""What the launcher receives of a host besides the events of its agent: the handshake, and how agent and host end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Struct

from zmqrl.messages.agent import AgentEvent, Report
from zmqrl.messages.fields import Text, kinds_of
from zmqrl.messages.process import EventMessage
from zmqrl.types import Count, Finite, Name, Whole


class Handshake(Struct, frozen=True, tag_field="event", tag="agent"):
    """Who the agent is and what is installed there. Unknown fields pass: it is read before versions are compared.

    Agent to launcher: its first line, after `ZMQRL-AGENT 1`.

    A line that is not a handshake, or of another protocol, fails the host.
    """

    versions: Mapping[Name, Name | None]
    pid: Count
    time: Finite
    start_time: Count | None = None
    node: Name = ""
    user: Name = ""
    cores: Count = 0
    public: Name = ""
    """The public half of the CURVE pair that the agent has made."""
    python: Text = ""
    """The interpreter's path."""
    held: Count = 0
    """Rollout workers of the runs that are there."""

    @property
    def free_cores(self) -> int:
        """Cores without those of other runs, at least one."""
        return max(1, self.cores - self.held)


class AgentExited(EventMessage, frozen=True, tag="agent_exit"):
    """An agent has ended; `code` is None where it is not known.

    Orchestrator to launcher: when its stdout ended.

    On the learner's host it ends the run.
    """

    code: Whole | None
    introduced: bool


class HostUnusable(EventMessage, frozen=True, tag="host_failed"):
    """A host cannot participate: why, and how to fix it.

    Orchestrator to launcher: when connecting, the handshake or the start failed.

    The run continues without the host, where it can.
    """

    cause: Text
    fix: Text


class LinesRefused(EventMessage, frozen=True, tag="lines_refused"):
    """Lines of an agent that the launcher refused so far, by reason.

    Orchestrator to launcher: at each power of two, and at the end.

    Counts are absolute: an old one is replaced by the next.
    """

    counts: dict[Name, Count]


class Reaped(Struct, frozen=True, forbid_unknown_fields=True):
    """What became of the processes of a run on a host: `role-index (pid n)` each.

    Reaper to launcher or `zmqrl down`: on stdout, its last line.

    A malformed one leaves the host in the list of what could not be verified: exit code 3.
    """

    ended: tuple[Text, ...] = ()
    killed: tuple[Text, ...] = ()
    left: tuple[Text, ...] = ()


Event: TypeAlias = Report | AgentEvent | Handshake | AgentExited | HostUnusable | LinesRefused
"""What the launcher receives of a host."""
LAUNCHER_EVENTS = kinds_of((Handshake, AgentExited, HostUnusable, LinesRefused))
