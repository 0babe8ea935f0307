"""The lab is what it says: otherwise tests that stand on it would prove nothing."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import Lab, lab_or_skip
from tests.support.running import environment
from tests.support.waiting import WAIT_S, until

pytestmark = pytest.mark.whole
PING_S = "0.6"
DIGEST = 'from zmqrl.acting.digest import acting_digests; print(acting_digests()["numpy"])'


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with lab_or_skip(3, isolated=True) as lab:
        yield lab


@pytest.fixture
def own_lab() -> Iterator[Lab]:
    """For tests that start hosts anew: what runs in them must be gone after the test."""
    with lab_or_skip(2, isolated=True) as lab:
        yield lab


def talks(lab: Lab, index: int) -> bool:
    """Whether host 0 gets sshd's greeting from a host."""
    with lab.here():
        try:
            with socket.create_connection((lab.hosts[index].address, lab.hosts[index].port), 0.6) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False


def ssh(lab: Lab, index: int, command: str) -> str:
    argv = ["ssh", "-F", str(lab.ssh_config), lab.hosts[index].name, command]
    with lab.run_here(argv, stdout=subprocess.PIPE, text=True) as client:
        return client.communicate(timeout=WAIT_S)[0].strip()


def test_hosts_have_names_processes_and_tmp_of_their_own(lab: Lab) -> None:
    hostname, *files = ssh(lab, 1, "hostname; touch /tmp/mine /dev/shm/mine; ls /tmp").split()
    assert hostname == "h1" and "mine" in files
    assert (lab.hosts[1].tmp / "mine").exists()
    assert "mine" not in ssh(lab, 2, "ls /tmp /dev/shm").split()
    assert ssh(lab, 1, "touch ~/mine; ls -A ~; pwd").split()[-2:] == ["mine", str(Path.home())]
    assert not (Path.home() / "mine").exists()
    assert not [process for process in lab.hosts[2].processes() if "sshd" not in process.argv[0]]


def test_hosts_have_python_the_repository_and_a_shared_folder(lab: Lab) -> None:
    far = lab.hosts[1].hosts_yaml()
    find = f"PYTHONPATH={far['env']['PYTHONPATH']} {far['python']} -c 'import zmqrl; print(zmqrl.__file__)'"
    assert ssh(lab, 1, find) == str(Path(__file__).parents[2] / "zmqrl" / "__init__.py")
    (lab.shared / "token").write_text("seen")
    assert ssh(lab, 2, f"cat {lab.shared}/token") == "seen"


@pytest.mark.parametrize("kernels", ["Prescott", "Sandybridge"])
def test_hosts_compute_the_bits_of_this_machine(monkeypatch: pytest.MonkeyPatch, kernels: str) -> None:
    """Also where a variable chooses other kernels than those of the processor."""
    monkeypatch.setenv("OPENBLAS_CORETYPE", kernels)
    here = subprocess.check_output([sys.executable, "-c", DIGEST], env=environment(), text=True, timeout=WAIT_S)
    with lab_or_skip(2, isolated=True) as lab:
        far = lab.hosts[1].hosts_yaml()
        assert ssh(lab, 1, f"PYTHONPATH={far['env']['PYTHONPATH']} {far['python']} -c '{DIGEST}'") == here.strip()
        assert ssh(lab, 1, "echo $OPENBLAS_CORETYPE") == kernels


def test_a_pulled_cable_is_silence_and_comes_back(lab: Lab) -> None:
    assert talks(lab, 1)
    lab.link(1, False)
    assert not talks(lab, 1)
    lab.link(1, True)
    until(lambda: talks(lab, 1))


def test_a_partition_is_between_two_hosts_only(lab: Lab) -> None:
    lab.partition(0, 1)
    assert not talks(lab, 1)
    until(lambda: talks(lab, 2))
    lab.heal()
    until(lambda: talks(lab, 1))


