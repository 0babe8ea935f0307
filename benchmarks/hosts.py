"""What several hosts cost: `python -m benchmarks.hosts [doctor start many wires] [--repeats N]`.

doctor  `zmqrl doctor` over 21 hosts: seconds of the command when all are sound, and when four are not: one says nothing
        after the login, one loses full packets, one runs another command than the one asked for, and one prints text
        without an end of line and allows one session per connection, which does no harm
start   over 20 hosts with one worker each, async and sync: seconds from the start of the command to the first env step
many    60 hosts that are agents on this machine, over tcp with CURVE, one worker each, async and sync: seconds from the
        start of the launcher until all agents have shown their versions, until all have joined, and to the first env
        step, each also divided by the seconds in which 60 agents without a run show their versions
wires   async PPO on CartPole with one worker, env steps per second: over ipc on the learner's host, over tcp with CURVE
        on another host, and there through the SSH connection (`tunnel: true`). The three runs follow each other in each
        repeat, and a ratio is of one repeat. The least and the greatest of seven are the 98 % interval of the median.

The hosts are those of `tests/lab` (root, Linux): each with its own network and sshd, all on the cores of this machine.
The encryption at both ends, and the processes of every host, take their time from the learner: separate machines are
faster. Prints JSON for each.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from tests.agent.test_process import agent_of, remote_boot
from tests.lab import Lab
from tests.support.running import ROOT, environment
from tests.support.runs.ssh_runs import FarRun
from tests.support.waiting import until
from tests.system.hosts.test_many_hosts import ENDLESS, SLOW, HostsRun, hosts_plan
from zmqrl.bench.report import BenchResult, Figure
from zmqrl.config.sections import EnvSection, LimitsSection
from zmqrl.errors import TrainingFailed
from zmqrl.types import ModeName

REPEATS = 7
DOCTOR_HOSTS, START_HOSTS, MANY_HOSTS = 21, 20, 60
SILENT, SHORT, FORCED, LOUD = 1, 2, 3, 4
"""Hosts of `doctor` with a fault."""
COMMAND_S = 120.0
WIRE_S = 20
"""Seconds of each run of `wires`."""
ENV_STEPS = 1_000_000_000


def doctor(repeats: int) -> BenchResult:
    """As the module describes."""
    with Lab(DOCTOR_HOSTS + 1, isolated=True) as lab:
        sound = [_examine(lab, set()) for _ in range(repeats)]
        (lab.hosts[SILENT].folder / "home" / ".bashrc").write_text("printf 'Password: '; exec sleep 100\n")
        lab.hosts[SHORT].lose_full_packets()
        lab.hosts[FORCED].kill_sshd()
        lab.hosts[FORCED].start_sshd({"ForceCommand": "echo no shell for you"})
        lab.hosts[LOUD].kill_sshd()
        lab.hosts[LOUD].start_sshd({"MaxSessions": "1"})
        (lab.hosts[LOUD].folder / "home" / ".bashrc").write_text("printf 'quota: 80%% '\n")
        faulty = [_examine(lab, {f"h{index}" for index in (SILENT, SHORT, FORCED)}) for _ in range(repeats)]
    figures = [Figure("21 sound hosts", "s", tuple(sound)), Figure("three of them with faults", "s", tuple(faulty))]
    return BenchResult("doctor", figures)


def _examine(lab: Lab, faulty: set[str]) -> float:
    """Seconds of the command, which finds faults on these hosts alone."""
    env = {"vector_envs": DOCTOR_HOSTS}
    config = {"run": {"preset": "cartpole-ppo"}, "env": env, **_hosts(lab, range(1, DOCTOR_HOSTS + 1))}
    file = lab.folder / "doctor.yaml"
    file.write_text(yaml.safe_dump(config))
    begun = time.monotonic()
    with lab.run_here(
        [sys.executable, "-m", "zmqrl", "doctor", str(file), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(),
    ) as process:
        out, err = process.communicate(timeout=COMMAND_S)
    took = time.monotonic() - begun
    found = {fault["host"] for fault in json.loads(out)["faults"]} if out else None
    if found != faulty:
        raise TrainingFailed(f"zmqrl doctor ended with {process.returncode}, faults on {found}:\n{out}\n{err}")
    return took


def start(repeats: int) -> BenchResult:
    """As the module describes."""
    figures = []
    with Lab(START_HOSTS + 1, isolated=True) as lab:
        for mode in ("async", "sync"):
            run = {"preset": "cartpole-ppo", "mode": mode, "stop_at_return": None, "total_env_steps": 20_000}
            config = {
                "run": run,
                "env": {"vector_envs": START_HOSTS, "num_envs": 2},
                "algorithm": {"batch_segments": START_HOSTS} if mode == "async" else {},
                "evaluator": {"episodes": 0},
                **_hosts(lab, range(1, START_HOSTS + 1)),
            }
            seconds = tuple(_trained(lab, f"{mode}-{n}", config)["first_env_step_s"] for n in range(repeats))
            figures.append(Figure(f"{mode}, to the first env step", "s", seconds))
    return BenchResult("start", figures)


def many(repeats: int) -> BenchResult:
    """As the module describes."""
    modes: tuple[ModeName, ...] = ("async", "sync")
    events = ("versions", "joined", "first env step")
    seconds: dict[str, list[float]] = {f"{mode}, {event}": [] for mode in modes for event in events}
    ratios: dict[str, list[float]] = {name: [] for name in seconds}
    bare = []
    for _ in range(repeats):
        for mode in modes:
            bare.append(_bare_agents_s())
            for event, took in zip(events, _many_hosts_s(mode), strict=True):
                seconds[f"{mode}, {event}"].append(took)
                ratios[f"{mode}, {event}"].append(took / bare[-1])
    figures = [Figure(name, "s", tuple(values)) for name, values in {"agents alone": bare, **seconds}.items()]
    divided = [Figure(f"{name} / agents alone", "", tuple(values)) for name, values in ratios.items()]
    return BenchResult("many", figures, {"hosts": MANY_HOSTS}, divided)


def _bare_agents_s() -> float:
    """Seconds until so many agents, which start at once, have sent their handshakes."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        begun = time.monotonic()
        boot = remote_boot(folder)
        agents = [stack.enter_context(agent_of(boot, Path(folder))) for _ in range(MANY_HOSTS)]
        for agent in agents:
            assert agent.stdout is not None and agent.stdout.readline()
        return time.monotonic() - begun


