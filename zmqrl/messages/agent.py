"""Events and commands between the processes of a host, its agent and the launcher: one JSON line each.

A process of the run reports to its host agent through the pipe that it inherits, an agent to the launcher on its
stdout, the launcher commands an agent on its stdin, an agent the evaluator likewise. "Refused" means: counted by
reason, reported once per reason and sender, and otherwise without effect. The three paragraphs of a docstring are
columns of the tables in docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

from msgspec import Struct

from zmqrl.messages.fields import FileName, Index, Number, Ports, Text, kinds_of
from zmqrl.types import (
    AllowList,
    ArenaUsage,
    Count,
    Finite,
    Gpu,
    JudgedRole,
    Ledger,
    Name,
    Notice,
    Role,
    Version,
    Whole,
)

State: TypeAlias = Literal["well", "slow", "stalled", "lost"]
Source: TypeAlias = Literal["launcher", "broker"]
UPDATE = "update"
"""In the detail of a learner's `Fault`: the number of the update that raised it."""
EXAMINATION = 3
"""Number of the messages of `zmqrl doctor` (`messages/doctor.py`): another one when one of them changes."""


class _Event(Struct, frozen=True, forbid_unknown_fields=True, tag_field="event"):
    """Unknown fields are refused."""


# what a process of the run reports to its agent


class Ready(_Event, frozen=True, tag="ready"):
    """The process has started and works.

    Process to its agent, and on to the launcher: once, when it can work.

    A second one changes nothing. Before it the silence of a process counts from `limits.start_s` on.
    """


class Left(_Event, frozen=True, tag="left"):
    """A worker ends because the broker removed it from the run.

    Worker to its agent, and on to the launcher: before it exits.

    A wrong one keeps the agent from starting the worker again.
    """


class NewVersion(_Event, frozen=True, tag="notice"):
    """The current version, without a broker that publishes it.

    Learner to its agent: at each version in mode single.

    An older one has the evaluator score an older version.
    """

    notice: Notice


class Listening(_Event, frozen=True, tag="listening"):
    """The tcp ports of the broker: segments, notices, control; and the allow-list that it follows.

    Broker to its agent: where other hosts participate, at its start and when the allow-list has changed.

    Wrong ports keep other hosts from joining: each reports `unreachable`.
    """

    ports: Ports
    serial: Count
    """Of the allow-list."""


class Refused(_Event, frozen=True, tag="refused"):
    """Messages that the sender refused so far, by reason.

    Any process to its agent, agent to launcher: when the counts increased, once per heartbeat at most.

    Counts are absolute: an old one is replaced by the next.
    """

    counts: dict[Name, Count]


class Enrolled(_Event, frozen=True, tag="enrolled"):
    """A host that joins by a connection file has shown its token over a connection with this public key.

    Broker to its agent, and on to the launcher: repeatedly, until the key is on the allow-list.

    One whose token was used is ignored.
    """

    token: Name
    """The sha256 of it."""
    public: Name


class HostHere(_Event, frozen=True, tag="host_here"):
    """The agent of another host has reported to the broker; without workers it has left.

    Broker to its agent, and on to the launcher: at the first report of a host, and at its last.

    One for a host that the launcher reaches over SSH changes nothing: that host's own events count.
    """

    host: Name
    workers: list[Index]


class HostLost(_Event, frozen=True, tag="host_lost"):
    """The agent of another host has been silent for `limits.host_lease_s`.

    Broker to its agent, and on to the launcher: once; the workers of the host are removed.

    One for an unknown host, or one that is gone already, changes nothing.
    """

    host: Name


class WorkerState(_Event, frozen=True, tag="worker_state"):
    """The liveness of a process as the broker judges it.

    Broker to its agent, and on to the launcher: when it changes.

    It is shown when a run stores nothing, unless it is of another spawn than the running one. The answer to the message
    `agent` of the bus names the processes that are to be killed.
    """

    role: JudgedRole
    index: Index
    spawn: Count
    state: State


class FirstStep(_Event, frozen=True, tag="first_step"):
    """A worker has done its first env step.

    Worker to its agent, and on to the launcher: once per process.

    The first one counts, by the launcher's clock: an early one shortens `first_env_step_s` of the summary.
    """


