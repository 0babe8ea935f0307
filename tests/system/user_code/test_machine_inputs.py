"""Commands on machines that others have set up: their processes, containers, files and mounts, by whole commands.

Each class has the inputs of public reports (`tests/machine_inputs`), and one that differs in more than names.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from tests.cli.commands import ENDLESS, RUN
from tests.lab import Lab, lab_or_skip
from tests.lab.slurm import Slurm, slurm_or_skip
from tests.launch.test_down_far_hosts import run_directory
from tests.machine_inputs import all_commands
from tests.machine_inputs.all_commands import READ
from tests.machine_inputs.dead_mount import dead_mount
from tests.support.cgroups import MB, group_or_skip
from tests.support.marks import long
from tests.support.raising import raises
from tests.support.running import ROOT, RUN_S, environment
from tests.support.runs.ssh_runs import FarRun
from tests.support.runs.system_plans import WAITING_TALLY
from tests.support.waiting import WAIT_S, until
from tests.support.yardstick import scaled_s
from zmqrl.cli import main
from zmqrl.cli.run.fetch import _copy_of
from zmqrl.errors import ConfigError
from zmqrl.run_files.run_info import read_info
from zmqrl.supervision.host_entry import Entry
from zmqrl.supervision.host_lock import HostLock
from zmqrl.supervision.owner_record import OF_MACHINE
from zmqrl.supervision.process_table import children_of, identify
from zmqrl.wire.runtime_folder import private_folder

pytestmark = pytest.mark.whole

FILES = Path(__file__).parents[2] / "machine_inputs"
ZMQRL = (sys.executable, "-m", "zmqrl")
DONE, REFUSED, LEFT, INTERRUPTED = 0, 2, 3, 130


def command(folder: Path, words: Sequence[str | Path], *before: str | Path) -> tuple[int, str]:
    """Exit code and output of `zmqrl WORDS` in `folder`, started by the command `before`."""
    done = subprocess.run(
        [*before, *ZMQRL, *words],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WAIT_S,
    )
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def colleague(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run; a test copies it."""
    folder = tmp_path_factory.mktemp("colleague")
    code, output = command(folder, [*RUN, "--run-dir", "run"])
    assert code == DONE, output
    return folder / "run"


# Limits of containers


def hosts_file(folder: Path, text: str) -> Path:
    path = folder / "hosts.yaml"
    path.write_text(text)
    return path


def in_groups(*groups: Path) -> Sequence[str]:
    """Begins a command in these cgroups."""
    enter = "; ".join(f"echo $$ > {group}/cgroup.procs" for group in groups)
    return "sh", "-c", f'{enter}; exec "$@"', "sh"


def examined(folder: Path, file: Path, *before: str) -> tuple[Mapping[str, Any], str]:
    """What doctor measures on this machine, and the text of its findings."""
    _, output = command(folder, ["doctor", file, "--json"], *before)
    found = json.loads(output)
    return found["hosts"]["local"], json.dumps([*found["faults"], *found["warnings"]])


TWO_WORKERS = "run: {preset: cartpole-ppo}\nhosts: {local: {workers: 2}}\n"


@pytest.mark.parametrize(("cpus", "nested"), [(1.0, False), (1.5, True)])
def test_a_cpu_quota(tmp_path: Path, cpus: float, nested: bool) -> None:
    with group_or_skip("cpu", cpus=cpus, nested=nested) as group:
        found, findings = examined(tmp_path, hosts_file(tmp_path, TWO_WORKERS), *in_groups(group))
    assert found["machine"]["cores"] == 1 and "2 workers for 1 cores" in findings


LARGE = """
run: {preset: cartpole-dqn, mode: async, total_env_steps: 20000}
replay: {capacity: CAPACITY}
hosts: {local: {workers: 1}}
"""


@pytest.mark.parametrize(("limit_mb", "nested", "capacity"), [long(700, False, 20_000_000), (400, True, 12_000_000)])
def test_replay_that_a_memory_limit_does_not_allow(tmp_path: Path, limit_mb: int, nested: bool, capacity: int) -> None:
    """The limit is of the group of the command, or of the one above it."""
    file = hosts_file(tmp_path, LARGE.replace("CAPACITY", str(capacity)))
    with group_or_skip("memory", nbytes=limit_mb * MB, nested=nested) as group:
        found, findings = examined(tmp_path, file, *in_groups(group))
        assert found["machine"]["available_bytes"] <= limit_mb * MB and "arena" in findings
        code, output = command(tmp_path, ["launch", file, "--run-dir", "run"], *in_groups(group))
    assert code == REFUSED and "lower replay.capacity" in output, output
    assert "Traceback" not in output


@pytest.mark.parametrize(("reads", "nested"), [long(1, False), (3, True)])
def test_cache_of_files_is_available_memory(tmp_path: Path, reads: int, nested: bool) -> None:
    """In a container, which sees its own part of the tree, and in a job; a file read often is active cache."""
    big = tmp_path / "big.bin"
    big.write_bytes(bytes(250 * MB))
    subprocess.run(["sync", big], check=True)
    subprocess.run(["dd", f"if={big}", "iflag=nocache", "count=0"], check=True, capture_output=True)
    with group_or_skip("memory", nbytes=300 * MB, nested=nested) as group:
        for _ in range(reads):
            subprocess.run([*in_groups(group), "cat", big], stdout=subprocess.DEVNULL, check=True)
        assert int(group.joinpath("memory.usage_in_bytes").read_text()) > 200 * MB
        mount = f"mount --bind {group} {group.parent}"
        container = () if nested else ("unshare", "-m", "sh", "-c", f'{mount}; exec "$@"', "sh")
        found, _ = examined(tmp_path, hosts_file(tmp_path, TWO_WORKERS), *in_groups(group), *container)
    assert found["machine"]["available_bytes"] > 150 * MB


