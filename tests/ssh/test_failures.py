"""Each way in which a host cannot be used, brought about for real: the message names host, cause and cure."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import Lab, lab_or_skip
from tests.ssh.ssh_lab import SSH, connected, sessions, target_of
from tests.support.raising import raises
from tests.support.waiting import WAIT_S, until
from tests.support.yardstick import within
from zmqrl.config.codec import replace
from zmqrl.config.sections import SshSection
from zmqrl.errors import HostFailed
from zmqrl.ssh.clients import make_client
from zmqrl.ssh.config import Target

pytestmark = [pytest.mark.timed, pytest.mark.whole]
ACCEPT = SshSection(host_keys="accept-new", connect_timeout_s=WAIT_S / 2)
AT_ONCE_S = 5.0
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


def refused(target: Target, ssh: SshSection = SSH) -> HostFailed:
    with within(AT_ONCE_S), pytest.raises(HostFailed) as caught:
        make_client(ssh).open(target).close()
    assert str(caught.value) == f"{target.host}: {caught.value.cause}\n   {caught.value.fix}"
    return caught.value


def make_key(path: Path, passphrase: str = "") -> str:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "test", "-f", str(path)]
    subprocess.run(command, check=True, timeout=WAIT_S, stdin=subprocess.DEVNULL)
    return str(path)


def test_an_unknown_name(lab: Lab) -> None:
    error = refused(target_of(lab, 1, hostname="no-such-host.invalid"))
    assert "unknown host name 'no-such-host.invalid'" in error.cause
    assert "Errno" not in error.cause
    assert "~/.ssh/config" in error.fix
    assert "getent hosts no-such-host.invalid" in error.fix and "hosts.h1.ssh" in error.fix


def test_a_port_where_nothing_listens(lab: Lab) -> None:
    error = refused(target_of(lab, 1, port=9))
    assert "refused the connection" in error.cause and ":9" in error.cause
    assert "hosts.h1.port" in error.fix


def test_a_host_that_is_silent(own_lab: Lab) -> None:
    if not own_lab.isolated:
        pytest.skip(own_lab.why_not_isolated)
    with connected(target_of(own_lab, 1)):
        pass  # its hardware address is known from here on: what follows is silence, not "no such host"
    own_lab.link(1, False)
    error = refused(target_of(own_lab, 1), SshSection(connect_timeout_s=1.0))
    assert f"no answer from {own_lab.hosts[1].address}:22 within 1 s" in error.cause
    assert "ping" in error.fix


def test_a_listener_that_sends_nothing(lab: Lab) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = target_of(lab, 1, hostname="127.0.0.1", port=silent.getsockname()[1])
        error = refused(target, SshSection(connect_timeout_s=1.0))
    assert "no SSH banner within 1 s" in error.cause


def test_a_listener_that_sends_nothing_after_its_banner(lab: Lab) -> None:
    """As where full packets are lost on the way: the banner passes, and the key exchange does not."""
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def serve() -> None:
            near, _ = silent.accept()
            with near:
                near.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                with contextlib.suppress(ConnectionResetError):
                    while near.recv(1000):
                        pass

        server = threading.Thread(target=serve)
        server.start()
        target = target_of(lab, 1, hostname="127.0.0.1", port=silent.getsockname()[1])
        error = refused(target, SshSection(connect_timeout_s=1.0))
        server.join(WAIT_S)
    assert "sent its SSH banner, and no key exchange followed within 1 s" in error.cause
    assert "MTU" in error.fix


def test_a_listener_that_always_closes(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zmqrl.ssh.connection.GREETINGS", 3)
    with socket.create_server(("127.0.0.1", 0)) as shy:
        server = threading.Thread(target=lambda: [shy.accept()[0].close() for _ in range(3)])
        server.start()
        error = refused(target_of(lab, 1, hostname="127.0.0.1", port=shy.getsockname()[1]))
        server.join(WAIT_S)
    assert "before the SSH banner (3 attempts)" in error.cause
    assert "MaxStartups" in error.fix


def test_a_listener_that_is_not_sshd(lab: Lab) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def serve() -> None:
            near, _ = other.accept()
            with near:
                near.recv(100)
                near.sendall(b"HTTP/1.1 400 Bad Request\r\n" * 120)
                near.settimeout(WAIT_S)
                with contextlib.suppress(ConnectionResetError):
                    while near.recv(1000):
                        pass

        server = threading.Thread(target=serve)
        server.start()
        error = refused(target_of(lab, 1, hostname="127.0.0.1", port=other.getsockname()[1]))
        server.join(WAIT_S)
    assert "is not an SSH server, or has no algorithm in common" in error.cause and "HTTP" in error.cause


def test_an_unknown_host_key_is_refused_with_its_fingerprint(lab: Lab, tmp_path: Path) -> None:
    error = refused(target_of(lab, 1, known_hosts=(str(tmp_path / "known"),)))
    public = lab.hosts[1].folder / "host_key.pub"
    listed = subprocess.run(["ssh-keygen", "-lf", str(public)], capture_output=True, text=True, timeout=WAIT_S)
    assert "unknown" in error.cause and listed.stdout.split()[1] in error.cause
    assert "ssh-keygen -lf" in error.fix and "ssh.host_keys=accept-new" in error.fix
    assert not (tmp_path / "known").exists()


def test_a_new_host_key_is_accepted_on_request_printed_and_kept(lab: Lab, tmp_path: Path) -> None:
    known = str(tmp_path / "new" / "known")
    target = target_of(lab, 1, known_hosts=(known,), new_keys_file=known, hash_known_hosts=True)
    with connected(target, ACCEPT) as connection:
        (told,) = connection.accepted
        assert re.search(rf"h1: accepted new host key ssh-ed25519 {FINGERPRINT} of .* into {known}", told)
    with connected(target) as connection:
        assert connection.accepted == ()


@pytest.mark.parametrize("ssh", [SSH, ACCEPT], ids=["strict", "accept-new"])
def test_a_changed_host_key_is_refused_always(lab: Lab, tmp_path: Path, ssh: SshSection) -> None:
    known = tmp_path / "known"
    known.write_text(f"{lab.hosts[1].known_hosts_name} {lab.hosts[0].host_key}\n")
    error = refused(target_of(lab, 1, known_hosts=(str(known),), new_keys_file=str(known)), ssh)
    assert "host key CHANGED" in error.cause and re.search(FINGERPRINT, error.cause)
    command = f"ssh-keygen -f {known} -R '{lab.hosts[1].known_hosts_name}'"
    assert command in error.fix
    subprocess.run(command, shell=True, check=True, capture_output=True, timeout=WAIT_S)
    assert known.read_text() == ""


def test_the_known_key_type_is_requested(own_lab: Lab) -> None:
    """A host with several keys, of which another than the first choice is known."""
    host = own_lab.hosts[1]
    rsa = host.folder / "rsa_key"
    command = ["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(rsa)]
    subprocess.run(command, check=True, timeout=WAIT_S)
    host.kill_sshd()
    host.start_sshd({"HostKey": f"{host.folder}/host_key\nHostKey {rsa}"})
    name = host.known_hosts_name
    for public in (rsa.with_suffix(".pub"), host.folder / "host_key.pub"):
        kind, blob = public.read_text().split()[:2]
        own_lab.known_hosts.write_text(f"{name} {kind} {blob}\n")
        with connected(target_of(own_lab, 1)) as connection:
            assert connection.run("echo in", WAIT_S).stdout == b"in\n"


def test_a_key_that_is_not_taken(lab: Lab, tmp_path: Path) -> None:
    key = make_key(tmp_path / "id")
    error = refused(target_of(lab, 1, identities=(key,)))
    assert f"login refused for user {target_of(lab, 1).user}; tried {key}" in error.cause
    assert error.fix.startswith(f"ssh-copy-id -i {key}.pub ") and lab.hosts[1].address in error.fix


def test_no_more_keys_are_tried_than_sshd_accepts(lab: Lab, tmp_path: Path) -> None:
    keys = tuple(make_key(tmp_path / f"id{n}") for n in range(7))
    error = refused(target_of(lab, 1, identities=keys))
    assert f"tried {', '.join(keys[:5])};" in error.cause
    assert "id6 (over 5 tries)" in error.cause


def test_a_host_that_takes_only_other_methods(own_lab: Lab) -> None:
    host = own_lab.hosts[1]
    host.kill_sshd()
    host.start_sshd({"PubkeyAuthentication": "no", "PasswordAuthentication": "yes"})
    error = refused(target_of(own_lab, 1))
    assert "allowed methods: password" in error.cause


def test_an_identity_that_is_missing_or_not_a_key(lab: Lab, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    error = refused(target_of(lab, 1, identities=(missing,)))
    assert f"no usable key for user {target_of(lab, 1).user}: {missing} (no such file)" in error.cause
    assert f"ssh-keygen -t ed25519 -f {missing} && ssh-copy-id" in error.fix
    (tmp_path / "junk").write_text("no key")
    assert "junk (not a private key" in refused(target_of(lab, 1, identities=(str(tmp_path / "junk"),))).cause
    assert "(cannot be read: Is a directory)" in refused(target_of(lab, 1, identities=(str(tmp_path),))).cause


def test_a_key_with_a_passphrase_needs_an_agent_and_works_with_one(lab: Lab, tmp_path: Path) -> None:
    """`ssh-add` is given the plain key; the file that is named stays locked."""
    locked = tmp_path / "locked"
    shutil.copy(lab.identity, locked)
    change = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(locked)]
    subprocess.run(change, check=True, capture_output=True, timeout=WAIT_S)
    shutil.copy(f"{lab.identity}.pub", f"{locked}.pub")
    place = str(tmp_path / "agent")
    target = target_of(lab, 1, identities=(str(locked),), agent=place)
    error = refused(target)
    assert "has a passphrase, and no SSH agent holds it" in error.cause and "agent (no answer" in error.cause
    assert f"ssh-add {locked}" in error.fix
    with subprocess.Popen(["ssh-agent", "-D", "-a", place], stdout=subprocess.DEVNULL) as agent:
        until(lambda: Path(place).exists())
        environment = {**os.environ, "SSH_AUTH_SOCK": place}
        try:
            add = ["ssh-add", "-q", str(lab.identity)]
            subprocess.run(add, check=True, env=environment, capture_output=True, timeout=WAIT_S)
            with connected(target) as connection:
                assert connection.run("echo in", WAIT_S).stdout == b"in\n"
            nothing = replace(target, identities=(), identities_only=False)
            with connected(nothing) as connection:
                assert connection.run("echo in", WAIT_S).stdout == b"in\n"
            other = make_key(tmp_path / "other")
            assert "tried " + other in refused(replace(target, identities=(other,))).cause
        finally:
            agent.terminate()


def test_a_key_that_its_agent_does_not_sign_with_is_skipped(lab: Lab, tmp_path: Path) -> None:
    """As a key that is to be confirmed, or is on a smartcard that is not there; the key after it is accepted."""
    refusing, place = make_key(tmp_path / "refusing"), str(tmp_path / "agent")
    environment = {**os.environ, "SSH_AUTH_SOCK": place, "SSH_ASKPASS": "/bin/false", "DISPLAY": ":9"}
    command = ["ssh-agent", "-D", "-a", place]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as agent:
        until(lambda: Path(place).exists())
        try:
            add = ["ssh-add", "-q", "-c", refusing]
            subprocess.run(add, check=True, env=environment, capture_output=True, timeout=WAIT_S)
            with connected(target_of(lab, 1, identities=(refusing, str(lab.identity)), agent=place)) as connection:
                assert connection.run("echo in", WAIT_S).stdout == b"in\n"
            error = refused(target_of(lab, 1, identities=(refusing,), agent=place))
            assert f"{refusing} (does not sign: key cannot be used for signing)" in error.cause
        finally:
            agent.terminate()


def test_no_agent_and_no_key(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    error = refused(target_of(lab, 1, identities=(), identities_only=False))
    assert "agent (not running, or without keys)" in error.cause
    assert "agent (disabled" in refused(target_of(lab, 1, identities=(), agent="none")).cause


def test_a_failing_jump_host_is_named_as_such(lab: Lab, tmp_path: Path) -> None:
    error = refused(target_of(lab, 1, jump=target_of(lab, 0, host="gate", port=9)))
    assert error.cause.startswith("jump host gate: ") and "refused the connection" in error.cause
    unknown = target_of(lab, 0, host="gate", known_hosts=(str(tmp_path / "none"),))
    assert "jump host gate: unknown host key" in refused(target_of(lab, 1, jump=unknown)).cause


def test_a_host_that_its_jump_host_does_not_reach(lab: Lab) -> None:
    error = refused(target_of(lab, 1, port=9, jump=target_of(lab, 0, host="gate")))
    assert "jump host gate cannot connect to" in error.cause
    assert re.search(r"ssh .*nc -vz \S+ 9", error.fix)
    until(lambda: not sessions(lab.hosts[0]))


def test_a_host_behind_a_jump_host_has_its_own_key_checked(lab: Lab, tmp_path: Path) -> None:
    unknown = target_of(lab, 1, known_hosts=(str(tmp_path / "none"),), jump=target_of(lab, 0, host="gate"))
    error = refused(unknown)
    assert error.cause.startswith("unknown host key")
    assert "ssh -J " in error.fix or " -J " in error.fix
    until(lambda: not sessions(lab.hosts[0]))


def test_a_proxy_command_carries_the_connection(lab: Lab) -> None:
    host = lab.hosts[1]
    carry = Path(__file__).with_name("carry.py")
    command = f"{sys.executable} {carry} {host.address} {host.port}"
    with connected(target_of(lab, 1, proxy_command=command)) as connection:
        assert connection.run("cat", WAIT_S, bytes(1_000_000)).stdout == bytes(1_000_000)


def test_a_proxy_command_that_fails_is_quoted(lab: Lab) -> None:
    error = refused(target_of(lab, 1, proxy_command="echo the gate is shut >&2; exit 1"))
    assert "ProxyCommand: the gate is shut" in error.cause


def test_a_refused_tunnel(own_lab: Lab) -> None:
    host = own_lab.hosts[1]
    host.kill_sshd()
    host.start_sshd({"AllowTcpForwarding": "no"})
    with connected(target_of(own_lab, 1)) as connection:
        with raises(
            HostFailed, host="h1", cause="the host's sshd refused a reverse tunnel (TCP forwarding request denied)"
        ):
            connection.forward_back([("127.0.0.1", 1)])
        assert connection.run("echo still here", WAIT_S).stdout == b"still here\n"
    jump = target_of(own_lab, 1, host="gate")
    error = refused(target_of(own_lab, 0, jump=jump))
    assert "forwarding is disabled (AllowTcpForwarding)" in error.cause


def test_more_sessions_than_sshd_allows(own_lab: Lab) -> None:
    host = own_lab.hosts[1]
    host.kill_sshd()
    host.start_sshd({"MaxSessions": "1", "Subsystem": "none /bin/false"})
    with connected(target_of(own_lab, 1)) as connection:
        channel = connection.start("cat", Path("/dev/null"))
        with raises(
            HostFailed,
            host="h1",
            cause="the host's sshd refused a further session (ChannelException(2, 'Connect failed'); MaxSessions)",
        ):
            connection.run("true", WAIT_S)
        channel.close()
        until(lambda: connection.is_alive() and not host.processes("cat"))
        with raises(HostFailed, host="h1", cause="sftp: Channel closed."):
            connection.put(b"x", "file")


def test_one_session_at_a_time_is_enough(own_lab: Lab) -> None:
    """sshd frees a session a moment after its end; doctor, code.sync and the agent each need one."""
    host = own_lab.hosts[1]
    host.kill_sshd()
    host.start_sshd({"MaxSessions": "1"})
    with connected(target_of(own_lab, 1)) as connection:
        for number in range(20):
            assert connection.run(f"echo {number}", WAIT_S).stdout == f"{number}\n".encode()


def test_a_host_that_becomes_silent_has_failed(own_lab: Lab) -> None:
    """What the kernel is told; the 20 s themselves are not waited for here."""
    with connected(target_of(own_lab, 1)) as connection:
        kernel = connection._ssh_transport.stream
        assert isinstance(kernel, socket.socket)
        assert kernel.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
        assert kernel.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert connection.is_alive()
        own_lab.hosts[1].kill_sshd()
        until(lambda: not connection.is_alive())