def test_a_slow_wire_delays_both_ways_and_can_be_taken_out(lab: Lab) -> None:
    def round_trip_s() -> float:
        with lab.here(), socket.socket() as probe:
            start = time.monotonic()
            probe.connect((lab.hosts[2].address, lab.hosts[2].port))
            return time.monotonic() - start

    def least_s() -> float:
        """Of several: the process that carries the frames may have to wait for a core."""
        return min(round_trip_s() for _ in range(10))

    until(lambda: talks(lab, 2))
    lab.delay(2, 40)
    until(lambda: talks(lab, 2))
    assert least_s() >= 0.08
    lab.delay(2, 0)
    until(lambda: talks(lab, 2))
    assert least_s() < 0.08
    lab.delay(2, 0, loss=1.0)
    assert not talks(lab, 2)
    lab.delay(2, 0)
    until(lambda: talks(lab, 2))


def test_a_crash_ends_every_process_and_a_boot_brings_the_host_back(own_lab: Lab) -> None:
    host = own_lab.hosts[1]
    ssh(own_lab, 1, "setsid sleep 1234 >/dev/null 2>&1 </dev/null & ")
    (sleeper,) = until(lambda: host.processes("sleep 1234"))  # ssh returns before setsid has run it
    host.crash()
    assert not Path(f"/proc/{sleeper.pid}").exists()
    with pytest.raises(ConnectionRefusedError), own_lab.here():
        socket.create_connection((host.address, host.port), WAIT_S)
    host.boot()
    assert ssh(own_lab, 1, "hostname") == "h1"


def test_sshd_can_be_killed_alone(own_lab: Lab) -> None:
    host = own_lab.hosts[1]
    ssh(own_lab, 1, "setsid sleep 1235 >/dev/null 2>&1 </dev/null & ")
    host.kill_sshd()
    assert not talks(own_lab, 1)
    (sleeper,) = host.processes("sleep 1235")
    os.kill(sleeper.pid, signal.SIGKILL)
    host.start_sshd()
    assert talks(own_lab, 1)


@pytest.mark.parametrize("isolated", [True, False])
def test_nothing_of_a_lab_outlives_its_killed_owner(isolated: bool) -> None:
    with lab_or_skip(1, isolated):
        pass  # says why not, if not
    code = f"""
import sys, time
from tests.lab import Lab
from tests.support.waiting import until
lab = Lab(2, {isolated})
lab.run_here(["ssh", "-F", str(lab.ssh_config), "h1", "setsid sleep 4321 >/dev/null 2>&1 </dev/null &"]).wait(120)
found = lambda: [process.pid for host in lab.hosts for process in host.processes()]
until(lambda: len(found()) >= 3)  # sshd of each, and what was started
print(lab.folder, *found(), flush=True)
sys.stdin.read()
"""
    owner = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    with owner:
        assert owner.stdout is not None
        folder, *pids = owner.stdout.readline().split()
        assert pids
        owner.kill()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    with lab_or_skip(1, isolated):
        assert not Path(folder).exists()


def test_a_lab_that_ends_takes_no_ssh_folder_from_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is removed takes along what others have mounted on it."""
    home = tmp_path / "home"
    home.mkdir()
    with lab_or_skip(1, isolated=True) as first, lab_or_skip(1, isolated=True) as second:
        user = pwd.getpwuid(os.getuid())
        monkeypatch.setattr("pwd.getpwuid", lambda uid: pwd.struct_passwd((*user[:5], str(home), user[6])))
        assert first.run_here(["true"]).wait(WAIT_S) == 0
        look = ["sh", "-c", f"read word; ls {home}/.ssh"]
        with second.run_here(look, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
            until(lambda: str(home) in Path(f"/proc/{client.pid}/mounts").read_text())
            first.close()
            assert client.communicate("now\n", WAIT_S)[0].split() == ["config", "known_hosts"]


def test_hosts_without_namespaces_serve_too() -> None:
    with lab_or_skip(2, isolated=False) as lab:
        assert not lab.isolated
        assert lab.hosts[0].port != lab.hosts[1].port
        assert ssh(lab, 1, "echo $((6 * 7))") == "42"
        ssh(lab, 1, "setsid sleep 1236 >/dev/null 2>&1 </dev/null & ")
        until(lambda: lab.hosts[1].processes("sleep 1236"), "the process that was started")
        assert not lab.hosts[0].processes("sleep 1236")
        lab.hosts[1].kill_sshd()
        assert not talks(lab, 1)
    assert not lab.folder.exists()
