"""Whole sweeps: undisturbed, and with kills of drivers, runners, launchers, agents and evaluations."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.cli.commands import with_constant
from tests.support.running import RUN_S, environment
from tests.support.waiting import WAIT_S
from zmqrl.queue.folder import open_queue
from zmqrl.queue.records import JobEnd
from zmqrl.sweeps.driver import PRESET
from zmqrl.sweeps.folder import RECORDS, SweepFolder
from zmqrl.sweeps.trials import judge

FILE = """
preset: cartpole-ppo
parameters: {values}
method: {method}
set: {{run: {{total_env_steps: 6000, stop_at_return: null, mode: sync}}}}
{count}
rungs: [2000, 4000]
startup_trials: 2
episodes: 3
max_parallel: 2
needs: {{cores: 1}}
"""
GRID = "{algorithm.learning_rate: [3e-3, 1e-5, 1e-3, 3e-4, 1e-4], algorithm.gamma: [0.99, 0.9, 0.98, 0.95]}"
DRAWN = "{algorithm.learning_rate: {low: 1e-5, high: 1e-2, log: true}}"
TRIALS, KILLS = 20, 30
COUNTS = {"grid": "", "random": "trials: 20", "optuna": "trials: 20\nbatch: 4"}
MISSED_S = 0.5
"""Time after which a process of a kind is sought again: an evaluation lasts a few seconds."""
SWEEP, RUNNER = ("sweep", "s.yaml"), ("queue", "run")
KINDS = {
    "driver": SWEEP,
    "runner": RUNNER,
    "launcher": ("--until-eof", "train"),
    "agent": ("zmqrl.entry", "zmqrl.agent"),
    "evaluation": ("--until-eof", "eval"),
}
"""Words of the command line by kind of process."""


@dataclass
class Sweep:
    """A sweep with its driver, and a runner of the queue where there is one."""

    folder: Path
    processes: dict[Sequence[str], subprocess.Popen[bytes]] = field(default_factory=dict)
    ends: dict[int, tuple[JobEnd, int]] = field(default_factory=dict)
    """End and number of attempts of each job when its end was seen first."""

    def keep(self, *commands: Sequence[str]) -> None:
        """Start what does not run."""
        for words in commands:
            if words not in self.processes or self.processes[words].poll() not in (None, 0):
                argv = [*with_constant("zmqrl.queue.runner", "LEASE_S", 0.5), *words]
                with (self.folder / "log").open("ab") as log:
                    self.processes[words] = subprocess.Popen(
                        argv, cwd=self.folder, stdout=log, stderr=log, env=environment()
                    )

    def look(self) -> None:
        """Each job ends once."""
        for job in open_queue(self.folder / "queue").read().jobs.values():
            if job.end is not None:
                found = job.end, len(job.attempts)
                assert self.ends.setdefault(job.number, found) == found, job

    def kill(self, kind: str, chance: random.Random) -> bool:
        """SIGKILL for one process of a kind; whether there was one."""
        own = [psutil.Process(process.pid) for process in self.processes.values() if process.poll() is None]
        with contextlib.suppress(psutil.NoSuchProcess):
            everything = [*own, *(child for parent in own for child in parent.children(recursive=True))]
            if found := [each for each in everything if {*KINDS[kind]} <= {*each.cmdline()}]:
                victim = chance.choice(found)
                victim.kill()
                for process in self.processes.values():
                    if process.pid == victim.pid:
                        process.wait(WAIT_S)
                return True
        return False

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def results(self) -> tuple[str, list[object], dict[str, bytes]]:
        """The preset of the best trial, the verdicts, and the records of trials."""
        sweep = SweepFolder(self.folder / "runs" / "s")
        verdicts = judge(sweep.sweep.keys, sweep.trials(open_queue(self.folder / "queue").read()))
        records = {path.name: path.read_bytes() for path in (sweep.path / RECORDS).glob("trial-*")}
        return (sweep.path / PRESET).read_text(), list(verdicts), records


@contextlib.contextmanager
def made(folder: Path, method: str) -> Iterator[Sweep]:
    (folder / "queue").mkdir(parents=True)
    values = GRID if method == "grid" else DRAWN
    (folder / "s.yaml").write_text(FILE.format(method=method, values=values, count=COUNTS[method]))
    sweep = Sweep(folder)
    try:
        yield sweep
    finally:
        for process in sweep.processes.values():
            process.terminate()
            process.wait(WAIT_S)


def disturb(sweep: Sweep, calm_s: float) -> Counter[str]:
    """Kill processes at random times until the sweep has ended; the kills by kind, of which each has one."""
    chance, kills = random.Random(1), Counter[str]()
    deadline = time.monotonic() + 20 * RUN_S
    sweep.keep(RUNNER, SWEEP)
    pause_s = 0.0
    while (code := sweep.processes[SWEEP].poll()) != 0:
        assert time.monotonic() < deadline and code in (None, -signal.SIGKILL), sweep.log()
        with contextlib.suppress(subprocess.TimeoutExpired):
            sweep.processes[SWEEP].wait(pause_s)
        pause_s = MISSED_S
        missing, left = KINDS.keys() - kills.keys(), KILLS - kills.total()
        rarest = sorted(missing if left <= len(missing) else KINDS, key=kills.__getitem__) if left else []
        if (kind := next((kind for kind in rarest if sweep.kill(kind, chance)), None)) is not None:
            kills[kind] += 1
            pause_s = chance.uniform(0.1, 0.7) * calm_s / KILLS
            sweep.keep(RUNNER, SWEEP)
        sweep.look()
    return kills


@pytest.mark.whole
@pytest.mark.long
@pytest.mark.timeout(30 * RUN_S)
@pytest.mark.parametrize("method", ["grid", "random", "optuna"])
def test_the_best_trial_is_the_same_after_kills(tmp_path: Path, method: str) -> None:
    begun = time.monotonic()
    with made(tmp_path / "calm", method) as calm:
        calm.keep(SWEEP)
        assert calm.processes[SWEEP].wait(10 * RUN_S) == 0, calm.log()
    with made(tmp_path / "killed", method) as sweep:
        kills = disturb(sweep, time.monotonic() - begun)
    assert kills.total() == KILLS and kills.keys() == KINDS.keys(), kills
    assert sweep.results() == calm.results()
    jobs = open_queue(sweep.folder / "queue").read().jobs.values()
    assert len(jobs) == len({job.record.run_dir for job in jobs}) == len(sweep.ends) == TRIALS