class WorkerRates(_Event, frozen=True, tag="worker"):
    """What a worker has done since its start, and its speed since the event before.

    Worker to its agent, and on to the launcher: every 2 s and at its end; dropped while the launcher does not read.

    It is shown and recorded, never counted: the ledger has the rows.
    """

    env_steps: Count
    env_steps_per_s: Finite
    wait_fraction: Finite
    episodes: Count


class Metrics(_Event, frozen=True, tag="metrics"):
    """Figures of the learner by name; an algorithm adds its own.

    Learner to its agent, and on to the launcher: about every second; dropped while the launcher does not read.

    It is shown and recorded; the summary uses the last one of a run whose learner has not reported its end.
    """

    values: dict[Name, Number]


class ProblemReport(_Event, frozen=True, tag="problem"):
    """Something failed that ended no process: what, and what was done about it.

    Any process to its agent, and on to the launcher: when it happens.

    It is shown to the user and in the status.
    """

    cause: Text
    done: Text


class Relieved(_Event, frozen=True, tag="relieved"):
    """Vector envs of a sync run move from this worker to faster ones, or back when it is faster again.

    Broker to its agent, and on to the launcher: when they move.

    It is shown to the user.
    """

    worker: Index
    factor: Finite
    """Its time for a segment by the median of the others."""
    before: Count
    after: Count
    """How many vector envs it has."""


class Resumed(_Event, frozen=True, tag="resumed"):
    """The checkpoint from which the learner continues; `written_at` is None where it has no time.

    Learner to its agent, and on to the launcher: once per attempt that resumes.

    It is shown in the summary as `resumed_from`, and the time to go is counted from it.
    """

    version: Name
    env_steps: Count
    written_at: Finite | None


class Writing(_Event, frozen=True, tag="writing"):
    """The process is writing a checkpoint that may take longer than `limits.grace_s`.

    Learner to its agent, and on to the launcher: repeatedly while it writes, `store.wait_s` at most.

    A wrong one delays a clean stop by one grace.
    """


class Score(_Event, frozen=True, tag="score"):
    """The greedy return of a version; None where it is not finite.

    Evaluator to its agent, and on to the launcher: after each scored version.

    It is shown and recorded; after the final one no other counts.
    """

    version: Version
    env_steps: Count
    return_mean: Finite | None
    return_std: Finite | None
    episodes: Count
    wall: Finite
    best: bool
    final: bool


class Ended(_Event, frozen=True, tag="ended"):
    """What the summary needs of the learner; None where it is not known, or not finite.

    Learner to its agent, and on to the launcher: once, before it ends.

    Wrong counters are shown in the summary; the ledger of the broker's host is kept alongside them.
    """

    reason: Name
    env_steps: Count
    env_steps_before: Count
    """Of earlier arenas of a resumed run."""
    updates: Count
    updates_lost: Count
    episodes: Count
    train_return_mean_100: Finite | None
    solved_at_env_steps: Count | None
    solved_at_wall_s: Finite | None
    policy_lag: dict[Name, Number]
    replay_ratio: Finite
    weights_sha256: Name
    checkpoint_interval_s: Finite
    notice: Notice | None
    """The last version."""
    ledger: Ledger | None
    """In mode single."""
    env_steps_per_s: Finite
    updates_per_s: Finite
    wait_fraction: Finite
    store_wait_fraction: Finite


class Fault(_Event, frozen=True, tag="fault"):
    """The exception that ends the sender.

    Any process to its agent, agent to launcher: before it ends.

    It names the cause in messages; what is done about the end depends on the exit code alone.
    """

    error: Text
    detail: Mapping[str, Any]
    """Data of the exception, such as the env and its seed: names and values that are shown."""
    lines: list[Text]
    """The end of the traceback."""


# what an agent reports of a process


class Started(_Event, frozen=True, tag="started"):
    """A process was started.

    Agent to launcher: at each start.

    A launcher that loses its agent kills the processes that it was notified of, if pid and start time agree.
    """

    pid: Count
    start_time: Count
    spawn: Count


class Exited(_Event, frozen=True, tag="exit"):
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
    """Of its last `fault`."""
    log: Text
    log_tail: list[Text]


class Restarting(_Event, frozen=True, tag="restart"):
    """A process is going to be started again.

    Agent to launcher: after an unexpected end, within the limits of `restart`.

    It is shown and counted in the summary.
    """

    in_s: Finite


