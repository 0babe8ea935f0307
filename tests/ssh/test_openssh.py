"""The client `openssh`: what the user's configuration allows, the same failures as paramiko's, and the master's end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.lab import Lab, lab_or_skip
from tests.ssh.ssh_lab import connected, sessions
from tests.support.raising import raises
from tests.support.waiting import WAIT_S, until
from tests.support.yardstick import within
from zmqrl.config.sections import DefaultsSection, HostSection, SshSection
from zmqrl.errors import ConfigError, HostFailed
from zmqrl.ssh import openssh_client
from zmqrl.ssh.clients import make_client
from zmqrl.ssh.config import Target, resolve
from zmqrl.wire.runtime_folder import RUNTIME_VARIABLE, run_folder_root

pytestmark = [pytest.mark.timed, pytest.mark.whole]
SSH = SshSection(client="openssh", connect_timeout_s=WAIT_S / 2)
HASTY = SshSection(client="openssh", connect_timeout_s=1.0)
ACCEPT = SshSection(client="openssh", connect_timeout_s=WAIT_S / 2, host_keys="accept-new")
REFUSED_S = 8.0
FINGERPRINT = r"SHA256:[A-Za-z0-9+/]{43}"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with lab_or_skip(2) as lab, lab.here():
        yield lab


@pytest.fixture
def own_lab() -> Iterator[Lab]:
    """Its sshds may be stopped and started."""
    with lab_or_skip(2) as lab, lab.here():
        yield lab


class Logins:
    """Targets by an ssh configuration whose first lines are the test's."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self._lab, self._config = lab, folder / "ssh_config"

    def to(self, host: str = "h1", first: Mapping[str, object] | None = None, **section: object) -> Target:
        """`first` holds for the host; `section` as in hosts.yaml."""
        lines = [f"Host {host}", *(f"  {key} {value}" for key, value in (first or {}).items())]
        self._config.write_text("\n".join([*lines, "Match all", f"  Include {self._lab.ssh_config}", ""]))
        return resolve(host, HostSection(**section), DefaultsSection(), self._config)  # type: ignore[arg-type]


@pytest.fixture
def logins(lab: Lab, tmp_path: Path) -> Logins:
    return Logins(lab, tmp_path)


def refused(target: Target, ssh: SshSection = SSH) -> HostFailed:
    with within(REFUSED_S), pytest.raises(HostFailed) as caught:
        make_client(ssh).open(target).close()
    assert not list(run_folder_root().glob("ssh-*"))
    return caught.value


