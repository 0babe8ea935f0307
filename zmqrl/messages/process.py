"""Events of a process of the run, which it sends to its host agent through the pipe that it inherits: JSON lines.

The agent forwards most of them to the launcher. "Refused" means: counted by reason, reported once per reason and
sender, and otherwise without effect. The three paragraphs of a docstring are columns of the tables in docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

from msgspec import Struct

from zmqrl.messages.fields import Index, Number, Ports, Text, kinds_of
from zmqrl.types import Count, Finite, JudgedRole, Ledger, Name, Notice, Severity, Version

State: TypeAlias = Literal["well", "slow", "stalled", "lost"]
UPDATE = "update"
"""Key in the detail of a learner's `ProcessFault`: the number of the update that raised it."""


class EventMessage(Struct, frozen=True, forbid_unknown_fields=True, tag_field="event"):
    """Event of a process, of an agent or of an orchestrator. Unknown fields are refused."""


class Ready(EventMessage, frozen=True, tag="ready"):
    """The process has started and works.

    Process to its agent, and on to the launcher: once, when it can work.

    A second one changes nothing. Before it the silence of a process counts from `limits.start_s` on.
    """


class Left(EventMessage, frozen=True, tag="left"):
    """A worker ends because the broker removed it from the run.

    Worker to its agent, and on to the launcher: before it exits.

    A wrong one keeps the agent from starting the worker again.
    """


class NewVersion(EventMessage, frozen=True, tag="notice"):
    """The current version, without a broker that publishes it.

    Learner to its agent: at each version in mode single.

    An older one has the evaluator score an older version.
    """

    notice: Notice


class BrokerListening(EventMessage, frozen=True, tag="listening"):
    """The tcp ports of the broker: segments, notices, control; and the allow-list that it follows.

    Broker to its agent: where other hosts participate, at its start and when the allow-list has changed.

    Wrong ports keep other hosts from joining: each reports `unreachable`.
    """

    ports: Ports
    serial: Count
    """Serial of the allow-list that the broker follows."""


class MessagesRefused(EventMessage, frozen=True, tag="refused"):
    """Messages that the sender refused so far, by reason.

    Any process to its agent, agent to launcher: when the counts increased, once per heartbeat at most.

    Counts are absolute: an old one is replaced by the next.
    """

    counts: dict[Name, Count]


class Enrolled(EventMessage, frozen=True, tag="enrolled"):
    """A host that joins by a connection file has shown its token over a connection with this public key.

    Broker to its agent, and on to the launcher: repeatedly, until the key is on the allow-list.

    One whose token was used is ignored.
    """

    token: Name
    """The sha256 of it."""
    public: Name


class HostHere(EventMessage, frozen=True, tag="host_here"):
    """The agent of another host has reported to the broker; without workers it has left.

    Broker to its agent, and on to the launcher: at the first report of a host, and at its last.

    One for a host that the launcher reaches over SSH changes nothing: that host's own events count.
    """

    host: Name
    workers: list[Index]


class HostLost(EventMessage, frozen=True, tag="host_lost"):
    """The agent of another host has been silent for `limits.host_lease_s`.

    Broker to its agent, and on to the launcher: once; the workers of the host are removed.

    One for an unknown host, or one that is gone already, changes nothing.
    """

    host: Name


class WorkerState(EventMessage, frozen=True, tag="worker_state"):
    """The liveness of a process as the broker judges it.

    Broker to its agent, and on to the launcher: when it changes.

    It is shown when a run stores nothing, unless it is of another spawn than the running one. The answer to the message
    `agent` of the bus names the processes that are to be killed.
    """

    role: JudgedRole
    index: Index
    spawn: Count
    state: State


class FirstStep(EventMessage, frozen=True, tag="first_step"):
    """A worker has done its first env step.

    Worker to its agent, and on to the launcher: once per process.

    The first one counts, by the launcher's clock: an early one shortens `first_env_step_s` of the summary.
    """


class WorkerRates(EventMessage, frozen=True, tag="worker"):
    """What a worker has done since its start, and its speed since the event before.

    Worker to its agent, and on to the launcher: every 2 s and at its end; dropped while the launcher does not read.

    It is shown and recorded, never counted: the ledger has the rows.
    """

    env_steps: Count
    env_steps_per_s: Finite
    wait_fraction: Finite
    episodes: Count


class Metrics(EventMessage, frozen=True, tag="metrics"):
    """Figures of the learner by name; an algorithm adds its own.

    Learner to its agent, and on to the launcher: about every second; dropped while the launcher does not read.

    It is shown and recorded; the summary uses the last one of a run whose learner has not reported its end.
    """

    values: dict[Name, Number]


class ProblemReport(EventMessage, frozen=True, tag="problem"):
    """Something failed that ended no process: what, and what was done about it.

    Any process to its agent, and on to the launcher: when it happens.

    It is shown to the user and in the status.
    """

    cause: Text
    done: Text
    severity: Severity = "warning"


class WorkerRelieved(EventMessage, frozen=True, tag="relieved"):
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


class Resumed(EventMessage, frozen=True, tag="resumed"):
    """The checkpoint from which the learner continues; `written_at` is None where it has no time.

    Learner to its agent, and on to the launcher: once per attempt that resumes.

    It is shown in the summary as `resumed_from`, and the time to go is counted from it.
    """

    version: Name
    env_steps: Count
    written_at: Finite | None


class Writing(EventMessage, frozen=True, tag="writing"):
    """The process is writing a checkpoint that may take longer than `limits.grace_s`.

    Learner to its agent, and on to the launcher: repeatedly while it writes, `store.wait_s` at most.

    A wrong one delays a clean stop by one grace.
    """


class VersionScore(EventMessage, frozen=True, tag="score"):
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
    updates: Count = 0
    reports: Mapping[Name, Finite] = {}
    """means over the episodes of the numbers of `env.report`"""


class LearnerEnded(EventMessage, frozen=True, tag="ended"):
    """What the summary needs of the learner; None where it is not known, or not finite.

    Learner to its agent, and on to the launcher: once, before it ends.

    Wrong counters are shown in the summary; the ledger of the broker's host is kept alongside them.
    """

    reason: Name
    env_steps: Count
    env_steps_before: Count
    """Env steps of earlier arenas of a resumed run."""
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
    """Ledger of the learner in mode single."""
    env_steps_per_s: Finite
    updates_per_s: Finite
    wait_fraction: Finite | None
    store_wait_fraction: Finite | None


class ProcessFault(EventMessage, frozen=True, tag="fault"):
    """The exception that ends the sender.

    Any process to its agent, agent to launcher: before it ends.

    It names the cause in messages; what is done about the end depends on the exit code alone.
    """

    error: Text
    detail: Mapping[str, Any]
    """Data of the exception, such as the env and its seed: names and values that are shown."""
    lines: list[Text]
    """The end of the traceback."""


ForwardedEvent: TypeAlias = (
    Ready
    | Left
    | MessagesRefused
    | Enrolled
    | HostHere
    | HostLost
    | WorkerState
    | FirstStep
    | WorkerRates
    | Metrics
    | ProblemReport
    | WorkerRelieved
    | Resumed
    | Writing
    | VersionScore
    | LearnerEnded
    | ProcessFault
)
"""What a process reports to its agent, and the agent then to the launcher."""
ChildEvent: TypeAlias = ForwardedEvent | NewVersion | BrokerListening
CHILD_EVENTS = kinds_of(get_args(ChildEvent))
