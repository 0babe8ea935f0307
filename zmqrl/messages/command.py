"""Commands to a host agent, from the launcher on its stdin, and to the evaluator from its agent: JSON lines."""

from __future__ import annotations

from typing import TypeAlias, get_args

from msgspec import Struct

from zmqrl.messages.fields import Index, Ports, kinds_of
from zmqrl.types import AllowList, Name, Notice

EXAMINATION = 5
"""Number of the messages of `zmqrl doctor` (`messages/doctor.py`): another one when one of them changes."""


class _Command(Struct, frozen=True, forbid_unknown_fields=True, tag_field="command"):
    """Unknown fields are refused."""


class Stop(_Command, frozen=True, tag="stop"):
    """End every process of this host in order, with a checkpoint.

    Launcher to agent: at a clean stop, and where the run cannot continue.

    A second one changes nothing.
    """

    failed: bool = False
    """The run cannot continue: the learner waits for no further segment, and nothing final is scored."""


class KillAll(_Command, frozen=True, tag="kill"):
    """Kill every process of this host.

    Launcher to agent: at the second interrupt, when the run directory was taken over, after the grace.

    A wrong one costs what was not in a checkpoint.
    """


class Lease(_Command, frozen=True, tag="lease"):
    """The launcher lives.

    Launcher to agent: every second.

    Without any line for `limits.host_lease_s` the agent ends its host's part.
    """


class Join(_Command, frozen=True, tag="join"):
    """Where the broker is. The host starts its processes.

    Launcher to the agent of another host: once the agent is there, and the broker knows its key. For a host that
    joins by a connection file it is in that file.

    A second one is ignored; wrong addresses are answered with `unreachable`.
    """

    addresses: list[Name]
    """Addresses of the learner's host; which one leads there is found by trying them."""
    ports: Ports
    token: Name | None
    """What is to be seen in the store; None: it is not looked for."""
    server: Name | None
    """The broker's public key; None: `security.curve` is `off`."""
    enrolment: Name | None
    """One-time token of a host whose key the launcher does not know; None: it knows it."""


class SetWorkers(_Command, frozen=True, tag="set_workers"):
    """The workers that this host has from now on.

    Launcher to agent: at `zmqrl scale` and `drain`, and where `only` or `yield_when` of the host take effect.

    Absolute: the newest counts; an index of another host is refused by the broker.
    """

    workers: list[Index]
    stays: bool = False
    """Without workers the agent stays, and measures when the host is free again."""


class SetAllowList(_Command, frozen=True, tag="allow"):
    """Allow-list of participants from other hosts. A host that is missing from it has ended or is lost.

    Launcher to the agent of the learner's host, which sends it on to the broker and gives it to every new one: when
    a host joins, or is lost.

    Absolute: the highest serial counts. A wrong one keeps a host out, or has the broker remove live workers.
    """

    allowed: AllowList


class BeginExamination(_Command, frozen=True, tag="examine"):
    """Examine this host for `zmqrl doctor`: requests follow, and the agent has nothing of a run.

    Doctor to agent: the first line, in the place of a boot, where both have the same `examination` in their versions.

    Without it the agent waits for a boot; after a boot it is ignored.
    """


Command: TypeAlias = Stop | KillAll | Lease | Join | SetWorkers | SetAllowList | BeginExamination


class Evaluate(Struct, frozen=True, forbid_unknown_fields=True, tag_field="command", tag="evaluate"):
    """A version to score.

    Agent to evaluator: at each version, and with `final` at the end of the run.

    Only the newest is kept; after the final one no other counts. A malformed line is refused.
    """

    notice: Notice
    final: bool


COMMANDS = kinds_of((*get_args(Command), Evaluate))
