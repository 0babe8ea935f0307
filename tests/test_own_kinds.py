"""An orchestrator and a store in one file outside the package, with options in hosts.yaml."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.commands import SLOW
from tests.support.running import ROOT, RUN_S, Run, environment
from zmqrl.capacity import usable_cores
from zmqrl.messages.orchestrator import Reaped
from zmqrl.orchestrators.make import access_of
from zmqrl.planning.checked import resolve_auto_workers
from zmqrl.planning.configure import load_config
from zmqrl.supervision.host_mark import RUN_VARIABLE
from zmqrl.supervision.process_table import await_gone, identify

pytestmark = pytest.mark.whole
PIPE = subprocess.PIPE
OWN = '''
"""Kinds of a user."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import Config as RunConfig
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.orchestrators.piped import PipedShell
from zmqrl.orchestrators.shell_orchestrator import ShellOrchestrator


@dataclass(frozen=True)
class BehindConfig:
    """Hosts behind `env`."""

    note: str
    """A file that shows what the orchestrator was made of."""
    level: int = 1


class Behind(ShellOrchestrator):
    """Hosts are this machine, with one more variable."""

    Config = BehindConfig

    def __init__(self, config: BehindConfig, plan: RunPlan) -> None:
        super().__init__(config, plan)
        Path(config.note).write_text(json.dumps([config.level, plan.run_id]))

    @classmethod
    def shell(cls, config: BehindConfig, run: RunConfig, host: str) -> PipedShell:
        return PipedShell(host, ["env", f"BEHIND={host}-{config.level}"])


@dataclass(frozen=True)
class ShelfConfig:
    """A place below a room."""

    room: str


class Shelf(DirectoryStore):
    """Checkpoints on a shelf."""

    Config = ShelfConfig

    @classmethod
    def place(cls, config: ShelfConfig, run_dir: Path, lineage: str | None) -> str:
        return f"{config.room}/shelf-{lineage}"

    @classmethod
    def is_shared(cls, config: ShelfConfig) -> bool:
        return True

    @classmethod
    def check(cls, config: ShelfConfig, run_dir: Path) -> None:
        Path(config.room).mkdir(exist_ok=True)
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a user, with hosts.yaml and own_kinds.py."""
    (tmp_path / "own_kinds.py").write_text(OWN)
    search = os.pathsep.join([str(tmp_path), str(ROOT)])
    host = {"python": sys.executable, "workdir": str(tmp_path / "far"), "env": {"PYTHONPATH": search}}
    run = {"preset": "cartpole-ppo", "total_env_steps": 4096}
    config = {
        "run": run,
        "hosts": {"local": {"workers": 0}, "far": {"workers": 2, **host}, "wide": {"workers": 0, **host}},
        "orchestrator": {"kind": "own_kinds:Behind", "note": str(tmp_path / "note"), "level": 3},
        "store": {"kind": "own_kinds:Shelf", "room": str(tmp_path / "room")},
        "evaluator": {"episodes": 0},
        "algorithm": {"kind": "zmqrl.bench.noop:NoUpdate"},
    }
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def zmqrl(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "zmqrl", *words]
    held: Mapping[str, str] = environment()
    return subprocess.run(command, cwd=folder, env=held, capture_output=True, text=True, timeout=RUN_S, check=False)


def test_they_are_made_of_their_options_and_the_plan_and_a_run_uses_them(folder: Path) -> None:
    done = zmqrl(folder, "launch", "hosts.yaml", "--run-dir", "run", "--plain")
    assert done.returncode == 0, done.stderr
    summary = json.loads((folder / "run" / "summary.json").read_text())
    info = json.loads((folder / "run" / "run.json").read_text())
    assert summary["ledger"]["balanced"] and summary["env_steps"] >= 4096
    assert json.loads((folder / "note").read_text()) == [3, info["run_id"]]
    assert any((folder / "room" / f"shelf-{info['lineage']}").glob("full-*.safetensors"))
    assert (folder / "run" / "logs" / "far-agent-0.log").exists()
    assert not any((folder / "far" / "runs").glob("*")), "the run's folder on the host is removed"
    resumed = zmqrl(folder, "launch", "hosts.yaml", "--resume", "run", "--set", "run.total_env_steps=8192", "--plain")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads((folder / "run" / "summary.json").read_text())["env_steps"] >= 8192


def agent_of_remote(run: Run) -> int:
    """The pid of the host agent, which the command `env` has become."""
    children = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text().split()
    (pid,) = [pid for pid in children if b"BEHIND=far-3" in Path(f"/proc/{pid}/environ").read_bytes()]
    return int(pid)


def row_of_remote(run: Run) -> dict[str, Any]:
    return next((row for row in run.status().get("hosts", ()) if row["host"] == "far"), {"state": None})


def test_a_lost_host_is_connected_again_by_scale(folder: Path) -> None:
    slow = (f"{key}={value}" for key, value in SLOW.items())
    sets = ("run.total_env_steps=100000000", "hosts.local.workers=1", "rejoin=manual", *slow)
    words = ["launch", "hosts.yaml", "--run-dir", "run", "--plain", *(w for one in sets for w in ("--set", one))]
    process = subprocess.Popen(
        [sys.executable, "-m", "zmqrl", *words], cwd=folder, env=environment(), stdout=PIPE, stderr=PIPE, text=True
    )
    run = Run(process, folder / "run")
    try:
        run.wait_for(lambda: row_of_remote(run)["state"] == "ready")
        os.kill(agent_of_remote(run), signal.SIGKILL)
        run.wait_for(lambda: row_of_remote(run)["state"] == "lost")
        scaled = zmqrl(folder, "scale", "run", "far=1")
        assert (scaled.returncode, scaled.stdout.strip()) == (0, "far: reconnecting, 1 worker"), scaled.stderr
        run.wait_for(lambda: row_of_remote(run)["state"] == "ready")
        assert zmqrl(folder, "stop", "run").returncode == 0
        assert run.done()["ledger"]["balanced"]
    finally:
        run.cut_short()


def test_the_doctor_examines_its_hosts(folder: Path) -> None:
    done = zmqrl(folder, "doctor", "hosts.yaml", "--json", "--limit", "far", "--env-limit", "1")
    found: dict[str, Any] = json.loads(done.stdout)["hosts"]
    assert found["far"]["failure"] is None, done.stdout
    assert found["far"]["hello"]["python"] == sys.executable and found["far"]["reached"] is not None


def test_cores_and_the_reaper_need_no_run(folder: Path) -> None:
    cores = usable_cores()
    asked = load_config(hosts_file=folder / "hosts.yaml", overrides=["hosts.far.workers=auto", "env.vector_envs=64"])
    assert resolve_auto_workers(asked).hosts["far"].workers == max(1, cores - 1)
    own_run = {**os.environ, RUN_VARIABLE: "own-1"}
    worker = [sys.executable, "-m", "zmqrl.entry", "zmqrl.worker", "own-1", "0"]
    with subprocess.Popen(worker, env=own_run, stdin=PIPE) as left:
        process = identify(left.pid)
        assert process is not None
        try:
            ((host, report),) = access_of(asked, ["far"]).reap(["far"], "own-1", 0.2)
            assert not await_gone([process], 0.0)
            assert host == "far" and report == Reaped(ended=(f"worker-0 (pid {left.pid})",))
        finally:
            left.kill()
