"""Events of a host agent, which it sends to the launcher on its stdout: JSON lines (`process` defines "refused")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

from msgspec import Struct

from zmqrl.messages.fields import FileName, Index, Ports, Text, kinds_of
from zmqrl.messages.process import EventMessage, ForwardedEvent, MessagesRefused, ProcessFault
from zmqrl.types import ArenaUsage, Count, Finite, Gpu, Ledger, Name, Role, Whole

Source: TypeAlias = Literal["launcher", "broker"]


class Started(EventMessage, frozen=True, tag="started"):
    """A process was started.

    Agent to launcher: at each start.

    A launcher that loses its agent kills the processes that it was notified of, if pid and start time agree.
    """

    pid: Count
    start_time: Count
    spawn: Count


class Exited(EventMessage, frozen=True, tag="exit"):
    """A process was reaped, or could not be started.

    Agent to launcher: at each end, and at each start that fails.

    One that is wrongly expected is not shown as a problem; restarts are decided by the agent, not by this event.
    """

    pid: Count
    """0: it could not be started."""
    code: Whole | None
    """None: by a signal."""
    expected: bool
    cause: Text
    detail: Mapping[str, Any]
    """Detail of the last `fault` of the process."""
    log: Text
    log_tail: list[Text]


class Restarting(EventMessage, frozen=True, tag="restart"):
    """A process is going to be started again.

    Agent to launcher: after an unexpected end, within the limits of `restart`.

    It is shown and counted in the summary.
    """

    in_s: Finite


class RestartLimitReached(EventMessage, frozen=True, tag="restart_limit_reached"):
    """A process reached the restart limit and is not started again.

    Agent to launcher: once per process.

    It is shown; the agent has decided already what follows.
    """

    cause: Text


Report: TypeAlias = ForwardedEvent | Started | Exited | Restarting | RestartLimitReached
"""What an agent reports of a process."""


class ProcessReport(EventMessage, frozen=True, tag="process"):
    """An event of a process of this host, or about one.

    Agent to launcher: as each comes.

    A report that is not one of the types listed for it is refused by its own reason.
    """

    role: Role
    index: Index
    report: Report


class BrokerAddresses(EventMessage, frozen=True, tag="listening"):
    """Where other hosts reach the broker, and the token that they look for in the store.

    Agent to launcher: when the broker has reported its ports, and the allow-list that it follows.

    Wrong addresses keep other hosts from joining: each reports `unreachable`. With an old serial no host joins.
    """

    ports: Ports
    addresses: list[Name]
    token: Name | None
    serial: Count
    """Serial of the allow-list that the broker follows."""


class RunFailed(EventMessage, frozen=True, tag="failed"):
    """The run cannot continue without a process of this host.

    Agent of the learner's host to launcher: once; the agent ends its processes. Of another host it changes nothing.

    The run ends with exit code 1, and `cause` is the first cause in the summary.
    """

    cause: Text


class ProcessUsage(Struct, frozen=True, forbid_unknown_fields=True):
    """What one process uses."""

    pss_mb: Finite
    cpu: Finite
    """Seconds so far."""


class Usage(EventMessage, frozen=True, tag="usage"):
    """What the processes of a host use, by `role-index`, and the arena where it is.

    Agent to launcher: every 5 s; dropped while the launcher does not read.

    It is shown; `arena_usage.stored` also counts as progress of the run.
    """

    processes: dict[Name, ProcessUsage]
    arena_usage: ArenaUsage | None
    """Use of the arena of the learner's host, unless the mode is single."""


class Alive(EventMessage, frozen=True, tag="alive"):
    """The loop of the agent runs.

    Agent to launcher: every `limits.heartbeat_s`; dropped while the launcher does not read.

    A host without messages is shown as silent.
    """


class OtherUse(EventMessage, frozen=True, tag="other_use"):
    """What others do on a host that has `yield_when`.

    Agent to launcher: every 5 s; dropped while the launcher does not read.

    A wrong one takes the workers of this host away, or leaves them there; no row is lost by it.
    """

    load: Finite
    """Running threads of other processes, mean of the last minute."""
    input_idle_s: Finite | None
    """Seconds since the last input on a terminal; None: no user has one."""


class HostFinished(EventMessage, frozen=True, tag="finished"):
    """Everything of the run on this host has ended.

    Agent to launcher: the last event.

    The ledger of the learner's host becomes the summary's; `killed` and `left` count in the teardown.
    """

    ledger: Ledger | None
    peak_pss_mb: dict[Name, Finite]
    """Largest proportional set sizes of a process, by role."""
    ended: Count
    """Processes that ended on their own."""
    killed: list[Text]
    left: list[Text]
    final_stopped: bool
    """The evaluator was stopped before it had scored the final version."""


class LogText(EventMessage, frozen=True, tag="log"):
    """New text of a log.

    Agent of another host to launcher: each heartbeat, as far as the connection takes it.

    It is appended to `logs/<name>.log`. A name that has a path is refused.
    """

    name: FileName
    text: Text


class Warned(EventMessage, frozen=True, tag="warning"):
    """Something about the host that the user should know.

    Agent to launcher, and the launcher's own connections: when it is found.

    It is shown to the user and in the status.
    """

    text: Text


class LeaseLost(EventMessage, frozen=True, tag="lease_lost"):
    """The source was silent for `limits.host_lease_s`, and the host ends.

    Agent to launcher: once.

    The host counts as lost; on the learner's host the run fails.
    """

    source: Source


class Unreachable(EventMessage, frozen=True, tag="unreachable"):
    """The host cannot reach the broker at any address.

    Agent to launcher: in answer to `join`; the agent ends.

    The host counts as failed.
    """

    cause: Text


class GpuUse(EventMessage, frozen=True, tag="gpus"):
    """The GPUs of a host, and whose processes are on them.

    Agent to launcher: every 30 s where nvidia-smi is installed.

    It is shown in the status.
    """

    gpus: list[Gpu]


class ActingDigest(EventMessage, frozen=True, tag="acting"):
    """What acting computes on this host, as a digest.

    Agent to launcher: once, after the first of its processes is ready, in a sync run on several hosts.

    With a wrong one the launcher reports hosts as different, or does not; the broker decides by that of `agent`.
    """

    digest: Name


class Joined(EventMessage, frozen=True, tag="joined"):
    """The host has reached the broker, and starts its processes.

    Agent to launcher: in answer to `join`.

    It is shown; a wrong `store` shows a warning.
    """

    address: Name
    milliseconds: Finite
    store: bool
    """The host shares the store of the learner's host."""


AgentEvent: TypeAlias = (
    ProcessReport
    | BrokerAddresses
    | Alive
    | MessagesRefused
    | ProcessFault
    | RunFailed
    | Usage
    | OtherUse
    | HostFinished
    | LogText
    | Warned
    | LeaseLost
    | Unreachable
    | Joined
    | ActingDigest
    | GpuUse
)
REPORTS = kinds_of(get_args(Report))
AGENT_EVENTS = kinds_of(get_args(AgentEvent))