class RestartLimitReached(_Event, frozen=True, tag="restart_limit_reached"):
    """A process reached the restart limit and is not started again.

    Agent to launcher: once per process.

    It is shown; the agent has decided already what follows.
    """

    cause: Text


ForwardedEvent: TypeAlias = (
    Ready
    | Left
    | Refused
    | Enrolled
    | HostHere
    | HostLost
    | WorkerState
    | FirstStep
    | WorkerRates
    | Metrics
    | ProblemReport
    | Relieved
    | Resumed
    | Writing
    | Score
    | Ended
    | Fault
)
"""What a process reports to its agent, and the agent then to the launcher."""
ChildEvent: TypeAlias = ForwardedEvent | NewVersion | Listening
Report: TypeAlias = ForwardedEvent | Started | Exited | Restarting | RestartLimitReached
"""What an agent reports of a process."""


# what an agent reports to the launcher


class ProcessReport(_Event, frozen=True, tag="process"):
    """An event of a process of this host, or about one.

    Agent to launcher: as each comes.

    A report that is not one of the types listed for it is refused by its own reason.
    """

    role: Role
    index: Index
    report: Report


class BrokerAddresses(_Event, frozen=True, tag="listening"):
    """Where other hosts reach the broker, and the token that they look for in the store.

    Agent to launcher: when the broker has reported its ports, and the allow-list that it follows.

    Wrong addresses keep other hosts from joining: each reports `unreachable`. With an old serial no host joins.
    """

    ports: Ports
    addresses: list[Name]
    token: Name | None
    serial: Count
    """Of the allow-list."""


class RunFailed(_Event, frozen=True, tag="failed"):
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


class Usage(_Event, frozen=True, tag="usage"):
    """What the processes of a host use, by `role-index`, and the arena where it is.

    Agent to launcher: every 5 s; dropped while the launcher does not read.

    It is shown; `arena_usage.stored` also counts as progress of the run.
    """

    processes: dict[Name, ProcessUsage]
    arena_usage: ArenaUsage | None
    """Of the learner's host, unless the mode is single."""


class Alive(_Event, frozen=True, tag="alive"):
    """The loop of the agent runs.

    Agent to launcher: every `limits.heartbeat_s`; dropped while the launcher does not read.

    A host without messages is shown as silent.
    """


class OtherUse(_Event, frozen=True, tag="other_use"):
    """What others do on a host that has `yield_when`.

    Agent to launcher: every 5 s; dropped while the launcher does not read.

    A wrong one takes the workers of this host away, or leaves them there; no row is lost by it.
    """

    load: Finite
    """Running threads of other processes, mean of the last minute."""
    input_idle_s: Finite | None
    """Seconds since the last input on a terminal; None: no user has one."""


class Finished(_Event, frozen=True, tag="finished"):
    """Everything of the run on this host has ended.

    Agent to launcher: the last event.

    The ledger of the learner's host becomes the summary's; `killed` and `left` count in the teardown.
    """

    ledger: Ledger | None
    peak_pss_mb: dict[Name, Finite]
    """By role."""
    ended: Count
    """Processes that ended on their own."""
    killed: list[Text]
    left: list[Text]
    final_stopped: bool
    """The evaluator was stopped before it had scored the final version."""


class LogText(_Event, frozen=True, tag="log"):
    """New text of a log.

    Agent of another host to launcher: each heartbeat, as far as the connection takes it.

    It is appended to `logs/<name>.log`. A name that has a path is refused.
    """

    name: FileName
    text: Text


class Warned(_Event, frozen=True, tag="warning"):
    """Something about the host that the user should know.

    Agent to launcher, and the launcher's own connections: when it is found.

    It is shown to the user and in the status.
    """

    text: Text


class LeaseLost(_Event, frozen=True, tag="lease_lost"):
    """The source was silent for `limits.host_lease_s`, and the host ends.

    Agent to launcher: once.

    The host counts as lost; on the learner's host the run fails.
    """

    source: Source


class Unreachable(_Event, frozen=True, tag="unreachable"):
    """The host cannot reach the broker at any address.

    Agent to launcher: in answer to `join`; the agent ends.

    The host counts as failed.
    """

    cause: Text


class GpuUse(_Event, frozen=True, tag="gpus"):
    """The GPUs of a host, and whose processes are on them.

    Agent to launcher: every 30 s where nvidia-smi is installed.

    It is shown in the status.
    """

    gpus: list[Gpu]


