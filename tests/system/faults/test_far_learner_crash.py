"""The learner's host crashes in mid-run: a resume continues from the copies here, or from that host's disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab, lab_or_skip
from tests.support.runs.ssh_runs import FarRun, closed_at_the_end, sha256_of_one_process
from tests.support.waiting import until

SCHEDULE = 1_000_000
ENDLESS = 10_000_000
TALLY, ROUND_S = "tests.stand_ins.tally:Tally", 0.02
NEVER_S = 10_000.0
Crashed = Callable[..., FarRun]


@pytest.fixture
def lab() -> Iterator[Lab]:
    with lab_or_skip(3, isolated=True) as lab:
        yield lab


@pytest.fixture
def crashed(lab: Lab) -> Iterator[Crashed]:
    """A run with workers on the hosts `far` whose learner's host, h1, crashed after some thousand env steps."""

    def crash(
        name: str, checkpoint_every_s: float, *far: int, is_ready: Callable[[FarRun], Any] = lambda run: True
    ) -> FarRun:
        config: dict[str, Any] = {
            "run": {
                "preset": "cartpole-ppo", "total_env_steps": ENDLESS, "schedule_env_steps": SCHEDULE,
                "stop_at_return": None, "checkpoint_every_s": checkpoint_every_s,
            },
            "env": {"vector_envs": 4},
            "algorithm": {"kind": TALLY, "round_s": ROUND_S},
            "evaluator": {"episodes": 0},
            "learner": {"host": "h1"},
            "limits": {"host_lease_s": 6.0},
            "hosts": {"local": {"workers": 0}, **lab.hosts_yaml(*far, workers=1)},
        }  # fmt: skip
        run = FarRun(lab, name, config)
        runs.append(run)
        run.wait_for_steps(3_000)
        until(lambda: is_ready(run), "the moment of the crash")
        lab.hosts[1].crash()
        code, _, err = run.end()
        assert code == 4, err
        return run

    with closed_at_the_end() as runs:
        yield crash


def alone(folder: Path, total: int) -> str:
    """The sha256 of the same run in one process."""
    settings = ["run.stop_at_return=null", "env.vector_envs=4", "evaluator.episodes=0", f"algorithm.kind={TALLY}"]
    settings += [f"run.total_env_steps={total}", f"run.schedule_env_steps={SCHEDULE}"]
    return sha256_of_one_process(folder / "alone", settings)


def total_after(run: FarRun, version: int) -> int:
    """More env steps than a FULL of `version` has, and than the run came to before the crash as far as that is known.

    A round has at most 256.
    """
    return max(256 * version, run.summary()["env_steps"] or 0) + 3_000


def resume(run: FarRun, total: int, *words: str) -> tuple[int, str, str]:
    file = run.lab.folder / f"{run.run_dir.name}.yaml"
    settings = ("--set", f"run.total_env_steps={total}", "--plain")
    return run.command("launch", str(file), "--resume", str(run.run_dir), *settings, *words)


def copies(run: FarRun) -> list[int]:
    """Numbers of the FULLs here."""
    return sorted(int(path.stem.rpartition("-")[2]) for path in (run.run_dir / "checkpoints").glob("full-0-*"))


@pytest.mark.long
def test_the_copies_here_are_continued_from_while_the_host_is_away(crashed: Crashed, tmp_path: Path) -> None:
    run = crashed("away", 0.5, 1, 2, is_ready=lambda run: max(copies(run), default=0) > 0)
    copied = copies(run)
    total = total_after(run, copied[-1])
    code, out, err = resume(run, total, "--set", "learner.host=h2", "--limit", "h2")
    assert code == 0, (out, err)
    summary = run.summary()
    assert summary["resumed_from"]["version"] == f"0-{copied[-1]}"
    assert summary["resumed_from"]["env_steps"] > 0 and summary["last_seen"]["env_steps"] >= 3_000
    assert summary["weights_sha256"] == alone(tmp_path, total)


@pytest.mark.long
def test_the_disk_of_the_host_that_came_back_is_read(crashed: Crashed, lab: Lab, tmp_path: Path) -> None:
    run = crashed("back", NEVER_S, 1)
    assert copies(run) == [], "nothing was due"
    code, _, err = resume(run, ENDLESS)
    assert code == 4 and "h1" in err and "--from-scratch" in err, err
    lab.hosts[1].boot()
    folder = lab.hosts[1].tmp / "zmqrl" / "runs" / run.run_id / "h1" / "checkpoints"
    newest = max(int(path.stem.rpartition("-")[2]) for path in folder.glob("full-0-*"))
    total = total_after(run, newest)
    code, out, err = resume(run, total)
    assert code == 0, (out, err)
    assert run.summary()["resumed_from"]["version"] == f"0-{newest}"
    assert list((lab.hosts[1].tmp / "zmqrl" / "runs").iterdir()) == []
    assert run.summary()["weights_sha256"] == alone(tmp_path, total)


@pytest.mark.long
def test_weights_of_another_run_are_sent_along(lab: Lab, tmp_path: Path) -> None:
    settings = ("run.total_env_steps=2048", "evaluator.episodes=0", "run.stop_at_return=null")
    sha256_of_one_process(tmp_path / "a", settings)
    config = {
        "run": {"preset": "cartpole-ppo", "init_from": str(tmp_path / "a"), "total_env_steps": 2048},
        "evaluator": {"episodes": 0},
        "learner": {"host": "h1"},
        "hosts": {"local": {"workers": 0}, **lab.hosts_yaml(1, workers=1)},
    }
    far = FarRun(lab, "init-far", config).done()
    here = sha256_of_one_process(tmp_path / "b", settings, "--init-from", tmp_path / "a")
    assert far["weights_sha256"] == here
