"""`--on HOST`: a run whose launcher is on another host, and the laptop that started it."""

from __future__ import annotations

import hashlib
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.runs.ssh_runs import sha256_of_one_process
from tests.support.waiting import until
from tests.system.hosts.on_host_lab import OTHER, OnHostLab, on_host_lab

pytestmark = [pytest.mark.whole]
STEPS = 40_000
ENV = """
from gymnasium.envs.classic_control import CartPoleEnv

class Pole(CartPoleEnv):
    pass
"""
MAX_STEPS = 500


@pytest.fixture
def hosts() -> Iterator[OnHostLab]:
    with on_host_lab() as hosts:
        yield hosts


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    settings = (
        "run.stop_at_return=null",
        "env.vector_envs=4",
        "evaluator.episodes=0",
        "algorithm.kind=tests.stand_ins.tally:Tally",
        f"env.max_episode_steps={MAX_STEPS}",
        f"run.total_env_steps={STEPS}",
    )
    return sha256_of_one_process(tmp_path_factory.mktemp("alone") / "run", settings)


def files(folder: Path) -> dict[str, str]:
    """Digests of what a copy has to have."""
    paths = (path for path in folder.rglob("[!.]*") if path.is_file() and path.parent.name != ".owner")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_a_run_outlives_the_laptop_and_its_ssh_agent(hosts: OnHostLab, undisturbed: str, tmp_path: Path) -> None:
    (hosts.lab.folder / "my_pole.py").write_text(ENV)
    hosts.write(
        run={"total_env_steps": STEPS},
        env={"id": "my_pole:Pole", "max_episode_steps": MAX_STEPS},
        code={"sync": ["./my_pole.py"]},
    )
    socket = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    until(socket.exists, "the SSH agent")
    started = hosts.zmqrl("launch", "hosts.yaml", "--on", "gpu1", "--run-dir", "runs/a", SSH_AUTH_SOCK=str(socket))
    assert started.code == 0, started.err
    assert "continues on gpu1 in /tmp/zmqrl/runs/a" in started.out and "a session of its own" in started.out
    follower = hosts.start("status", "-f", "--on", "gpu1")
    assert follower.stdout is not None and "env steps" in follower.stdout.readline()

    hosts.lab.link(0, False)
    for process in (follower, agent):
        process.send_signal(signal.SIGKILL)
        process.communicate()
    hosts.n2.crash()
    until(lambda: hosts.state("a", "n2") in ("lost", "failed", "connecting"), "n2 to be lost")
    hosts.n2.boot()
    until(lambda: hosts.state("a", "n2") == "ready", "n2 to be back")
    states = {row["host"]: row["state"] for row in hosts.status()["status"]["hosts"]}
    assert (states["local"], states["n2"]) == ("ready", "ready")
    where = ("--on", "gpu1", "--hosts", str(hosts.file))
    fetched = hosts.elsewhere("fetch", "runs/a", "mine/a", *where)
    assert fetched.code == 0 and "the copy is of now" in fetched.out, fetched
    summary = hosts.await_end("a")["summary"]
    hosts.lab.link(0, True)
    assert summary["status"] == "done" and summary["ledger"]["balanced"]
    assert summary["weights_sha256"] == undisturbed
    until(lambda: not hosts.gpu1.processes("-m zmqrl"), "every command there to end")
    assert not hosts.n2.processes("-m zmqrl")
    assert hosts.elsewhere("fetch", "runs/a", "mine/a", *where).code == 0
    copy = hosts.lab.hosts[OTHER].folder / "home" / "mine" / "a"
    assert files(copy) == files(hosts.gpu1.tmp / "zmqrl" / "runs" / "a")
    assert hosts.elsewhere("status", "mine/a").out.count("done with exit code 0") == 1