@contextlib.contextmanager
def listening(answer: bytes = b"", closes: bool = False) -> Iterator[int]:
    """The port of a listener that is no sshd."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    near, _ = server.accept()
                    with contextlib.suppress(OSError):
                        near.sendall(answer)
                    if closes:
                        near.close()
                    held.append(near)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(WAIT_S)
            for near in held:
                near.close()


def new_key(path: Path) -> Path:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)]
    subprocess.run(command, check=True, timeout=WAIT_S, stdin=subprocess.DEVNULL)
    return path


def test_an_unknown_name(logins: Logins) -> None:
    error = refused(logins.to(ssh="no-such-host.invalid"))
    assert "unknown host name 'no-such-host.invalid'" in error.cause
    assert "getent hosts no-such-host.invalid" in error.fix


def test_a_port_where_nothing_listens(logins: Logins) -> None:
    error = refused(logins.to(port=9))
    assert ":9 refused the connection" in error.cause and "hosts.h1.port" in error.fix


def test_a_host_that_is_silent(own_lab: Lab, tmp_path: Path) -> None:
    if not own_lab.isolated:
        pytest.skip(own_lab.why_not_isolated)
    target = Logins(own_lab, tmp_path).to()
    with connected(target, SSH):
        pass  # its hardware address is known from here on: what follows is silence, not "no such host"
    own_lab.link(1, False)
    error = refused(target, HASTY)
    assert f"no answer from {own_lab.hosts[1].address}:22 within 1 s" in error.cause and "ping" in error.fix


def test_listeners_that_are_no_sshd(logins: Logins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zmqrl.ssh.connection.GREETINGS", 3)
    for answer, closes, expected in (
        (b"", False, "sent no SSH banner within 1 s"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", False, "sent its SSH banner, and no key exchange followed within 1 s"),
        (b"", True, "before the SSH banner (3 attempts)"),
        (b"HTTP/1.1 400 Bad Request\r\n" * 2000, False, "is not an SSH server, or has no algorithm in common"),
    ):
        with listening(answer, closes) as port:
            assert expected in refused(logins.to(ssh="127.0.0.1", port=port), HASTY).cause


def test_an_unknown_host_key_is_refused_with_its_fingerprint(lab: Lab, logins: Logins, tmp_path: Path) -> None:
    error = refused(logins.to(first={"UserKnownHostsFile": tmp_path / "known"}))
    public = lab.hosts[1].folder / "host_key.pub"
    listed = subprocess.run(["ssh-keygen", "-lf", str(public)], capture_output=True, text=True, timeout=WAIT_S)
    assert "unknown host key" in error.cause and f"ssh-ed25519 {listed.stdout.split()[1]}" in error.cause
    assert "ssh-keygen -lf" in error.fix and "ssh.host_keys=accept-new" in error.fix
    assert not (tmp_path / "known").exists()


def test_a_new_host_key_is_accepted_on_request_reported_and_kept(logins: Logins, tmp_path: Path) -> None:
    known = tmp_path / "known"
    target = logins.to(first={"UserKnownHostsFile": known, "HashKnownHosts": "yes"})
    with connected(target, ACCEPT) as connection:
        (reported,) = connection.accepted
        assert re.search(rf"h1: accepted new host key ssh-ed25519 {FINGERPRINT} of .* into {known}", reported)
    with connected(target, SSH) as connection:
        assert connection.accepted == ()


@pytest.mark.parametrize("ssh", [SSH, ACCEPT], ids=["strict", "accept-new"])
def test_a_changed_host_key_is_refused_always(lab: Lab, logins: Logins, tmp_path: Path, ssh: SshSection) -> None:
    known = tmp_path / "known"
    known.write_text(f"{lab.hosts[1].known_hosts_name} {lab.hosts[0].host_key}\n")
    error = refused(logins.to(first={"UserKnownHostsFile": known}), ssh)
    assert "host key CHANGED" in error.cause and re.search(FINGERPRINT, error.cause)
    assert f"ssh-keygen -f {known} -R '{lab.hosts[1].known_hosts_name}'" in error.fix
    known.write_text(f"@revoked * {lab.hosts[1].host_key}\n")
    error = refused(logins.to(first={"UserKnownHostsFile": known}), ssh)
    assert "is marked @revoked in " in error.cause and str(known) in error.cause


def test_a_key_that_is_not_accepted(lab: Lab, logins: Logins, tmp_path: Path) -> None:
    key = new_key(tmp_path / "id")
    target = logins.to(first={"IdentityFile": key, "IdentitiesOnly": "yes"})
    lab_key = lab.identity.rename(lab.identity.with_name("away"))
    try:
        error = refused(target)
    finally:
        lab_key.rename(lab.identity)
    assert f"login refused for user {target.user}; tried {key}" in error.cause
    assert "allowed methods: publickey" in error.cause
    assert error.fix.startswith(f"ssh-copy-id -i {key}.pub ") and lab.hosts[1].address in error.fix


def test_jump_hosts(lab: Lab, logins: Logins, tmp_path: Path) -> None:
    with connected(logins.to(jump="h0"), SSH) as connection:
        source = connection.run("echo $SSH_CONNECTION", WAIT_S).stdout.split()[0].decode()
        assert source == lab.hosts[0].address
        assert sessions(lab.hosts[0])
    until(lambda: not sessions(lab.hosts[0]))
    error = refused(logins.to(jump="h0:9"))
    assert error.cause.startswith("jump host h0: ") and "refused the connection" in error.cause
    error = refused(logins.to(first={"UserKnownHostsFile": tmp_path / "none"}, jump="h0"))
    assert error.cause.startswith("unknown host key") and " -J " in error.fix
    error = refused(logins.to("h0", first={"UserKnownHostsFile": tmp_path / "none"}, ssh="h1", jump="h0"))
    assert "jump host h0: unknown host key" in error.cause
    error = refused(logins.to(port=9, jump="h0"))
    assert "jump host h0 cannot connect to" in error.cause and re.search(r"ssh .*nc -vz \S+ 9", error.fix)
    until(lambda: not sessions(lab.hosts[0]))


def test_a_proxy_command_carries_the_connection_or_is_quoted(lab: Lab, logins: Logins) -> None:
    host, carry = lab.hosts[1], Path(__file__).with_name("carry.py")
    command = f"{sys.executable} {carry} {host.address} {host.port}"
    with connected(logins.to(first={"ProxyCommand": command}), SSH) as connection:
        assert connection.run("cat", WAIT_S, bytes(1_000_000)).stdout == bytes(1_000_000)
    # ssh starts it with exec: there `>&2` would close the pipe to ssh, which then kills the command before it writes.
    error = refused(logins.to(first={"ProxyCommand": "sh -c 'echo the gate is shut >&2; exit 1'"}))
    assert "ProxyCommand: the gate is shut" in error.cause


def test_what_sshd_may_refuse_later(own_lab: Lab, tmp_path: Path) -> None:
    host, logins = own_lab.hosts[1], Logins(own_lab, tmp_path)
    host.kill_sshd()
    host.start_sshd({"AllowTcpForwarding": "no", "MaxSessions": "1", "Subsystem": "none /bin/false"})
    with connected(logins.to(), SSH) as connection:
        with raises(
            HostFailed,
            host="h1",
            cause="the host's sshd refused a reverse tunnel (remote port forwarding failed for listen port 0)",
        ):
            connection.forward_back([("127.0.0.1", 1)])
        channel = connection.start("cat", Path("/dev/null"))
        with raises(
            HostFailed,
            host="h1",
            cause="the host's sshd refused a further session (Session open refused by peer; MaxSessions)",
        ):
            connection.run("true", WAIT_S)
        channel.close()
        closed = "sftp: the remote side closed the connection (possible cause: sftp disabled)"
        with raises(HostFailed, host="h1", cause=closed):
            connection.put(b"x", "file")
        for number in range(10):  # sshd frees a session a moment after its end
            assert connection.run(f"echo {number}", WAIT_S).stdout == f"{number}\n".encode()
    error = refused(logins.to("h0", ssh="h0", jump="h1"))
    assert "forwarding is disabled (AllowTcpForwarding)" in error.cause


def test_certificates_of_host_and_user(own_lab: Lab, tmp_path: Path) -> None:
    """known_hosts has the CA of the hosts alone, and sshd the CA of the users alone."""
    host, authority = own_lab.hosts[1], new_key(own_lab.hosts[1].folder / "ca")  # sshd has a /tmp of its own
    user_key = new_key(tmp_path / "user")
    sign = ["ssh-keygen", "-q", "-s", str(authority), "-I", "test", "-n"]
    name = own_lab.hosts[1].address
    for principal, more, key in (
        (name, ["-h"], host.folder / "host_key.pub"),
        (resolve("h1", HostSection(), DefaultsSection(), own_lab.ssh_config).user, [], tmp_path / "user.pub"),
    ):
        subprocess.run([*sign, principal, *more, str(key)], check=True, timeout=WAIT_S, capture_output=True)
    host.kill_sshd()
    certificate = host.folder / "host_key-cert.pub"
    trusted = {"TrustedUserCAKeys": f"{authority}.pub", "AuthorizedKeysFile": "none", "HostCertificate": certificate}
    host.start_sshd({key: str(value) for key, value in trusted.items()})
    public = " ".join(authority.with_suffix(".pub").read_text().split()[:2])
    (tmp_path / "known").write_text(f"@cert-authority {host.known_hosts_name} {public}\n")
    first = {
        "UserKnownHostsFile": tmp_path / "known",
        "IdentityFile": user_key,
        "CertificateFile": f"{user_key}-cert.pub",
    }
    target = Logins(own_lab, tmp_path).to(first=first)
    with connected(target, SSH) as connection:
        assert connection.run("echo in", WAIT_S).stdout == b"in\n"
    with pytest.raises(HostFailed):
        make_client(SshSection(connect_timeout_s=WAIT_S / 2)).open(target)


def test_a_master_of_the_users_own_is_used_and_left(lab: Lab, logins: Logins, tmp_path: Path) -> None:
    control = tmp_path / "c-%h"
    target = logins.to(first={"ControlPath": control})
    argv = ["ssh", "-F", str(lab.ssh_config), "-MNf", "-o", f"ControlPath={control}", "h1"]
    subprocess.run(argv, check=True, timeout=WAIT_S, capture_output=True)
    own = ["ssh", "-F", str(lab.ssh_config), "-o", f"ControlPath={control}", "h1", "-O"]
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, connected(target, SSH) as connection:
            assert not list(run_folder_root().glob("ssh-*"))
            assert connection.run("echo in", WAIT_S).stdout == b"in\n"
            port = connection.forward_back([server.getsockname()[:2]])
        assert subprocess.run([*own, "check"], capture_output=True, timeout=WAIT_S).returncode == 0
        with connected(target, SSH) as connection:
            code = f"import socket; socket.create_connection(('127.0.0.1', {port}))"
            assert b"ConnectionRefused" in connection.run(f'{sys.executable} -c "{code}"', WAIT_S).stderr
    finally:
        subprocess.run([*own, "exit"], capture_output=True, timeout=WAIT_S)
    with connected(target, SSH):  # without it: one of zmqrl's
        assert len(list(run_folder_root().glob("ssh-*"))) == 1


HOLD = """
import sys
from pathlib import Path
from tests.support.yardstick import within
from zmqrl.config.sections import DefaultsSection, HostSection, SshSection
from zmqrl.ssh.clients import make_client
from zmqrl.ssh.config import resolve
target = resolve("h1", HostSection(), DefaultsSection(), Path(sys.argv[1]))
connection = make_client(SshSection(client="openssh")).open(target)
connection.start("exec cat", Path("/dev/null"))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_master_ends_soon_after_its_owner_was_killed(lab: Lab) -> None:
    argv = [sys.executable, "-c", HOLD, str(lab.ssh_config)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == b"held\n"
        (folder,) = run_folder_root().glob("ssh-*")
        with within(openssh_client.PERSIST_S + 5.0):
            owner.kill()
            until(lambda: not (folder / "m").exists())
    until(lambda: not sessions(lab.hosts[1]))
    assert not lab.hosts[1].processes("cat")
    folder.rmdir()  # it is empty; `zmqrl clean` removes such folders


def test_a_master_that_does_not_end_is_killed(lab: Lab, logins: Logins) -> None:
    with connected(logins.to(), SSH) as connection:
        (folder,) = run_folder_root().glob("ssh-*")
        master = connection._pid  # type: ignore[attr-defined]
        assert str(folder) in Path(f"/proc/{master}/cmdline").read_text()
        os.kill(master, signal.SIGSTOP)
        with within(8.0):
            connection.close()
    until(lambda: not sessions(lab.hosts[1]))
    assert not folder.exists()


def test_an_impossible_client_gives_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "ssh"
    for text in ("OpenSSH_7.4p1, OpenSSL", "Dropbear v2022"):
        openssh_client.require_openssh.cache_clear()
        old.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
        old.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        fix = "OpenSSH 7.6 or newer is required; or set ssh.client: paramiko"
        with raises(ConfigError, key=("ssh", "client"), what=f"{old} is {text}", fix=fix):
            make_client(SSH)
    openssh_client.require_openssh.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with raises(ConfigError, key=("ssh", "client"), value="openssh", what="found no `ssh` on the PATH"):
        make_client(SSH)
    monkeypatch.undo()
    openssh_client.require_openssh.cache_clear()
    monkeypatch.setenv(RUNTIME_VARIABLE, str(tmp_path / ("r" * 60)))
    with raises(ConfigError, key=(), what="is too long for a socket path: set ZMQRL_RUNTIME_DIR to a shorter path"):
        make_client(SSH)
