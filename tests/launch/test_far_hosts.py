"""Setup and code over real SSH: hosts of the lab, each with its own sshd, /tmp and network where the machine allows."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab import Lab, lab_or_skip
from tests.provision.setup_parts import ROOT, bundle
from tests.support.marks import long
from tests.support.raising import raises
from tests.support.running import RUN_S
from tests.support.waiting import WAIT_S, until
from tests.support.yardstick import within
from zmqrl.config.codec import replace
from zmqrl.config.sections import CodeSection, DefaultsSection, HostSection, SshSection
from zmqrl.errors import HostFailed
from zmqrl.provision.install import InstallBundle
from zmqrl.ssh.clients import make_client
from zmqrl.ssh.code_sync import CodeArchive, deliver, make_archive
from zmqrl.ssh.config import resolve
from zmqrl.ssh.connection import Connection

pytestmark = pytest.mark.whole
PIPES: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with lab_or_skip(2) as lab:
        yield lab


@pytest.fixture(scope="module")
def goods(tmp_path_factory: pytest.TempPathFactory) -> InstallBundle:
    return bundle(tmp_path_factory.mktemp("goods") / "wheels")


def inner_tmp(lab: Lab, index: int) -> str:
    """The host's /tmp as it sees it."""
    return "/tmp" if lab.isolated else str(lab.hosts[index].tmp)


