"""`prologue` and `wrap` of hosts, with real sshds: what they give to a run, their faults, and nothing left behind."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Host, Lab, lab_or_skip
from tests.stand_ins.named_pole import VARIABLE
from tests.support.running import END_S
from tests.support.runs.ssh_runs import FarRun, closed_at_the_end, roles, sha256_of_one_process
from tests.support.waiting import until
from tests.support.yardstick import scaled_s, within

pytestmark = [pytest.mark.timed, pytest.mark.whole]
ENV = "tests.stand_ins.named_pole:Env"
TALLY = "tests.stand_ins.tally:Tally"
STEPS = 16_000
LENGTH = "0.8"
NAMESPACE = "unshare -p -f --mount-proc"
NO_STDIN = """sh -c 'exec "$@" </dev/null' sh"""
STAYS = '[ -z "$ZMQRL_RUN" ] || sleep 600 >/dev/null 2>&1 &'
"""A prologue that leaves a process behind, in a run alone."""
WORKERS = 2
WAITING_S, ENDLESS = 0.2, 10_000_000
"""Duration of a round of a run that only waits, and its env steps."""
START_S = 15.0
FAULTS = {
    "failing": (
        "prologue",
        "`echo no cuda/12! here; (exit 3)`; it printed: no cuda/12! here",
        "try it there",
    ),
    "no-module": ("prologue", "hosts.no-module.prologue failed with exit code 127: `module load x`", "modules.sh"),
    "hanging": ("answer", "hosts.hanging.prologue has not ended: `echo waits; sleep 600`; it printed: waits", ""),
    "no-stdin": ("wrap", f"hosts.no-stdin.wrap (`{NO_STDIN}`) does not pass stdin on", "keeps stdin open"),
    "no-proc": ("wrap", "hosts.no-proc.wrap (`unshare -p -f`) makes a pid namespace without its own /proc", "--mount"),
    "no-wrap": ("wrap", "hosts.no-wrap.wrap (`apptainer exec IMAGE`): apptainer was not found", "install it there"),
}
"""Check of the doctor, cause and fix of each host."""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with lab_or_skip(2, isolated=True) as lab:
        yield lab


def entry(lab: Lab, index: int, **more: Any) -> dict[str, Any]:
    return lab.hosts[index].hosts_yaml(**{"workers": 1, **more})


def sound(lab: Lab, workers: int = 1) -> dict[str, Any]:
    """One host whose Python and variable come from its prologue, one whose Python is in a pid namespace of its own."""
    folder = lab.folder / "module!s"
    folder.mkdir(exist_ok=True)
    (folder / "lab-python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (folder / "lab-python").chmod(0o755)
    path = f"PATH={shlex.quote(str(folder))}:$PATH; export PATH"
    length = f"export {VARIABLE}={LENGTH}; echo module loaded"
    return {
        "h0": entry(lab, 0, workers=workers, python="lab-python", prologue=f"{path}; {length}; cat"),
        "h1": entry(lab, 1, workers=workers, wrap=NAMESPACE, prologue=f"{STAYS} {length}"),
    }


def faulty(lab: Lab) -> dict[str, Any]:
    return {
        "failing": entry(lab, 0, prologue="echo no cuda/12! here; (exit 3)"),
        "no-module": entry(lab, 0, prologue="module load x"),
        "hanging": entry(lab, 0, prologue="echo waits; sleep 600"),
        "no-stdin": entry(lab, 0, wrap=NO_STDIN),
        "no-proc": entry(lab, 0, wrap="unshare -p -f"),
        "no-wrap": entry(lab, 0, wrap="apptainer exec IMAGE"),
    }


def config(hosts: Mapping[str, Any], round_s: float = 0.05, steps: int = STEPS) -> dict[str, Any]:
    return {
        "run": {"preset": "cartpole-ppo", "total_env_steps": steps, "stop_at_return": None},
        "env": {"id": ENV, "vector_envs": 12, "max_episode_steps": 200},
        "algorithm": {"kind": TALLY, "round_s": round_s},
        "evaluator": {"episodes": 0},
        "min_workers": hosts["h0"]["workers"] + hosts["h1"]["workers"],
        "limits": {"host_lease_s": 4.0, "lost_after_s": 2.0, "start_s": scaled_s(START_S)},
        "hosts": {"local": {"workers": 0}, **hosts},
    }


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FarRun]]:
    monkeypatch.setenv(VARIABLE, LENGTH)  # of the laptop: spaces are read there, and `alone` runs there
    with closed_at_the_end() as runs:
        yield runs


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    settings = (
        "run.stop_at_return=null",
        f"env.id={ENV}",
        "env.vector_envs=12",
        "env.max_episode_steps=200",
        "evaluator.episodes=0",
        f"algorithm.kind={TALLY}",
        f"run.total_env_steps={STEPS}",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, LENGTH)
        return sha256_of_one_process(tmp_path_factory.mktemp("alone") / "run", settings)


def everything(host: Host, run_id: str) -> list[str]:
    """Command lines on a host, in any pid namespace, with the mark of the run or of its wrap."""
    found = []
    home = host.network.path if host.network else ""
    own = os.stat(home).st_ino
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "environ").read_bytes().split(b"\0")
            if f"ZMQRL_RUN={run_id}".encode() in words and os.stat(path / "ns/net").st_ino == own:
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def is_gone(lab: Lab, run_id: str) -> bool:
    return not any(everything(host, run_id) for host in lab.hosts)


def inner_agent(lab: Lab, run_id: str) -> int:
    """The pid outside of the agent in the namespace of h1, which is a child of the namespace's process 1."""
    pids = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if b"zmqrl.agent" in (path / "cmdline").read_bytes() and run_id.encode() in (path / "cmdline").read_bytes():
                line = next(line for line in (path / "status").read_text().splitlines() if line.startswith("NSpid"))
                mark = b"ZMQRL_HOST=h1@" in (path / "environ").read_bytes()
                if mark and line.split()[-1] not in ("1", line.split()[1]) and len(line.split()) == 4:
                    pids.append(int(path.name))
        except OSError:
            continue
    (pid,) = pids
    return pid


