"""For every fault the user is told what died, where, why, its last words or its log, and what zmqrl did about it."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.stand_ins.told_envs import WORDS
from tests.support.running import LOOK_EVERY_S, RUN_S
from tests.support.runs.system_plans import IDLE, IDLE_DQN, TALLY, system_plan
from tests.support.runs.system_runs import PlanRun
from tests.support.waiting import WAIT_S, until
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import EnvSection, EvaluatorSection, LimitsSection, RestartSection
from zmqrl.drill.faults import EVERY_PROCESS, SHARES, FaultAction, Kind
from zmqrl.drill.inject import DEEDS, Scene
from zmqrl.planning.configure import load
from zmqrl.planning.plan_run import plan_run
from zmqrl.supervision.process_table import ProcessId, await_gone

LONG = 10_000_000
LIMITS = LimitsSection(heartbeat_s=0.2, grace_s=5.0, lost_after_s=3.0, stalled_after_s=5.0)
ORDERED = RestartSection(max=30, backoff_s=0.1)
PAUSE_S = 0.5
"""Many heartbeats, and less than `lost_after_s`."""
RESTARTED = r"restarting (?:immediately|in \d+(?:\.\d)? s)"
RESUME = r"\n  resume with: (zmqrl train --resume /\S+)\Z"


class ObservedRun(PlanRun):
    """A run whose stderr is read while it goes on."""

    def __init__(self, plan: RunPlan, orders: Path) -> None:
        super().__init__(plan)
        self._orders, self._lines = orders, list[str]()
        orders.mkdir(exist_ok=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.append(line.rstrip("\n"))

    def blocks(self) -> list[str]:
        """One a message: its first line stands at the margin."""
        found: list[list[str]] = []
        for line in list(self._lines):
            if found and line.startswith(" "):
                found[-1].append(line)
            else:
                found.append([line])
        return ["\n".join(lines) for lines in found]

    def wait(self, condition: Callable[[], object], what: object) -> None:
        """Until it is true, also when the run ends over it."""
        until(condition, lambda: f"{what}\n" + "\n".join(self._lines), RUN_S, LOOK_EVERY_S)

    def process_of(self, place: str) -> ProcessId:
        """Who is there, once somebody is."""
        self.wait(lambda: place in self.processes(), place)
        return self.processes()[place]

    def wait_for_steps(self, place: str, process: ProcessId) -> None:
        """Until an env of that process has stepped."""
        self.wait((self._orders / f"{place}-{process.pid}").exists, f"a step of {place}")

    def order(self, place: str, order: str) -> None:
        """What the env of that process does in its next step."""
        path = self._orders / place
        path.with_suffix(".new").write_text(order)
        path.with_suffix(".new").rename(path)

    def end(self) -> tuple[int, str, str]:
        """Wait for it, and until its stderr has been read: exit code, stdout, stderr."""
        self._reader.join(RUN_S)
        code, out, _ = super().end()
        return code, out, "\n".join(self._lines)


@pytest.fixture
def hear(tmp_path: Path) -> Iterator[Callable[[RunPlan], ObservedRun]]:
    """Start a run; whatever is left of it at the end of the test is killed."""
    runs: list[ObservedRun] = []

    def start(plan: RunPlan) -> ObservedRun:
        runs.append(ObservedRun(plan, tmp_path / "orders"))
        return runs[-1]

    yield start
    for run in runs:
        run.cut_short()


def _plan(tmp_path: Path, name: str, mode: str, workers: int, restart: RestartSection, **run: object) -> RunPlan:
    env = EnvSection(
        id="tests.stand_ins.told_envs:Told",
        num_envs=2,
        vector_envs=4,
        segment_steps=16,
        kwargs={"folder": str(tmp_path / "orders")},
        max_episode_steps=50,
    )
    algorithm = IDLE_DQN if mode == "async" else IDLE
    evaluator = EvaluatorSection(episodes=1 if mode == "async" else 0, final_limit_s=0.0)
    return system_plan(
        tmp_path / name,
        mode,  # type: ignore[arg-type]
        workers,
        algorithm,
        env,
        steps=LONG,
        evaluator=evaluator,
        limits=LIMITS,
        restart=restart,
        **run,
    )


@dataclass(frozen=True)
class Case:
    """A fault, and what the message of it says, from its first line to its last."""

    kind: Kind
    order: str
    """What the env is told; empty: the drill's own fault."""
    told: tuple[str, ...] = ()
    """Patterns, each of which lies further down in one and the same message; none: nothing happens."""
    index: int = 0
    together: bool = False
    """Done together with the one after it."""

    @property
    def place(self) -> str:
        return f"{self.kind.role}-{self.index}"


