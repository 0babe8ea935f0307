"""One sound message of each type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct

from tests.agent.plans import stand_in_plan
from zmqrl.config.plan import Boot
from zmqrl.messages import agent, bus, check, command, doctor, doctor_requests, files, orchestrator, process
from zmqrl.orchestrators.base import HostEvent
from zmqrl.types import AllowList, ArenaUsage, Gpu, GpuProcess, HostKey, Ledger, Notice, SlotRef, Version

BEFORE = Notice(Version(1, 1), "earlier", 3, "digest", 2, 3, {"epsilon": 0.6})
NOTICE = Notice(Version(1, 2), "key", 3, "sha", 4, 5, {"epsilon": 0.5}, BEFORE)
LEDGER = Ledger(9, 8, 0, {"unsealed": 1}, 0)
ALLOWED = AllowList(3, {"key": HostKey("b", 1)}, {"digest": "c", "used": None}, True, ("d",))
BUS: list[bus.Message] = [
    bus.WorkerReport(1, 0, 1, 3, False, [SlotRef(3, 4)], [bus.StreamAt(0, 1)], [0], [bus.OpenRows(0, 2, 5)], 7, 9),
    bus.WorkerAssignments(
        spawn=0,
        broker=1,
        leases=[SlotRef(3, 4)],
        acked=[bus.Acked(0, 0, 3)],
        serial=3,
        streams=[bus.AssignedStream(0, 1, 2, None), bus.AssignedStream(1, 1, 2, 4)],
        stop=True,
    ),
    bus.Heartbeat("worker", 1, 0, 9),
    bus.RecordRequest(1, 0, [bus.RecordAt(0, 1, 8)]),
    bus.Record(0, [bus.RecordPart(0, 1, 8, b"12345678")]),
    bus.WorkerExit(1, 0),
    bus.HostReport("local", {0: 1}, [], [2], [0, 1], "5d"),
    bus.Welcome(1, [bus.Hanging("worker", 1, 0, "lost")]),
    bus.Fetch(Version(0, 4)),
    bus.Weights(NOTICE, 1),
    bus.ShutdownNotice("c"),
    bus.Enrol("token"),
    bus.PathProbe(b"0123"),
    bus.AllowedKeys(ALLOWED),
    bus.LearnerReport(5, 6),
    bus.Announce(NOTICE, [3, 4]),
    bus.BrokerStatus(1, [bus.HandoverPartRequest(0, 1, 2, 8)], Version(0, 3)),
    bus.HandoverAnswer(bus.AnswerPart(0, 1, 2, 40, 8, b"12345678")),
    bus.CurrentNotice(NOTICE),
    bus.Segment(5, 1, 0, SlotRef(3, 4), bus.SegmentHeader(0, 0, 1, 0, 1, 8)),
]  # fmt: skip
ENDED = process.LearnerEnded(
    reason="stop", env_steps=5, env_steps_before=0, updates=6, updates_lost=0, episodes=1, train_return_mean_100=None,
    solved_at_env_steps=None, solved_at_wall_s=None, policy_lag={"mean": 0.5, "p50": 0}, replay_ratio=0.5,
    weights_sha256="s", checkpoint_interval_s=30.0, notice=NOTICE, ledger=LEDGER, env_steps_per_s=2.0,
    updates_per_s=1.0, wait_fraction=0.5, store_wait_fraction=0.1,
)  # fmt: skip
CHILD: list[process.ChildEvent] = [
    process.Ready(),
    process.Left(),
    process.NewVersion(NOTICE),
    process.BrokerListening((1, 2, 3), 4),
    process.MessagesRefused({"size": 2}),
    process.Enrolled("digest", "key"),
    process.HostHere("local", [0]),
    process.HostLost("local"),
    process.WorkerState("worker", 0, 1, "lost"),
    process.FirstStep(),
    process.WorkerRates(5, 2.0, 0.5, 1),
    process.Metrics({"env_steps": 5, "train_return_mean_100": 1.5}),
    process.ProblemReport("c", "d"),
    process.WorkerRelieved(1, 6.1, 2, 0),
    process.Resumed("0-3", 5, 1.5),
    process.Writing(),
    process.VersionScore(Version(0, 1), 5, 2.0, 0.1, 3, 4.0, True, False),
    ENDED,
    process.ProcessFault("e", {"slot": 1}, ["l"]),
]
OF_PROCESSES: list[agent.Report] = [
    *(event for event in CHILD if not isinstance(event, (process.NewVersion, process.BrokerListening))),
    agent.Started(3, 4, 0),
    agent.Exited(3, None, False, "c", {}, "l", ["x"]),
    agent.Restarting(0.5),
    agent.RestartLimitReached("c"),
]
AGENT: list[agent.AgentEvent] = [
    *(agent.ProcessReport("worker", 0, report) for report in OF_PROCESSES),
    agent.BrokerAddresses((1, 2, 3), ["10.0.0.1"], None, 4),
    process.MessagesRefused({"size": 2}),
    process.ProcessFault("e", {}, []),
    agent.RunFailed("c"),
    agent.Alive(),
    agent.OtherUse(1.5, 12.0),
    agent.Usage({"worker-0": agent.ProcessUsage(3.0, 1.0)}, ArenaUsage(2, 3)),
    agent.HostFinished(LEDGER, {"worker": 3.0}, 5, [], [], False),
    agent.LogText("n", "t"),
    agent.Warned("t"),
    agent.LeaseLost("broker"),
    agent.Unreachable("c"),
    agent.Joined("a", 1.0, True),
    agent.ActingDigest("5d"),
    agent.GpuUse([Gpu(0, "GPU-1", "A100", 5, 81920, False, (GpuProcess(7, "anna", False, 5),))]),
]
LAUNCHER: list[Struct] = [
    orchestrator.Handshake({"zmqrl": "0.1.0"}, 3, 4.0),
    orchestrator.AgentExited(0, True),
    orchestrator.HostUnusable("c", "m"),
    orchestrator.LinesRefused({"not JSON": 1}),
]
JOIN = command.Join(["a"], (1, 2, 3), None, "server", "token")
COMMANDS: list[command.Command] = [
    command.Stop(failed=True),
    command.KillAll(),
    command.Lease(),
    JOIN,
    command.SetWorkers([0, 1]),
    command.SetAllowList(ALLOWED),
    command.BeginExamination(),
]
EVALUATE = command.Evaluate(NOTICE, final=False)
REAPED = orchestrator.Reaped(("worker-0 (pid 3)",), (), ("learner-0 (pid 4)",))
FILES: list[Struct] = [
    files.ScaleRequest({"local": 2}),
    files.RequestAnswer(done="d"),
    files.ConnectionFile(2, Boot("agent", 0, 0, "b", stand_in_plan(Path("/nowhere"))), JOIN),
    files.RunRecord("r", 3, 4, "h", 1.5, "cartpole-ppo", None, "lineage", 2),
    files.PublishedRun("r-1", 1000, 3, 4, "boot pid:[1]", "h", "CartPole-v1", "ppo", "running", 5, 2.5, 1.5),
    files.LauncherReady("r", "/runs/r"),
    files.HeldFile(3, "ab"),
    files.CopyRequest({"config.json": files.HeldFile(3, "ab")}, {"logs/a.log": files.HeldFile(0, "cd")}),
    files.CopiedFile("logs/a.log", 3),
    files.CopiedEnd("ab"),
    files.NotCopied("checkpoints/v0-1.safetensors", "damaged"),
    files.RetiredFile("checkpoints/v0-1.safetensors"),
]

LISTEN = doctor_requests.Listen((0, 0, 0))
REQUESTS: list[doctor_requests.Request] = [
    doctor_requests.Echo(),
    doctor_requests.Examine("w", "s", '{"id": "CartPole-v1"}', "sync", "1", 9.0, LISTEN, "code"),
    doctor_requests.Reach(("a",), (1, 2, 3), "server"),
    doctor_requests.Watch("p", 2, "n", "t", 3.0),
    doctor_requests.Write("p", "n", "t"),
    doctor_requests.Forget("p", "n"),
    doctor_requests.Finish(),
]
REPLIES: list[doctor.Reply] = [
    doctor.Broken("c"),
    doctor.Clock(1.5),
    doctor.Machine(4, 0.5, 1 << 34, False, {"numpy": "5d"}, ()),
    doctor.Folders(doctor.Folder("w", "/", 5, 7, None), doctor.Folder("s", "/", 5, None, "e")),
    doctor.Locks((doctor.Lock("r", "u", True, 3, 4.5, 2, "a@b"),)),
    doctor.Curve(True, 100.5),
    doctor.Listening((1, 2, 3), ("a",), "server"),
    doctor.Examined(),
    doctor.Reached((doctor.Answer("a", {"1": None, "2": "refused"}, 1.5),)),
    doctor.Watching(None),
    doctor.Written("n", 1.5, None),
    doctor.Seen("n", None),
    doctor.EnvFacts("done", advice=("a", "b")),
]


def tag_of(message: Struct) -> str:
    """Its name on the wire; of a report about a process that of the report."""
    inner = message.report if isinstance(message, agent.ProcessReport) else message
    return str(inner.__struct_config__.tag)


def host_event(host: str, name: str, /, role: Any = None, index: int | None = None, **fields: Any) -> HostEvent:
    """An event by its name on the wire; fields that are not given are those of the sample."""
    samples = [*OF_PROCESSES, *LAUNCHER] if role is not None else [*AGENT, *LAUNCHER, *OF_PROCESSES]
    kind = next(m for m in samples if m.__struct_config__.tag == name)
    values = {field: getattr(kind, field) for field in kind.__struct_fields__}
    assert not fields.keys() - values.keys(), f"{name} has no {fields.keys() - values.keys()}"
    return HostEvent(host, type(kind)(**{**values, **fields}), role, index)


CHECK_REPORTS: list[check.Report] = [
    check.Stage("close", "null", 2.0),
    check.Answer('{"a": [Infinity]}', "ConfigError", "text", '{"names": []}', "Traceback"),
    check.Ended(-9, (7,)),
]
CHECK_REQUESTS: list[check.Request] = [
    check.Call("module:name", "[1]", 5.0),
    check.Become(("python", "-m", "zmqrl.entry", "zmqrl.agent", "run-1", "0"), (("HOME", "/home/j\xc3\xb6rg"),), "l"),
]