@contextmanager
def few_inodes(folder: Path, count: int) -> Iterator[Path]:
    """A tmpfs with room for `count` files, and 200 MB."""
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size=200m,nr_inodes={count}", "none", disk]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def fill(disk: Path) -> list[Path]:
    made = []
    try:
        while True:
            made.append(disk / f"f{len(made)}")
            made[-1].touch()
    except OSError:
        made.pop()
    return made


def test_a_disk_without_inodes_before_the_run(tmp_path: Path) -> None:
    with few_inodes(tmp_path, 60) as disk:
        file = hosts_file(disk, TWO_WORKERS)
        found, findings = examined(disk, file)
        assert found["folders"]["workdir"]["free_inodes"] < 60 and "df -i" in findings
        fill(disk)
        code, output = command(disk, ["train", "cartpole-ppo", "--run-dir", "run"])
    assert code == REFUSED and "inodes" in output and f"df -i {disk}" in output, output


@pytest.mark.long
def test_a_disk_without_inodes_in_mid_run(tmp_path: Path) -> None:
    words = [*ZMQRL, "train", "cartpole-ppo", *ENDLESS, "--set", "run.checkpoint_every_s=1", "--run-dir", "run"]
    log = tmp_path / "log"
    with (
        few_inodes(tmp_path, 120) as disk,
        log.open("w") as out,
        subprocess.Popen(words, cwd=disk, env=environment(), stdout=out, stderr=out) as launcher,
    ):
        try:
            until(lambda: list(disk.glob("run/checkpoints/full-*.safetensors")), "a full checkpoint")
            made: list[Path] = []
            until(lambda: made.extend(fill(disk)) or "inodes free" in log.read_text(), log.read_text, every_s=0.1)
            for path in made:
                path.unlink(missing_ok=True)
            code, _ = command(disk, ["stop", "run", "--wait"])
            launcher.wait(WAIT_S)
        finally:
            launcher.kill()
    output = log.read_text()
    assert (code, launcher.returncode) == (DONE, DONE), output
    assert "MB and 0 inodes free: delete files" in output and f"df -i {disk}" in output, output


# Batch systems

