"""Real hosts, each with another fault, and one that has none: `zmqrl doctor` names each, and the way out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab import Host, Lab, lab_or_skip
from tests.support.waiting import WAIT_S

pytestmark = [pytest.mark.timed, pytest.mark.whole]
ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PORT = 27100
GOOD, BUSY, UNKNOWN, CHANGED, BLOCKED, SHORT, SILENT, FORCED = range(8)
"""Which host of the lab has what."""
NOBODY = 65534
METADATA = "Metadata-Version: 2.1\nName: zmqrl\nVersion: 9.9\n"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with lab_or_skip(8, isolated=True) as lab:
        lines = [line for line in lab.known_hosts.read_text().splitlines() if lab.hosts[UNKNOWN].address not in line]
        other_key = lab.hosts[GOOD].host_key
        changed = lab.hosts[CHANGED]
        lines = [f"{changed.address} {other_key}" if changed.address in line else line for line in lines]
        lab.known_hosts.write_text("\n".join(lines) + "\n")
        yield lab


@dataclass(frozen=True)
class Doctor:
    """How a run of it ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Mapping[str, Any]:
        assert self.out, self.err
        return dict(json.loads(self.out))

    def of(self, kind: str, host: str) -> dict[str, str]:
        """Check to cause and fix, of the `faults` or `warnings` of a host."""
        return {f["check"]: f"{f['cause']}\n{f['fix']}" for f in self.data[kind] if f["host"] == host}


def doctor(lab: Lab, hosts: Mapping[str, Any], *options: str, **more: Any) -> Doctor:
    """Run it on the laptop, which is the learner's host; the store is in the folder that all hosts share."""
    data = {
        "run": {"name": "doctor", "preset": "cartpole-ppo", "stop_at_return": None},
        "env": {"id": "odd_env:Env", "vector_envs": 32, "max_episode_steps": 100},
        "learner": {"host": "local", "port": PORT},
        "store": {"path": str(lab.shared / "checkpoints")},
        "hosts": {"local": {"workers": 0}, **hosts},
        **more,
    }
    file = lab.folder / "hosts.yaml"
    file.write_text(yaml.safe_dump(data, sort_keys=False))
    command = [sys.executable, "-m", "zmqrl", "doctor", str(file), "--env-limit", "30", *options]
    process = lab.run_here(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{HERE}"},
    )
    with process:
        out, err = process.communicate(timeout=WAIT_S)
    return Doctor(process.returncode, out, err)


def entry(host: Host, path: str = f"{ROOT}:{HERE}", env: Mapping[str, str] | None = None, **more: Any) -> Any:
    section = host.hosts_yaml(workers=1, **more)
    return {**section, "env": {**section["env"], "PYTHONPATH": path, **(env or {})}}


def in_front(folder: Path, file: str, text: str) -> str:
    """A PYTHONPATH with one more file in front."""
    (folder / file).parent.mkdir(parents=True)
    (folder / file).write_text(text)
    return f"{folder}:{ROOT}:{HERE}"


def occupy(host: Host) -> None:
    """A process of another user, with the lock file of a host agent."""
    sleeper = f"setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups sleep 600 >/dev/null 2>&1 </dev/null & echo $!"
    pid = int(host.run("sh", "-c", sleeper).stdout)
    stat = host.run("cat", f"/proc/{pid}/stat").stdout
    start_time = int(stat[stat.rindex(")") + 2 :].split()[19])
    folder = host.tmp / f"zmqrl-agents-{NOBODY}-x"
    folder.mkdir()
    held = {
        "run_id": "walker-6a2b",
        "pid": pid,
        "start_time": start_time,
        "user": "anna",
        "uid": NOBODY,
        "host": "busy",
    }
    os.chown(folder, NOBODY, NOBODY)
    file = folder / "walker-6a2b-busy.json"
    file.write_text(
        json.dumps({**held, "since": time.time() - 7200, "workers": 15, "host": "h1", "launcher": "anna-pc"})
    )
    os.chown(file, NOBODY, NOBODY)