class ActingDigest(_Event, frozen=True, tag="acting"):
    """What acting computes on this host, as a digest.

    Agent to launcher: once, after the first of its processes is ready, in a sync run on several hosts.

    With a wrong one the launcher reports hosts as different, or does not; the broker decides by that of `agent`.
    """

    digest: Name


class Joined(_Event, frozen=True, tag="joined"):
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
    | Refused
    | Fault
    | RunFailed
    | Usage
    | OtherUse
    | Finished
    | LogText
    | Warned
    | LeaseLost
    | Unreachable
    | Joined
    | ActingDigest
    | GpuUse
)


# what the launcher's own orchestrator adds


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


class AgentExited(_Event, frozen=True, tag="agent_exit"):
    """An agent has ended; `code` is None where it is not known.

    Orchestrator to launcher: when its stdout ended.

    On the learner's host it ends the run.
    """

    code: Whole | None
    introduced: bool


class HostUnusable(_Event, frozen=True, tag="host_failed"):
    """A host cannot participate: why, and how to fix it.

    Orchestrator to launcher: when connecting, the handshake or the start failed.

    The run continues without the host, where it can.
    """

    cause: Text
    fix: Text


class LinesRefused(_Event, frozen=True, tag="lines_refused"):
    """Lines of an agent that the launcher refused so far, by reason.

    Orchestrator to launcher: at each power of two, and at the end.

    Counts are absolute: an old one is replaced by the next.
    """

    counts: dict[Name, Count]


Event: TypeAlias = Report | AgentEvent | Handshake | AgentExited | HostUnusable | LinesRefused
"""What the launcher receives of a host."""


# what the launcher commands


class _Command(Struct, frozen=True, forbid_unknown_fields=True, tag_field="command"):
    """Unknown fields are refused."""


class Stop(_Command, frozen=True, tag="stop"):
    """End every process of this host in order, with a checkpoint.

    Launcher to agent: at a clean stop, and where the run cannot continue.

    A second one changes nothing.
    """

    failed: bool = False
    """The run cannot continue: the learner waits for no further segment, and nothing final is scored."""


class Kill(_Command, frozen=True, tag="kill"):
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
    """Of the learner's host; which one leads there is found by trying them."""
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


class Allow(_Command, frozen=True, tag="allow"):
    """Who may participate from other hosts. A host that is no longer in it has ended or is lost.

    Launcher to the agent of the learner's host, which sends it on to the broker and gives it to every new one: when
    a host joins, or is lost.

    Absolute: the highest serial counts. A wrong one keeps a host out, or has the broker remove live workers.
    """

    allowed: AllowList


class Examine(_Command, frozen=True, tag="examine"):
    """Examine this host for `zmqrl doctor`: requests follow, and the agent has nothing of a run.

    Doctor to agent: the first line, in the place of a boot, where both have the same `examination` in their versions.

    Without it the agent waits for a boot; after a boot it is ignored.
    """


Command: TypeAlias = Stop | Kill | Lease | Join | SetWorkers | Allow | Examine


class Evaluate(Struct, frozen=True, forbid_unknown_fields=True, tag_field="command", tag="evaluate"):
    """A version to score.

    Agent to evaluator: at each version, and with `final` at the end of the run.

    Only the newest is kept; after the final one no other counts. A malformed line is refused.
    """

    notice: Notice
    final: bool


class Reaped(Struct, frozen=True, forbid_unknown_fields=True):
    """What became of the processes of a run on a host: `role-index (pid n)` each.

    Reaper to launcher or `zmqrl down`: on stdout, its last line.

    A malformed one leaves the host in the list of what could not be verified: exit code 3.
    """

    ended: tuple[Text, ...] = ()
    killed: tuple[Text, ...] = ()
    left: tuple[Text, ...] = ()


CHILD_EVENTS = kinds_of(get_args(ChildEvent))
REPORTS = kinds_of(get_args(Report))
AGENT_EVENTS = kinds_of(get_args(AgentEvent))
OWN_EVENTS = kinds_of((Started, Exited, Restarting, RestartLimitReached, *get_args(AgentEvent)))
"""Events of an agent: of a process or of itself."""
LAUNCHER_EVENTS = kinds_of((Handshake, AgentExited, HostUnusable, LinesRefused))
COMMANDS = kinds_of((*get_args(Command), Evaluate))