@pytest.mark.long
def test_doctor_and_launch_name_each_fault_and_the_sound_hosts_give_the_bits_of_one(
    lab: Lab, runs: list[FarRun], alone: str
) -> None:
    run = FarRun(lab, "environments", config(lab.by_own_names({**sound(lab, WORKERS), **faulty(lab)})))
    runs.append(run)
    code, out, err = run.end()
    assert code == 0, (out, err)
    summary = run.summary()
    assert summary["weights_sha256"] == alone
    assert summary["ledger"]["balanced"] and summary["ledger"]["stored"] == summary["env_steps"]
    shown = {host: [line for line in err.splitlines() if line.startswith(f"{host}: ")] for host in FAULTS}
    for host, (_, cause, fix) in {host: fault for host, fault in FAULTS.items() if host != "hanging"}.items():
        assert len([line for line in shown[host] if cause in line]) == 1, (host, err)
        assert fix in err
    assert len(err.splitlines()) < 3 * len(FAULTS), err
    assert is_gone(lab, summary["run_id"])
    assert not any(host.processes("sleep") for host in lab.hosts)
    assert (run.run_dir / "logs" / "h0-agent-0.log").read_text().count("module loaded") == 1
    start = f"limits.start_s={scaled_s(8.0)}"
    code, out, err = run.command("doctor", str(lab.folder / "environments.yaml"), "--json", "--set", start)
    assert code == 2, err
    data = json.loads(out)
    found = {fault["host"]: fault for fault in data["faults"]}
    assert set(found) == set(FAULTS), data["faults"]
    for host, (check, cause, fix) in FAULTS.items():
        assert found[host]["check"] == check and cause in found[host]["cause"] and fix in found[host]["fix"], found[
            host
        ]
    assert data["hosts"]["h1"]["env"]["error"] is None and data["hosts"]["h0"]["hello"]["python"] == sys.executable


@pytest.mark.long
def test_a_killed_agent_in_a_namespace_comes_back_and_a_killed_launcher_leaves_nothing(
    lab: Lab, runs: list[FarRun]
) -> None:
    run = FarRun(lab, "killed", config(sound(lab), WAITING_S, ENDLESS))
    runs.append(run)
    run.wait_for_steps(2_000)
    run_id = run.run_id
    assert roles(lab.hosts[0], run_id) == ["agent", "template", "worker"]
    register = list(lab.hosts[1].tmp.glob("zmqrl-agents-*/*.json"))
    assert len(register) == 1 and json.loads(register[0].read_text())["namespace"].startswith("pid:")
    code, out, _ = run.command("doctor", str(lab.folder / "killed.yaml"), "--json", "--env-limit", "5")
    held = {name: host["locks"]["held"] for name, host in json.loads(out)["hosts"].items() if host["locks"]}
    assert [lock["run_id"] for lock in held["h0"]] == [run_id]
    agent = inner_agent(lab, run_id)
    os.kill(agent, signal.SIGKILL)
    until(
        lambda: run.host("h1").get("state") == "ready" and inner_agent_or_none(lab, run_id) not in (None, agent),
        "h1",
        every_s=0.2,
    )

    def left() -> list[str]:
        """Also within the namespace. What the prologue has started is not zmqrl's."""
        lines = [line for host in lab.hosts for line in everything(host, run_id)]
        return [line for line in lines if not line.startswith("sleep ")]

    with within(END_S):
        run.process.kill()
        until(lambda: not left(), "every process of the run to end")
    code, out, err = run.command("down", str(run.run_dir))
    assert code == 0, (out, err)
    assert is_gone(lab, run_id)
    assert not list(lab.hosts[1].tmp.glob("zmqrl-agents-*/*.json"))


def inner_agent_or_none(lab: Lab, run_id: str) -> int | None:
    try:
        return inner_agent(lab, run_id)
    except ValueError:
        return None


@pytest.mark.long
def test_a_learner_in_a_namespace_is_brought_down_without_its_launcher(lab: Lab, runs: list[FarRun]) -> None:
    run = FarRun(lab, "far-learner", {**config(sound(lab), WAITING_S, ENDLESS), "learner": {"host": "h1"}})
    runs.append(run)
    run.wait_for_steps(2_000)
    run.process.send_signal(signal.SIGSTOP)  # it cannot help
    os.kill(inner_agent(lab, run.run_id), signal.SIGSTOP)  # nor end with its stdin
    code, out, err = run.command("down", str(run.run_dir))
    assert code == 0, (out, err)
    reports = {line.split(":")[0].strip(): line for line in out.splitlines()}
    assert "killed agent-0 (pid" in reports["h1"], out
    assert is_gone(lab, run.run_id)
    assert not list(lab.hosts[1].tmp.glob("zmqrl-agents-*/*.json"))
