"""Whole sweeps: undisturbed, and with kills of drivers, launchers, learners and evaluations."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.cli.commands import with_constant
from tests.support.running import RUN_S, environment
from zmqrl.queue.folder import open_queue
from zmqrl.sweeps.driver import PRESET
from zmqrl.sweeps.folder import RECORDS, SweepFolder
from zmqrl.sweeps.trials import judge

FILE = """
preset: cartpole-ppo
parameters: {{algorithm.learning_rate: {values}}}
method: {method}
set: {{run: {{total_env_steps: 6000, stop_at_return: null, mode: sync}}}}
trials: 5
batch: 2
rungs: [2000, 4000]
startup_trials: 1
episodes: 3
max_parallel: 2
needs: {{cores: 1}}
"""
VALUES = {"grid": "[3e-3, 1e-5, 1e-3, 3e-4, 1e-4]", "random": "{low: 1e-5, high: 1e-2, log: true}"}
KILLS = 12


def start(folder: Path) -> subprocess.Popen[bytes]:
    command = [*with_constant("zmqrl.queue.runner", "LEASE_S", 0.5), "sweep", "s.yaml"]
    log = (folder / "log").open("ab")
    return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=environment(), start_new_session=True)


def made(folder: Path, method: str) -> Path:
    folder.mkdir()
    values = VALUES.get(method, VALUES["random"])
    (folder / "s.yaml").write_text(FILE.format(method=method, values=values))
    return folder


def results(folder: Path) -> tuple[str, list[object], dict[str, bytes]]:
    """The preset of the best trial, the verdicts, and the records of trials."""
    sweep = SweepFolder(folder / "runs" / "s")
    verdicts = judge(sweep.sweep.keys, sweep.trials(open_queue(folder / "queue").read()))
    records = {path.name: path.read_bytes() for path in (sweep.path / RECORDS).glob("trial-*")}
    return (sweep.path / PRESET).read_text(), list(verdicts), records


def kill_any(driver: subprocess.Popen[bytes], chance: random.Random) -> None:
    """SIGKILL for a process of the sweep: the driver, a launcher, a learner, a worker or an evaluation."""
    with contextlib.suppress(psutil.NoSuchProcess):
        tree = psutil.Process(driver.pid)
        chance.choice([tree, *tree.children(recursive=True)]).kill()


@pytest.mark.whole
@pytest.mark.long
@pytest.mark.parametrize("method", ["grid", "random", "optuna"])
def test_the_best_trial_is_the_same_after_kills(tmp_path: Path, method: str) -> None:
    calm = made(tmp_path / "calm", method)
    assert start(calm).wait(10 * RUN_S) == 0, (calm / "log").read_text()
    folder, chance, left = made(tmp_path / "killed", method), random.Random(1), KILLS
    driver = start(folder)
    deadline = time.monotonic() + 20 * RUN_S
    while (code := driver.poll()) != 0:
        assert time.monotonic() < deadline, (folder / "log").read_text()
        if code is not None:
            assert code == -signal.SIGKILL, (folder / "log").read_text()
            driver = start(folder)
        time.sleep(chance.uniform(1.0, 6.0))  # kills at random times
        if left and driver.poll() is None:
            left -= 1
            kill_any(driver, chance)
    assert left == 0
    assert results(folder) == results(calm)
    runs = [job.record.run_dir for job in open_queue(folder / "queue").read().jobs.values()]
    assert len(runs) == len(set(runs)) == 5
