"""A launch over hosts that each have another fault beside one that has none: each is named, and the run goes on."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Host, Lab, lab_or_skip
from tests.support.running import ROOT, RUN_S
from tests.support.runs.ssh_runs import FarRun
from tests.support.runs.system_plans import WAITING_TALLY
from tests.support.waiting import until
from tests.support.yardstick import scaled_s
from zmqrl.launch.run.staffing import UNSETTLED

GOOD, UNKNOWN, CHANGED, BUSY, BLOCKED, NOISY, SILENT, FORCED, SHORT = range(9)
"""Which host of the lab has what."""
NOBODY = 65534
PORT = 47_300
START_S = 8.0
"""For the sound host among all others, on an idle machine; the silent one is waited for as long."""
STORE = Path("/tmp/zmqrl-store-of-one-host")
"""Each host has a /tmp of its own."""
METADATA = "Metadata-Version: 2.1\nName: zmqrl\nVersion: 9.9\n"
TITLE = "printf 'quota: 80%% '; printf '\\033]0;title\\007'\n"
"""Without an end of line; the agent, the reaper and what else runs there start after it."""
WAITS = "printf 'Password: '; exec sleep 600\n"
LATE = "import time\n_real = time.time\ntime.time = lambda: _real() - 3600\n"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with lab_or_skip(9, isolated=True) as lab:
        yield lab


def entry(host: Host, path: str = str(ROOT), **more: Any) -> dict[str, Any]:
    section = host.hosts_yaml(workers=1, **more)
    return {**section, "env": {**section["env"], "PYTHONPATH": path}}


def in_front(folder: Path, file: str, text: str) -> str:
    """A PYTHONPATH with one more file in front."""
    (folder / file).parent.mkdir(parents=True)
    (folder / file).write_text(text)
    return f"{folder}:{ROOT}"


def mistake_keys(lab: Lab) -> None:
    """One host that nobody knows, and one that is known by the key of another."""
    lines = []
    for line in lab.known_hosts.read_text().splitlines():
        if lab.hosts[CHANGED].address in line:
            lines.append(f"{lab.hosts[CHANGED].address} {lab.hosts[GOOD].host_key}")
        elif lab.hosts[UNKNOWN].address not in line:
            lines.append(line)
    lab.known_hosts.write_text("\n".join(lines) + "\n")


def occupy(host: Host) -> None:
    """A process of another user, and what its host agent would have registered."""
    sleeper = f"setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups sleep 600 >/dev/null 2>&1 </dev/null & echo $!"
    pid = int(host.run("sh", "-c", sleeper).stdout)
    stat = host.run("cat", f"/proc/{pid}/stat").stdout
    start_time = int(stat[stat.rindex(")") + 2 :].split()[19])
    folder = host.tmp / f"zmqrl-agents-{NOBODY}-x"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    held = {"run_id": "walker-6a2b", "pid": pid, "start_time": start_time, "user": "anna", "uid": NOBODY}
    more = {"since": time.time() - 7200, "workers": 15, "host": "busy", "launcher": "10.0.0.9"}
    path = folder / "walker-6a2b-busy.json"
    path.write_text(json.dumps({**held, **more}))
    os.chown(path, NOBODY, NOBODY)


@pytest.fixture(scope="module")
def said(lab: Lab) -> Mapping[str, str]:
    """What the launcher told of each host, in one run with all faults at once."""
    good, blocked = lab.hosts[GOOD], lab.hosts[BLOCKED]
    mistake_keys(lab)
    occupy(lab.hosts[BUSY])
    lab.hosts[SHORT].lose_full_packets()
    lab.hosts[FORCED].kill_sshd()
    lab.hosts[FORCED].start_sshd({"ForceCommand": "echo no shell for you"})
    for host, text in ((NOISY, TITLE), (SILENT, WAITS)):
        (lab.hosts[host].folder / "home" / ".bashrc").write_text(text)
    good.run("mkdir", "/tmp/full")
    assert good.run("mount", "-t", "tmpfs", "-o", "nr_inodes=1", "none", "/tmp/full").returncode == 0
    drop = f"ip saddr {blocked.address} tcp dport {PORT}-{PORT + 2} drop"
    rules = ["add table ip t", "add chain ip t in { type filter hook input priority 0; }", f"add rule ip t in {drop}"]
    assert good.network is not None
    good.network.run("nft", "-f", "-", text="\n".join([*rules, ""]))
    hosts = {
        "local": {"workers": 0},
        "sound": entry(good),
        "nowhere": entry(good, ssh="no-such-host.invalid"),
        "refused": entry(good, port=2222),
        "unknown": entry(lab.hosts[UNKNOWN]),
        "changed": entry(lab.hosts[CHANGED]),
        "stranger": entry(good, user="nobody"),
        "no-python": entry(good, python="/opt/none/bin/python"),
        "no-zmqrl": entry(good, "/nowhere", python="/usr/bin/python3"),
        "other-version": entry(good, in_front(lab.folder / "v", "zmqrl-9.9.dist-info/METADATA", METADATA)),
        "late-clock": entry(good, in_front(lab.folder / "c", "sitecustomize.py", LATE)),
        "full": entry(good, workdir="/tmp/full/zmqrl"),
        "busy": entry(lab.hosts[BUSY]),
        "blocked": entry(blocked),
        "noisy": entry(lab.hosts[NOISY]),
        "silent": entry(lab.hosts[SILENT]),
        "forced": entry(lab.hosts[FORCED]),
        "short": entry(lab.hosts[SHORT]),
    }
    start_s = scaled_s(START_S)
    config = {
        "run": {
            "preset": "cartpole-ppo",
            "total_env_steps": 10_000_000,
            "stop_at_return": None,
        },
        "env": {"vector_envs": 20},
        "algorithm": dict(WAITING_TALLY),
        "evaluator": {"episodes": 0},
        "learner": {"port": PORT},
        "store": {"path": str(STORE)},
        "ssh": {"connect_timeout_s": max(3.0, start_s / 3)},
        "limits": {"start_s": start_s},
        "hosts": lab.by_own_names(hosts),
    }
    run = FarRun(lab, "bad", config)
    try:
        settled = {"local"}

        def all_settled() -> bool:
            """Each once: a host that failed may be connected to again."""
            rows = run.status().get("hosts", ())
            settled.update(row["host"] for row in rows if row["state"] not in UNSETTLED)
            return settled == set(hosts) and run.status()["env_steps"] > 0

        until(all_settled, lambda: str(set(hosts) - settled), RUN_S)
        assert run.command("stop", str(run.run_dir))[0] == 0
        code, out, err = run.end()
        assert code == 0, (out, err)
        summary = run.summary()
    finally:
        run.close()
        shutil.rmtree(STORE, ignore_errors=True)
    assert summary["ledger"]["balanced"] and summary["env_steps"] > 0
    told: dict[str, str] = {}
    for block in err.replace("\n  ", " | ").splitlines():
        name = block.partition(":")[0]
        if name in hosts:
            told[name] = f"{told.get(name, '')}{block}\n"
    return told


FAULTS = {
    "nowhere": ("no-such-host.invalid", "hosts.nowhere.ssh"),
    "refused": ("refused the connection", "systemctl status ssh"),
    "unknown": ("unknown host key", "accept-new"),
    "changed": ("host key CHANGED", "ssh-keygen -"),
    "stranger": ("nobody", "ssh"),
    "no-python": ("/opt/none/bin/python was not found", "zmqrl setup"),
    "no-zmqrl": ("zmqrl is not installed in /usr/bin/python3", "zmqrl setup"),
    "other-version": ("zmqrl 9.9 there", "zmqrl setup"),
    "full": ("No space left on device", "hosts.full.workdir"),
    "busy": ("walker-6a2b", "--limit"),
    "blocked": (f"port {PORT + 2} of the learner's host does not answer", "tunnel: true"),
    "late-clock": ("clock is 3600 s behind", "timedatectl"),
    "silent": (
        " s); its login shell printed: Password:",
        ".bas",
    ),
    "forced": ("exited with code 0 before its handshake; it printed: no shell for you", "ForceCommand"),
    "short": ("does not return a message of 64 KiB within", "MTU"),
    "noisy": ("is not shared with the learner's host", "the broker sends the weights"),
    "sound": ("is not shared with the learner's host", "the broker sends the weights"),
}


@pytest.mark.long
@pytest.mark.parametrize("host", FAULTS)
def test_each_host_is_named_with_the_cause_and_the_fix(said: Mapping[str, str], host: str) -> None:
    cause, fix = FAULTS[host]
    assert cause in said.get(host, ""), dict(said)
    assert fix in said[host]


@pytest.mark.long
def test_no_host_is_named_without_a_fault(said: Mapping[str, str]) -> None:
    assert set(said) <= set(FAULTS)