OF_A_JOB = {
    "export": {"SLURM_EXPORT_ENV": "NONE"},
    "label": {"SLURM_LABELIO": "1"},
    "stdout": {"SLURM_STDOUTMODE": "/dev/null"},
    "memory": {"SLURM_MEM_PER_NODE": "512", "SLURM_MEM_PER_CPU": "100"},
    "tasks": {"SLURM_NTASKS_PER_NODE": "4", "SLURM_NTASKS": "8", "SLURM_NNODES": "2", "SLURM_CPUS_PER_TASK": "4"},
    "format": {"SQUEUE_FORMAT": "%i", "SQUEUE_STATES": "PENDING", "SQUEUE_USERS": "nobody", "SINFO_FORMAT": "%N"},
    "partition": {"SLURM_PARTITION": "nosuch", "SLURM_TIMELIMIT": "1", "SLURM_EXCLUSIVE": "user"},
}
"""What jobs leave in the environment of the processes in them."""
NODES = """
run: {preset: cartpole-ppo, total_env_steps: 3000, stop_at_return: null}
orchestrator: {kind: slurm}
hosts: {n1: {workers: 1}, n2: {workers: 1}}
learner: {host: n1}
limits: {start_s: 60}
evaluator: {episodes: 0}
algorithm: {kind: "zmqrl.bench.noop:NoUpdate"}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with slurm_or_skip(2) as cluster:
        yield cluster


def launched(cluster: Slurm, folder: Path, variables: Mapping[str, str], *before: str) -> None:
    words = [*before, *ZMQRL, "launch", hosts_file(folder, NODES), "--run-dir", "run"]
    done = subprocess.run(
        words, cwd=folder, env=cluster.environment(variables), capture_output=True, text=True, timeout=RUN_S
    )
    assert done.returncode == DONE, done.stdout + done.stderr
    assert "0 left" in done.stdout and json.loads((folder / "run" / "summary.json").read_text())["ledger"]["balanced"]
    is_preferred = "SLURM_PARTITION" in variables
    assert ("SLURM_PARTITION is not used; set orchestrator.partition" in done.stdout + done.stderr) == is_preferred


def test_variables_of_an_outer_job(cluster: Slurm, tmp_path: Path) -> None:
    launched(cluster, tmp_path, {name: value for kind in OF_A_JOB.values() for name, value in kind.items()})


@pytest.mark.long
@pytest.mark.parametrize("kind", OF_A_JOB)
def test_variables_of_one_kind(cluster: Slurm, tmp_path: Path, kind: str) -> None:
    launched(cluster, tmp_path, OF_A_JOB[kind])


def test_in_a_job_of_its_own_options(cluster: Slurm, tmp_path: Path) -> None:
    """`salloc` and `srun` set the variables themselves, and the step that zmqrl runs in exports nothing further."""
    allocation = ("salloc", "-N2", "--ntasks-per-node=2", "--mem-per-cpu=100", "env")
    launched(cluster, tmp_path, {}, *allocation, "SLURM_EXPORT_ENV=NONE", "SLURM_LABELIO=1", "SQUEUE_STATES=PENDING")


# ssh_config

SSHD = """
Port {port}
{addresses}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PidFile none
Subsystem sftp internal-sftp
"""
TOKENS = {
    "alias": "%d/.ssh/%r@%k.key",
    "variable": "${KEYS}/of_variable",
    "user": "~/.ssh/%u_%i_%L_%n",
    "connection": "~/.ssh/c-%C",
}


@pytest.fixture
def home_ssh(tmp_path: Path) -> Iterator[Path]:
    """A folder that is ~/.ssh in `in_home`: its configuration has a host for each of `TOKENS`, on an sshd here."""
    if os.geteuid() or not all(map(shutil.which, ("sshd", "ssh"))):
        pytest.skip("an sshd with another ~/.ssh needs root and openssh-server (bin/lab-setup)")
    home, server = tmp_path / "ssh", tmp_path / "sshd"
    for folder in (home, server):
        folder.mkdir(mode=0o700)
    for key in (server / "host_key", server / "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    Path("/run/sshd").mkdir(exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    addresses = {name: f"127.0.0.{number}" for number, name in enumerate(TOKENS, start=1)}
    listen = "\n".join(f"ListenAddress {address}" for address in addresses.values())
    (server / "config").write_text(SSHD.format(port=port, folder=server, addresses=listen))
    common = f"Port {port}\n User root\n HostKeyAlias lab\n IdentitiesOnly yes\n UserKnownHostsFile ~/.ssh/known_%k"
    hosts = [
        f"Host {name}\n HostName {addresses[name]}\n {common}\n IdentityFile {path}\n" for name, path in TOKENS.items()
    ]
    (home / "config").write_text("\n".join(hosts))
    host_key = " ".join((server / "host_key.pub").read_text().split()[:2])
    (home / "known_lab").write_text(f"lab {host_key}\n")
    with subprocess.Popen([shutil.which("sshd") or "", "-D", "-f", server / "config"]) as sshd:
        try:
            for name, path in TOKENS.items():
                shutil.copy(server / "key", home / Path(expanded(home, name, path)).name)
            yield home
        finally:
            sshd.terminate()


def in_home(home: Path) -> Sequence[str]:
    """Begins a command whose user has this ~/.ssh; `KEYS` is its path."""
    real = Path("~/.ssh").expanduser()
    real.mkdir(mode=0o700, exist_ok=True)
    return "unshare", "-m", "sh", "-c", f'mount --bind {home} {real}; KEYS={real} exec "$@"', "sh"


def expanded(home: Path, host: str, path: str) -> str:
    """By the ssh client, which does it for this option in the output of `ssh -G`."""
    asked = [*in_home(home), "ssh", "-G", "-o", f"ControlPath={path}", host]
    lines = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    return next(line.partition(" ")[2] for line in lines if line.startswith("controlpath "))


@pytest.mark.parametrize("client", ["paramiko", long("openssh")])
def test_keys_named_by_tokens_and_variables(home_ssh: Path, tmp_path: Path, client: str) -> None:
    host = f"{{workers: 1, python: {sys.executable}, workdir: {tmp_path}/wd, env: {{PYTHONPATH: {ROOT}}}}}"
    hosts = "".join(f"  {name}: {host}\n" for name in TOKENS)
    file = hosts_file(tmp_path, f"run: {{preset: cartpole-ppo}}\nssh: {{client: {client}}}\nhosts:\n{hosts}")
    _, output = command(tmp_path, ["doctor", file, "--json", "--limit", ",".join(TOKENS)], *in_home(home_ssh))
    found = json.loads(output)
    assert {name: found["hosts"][name]["failure"] for name in TOKENS} == dict.fromkeys(TOKENS), output


def test_a_variable_of_ssh_config_that_is_not_set(home_ssh: Path, tmp_path: Path) -> None:
    file = hosts_file(tmp_path, "run: {preset: cartpole-ppo}\nhosts: {local: {}, variable: {}}")
    _, output = command(tmp_path, ["doctor", file, "--plain"], *in_home(home_ssh), "env", "-u", "KEYS")
    assert "${KEYS}" in output and "not set" in output, output


def test_merge_keys_of_yaml(tmp_path: Path) -> None:
    text = "x: &node {workers: 1}\nhosts:\n  node1: *node\n  node2:\n    <<: *node\n    workers: 2\n"
    code, output = command(tmp_path, ["launch", hosts_file(tmp_path, text), "--dry-run"])
    assert code == REFUSED and "hosts.yaml:5: merge keys" in output and "defaults" in output, output


# Addresses and silence


@pytest.fixture
def lab() -> Iterator[Lab]:
    with lab_or_skip(3, isolated=True) as lab:
        yield lab


def on_lab(lab: Lab, mode: str, **b: Any) -> dict[str, Any]:
    return {
        "run": {"mode": mode, "total_env_steps": 100_000_000, "stop_at_return": None, "preset": "cartpole-ppo"},
        "env": {"vector_envs": 4, "num_envs": 2, "segment_steps": 16},
        "algorithm": dict(WAITING_TALLY),
        "evaluator": {"episodes": 0},
        "hosts": {"local": {}, "a": lab.hosts[1].hosts_yaml(workers=1), "b": lab.hosts[2].hosts_yaml(workers=1, **b)},
    }


def renumber(lab: Lab, index: int, address: str) -> None:
    """The host has this address in place of its own; its new one is on the wire at once."""
    network = lab.hosts[index].network
    assert network is not None
    links = json.loads(subprocess.run(network.command(["ip", "-j", "addr"]), capture_output=True, check=True).stdout)
    old = lab.hosts[index].address
    name = next(link["ifname"] for link in links for own in link["addr_info"] if own["local"] == old)
    for words in (["del", f"{old}/24"], ["add", f"{address}/24"]):
        subprocess.run(network.command(["ip", "addr", *words, "dev", name]), check=True)


@pytest.mark.long
@pytest.mark.parametrize(("mode", "tunnel"), [("sync", False), ("async", True)])
def test_another_address_of_the_learners_machine(lab: Lab, mode: str, tunnel: bool) -> None:
    run = FarRun(lab, mode, on_lab(lab, mode, tunnel=tunnel))
    try:
        run.wait_for_steps(300)  # of either host
        until(lambda: all(run.host(name).get("state") == "ready" for name in "ab"), lambda: str(run.status()["hosts"]))
        renumber(lab, 0, "10.77.0.110")
        changed, seen = time.monotonic(), set()
        until(lambda: seen.add(run.host("a")["state"]) or {"lost", "connecting"} & seen, lambda: seen)
        noticed_s = time.monotonic() - changed
        until(lambda: all(run.host(name).get("state") == "ready" for name in "ab"), lambda: str(run.status()["hosts"]))
        steps, problems = run.status()["env_steps"], str(run.status()["problems"])
        run.wait_for_steps(steps + 100)
        stood_s = time.monotonic() - changed
        assert run.command("stop", str(run.run_dir))[0] == 0
        code, out, err = run.end()
        summary = run.summary()
    finally:
        run.close()
    assert "the address of this machine has changed: 10.77.0.10 -> 10.77.0.110" in problems
    assert code == DONE and summary["ledger"]["balanced"] and "0 left" in out, out + err
    assert noticed_s < scaled_s(5.0) and stood_s < scaled_s(20.0), (noticed_s, stood_s)


def test_a_host_without_messages_is_shown_as_silent(lab: Lab) -> None:
    run = FarRun(lab, "silent", on_lab(lab, "async"))
    try:
        run.wait_for_steps(100)  # of either host
        until(lambda: run.host("b").get("state") == "ready", lambda: str(run.host("b")))
        lab.link(2, up=False)
        until(lambda: run.host("b")["state"] == "silent", lambda: str(run.host("b")))
        assert run.host("b")["last_s"] >= 5.0 and run.host("a")["state"] == "ready"
        lab.link(2, up=True)
        until(lambda: run.host("b")["state"] == "ready", lambda: str(run.host("b")))
    finally:
        run.close()


# Other runs on the same machine

FIXED_PORT = """
run: {preset: cartpole-ppo}
algorithm: {kind: "zmqrl.bench.noop:NoUpdate"}
hosts: {local: {workers: 1}, a: {workers: 1, manual: true}}
learner: {address: 127.0.0.1, port: PORT}
min_workers: 1
"""


def test_the_holder_of_a_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file = hosts_file(tmp_path, FIXED_PORT.replace("PORT", str(port)))
        code, output = command(tmp_path, ["launch", file, "--plain", "--run-dir", "run"])
    assert code == REFUSED and f"learner.port: {port}: cannot bind this port of *" in output, output
    assert f"by pid {os.getpid()} (" in output and "Traceback" not in output, output


@pytest.fixture(scope="module")
def hanging() -> Iterator[Lab]:
    """Host 1 is logged into, and executes no command."""
    with lab_or_skip(2, isolated=True) as lab:
        lab.hosts[1].kill_sshd()
        lab.hosts[1].start_sshd({"ForceCommand": "exec sleep 1000"})
        yield lab


def kill_hanging(lab: Lab) -> None:
    """What sshd leaves of a command whose connection was closed."""
    for process in lab.hosts[1].processes("sleep"):
        os.kill(process.pid, signal.SIGKILL)


def on_laptop(lab: Lab, *words: str | Path, folder: Path | None = None) -> tuple[int, str, float]:
    """Exit code and output of `zmqrl WORDS` on the lab's laptop, and how long it took."""
    began = time.monotonic()
    process = lab.run_here(
        [*ZMQRL, *map(str, words)],
        cwd=folder or lab.folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output, _ = process.communicate(timeout=WAIT_S)
    return process.returncode, output, time.monotonic() - began


@pytest.mark.parametrize("words", [["down", "run", "--limit", "h1"], long(["setup", "hosts.yaml"])])
def test_a_host_that_hangs_is_named_as_by_doctor(hanging: Lab, tmp_path: Path, words: Sequence[str]) -> None:
    hosts_file(tmp_path, yaml.safe_dump({"hosts": {"a": hanging.hosts[1].hosts_yaml(workers=1)}}))
    run_directory(tmp_path, hanging)
    try:
        code, output, took_s = on_laptop(hanging, *words, folder=tmp_path)
    finally:
        kill_hanging(hanging)
    assert code in (REFUSED, LEFT) and "connected, but no answer within 8 s" in output, output
    assert "start-up file that waits" in output and took_s < scaled_s(14.0), output


def test_a_run_on_a_host_whose_hosts_file_was_not_read(tmp_path: Path) -> None:
    """Its Python is not the default one: nothing has to be installed there."""
    with lab_or_skip(2, isolated=True) as lab:
        for words in (["status"], ["fetch", "run"]):
            code, output, _ = on_laptop(lab, *words, "--on", "h1", folder=tmp_path)
            assert code == REFUSED and "--hosts FILE" in output and "zmqrl setup" not in output, output


@contextmanager
def started_elsewhere(workers: int) -> Iterator[str]:
    """A live run of this account in the register of this machine, started by another user on another machine."""
    with subprocess.Popen(["sleep", "600"]) as agent:
        found = identify(agent.pid)
        assert found is not None
        entry = Entry(
            "other-4cada9", agent.pid, found.start_time, "rl", os.getuid(), time.time(), workers, "a", "ben@desk"
        )
        register = HostLock()
        try:
            register.acquire(entry, "ignored")
            yield entry.run_id
        finally:
            register.release(entry)
            agent.kill()


def test_another_run_of_a_shared_account_is_left_to_who_started_it(tmp_path: Path) -> None:
    with started_elsewhere(3) as run_id:
        _, findings = examined(tmp_path, hosts_file(tmp_path, TWO_WORKERS))
    assert run_id in findings and "ask ben@desk" in findings and f"down {run_id}" not in findings


# The process that starts zmqrl


def inherit(kinds: str) -> Sequence[str | Path]:
    return sys.executable, FILES / "inherit.py", kinds


@pytest.mark.parametrize("kinds", ["sigchld", "ignore,block,umask,close012"])
def test_an_inherited_state_does_not_change_the_check_of_the_env(tmp_path: Path, kinds: str) -> None:
    code, output = command(tmp_path, ["train", "cartpole-ppo", "--dry-run"], *inherit(kinds))
    assert code == DONE, output


@pytest.mark.parametrize(
    ("kinds", "number", "code"),
    [("blockterm", signal.SIGUSR1, DONE), long("ignore,block", signal.SIGTERM, INTERRUPTED)],
)
def test_a_run_with_inherited_signals_ends_by_a_signal(tmp_path: Path, kinds: str, number: int, code: int) -> None:
    train = [*inherit(kinds), *ZMQRL, "train", "cartpole-ppo", *ENDLESS, "--plain", "--run-dir", "run"]
    with subprocess.Popen(train, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as launcher:
        try:
            until((tmp_path / "run" / "status.json").exists, "status.json")
            launcher.send_signal(number)
            output, _ = launcher.communicate(timeout=WAIT_S)
        finally:
            launcher.kill()
    assert launcher.returncode == code, output
    assert "killed" not in output and "0 left" in output, "each process ended by SIGTERM"
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["exit_code"] == code


@pytest.mark.parametrize("kinds", ["gone", "moved"])
@pytest.mark.parametrize("words", [["status"], ["presets"]])
def test_a_working_directory_that_was_removed(tmp_path: Path, kinds: str, words: Sequence[str]) -> None:
    code, output = command(tmp_path, words, *inherit(kinds))
    assert code == REFUSED and len(output.splitlines()) == 1 and "working directory" in output, output


# Other pid namespaces

CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
"""As `docker --network host`, `apptainer --pid`: pids of its own, and the name of its host."""
NO_CONTAINER = subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).stderr.decode()
needs_container = pytest.mark.skipif(NO_CONTAINER != "", reason=f"a pid namespace needs root: {NO_CONTAINER}")


@contextmanager
def training(folder: Path, *before: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run without an end in `folder`/run, started by the command `before`."""
    train = [*before, *ZMQRL, "train", "cartpole-ppo", *ENDLESS, "--plain", "--run-dir", "run"]
    with open(folder / "log", "wb") as log, subprocess.Popen(train, cwd=folder, env=environment(), stdout=log) as run:
        try:
            until(lambda: env_steps(folder) > 0, lambda: (folder / "log").read_text())
            yield run
        finally:
            if run.poll() is None:
                os.kill(children_of(run.pid)[0].pid if before else run.pid, signal.SIGTERM)
            run.wait(WAIT_S)


def env_steps(folder: Path) -> int:
    """Of the run in `folder`, as its launcher reports them; 0 before the first report."""
    try:
        return int(json.loads((folder / "run" / "status.json").read_text())["env_steps"])
    except (FileNotFoundError, json.JSONDecodeError):
        return 0


def goes_on(folder: Path) -> bool:
    """The run is not marked as ended, has its sockets and trains."""
    info = json.loads((folder / "run" / "run.json").read_text())
    assert info["ended_at"] is None and any(private_folder(info["run_id"]).iterdir())
    before = env_steps(folder)
    return bool(until(lambda: env_steps(folder) > before, "further env steps"))


@needs_container
def test_a_run_in_a_container(tmp_path: Path) -> None:
    with training(tmp_path, *CONTAINER):
        code, output = command(tmp_path, ["status", "run"])
        assert code == DONE and "env steps in" in output, output
        code, output = command(tmp_path, ["stop", "run"])
        assert code == REFUSED and "is running in another pid namespace" in output, output
        code, output = command(tmp_path, ["down", "run"])
        assert code == LEFT and output.count("NOT VERIFIED: it runs in another pid namespace") == 2, output
        code, output = command(tmp_path, ["clean", json.loads((tmp_path / "run" / "run.json").read_text())["run_id"]])
        assert code == DONE and "not removed" in output, output
        assert goes_on(tmp_path)
        live = read_info(tmp_path / "run")
        assert live is not None
        with raises(ConfigError, what="is the directory of a live run"):
            _copy_of(tmp_path / "run", live.lineage or live.run_id)


@pytest.mark.long
@needs_container
def test_a_container_that_was_killed(tmp_path: Path) -> None:
    if os.readlink("/proc/self/ns/pid") != OF_MACHINE:
        pytest.skip("in a container itself, this test does not see what ends in another one")
    with training(tmp_path, *CONTAINER) as run:
        run.kill()
        run.wait(WAIT_S)
        code, output = command(tmp_path, ["status", "run"])
        assert code == DONE and "ended without a summary" in output, output
        code, output = command(tmp_path, ["down", "run"])
        assert code == DONE and "NOT VERIFIED" not in output, output
    info = read_info(tmp_path / "run")
    assert info is not None and info.ended_at is not None and not private_folder(info.run_id).exists()


@pytest.mark.long
@needs_container
def test_commands_in_a_container_for_a_run_outside_of_it_that_is_halted(tmp_path: Path) -> None:
    with training(tmp_path) as launcher:
        launcher.send_signal(signal.SIGSTOP)
        try:
            code, output = command(tmp_path, ["status", "run"], *CONTAINER)
            assert code == DONE and "unknown whether it has ended" in output, output
            code, output = command(tmp_path, ["stop", "run"], *CONTAINER)
            assert code == REFUSED and "may be running in another pid namespace" in output, output
            code, output = command(tmp_path, ["down", "run"], *CONTAINER)
            assert code == LEFT and output.count("NOT VERIFIED: it may run in another pid namespace") == 2, output
        finally:
            launcher.send_signal(signal.SIGCONT)
        assert goes_on(tmp_path)


# The working directory

NAMES = ("random", "queue", "select", "secrets", "logging", "string", "statistics", "types", "platform", "token")
"""Of modules of Python; a student gives them to files, too."""
STRANGERS = ("msgspec", "yaml", "numpy", "torch", "click", "contextlib", "functools", "warnings")
"""What another user may put into /tmp."""
POLE = """
import gymnasium


class Pole(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
"""


def script(folder: Path, *words: str) -> tuple[int, str]:
    """The command `zmqrl` as it is installed, not `python -m`, which puts the directory first by itself."""
    zmqrl = Path(sys.executable).with_name("zmqrl")
    done = subprocess.run([zmqrl, *words], cwd=folder, env=environment(), capture_output=True, text=True, timeout=RUN_S)
    return done.returncode, done.stdout + done.stderr


def test_files_with_names_of_standard_modules(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("x = 1\n")
    code, output = script(tmp_path, "train", "cartpole-ppo", "--dry-run")
    assert code == DONE, output
    for name in NAMES:
        if name != "types":  # Python itself imports it before zmqrl begins
            (tmp_path / "only").mkdir(exist_ok=True)
            shutil.copy(tmp_path / f"{name}.py", tmp_path / "only")
    code, output = command(tmp_path / "only", ["presets"])
    assert code == DONE, output


def test_files_of_another_user_next_to_an_own_env(tmp_path: Path) -> None:
    """In the command, the check process, the agent and what it starts."""
    for name in STRANGERS:
        (tmp_path / f"{name}.py").write_text("import os\n\nos._exit(77)\n")
    (tmp_path / "pole.py").write_text(POLE)
    sets = ("run.total_env_steps=300", "evaluator.episodes=1", "learner.executor=eager")
    words = ["--env", "pole:Pole", "--algo", "ppo", "--mode", "sync", "--workers", "1", "--plain"]
    code, output = script(tmp_path, "train", *words, *(word for each in sets for word in ("--set", each)))
    assert code == DONE and "0 left" in output, output


def test_an_env_whose_file_has_the_name_of_a_module(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text(POLE)
    code, output = script(tmp_path, "train", "--env", "queue:Pole", "--algo", "ppo", "--dry-run")
    assert code == REFUSED and "hides queue.py; rename the file" in output, output


# Secrets and foreign text

SECRET = "https://hooks.example.com/services/T0/SECRETTOKEN"
SUBMITTED = "run: {preset: cartpole-ppo}\norchestrator: {kind: slurm}\nhosts: {local: {workers: 1}}\n"


def hidden(folder: Path, words: Sequence[str | Path], file: Path, **sets: str) -> None:
    """The command refuses a webhook with its secret, and writes `file` for its user alone."""
    (folder / "sbatch").write_text("#!/bin/sh\necho 4242\n")
    (folder / "sbatch").chmod(0o755)
    env = {"PATH": f"{folder}:{os.environ['PATH']}", "XDG_CONFIG_HOME": str(folder / "config"), "HOOK": SECRET}
    begin = ("env", *(f"{name}={value}" for name, value in env.items()))
    code, output = command(folder, [*words, "--set", f"webhook={SECRET}"], *begin)
    assert code == REFUSED and "$NAME" in output and "SECRETTOKEN" not in output, output
    assert not any("SECRETTOKEN" in path.read_text() for path in folder.rglob("*") if path.is_file())
    overrides = [word for key, value in {"webhook": "$HOOK", **sets}.items() for word in ("--set", f"{key}={value}")]
    code, output = command(folder, [*words, *overrides], *begin)
    assert code == DONE and "SECRETTOKEN" not in output.replace(sets.get("on_end", "-"), ""), output
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_webhook_in_the_script_of_a_job(tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text(SUBMITTED)
    hidden(tmp_path, ["launch", "hosts.yaml", "--submit", "--run-dir", "run"], tmp_path / "run" / "job.sh")


def test_a_webhook_and_a_secret_of_on_end_in_a_unit(tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text("run: {preset: cartpole-ppo}\nhosts: {local: {workers: 1}}\n")
    unit = tmp_path / "config" / "systemd" / "user" / "zmqrl-pole.service"
    words = ["install-unit", "hosts.yaml", "--name", "pole", "--run-dir", "run"]
    hidden(tmp_path, words, unit, on_end=f"curl {SECRET}")


TERMINAL = "\x1b]0;OWNED\x07\x1b[2J\x1b]52;c;ZXZpbA==\x07"


@pytest.mark.parametrize("file", ["logs/local-agent-0.log", "logs/a\x1b[2J.log", "summary.json"])
def test_control_characters_of_a_run(tmp_path: Path, colleague: Path, file: str) -> None:
    """Of a line of a log, of the name of a log, and of the status of a run."""
    shutil.copytree(colleague, tmp_path / "run")
    path, status = tmp_path / "run" / file, f"failed {TERMINAL}"
    if path.suffix == ".json":
        path.write_text(json.dumps({**json.loads(path.read_text()), "status": status}))
    else:
        path.write_text(f"{status}\n")
    code, output = command(tmp_path, ["status" if path.suffix == ".json" else "logs", "run"])
    assert code == DONE and r"\x1b" in output and "\x1b" not in output and "\x07" not in output, output


def checkpoint(arrays: str, metadata: str = "") -> bytes:
    """A file of one whose digest fits: anyone can make it."""
    header = '{"__metadata__":{"sha256":"' + "0" * 64 + f'","version":"0-9"{metadata}}},{arrays}}}'
    content = len(header).to_bytes(8, "little") + header.encode() + b"\0" * 4
    return content.replace(b"0" * 64, hashlib.sha256(content).hexdigest().encode(), 1)


ENTRY = '"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'


@pytest.mark.parametrize(
    "content",
    [
        checkpoint('"a":' + "[" * 100_000 + "]" * 100_000),
        checkpoint(ENTRY.replace("[1]", "[1e999]")),
        checkpoint(ENTRY, ',"env_steps":1e999'),
    ],
    ids=["nested", "infinite", "infinite-metadata"],
)
def test_a_checkpoint_that_does_not_fit_its_header(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "v0-9.safetensors").write_bytes(content)
    code, output = command(tmp_path, ["train", "cartpole-ppo", "--init-from", "v0-9.safetensors", "--dry-run"])
    assert code == REFUSED and len(output.splitlines()) == 1, output


def test_a_null_character(tmp_path: Path) -> None:
    for text in ('store: {path: "a\\0b"}', 'on_end: "true \\0"'):
        (tmp_path / "nul.yaml").write_text(f"run: {{preset: cartpole-ppo}}\n{text}\n")
        code, output = command(tmp_path, ["train", "./nul.yaml", "--dry-run"])
        assert code == REFUSED and "nul.yaml:2" in output and "null character" in output, output


@pytest.mark.long
def test_a_mirror_after_from_scratch_has_the_new_training_only(tmp_path: Path) -> None:
    mirror = ("--set", f"store.mirror=file://{tmp_path}/mirror", "--set", "store.keep_every=256")
    assert command(tmp_path, [*RUN, *mirror, "--run-dir", "run"])[0] == DONE
    (there,) = (tmp_path / "mirror").iterdir()
    assert [*there.glob("kept-*")]
    for path in (tmp_path / "run" / "checkpoints").glob("full-*"):
        path.unlink()
    again = ["train", "--resume", "run", "--from-scratch", "--plain", "--set", "run.total_env_steps=300"]
    code, output = command(tmp_path, again)
    assert code == DONE, output
    here = {path.name: path.read_bytes() for path in (tmp_path / "run" / "checkpoints").glob("*.safetensors")}
    left = {path.name: path.read_bytes() for path in there.glob("*.safetensors")}
    assert left.items() <= here.items(), (sorted(left), sorted(here))


# Paths


@dataclass(frozen=True)
class Outcome:
    """What became of one command of `all_commands.py`."""

    words: list[str]
    code: object
    output: str
    raised: str


def outcomes(folder: Path, bad: Path, finished: Path) -> list[Outcome]:
    (folder / "hosts.yaml").write_text("run: {preset: cartpole-ppo}\nhosts: {local: {workers: 1}}\n")
    env = environment({"HOME": str(folder), "ZMQRL_RUNTIME_DIR": str(folder / "runtime")})
    done = subprocess.run(
        [sys.executable, "-m", "tests.machine_inputs.all_commands", bad, finished],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    return [Outcome(**json.loads(line)) for line in done.stdout.splitlines()]


NOT_REACHED = ("setup hosts.yaml", "apply BAD")
"""Without a host or a run the path is not used."""


def refused_in_one_line(found: list[Outcome], bad: Path, error: int) -> None:
    """Each command ended with one message, which names what the file system answered."""
    odd = [each for each in found if each.raised or each.code != REFUSED or len(each.output.splitlines()) != 1]
    assert not odd, odd
    silent = [each for each in found if os.strerror(error) not in each.output]
    words = [" ".join(each.words).replace(str(bad), "BAD") for each in silent]
    assert [each for each in words if not each.startswith(NOT_REACHED)] == []


def test_the_paths_of_every_command_are_tried() -> None:
    """A new command, or a new value of one, is a path for `all_commands.py` or listed here."""
    values = (
        *("overrides", "mode", "workers", "seed", "seeds", "for_env_steps", "limit", "on", "env", "algo", "user"),
        *("who", "lines", "grep", "wait_s", "ids", "name", "episodes", "checkpoint", "most_steps", "metrics", "smooth"),
        *("entry", "form", "repeats", "scenario", "for_s", "faults", "only", "at_least", "plant", "shell", "env_limit"),
        *("named", "extras", "states", "since_s", "port", "service", "project", "retry_s", "axes", "after"),
        "directory",  # of fetch, which needs another machine
        "folder",  # of a queue: tried by `queue list`
    )
    for name in (*main.COMMANDS, *main.INTERNAL):
        found = main.cli.get_command(click.Context(main.cli), name)
        assert found is not None
        given = [word for call in all_commands.COMMANDS[name] for word in call] if name in main.COMMANDS else [READ]
        for value in found.params:
            if (value.name or "") in values or getattr(value, "is_flag", False):
                continue
            is_tried = not set(value.opts).isdisjoint(given) or (isinstance(value, click.Argument) and READ in given)
            assert is_tried, f"zmqrl {name}: {value.name}"


def test_a_directory_that_may_not_be_entered(tmp_path: Path, colleague: Path) -> None:
    locked = tmp_path / "locked"
    (locked / "run").mkdir(parents=True)
    locked.chmod(0)
    try:
        refused_in_one_line(outcomes(tmp_path, Path("locked/run"), colleague), Path("locked/run"), errno.EACCES)
    finally:
        locked.chmod(0o700)


def test_a_name_that_is_too_long(tmp_path: Path, colleague: Path) -> None:
    refused_in_one_line(outcomes(tmp_path, Path("n" * 300), colleague), Path("n" * 300), errno.ENAMETOOLONG)


@pytest.mark.long
def test_a_circle_of_links(tmp_path: Path, colleague: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    found = outcomes(tmp_path, Path("a"), colleague)
    empty = ["clean"], ["down", "--all"]
    odd = [each for each in found if each.raised or (each.code != REFUSED and each.words not in empty)]
    assert not odd, odd


def test_a_mount_whose_server_is_dead(tmp_path: Path, colleague: Path) -> None:
    mount = tmp_path / "mount"
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(dead_mount(mount))
        except OSError as error:
            pytest.skip(f"a FUSE mount needs root and /dev/fuse: {error}")
        refused_in_one_line(outcomes(tmp_path, Path("mount/run"), colleague), Path("mount/run"), errno.ENOTCONN)


@pytest.mark.parametrize(
    ("closed", "words", "code", "prints", "hides"),
    [
        (
            "logs/local-learner-0.log",
            ["logs"],
            DONE,
            ["local/agent-0: ", "local-learner-0.log cannot be read"],
            "no log",
        ),
        ("logs", ["logs"], REFUSED, ["logs cannot be used: Permission denied"], "no logs"),
        ("metrics.jsonl", ["plot"], REFUSED, ["metrics.jsonl cannot be used: Permission denied"], "Traceback"),
        ("summary.json", ["status"], DONE, ["ended; how is unknown", "summary.json cannot be read"], "resume"),
        ("status.json", ["status"], DONE, ["done with exit code 0"], "resume"),
        ("checkpoints", ["eval"], 1, ["Permission denied"], "Traceback"),
    ],
)
def test_a_file_of_another_user(
    tmp_path: Path, colleague: Path, closed: str, words: list[str], code: int, prints: list[str], hides: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(colleague, run)
    (run / closed).chmod(0)
    ended, output = command(tmp_path, [*words, "run"], sys.executable, "-m", "tests.machine_inputs.unprivileged")
    (run / closed).chmod(0o700)
    assert ended == code, output
    assert not [text for text in prints if text not in output] and hides not in output, output