def _log(place: str) -> str:
    return rf"\n  log: /\S+/logs/local-{place}\.log"


def _case(
    role: str, action: FaultAction, cause: str, words: Sequence[str] = (), done: str = RESTARTED, **more: object
) -> Case:
    index = int(str(more.get("index", 0)))
    told = (rf"\Awarning: local/{role}-{index}: {cause}", *words, _log(f"{role}-{index}"), rf"\n  {done}")
    return Case(Kind(role, action), str(more.get("order", "")), told, index, bool(more.get("together")))


KILL = FaultAction.KILL
CASES = (
    _case(
        "worker",
        KILL,
        r"EnvFault: env tests\.stand_ins\.told_envs:Told \(vector env 0, .*seed \d+.*"
        r"step raised RuntimeError: the wheel came off",
        [r"RuntimeError: the wheel came off\n", r"zmqrl\.errors\.EnvFault"],
        order="raise",
        together=True,
    ),
    _case("worker", KILL, "exit code 7", index=1, order="exit", together=True),
    _case(
        "worker",
        KILL,
        "signal SIGSEGV",
        [r"\n    Fatal Python error: Segmentation fault", "told_envs.py"],
        index=2,
        order="crash",
        together=True,
    ),
    _case("evaluator", KILL, "signal SIGKILL"),
    _case("worker", KILL, "signal SIGKILL", [rf"\n    {WORDS}"], order="say", together=True),
    _case(
        "worker",
        FaultAction.HANG,
        r"hangs: no heartbeat for limits\.lost_after_s \(3 s\), killed",
        index=1,
        together=True,
    ),
    _case(
        "worker",
        FaultAction.STALL,
        r"stalled: no progress for limits\.stalled_after_s \(5 s\), killed",
        [r"told_envs\.py.* in _obey"],
        index=2,
        order="hang",
    ),
    _case("broker", KILL, "signal SIGKILL"),
    Case(Kind("broker", FaultAction.PAUSE), ""),
    Case(Kind("learner", FaultAction.PAUSE), ""),
    Case(Kind("worker", FaultAction.PAUSE), ""),
    _case(
        "learner",
        FaultAction.NO_SPACE,
        r"\S+ cannot be written in \S+: .*File too large; see store\.path",
        done=r"the run waits because workers receive no weights, retrying, for \d+ s at most",
    ),
    _case("learner", KILL, "signal SIGKILL"),
    _case("learner", FaultAction.DAMAGE, "signal SIGKILL"),
)
DAMAGED = (
    r"\Awarning: local/learner-0: full-\S+\.safetensors in \S+: ",
    _log("learner-0"),
    r"\n  not loaded; the run (?:continues from|starts from scratch)",
)


def _do(case: Case, run: ObservedRun) -> None:
    process = run.process_of(case.place)
    if case.kind.role == "worker":
        run.wait_for_steps(case.place, process)  # nobody judges the silence of one that was never ready
    if case.order:
        run.order(case.place, case.order)
    if case.order == "say":
        log = run.run_dir / "logs" / f"local-{case.place}.log"
        run.wait(lambda: WORDS in log.read_text(), WORDS)
    if case.order in ("", "say"):
        store = Path(run.plan.store_path)
        run.wait(lambda: list(store.glob("full-*.safetensors")), "a FULL")
        assert DEEDS[case.kind.action].begin(Scene([process], store, store)) is not None
    if case.kind.action is FaultAction.PAUSE:
        time.sleep(PAUSE_S)  # how long it is paused is the fault
        _relieve(case, run, process)


def _relieve(case: Case, run: ObservedRun, process: ProcessId) -> None:
    store = Path(run.plan.store_path)
    end = DEEDS[case.kind.action].end
    assert end is not None
    end(Scene([process], store, store))


def _expect(run: ObservedRun, told: Sequence[str], since: int = 0) -> None:
    """Until one message says all of it, in this order."""
    pattern = re.compile(".*?".join(told), re.DOTALL)
    run.wait(lambda: any(pattern.search(block) for block in run.blocks()[since:]), pattern.pattern)


def test_what_is_reported_of_each_fault_that_the_run_survives(
    tmp_path: Path, hear: Callable[[RunPlan], ObservedRun]
) -> None:
    run = hear(_plan(tmp_path, "run", "async", 3, ORDERED, checkpoint_every_s=1.0))
    run.wait_for_updates(2)
    since, waiting = len(run.blocks()), list[Case]()
    for case in CASES:
        _do(case, run)
        waiting.append(case)
        if case.together:
            continue
        for done in [case for case in waiting if case.told]:
            _expect(run, done.told, since)
            if done.kind.action is FaultAction.NO_SPACE:
                _relieve(done, run, run.process_of(done.place))
        since, waiting = len(run.blocks()), []
    _expect(run, DAMAGED)
    run.process.send_signal(signal.SIGTERM)
    assert run.end()[0] == 130
    replaced = [case for case in CASES if RESTARTED in "".join(case.told)]
    assert run.summary()["restarts"] == len(replaced), "and nothing is done about a pause"