@pytest.mark.long
def test_commands_from_another_laptop_and_a_resume_after_a_reboot(hosts: OnHostLab) -> None:
    (hosts.lab.folder / "my_pole.py").write_text(ENV)
    hosts.write(
        env={"id": "my_pole:Pole", "max_episode_steps": MAX_STEPS},
        run={"total_env_steps": 10_000_000, "checkpoint_every_s": 1.0},
        ssh={"connect_timeout_s": 3.0},
        gpu1={"prologue": "echo on; export A=1"},
    )
    settings = ("--set", "run.seed=3", "--set", "code.sync=[./my_pole.py]")
    started = hosts.zmqrl("launch", "hosts.yaml", "--on", "gpu1", *settings, "--run-dir", "runs/b")
    assert started.code == 0, started.err
    where = ("--on", "gpu1", "--hosts", str(hosts.file))
    scaled = hosts.elsewhere("scale", "n2=2", *where)
    assert (scaled.code, scaled.out) == (0, "n2: 2 workers\n"), scaled.err
    assert "workers leave" in hosts.elsewhere("drain", "/tmp/zmqrl/runs/b", "n2", *where).out
    wrong = hosts.elsewhere("scale", "n9=2", *where)
    assert wrong.code == 2 and wrong.err.startswith("zmqrl: ") and "n9" in wrong.err
    log = hosts.gpu1.tmp / "zmqrl" / "runs" / "b" / "logs" / "launcher.log"
    until(lambda: log.is_file() and log.stat().st_size, "a line of the launcher")
    assert "launcher: " in hosts.elsewhere("logs", "launcher", *where).out
    until(lambda: hosts.run_file("b", "status.json").get("env_steps", 0) > 2_000, "env steps")

    hosts.gpu1.crash()
    hosts.gpu1.boot({"Subsystem": "sftp /bin/false"})
    dead = hosts.elsewhere("status", *where)
    # the kernel of this lab has not started again, unlike a machine's; the pid namespace may have the old number
    assert "unknown whether it has ended" in dead.out or "has exited" in dead.out, dead.out
    seen = hosts.run_file("b", "status.json")["env_steps"]
    more = ("--for", "1000000", "--set", "run.max_wall_s=60")
    again = hosts.zmqrl("launch", "hosts.yaml", "--on", "gpu1", "--resume", "runs/b", *more)
    assert again.code == 0, again.err
    assert hosts.zmqrl("stop", "--on", "gpu1").code == 0
    summary = hosts.await_end("b")["summary"]
    assert summary["status"] == "stopped" and summary["env_steps"] >= summary["resumed_from"]["env_steps"] > 500
    total = hosts.run_file("b", "config.json")["config"]["run"]["total_env_steps"]
    assert 0 <= total - (seen + 1_000_000) < 100_000, "of several records the one that was written last counts"
    assert hosts.zmqrl("fetch", "runs/b", "--on", "gpu1").code == 0
    assert files(hosts.lab.folder / "runs" / "b") == files(hosts.gpu1.tmp / "zmqrl" / "runs" / "b")
    down = hosts.elsewhere("down", "runs/b", *where)
    assert down.code == 0 and down.out.count("0 processes left") == 3, down
    hosts.lab.power_off(2)
    down = hosts.elsewhere("down", "runs/b", *where)
    assert down.code == 3 and "  local: 0 processes left" in down.out and "on n2" in down.err, down
    assert re.search(r"^  n2: NOT VERIFIED: ", down.out, re.M)


@pytest.mark.long
def test_what_would_end_with_the_laptop_or_the_login_is_refused_before_anything_is_copied(hosts: OnHostLab) -> None:
    """The key of n2 is in ~/.ssh of the laptop alone."""
    only_here = hosts.lab.known_hosts.parent / "only_here"
    shutil.copy(hosts.lab.identity, only_here)
    hosts.write(n2={"identity": "~/.ssh/only_here"})
    refused = hosts.zmqrl("launch", "hosts.yaml", "--on", "gpu1")
    only_here.unlink()
    assert refused.code == 2, refused
    assert "1 host does not accept the SSH keys of gpu1" in refused.err
    remedies = ("Authorise a key of gpu1 on these hosts", "manual: true", "n2: no usable key")
    assert all(part in refused.err for part in remedies)

    hosts.write()
    folder = hosts.gpu1.tmp / "bin"
    folder.mkdir()
    for name, text in {
        "loginctl": "echo yes",
        "systemd-run": 'while [ "$1" != -- ]; do shift; done; shift; "$@"',
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    bashrc = hosts.gpu1.folder / "home" / ".bashrc"
    bashrc.write_text("PATH=/tmp/bin:$PATH\n")
    try:
        lingering = hosts.zmqrl("doctor", "hosts.yaml", "--on", "gpu1", "--env-limit", "1")
        (folder / "loginctl").write_text('#!/bin/sh\ncase "$*" in *Linger*) echo no ;; *Process*) echo yes ;; esac\n')
        ending = hosts.zmqrl("launch", "hosts.yaml", "--on", "gpu1")
    finally:
        bashrc.unlink()
    assert lingering.code == 0, lingering
    assert "2 hosts examined" in lingering.out
    assert "gpu1: the launcher runs in a systemd user scope; linger on" in lingering.err
    assert ending.code == 2 and "loginctl enable-linger" in ending.err
    assert not list((hosts.gpu1.tmp / "zmqrl").glob("*"))