@pytest.fixture(scope="module")
def seen(lab: Lab) -> Doctor:
    """All faults at once: none may hide another, or touch the sound host."""
    good, blocked = lab.hosts[GOOD], lab.hosts[BLOCKED]
    good.run("mkdir", "/tmp/full")
    assert good.run("mount", "-t", "tmpfs", "-o", "size=256k", "none", "/tmp/full").returncode == 0
    occupy(lab.hosts[BUSY])
    assert lab.hosts[BUSY].run("mount", "-t", "tmpfs", "none", str(lab.shared)).returncode == 0
    drop = f"ip saddr {blocked.address} tcp dport {PORT}-{PORT + 2} drop"
    rules = ["add table ip t", "add chain ip t in { type filter hook input priority 0; }", f"add rule ip t in {drop}"]
    assert good.network is not None
    good.network.run("nft", "-f", "-", text="\n".join([*rules, ""]))
    lab.hosts[SHORT].lose_full_packets()
    (lab.hosts[SILENT].folder / "home" / ".bashrc").write_text("printf 'Password: '; exec sleep 600\n")
    (good.folder / "home" / ".bashrc").write_text("printf 'quota: 80%% '\n")  # without an end of line
    lab.hosts[FORCED].kill_sshd()
    lab.hosts[FORCED].start_sshd({"ForceCommand": "echo no shell for you"})
    shifted = "import time\n_real = time.time\ntime.time = lambda: _real() - 3600\n"
    hosts = {
        "sound": entry(good),
        "refused": entry(good, port=2222),
        "unknown": entry(lab.hosts[UNKNOWN]),
        "changed": entry(lab.hosts[CHANGED]),
        "stranger": entry(good, user="nobody"),
        "no-python": entry(good, python="/opt/none/bin/python"),
        "no-zmqrl": entry(good, python="/usr/bin/python3", path="/nowhere"),
        "other-version": entry(good, in_front(lab.folder / "v", "zmqrl-9.9.dist-info/METADATA", METADATA)),
        "late-clock": entry(good, in_front(lab.folder / "c", "sitecustomize.py", shifted)),
        "full": entry(good, workdir="/tmp/full/zmqrl"),
        "busy": entry(lab.hosts[BUSY]),
        "no-env": entry(good, str(ROOT)),
        "drifting": entry(good, env={"ODD_ENV": "drift"}),
        "other-spaces": entry(good, env={"ODD_ENV": "wider"}),
        "blocked": entry(blocked),
        "short": entry(lab.hosts[SHORT]),
        "silent": entry(lab.hosts[SILENT]),
        "forced": entry(lab.hosts[FORCED]),
        "tunnelled": entry(blocked, tunnel=True),
    }
    return doctor(lab, lab.by_own_names(hosts), "--json")


def test_a_sound_host_among_all_the_others_has_no_fault(seen: Doctor) -> None:
    assert seen.of("faults", "sound") == {}
    measured = seen.data["hosts"]["sound"]
    assert abs(measured["clock"]["skew_s"]) < 0.5
    assert measured["store"]["seen"] and measured["store"]["visible_s"] < 1.0
    assert measured["env"]["repeats"] is True and measured["env"]["checker"] == ""
    assert measured["env"]["steps_per_s"] > 1000
    assert measured["curve"]["mb_per_s"] > 1
    assert any(set(answer["ports"].values()) == {None} for answer in measured["reached"]["answers"])


FAULTS = {
    "refused": ("ssh", "10.77.0.10:2222 refused the connection", "systemctl status ssh"),
    "unknown": (
        "ssh",
        "unknown host key: 10.77.0.12:22 shows ssh-ed25519",
        "--limit unknown --accept-new-hosts",
    ),
    "changed": ("ssh", "host key CHANGED", "ssh-keygen -f"),
    "stranger": ("ssh", "nobody", "ssh"),
    "no-python": ("python", "python was not found", "set hosts.no-python.python, or create it: zmqrl setup"),
    "no-zmqrl": ("zmqrl", "No module named", "zmqrl setup"),
    "other-version": ("versions", f"zmqrl 9.9 there, {metadata.version('zmqrl')} here", "--limit other-version"),
    "full": ("workdir", "/tmp/full/zmqrl cannot be written: /tmp/full: No space left on device", "df -h /tmp/full"),
    "busy": ("lock", ", for 2 h, 15 workers) of user nobody", "--limit"),
    "no-env": ("env", "module 'odd_env' was not found", "code.sync"),
    "other-spaces": ("env", "float32 [4] -> discrete 3, on local float32 [3] -> discrete 3", "zmqrl setup"),
    "silent": ("answer", "no answer within 8 s to: the handshake; its login shell printed: Password:", "start-up"),
    "forced": ("probe", "the probe exited (code 0): no shell for you", "see its output"),
    "short": ("ports", "answers, and does not return a message of 64 KiB within 3 s", "MTU"),
    "blocked": ("ports", "10.77.0.10 ports 27100, 27101, 27102: no answer", "open ports 27100-27102 on local"),
}
WARNINGS = {
    "late-clock": ("clock", "1 h behind this machine", "timedatectl set-ntp true"),
    "busy": ("store", "is not shared with the learner's host: another directory", "mount it as on local"),
    "drifting": ("env", "of 8 envs gave other results", "reset(seed=...)"),
}