def test_every_fault_of_the_drill_that_one_process_has_and_the_attempt_survives_is_here() -> None:
    """A kill while a process starts, or while the store is away, is reported like any other."""
    kinds = {Kind(role, FaultAction(action)) for role, action in SHARES}
    single = {kind for kind in kinds if len(kind.roles) == 1 and kind.role != EVERY_PROCESS and not kind.ends_run}
    elsewhere = (FaultAction.KILL_START, FaultAction.KILL_AWAY)
    assert {case.kind for case in CASES} == {kind for kind in single if kind.action not in elsewhere}


def test_what_is_reported_of_a_failed_worker_and_of_the_run_that_ends_with_the_last(
    tmp_path: Path, hear: Callable[[RunPlan], ObservedRun]
) -> None:
    run = hear(_plan(tmp_path, "run", "sync", 2, RestartSection(max=1, backoff_s=0.1)))
    run.wait_for_updates(1)
    killed = r"\A(?:warning|error): local/worker-1: signal SIGKILL"
    last = rf"\n  {RESTARTED} \(restart 1 of at most 1 within 600 s\)\Z"
    before = run.process_of("worker-1")
    run.kill("worker-1")
    _expect(run, [killed, _log("worker-1"), last])
    run.wait_for_successor("worker-1", before)
    run.kill("worker-1")
    given_up = r"\n  not restarted: restart limit reached \(1 within 600 s\)"
    _expect(run, [killed, _log("worker-1"), rf"{given_up}; its vector envs move to the other workers\Z"])
    raised = [r"\A(?:warning|error): local/worker-0: EnvFault: .*the wheel came off", r"in _obey", _log("worker-0")]
    run.order("worker-0", "raise")
    _expect(run, [*raised, last])
    run.order("worker-0", "raise")
    assert raised.pop(1) == r"in _obey", "the traceback of one fault is shown once"
    _expect(run, [*raised, rf"{given_up}; no rollout worker remains; the run ends\Z"])
    _expect(
        run, [r"\Afailed: all rollout workers failed, the last was worker-0: EnvFault: .*the wheel came off", RESUME]
    )
    assert run.end()[0] == 1


def _zmqrl(*arguments: str) -> str:
    """What the command prints."""
    done = subprocess.run([sys.executable, "-m", "zmqrl", *arguments], capture_output=True, text=True, timeout=RUN_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _can_be_typed(command: str, run: ObservedRun) -> None:
    program, *arguments = shlex.split(command)
    assert (program, arguments) == ("zmqrl", ["train", "--resume", str(run.run_dir)])
    assert _zmqrl(*arguments, "--dry-run")


def test_what_is_reported_when_the_agent_or_the_launcher_dies(
    tmp_path: Path, hear: Callable[[RunPlan], ObservedRun]
) -> None:
    endless = ("run.total_env_steps=1e9", "run.stop_at_return=null", f"algorithm.kind={TALLY['kind']}")
    config = load("cartpole-ppo", None, endless, "single", 1, 1, None, ()).config
    runs = [hear(plan_run(config, tmp_path / name, time.time())) for name in ("agent", "launcher")]
    for run in runs:
        run.wait_for_updates(1)
    of_agent, of_launcher = runs

    of_agent.kill("agent-0")
    died = r"the host agent of local exited unexpectedly: signal SIGKILL"
    _expect(of_agent, [rf"\Aerror: local/agent-0: {died}", _log("agent-0"), r"\n  its processes and the run end"])
    assert of_agent.end()[0] == 4
    found = re.search(rf"\Afailed: {died}{RESUME}", of_agent.blocks()[-1])
    assert found, of_agent.blocks()
    _can_be_typed(found[1], of_agent)
    assert died in of_agent.summary()["error"]
    assert found[1] in _zmqrl("status", str(of_agent.run_dir))

    held = list(of_launcher.processes().values())
    of_launcher.process.kill()
    assert not await_gone(held, WAIT_S)
    said = _zmqrl("status", str(of_launcher.run_dir)).rstrip()
    gone = rf"the launcher \(pid {of_launcher.process.pid} on \S+\) has exited\n  last status at .*env steps\n"
    found = re.search(rf"ended without a summary: {gone}.*have ended{RESUME}", said, re.DOTALL)
    assert found, said
    _can_be_typed(found[1], of_launcher)