@pytest.fixture
def connection(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    """To host 1, from beside host 0."""
    section = HostSection(**{**lab.hosts[1].hosts_yaml(), "env": {}})
    with lab.here():
        target = replace(resolve("h1", section, DefaultsSection()), known_hosts=(str(lab.known_hosts),))
        opened = make_client(SshSection()).open(target)
        yield opened
        opened.close()


@pytest.fixture
def code(tmp_path: Path) -> CodeArchive:
    (tmp_path / "far_walk").mkdir()
    (tmp_path / "far_walk" / "__init__.py").write_text("LEGS = 4\n")
    (tmp_path / "far_walk" / "mesh.bin").write_bytes(os.urandom(3_000_000))
    packed = make_archive(CodeSection(sync=(str(tmp_path / "far_walk"),)))
    assert packed is not None
    return packed


def test_code_is_sent_once_and_can_be_imported(lab: Lab, connection: Connection, code: CodeArchive) -> None:
    workdir = f"{inner_tmp(lab, 1)}/code lab"
    place = deliver(connection, code, workdir)
    assert place == f"{workdir}/code/{code.sha256}"
    output = connection.run(f"PYTHONPATH='{place}' {sys.executable} -c 'import far_walk; print(far_walk.LEGS)'", 20.0)
    assert (output.stdout, output.code) == (b"4\n", 0)
    seen = lab.hosts[1].tmp / "code lab" / "code"
    assert os.listdir(seen) == [code.sha256]
    before = (seen / code.sha256).stat()
    assert deliver(connection, replace(code, content=b"never sent"), workdir) == place
    assert (seen / code.sha256).stat().st_mtime_ns == before.st_mtime_ns
    assert before.st_mode & 0o077 == 0


def test_code_that_arrives_in_part_is_not_used(lab: Lab, connection: Connection, code: CodeArchive) -> None:
    workdir = f"{inner_tmp(lab, 1)}/cut"
    cause = f"the code of code.sync could not be unpacked below {workdir}: the archive arrived incomplete"
    with raises(HostFailed, host="h1", cause=cause):
        deliver(connection, replace(code, content=code.content[:-512]), workdir)
    assert os.listdir(lab.hosts[1].tmp / "cut" / "code") == []


def test_code_for_a_workdir_that_cannot_be(connection: Connection, code: CodeArchive) -> None:
    with raises(
        HostFailed,
        host="h1",
        cause="the code of code.sync could not be unpacked below /proc/none: mkdir: cannot create directory "
        "'/proc/none': No such file or directory",
    ) as failed:
        deliver(connection, code, "/proc/none")
    assert failed.value.fix.startswith("check: ssh ") and "set hosts.h1.workdir" in failed.value.fix


@pytest.mark.long
def test_setup_of_two_hosts_and_one_that_is_not_there(lab: Lab, goods: InstallBundle, tmp_path: Path) -> None:
    """One venv is there, empty; one host has a Python that is in no venv; nobody answers at the third.

    The first is set up behind a prologue and a wrap; the prologue of another fails.
    """
    ready = lab.hosts[0]
    done = ready.run(sys.executable, "-m", "venv", f"{inner_tmp(lab, 0)}/venv", timeout_s=RUN_S)
    assert done.returncode == 0, done.stderr
    hosts = {
        "h0": {
            **lab.hosts[0].hosts_yaml(),
            "python": f"{inner_tmp(lab, 0)}/venv/bin/python",
            "prologue": "echo loaded; WRAPPER=env; export WRAPPER; cat",
            "wrap": 'sh -c \'exec "$WRAPPER" "$@"\' sh',
        },
        "h2": {**lab.hosts[0].hosts_yaml(), "prologue": "echo no such module; false"},
        "h1": {**lab.hosts[1].hosts_yaml(), "python": os.path.realpath(sys.executable)},
        "h9": {**lab.hosts[1].hosts_yaml(), "port": 9},
        "away": {"manual": True},
    }
    hosts = lab.by_own_names(hosts)
    first = setup(lab, tmp_path, hosts, goods)
    assert first.returncode == 2
    assert first.stdout.startswith(f"h0: zmqrl {goods.wheel.version} in {inner_tmp(lab, 0)}/venv/bin/python (Python 3.")
    assert first.stdout.endswith(" s\n") and first.stdout.count("\n") == 1
    refused = {line.split(":")[0] for line in first.stderr.splitlines() if not line.startswith(" ")}
    assert refused == {"h1", "h2", "h9"}, first.stderr
    cause = "h2: hosts.h2.prologue failed with exit code 1: `echo no such module; false`; it printed: no such module\n"
    assert cause in first.stderr
    assert "is not in a venv; setup installs into venvs only" in first.stderr
    runs = ready.run(f"{inner_tmp(lab, 0)}/venv/bin/python", "-I", "-m", "zmqrl", "version", timeout_s=WAIT_S)
    assert (runs.returncode, runs.stdout) == (0, f"zmqrl, version {goods.wheel.version}\n"), runs.stderr
    again = setup(lab, tmp_path, hosts, goods, "--limit", "h0")
    assert (again.returncode, again.stderr) == (0, "")
    assert ", already installed, " in again.stdout


@pytest.mark.timed
@pytest.mark.parametrize("number", [signal.SIGINT, long(signal.SIGTERM)])
def test_an_interrupted_setup_ends_on_both_sides(lab: Lab, goods: InstallBundle, tmp_path: Path, number: int) -> None:
    """One host never gets its turn, another never answers."""
    (lab.hosts[1].tmp / "held").mkdir(exist_ok=True)
    hosts = {
        "h1": {**lab.hosts[1].hosts_yaml(), "python": f"{inner_tmp(lab, 1)}/held/venv/bin/python"},
        "h9": {**lab.hosts[1].hosts_yaml(), "ssh": "10.77.9.9" if lab.isolated else "127.0.0.1", "port": 9},
    }
    with (lab.hosts[1].tmp / "held" / "venv.setup-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with started(lab, tmp_path, hosts, goods, **PIPES) as running:
            until(lambda: lab.hosts[1].processes('"step": "install"'))
            with within(10.0):
                running.send_signal(number)
                out, err = running.communicate(timeout=WAIT_S)
        until(lambda: not lab.hosts[1].processes('"step": "install"'))
    assert (running.returncode, out) == (130, "")
    assert err.endswith("zmqrl: interrupted\n")
    assert os.listdir(lab.hosts[1].tmp / "zmqrl") == []
    assert os.listdir(lab.hosts[1].tmp / "held") == ["venv.setup-lock"]


def setup(
    lab: Lab, folder: Path, hosts: dict[str, Any], goods: InstallBundle, *more: str
) -> subprocess.CompletedProcess[str]:
    """`zmqrl setup` on the laptop."""
    with started(
        lab, folder, hosts, goods, *more, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        out, err = process.communicate(timeout=RUN_S)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def started(
    lab: Lab, folder: Path, hosts: dict[str, Any], goods: InstallBundle, *more: str, **popen: Any
) -> subprocess.Popen[str]:
    assert goods.wheels is not None
    (folder / "hosts.yaml").write_text(yaml.safe_dump({"ssh": {"connect_timeout_s": 20}, "hosts": hosts}))
    (folder / "pins.txt").write_bytes(goods.constraints)
    wheels = ["--wheels", str(goods.wheels[0].parent), "--constraints", "pins.txt"]
    command = [sys.executable, "-m", "zmqrl", "setup", "hosts.yaml", *wheels, *more]
    return lab.run_here(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, **popen)