def _many_hosts_s(mode: ModeName) -> tuple[float, float, float]:
    """Seconds until all hosts of a run have sent their handshakes, until all have joined, to the first env step."""
    hosts = {"local": 1, **{f"n{index:02}": 1 for index in range(1, MANY_HOSTS)}}
    env = EnvSection(id=SLOW["env"].id, num_envs=1, vector_envs=MANY_HOSTS, segment_steps=31, max_episode_steps=50)
    with tempfile.TemporaryDirectory() as folder:
        plan = hosts_plan(Path(folder, "run"), mode, hosts, steps=ENDLESS, env=env, limits=LimitsSection())
        begun = time.monotonic()
        run = HostsRun(plan)
        try:

            def after(*states: str) -> float:
                until(lambda: sum(row["state"] in states for row in run.status().get("hosts", ())) == MANY_HOSTS)
                return time.monotonic() - begun

            versions, joined = after("joining", "ready"), after("ready")
            until(lambda: run.status().get("env_steps", 0), "the first env step", COMMAND_S)
            if run.status()["problems"]:
                raise TrainingFailed(f"a host was lost, or a handshake is a problem: {run.status()['problems']}")
            return versions, joined, time.monotonic() - begun
        finally:
            run.cut_short()


def wires(repeats: int) -> BenchResult:
    """As the module describes."""
    values: dict[str, list[float]] = {"ipc": [], "tcp": [], "tunnel": []}
    with Lab(2, isolated=True) as lab:
        for repeat in range(repeats):
            for name, speeds in values.items():
                speeds.append(_trained(lab, f"{name}-{repeat}", _wire(lab, name))["env_steps_per_s"])
    figures = [Figure(name, "env steps/s", tuple(speeds)) for name, speeds in values.items()]
    ratios = []
    for name, other in (("tcp", "ipc"), ("tunnel", "tcp")):
        pairs = zip(values[name], values[other], strict=True)
        ratios.append(Figure(f"{name} / {other}", "", tuple(a / b for a, b in pairs)))
    return BenchResult("wires", figures, {"seconds": WIRE_S}, ratios)


def _wire(lab: Lab, name: str) -> dict[str, Any]:
    far = lab.hosts[1].hosts_yaml(workers=0 if name == "ipc" else 1, tunnel=name == "tunnel")
    return {
        "run": {
            "preset": "cartpole-ppo", "mode": "async", "stop_at_return": None, "total_env_steps": ENV_STEPS,
            "schedule_env_steps": ENV_STEPS, "max_wall_s": WIRE_S,
        },
        "env": {"num_envs": 32},
        "algorithm": {"epochs": 1, "minibatch_size": 1024},
        "evaluator": {"episodes": 0},
        "hosts": {"local": {"workers": 1 if name == "ipc" else 0}, "h1": far},
    }  # fmt: skip


def _hosts(lab: Lab, indices: Sequence[int]) -> dict[str, Any]:
    return {"hosts": {"local": {"workers": 0}, **lab.hosts_yaml(*indices, workers=1)}}


def _trained(lab: Lab, name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of a run."""
    run = FarRun(lab, name, config)
    try:
        return run.done()
    finally:
        run.close()


BENCHMARKS: Mapping[str, Callable[[int], BenchResult]] = {
    "doctor": doctor,
    "start": start,
    "many": many,
    "wires": wires,
}


def main(words: Sequence[str] | None = None) -> int:
    """As the module describes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    arguments = parser.parse_args(words)
    unknown = set(arguments.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(BENCHMARKS)}")
    for name in arguments.names or BENCHMARKS:
        BENCHMARKS[name](arguments.repeats).print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
