"""What several hosts cost: `python -m benchmarks.hosts [doctor start wires] [--repeats N]`.

doctor  `zmqrl doctor` over 21 hosts: seconds of the command when all are sound, and when four are not: one says nothing
        after the login, one loses full packets, one runs another command than the one asked for, and one prints text
        without an end of line and allows one session per connection, which does no harm
start   over 20 hosts with one worker each, async and sync: seconds from the start of the command to the first env step
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
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml

from tests.lab import Lab
from tests.running import ROOT, environment
from tests.system.ssh_runs import FarRun
from zmqrl.bench.report import BenchResult, Figure
from zmqrl.errors import TrainingFailed

REPEATS = 7
DOCTOR_HOSTS, START_HOSTS = 21, 20
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


BENCHMARKS: Mapping[str, Callable[[int], BenchResult]] = {"doctor": doctor, "start": start, "wires": wires}


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