@pytest.mark.parametrize("host", FAULTS)
def test_each_fault_is_named_with_its_fix(seen: Doctor, host: str) -> None:
    check, cause, fix = FAULTS[host]
    assert seen.code == 2
    found = seen.of("faults", host)
    assert set(found) == {check}
    assert cause in found[check] and fix in found[check].partition("\n")[2], found


def test_a_host_of_another_version_is_examined_and_one_without_zmqrl_is_described(seen: Doctor) -> None:
    hosts = seen.data["hosts"]
    assert hosts["other-version"]["env"]["stage"] == "done" and hosts["other-version"]["curve"]["mb_per_s"] > 1
    described = hosts["no-zmqrl"]["hello"]
    assert described["python"] == "/usr/bin/python3" and described["versions"]["zmqrl"] is None
    assert described["versions"]["python"].startswith("3.")
    assert hosts["no-python"]["hello"]["versions"] == {"machine": os.uname().machine}


@pytest.mark.parametrize("host", WARNINGS)
def test_what_a_run_survives_is_a_warning(seen: Doctor, host: str) -> None:
    check, cause, fix = WARNINGS[host]
    found = seen.of("warnings", host)
    assert cause in found[check] and fix in found[check], found


def test_whose_run_it_is_says_the_kernel_not_the_file(seen: Doctor) -> None:
    (lock,) = seen.data["hosts"]["busy"]["locks"]["held"]
    assert (lock["user"], lock["own"], lock["workers"]) == ("nobody", False, 15)


def test_a_tunnel_leads_around_a_blocked_port(seen: Doctor) -> None:
    assert seen.of("faults", "tunnelled") == {}
    (answer,) = seen.data["hosts"]["tunnelled"]["reached"]["answers"]
    assert answer["address"] == "127.0.0.1" and set(answer["ports"].values()) == {None}


def test_nothing_is_left_on_hosts_or_in_the_store(seen: Doctor, lab: Lab) -> None:
    del seen
    assert list(lab.shared.iterdir()) == []
    for host in lab.hosts:
        assert not host.processes("zmqrl.doctor") and not host.processes("zmqrl.agent"), host.name
        assert not list(host.tmp.rglob("*zmqrl-doctor*")), host.name


def test_no_key_of_the_check_is_shown(seen: Doctor) -> None:
    assert "secret" not in seen.out and "secret" not in seen.err


def test_new_hosts_are_accepted_on_request_and_changed_ones_are_not(lab: Lab, tmp_path: Path) -> None:
    hosts = {"unknown": entry(lab.hosts[UNKNOWN]), "changed": entry(lab.hosts[CHANGED])}
    elsewhere = {"path": str(tmp_path / "only-here")}
    ended = doctor(lab, hosts, "--json", "--accept-new-hosts", store=elsewhere)
    assert ended.err.startswith("unknown: accepted new host key ssh-ed25519 SHA256:")
    assert ended.of("faults", "unknown") == {}
    assert lab.hosts[UNKNOWN].host_key.split()[1] in lab.known_hosts.read_text()
    assert "host key CHANGED" in ended.of("faults", "changed")["ssh"]
    assert ended.code == 2
    assert f"{tmp_path}: No such file or directory" in ended.of("warnings", "unknown")["store"]


@pytest.mark.long
def test_the_learners_host_may_be_another_one(lab: Lab) -> None:
    learner, worker = lab.hosts[GOOD], lab.hosts[BLOCKED]
    hosts = {"gpu": {**entry(learner), "workers": 0}, "node": entry(worker), "local": {"workers": 1}}
    ended = doctor(lab, hosts, "--json", learner={"host": "gpu", "port": PORT + 10}, store={"path": None})
    assert ended.code == 0, ended.out
    measured = ended.data["hosts"]
    assert measured["gpu"]["listening"]["ports"] == [PORT + 10, PORT + 11, PORT + 12]
    assert measured["gpu"]["folders"]["store"]["path"] == "/tmp/zmqrl/runs"
    for host in ("node", "local"):
        answers = {answer["address"]: set(answer["ports"].values()) for answer in measured[host]["reached"]["answers"]}
        assert answers[learner.address] == {None} and measured[host]["store"] is None
