"""The connection at work, against real sshds."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import Lab, lab_or_skip
from tests.ssh.ssh_lab import SSH, connected, sessions, target_of
from tests.support.marks import at_once, long
from tests.support.raising import raises
from tests.support.waiting import WAIT_S, until
from zmqrl.config.codec import replace
from zmqrl.config.sections import SshSection
from zmqrl.errors import HostFailed
from zmqrl.ssh.clients import make_client
from zmqrl.ssh.connection import Connection, open_all
from zmqrl.ssh.forward import PortForward
from zmqrl.ssh.paramiko_client import ParamikoConnection

pytestmark = pytest.mark.whole
NOISE = 4_000_000
ECHO = "import sys\nfor line in sys.stdin: print('got', line.strip(), flush=True)"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with lab_or_skip(3) as lab, lab.here():
        yield lab


@pytest.fixture(params=["paramiko", "openssh"])
def ssh(request: pytest.FixtureRequest) -> SshSection:
    """Of each client."""
    return replace(SSH, client=request.param)


@pytest.fixture
def connection(lab: Lab, ssh: SshSection) -> Iterator[Connection]:
    with connected(target_of(lab, 1), ssh) as connection:
        yield connection


def test_a_command_runs_there_with_its_input_streams_and_exit_code(lab: Lab, connection: Connection) -> None:
    done = connection.run("cat; echo $SSH_CONNECTION; echo wrong >&2; exit 3", WAIT_S, b"given\n")
    assert done.code == 3
    assert done.stdout.startswith(b"given\n") and lab.hosts[1].address.encode() in done.stdout
    assert done.stderr == b"wrong\n"
    assert connection.run("no-such-python -V", WAIT_S).code == 127
    assert connection.run("kill -9 $$", WAIT_S).code == -1


def test_much_noise_on_both_streams_and_much_input_block_nothing(connection: Connection) -> None:
    command = f"head -c {NOISE} /dev/zero >&2; head -c {NOISE} /dev/zero; wc -c >&2"
    done = connection.run(command, WAIT_S, bytes(NOISE))
    assert done.stdout == bytes(NOISE)
    assert done.stderr.strip(b"\0 \n") == str(NOISE).encode()
    assert done.code == 0


@at_once
def test_a_command_that_takes_too_long_is_stopped(lab: Lab, connection: Connection) -> None:
    with raises(HostFailed, host="h1", cause="`sleep 601` did not end within 0.2 s"):
        connection.run("sleep 601", 0.2)
    for process in until(lambda: lab.hosts[1].processes("sleep 601")):
        os.kill(process.pid, signal.SIGKILL)
    assert connection.run("echo still here", WAIT_S).stdout == b"still here\n"


def test_a_process_that_stays_is_served_and_its_stray_output_logged(connection: Connection, tmp_path: Path) -> None:
    code = f"import sys; sys.stderr.write('n' * {NOISE}); sys.stderr.flush()\n{ECHO}"
    log = tmp_path / "logs" / "agent.log"
    channel = connection.start(f'{sys.executable} -c "{code}"', log)
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.extend(channel.lines()))
    reader.start()
    channel.write(b"one\n")
    channel.write(b"two\n")
    until(lambda: len(received) == 2)
    assert received == ["got one", "got two"]
    assert channel.exit_status(0.0) is None
    channel.end_input()
    assert channel.exit_status(WAIT_S) == 0
    channel.close()
    reader.join(WAIT_S)
    assert not reader.is_alive()
    assert log.stat().st_size == NOISE


def test_the_output_of_a_command_is_passed_on_as_it_comes(connection: Connection) -> None:
    """Its stdin is open until it ends: `read` gets the second line of nobody."""
    out, err = bytearray(), bytearray()

    def take(chunk: bytes) -> bool:
        out.extend(chunk)
        return True

    command = "read line; echo $line; echo wrong >&2; read -t 1 line; echo $?; exit 3"
    code = connection.relay(f"bash -c '{command}'", take, err.extend, b"given\n", WAIT_S)
    assert (code, bytes(err)) == (3, b"wrong\n")
    assert int(out.removeprefix(b"given\n")) > 128, "the time was over, not its stdin"


@pytest.mark.parametrize("end", ["enough", "late", "error"])
def test_what_is_no_longer_listened_to_gets_the_end_of_its_stdin(lab: Lab, connection: Connection, end: str) -> None:
    def take(chunk: bytes) -> bool:
        assert end != "error"
        return end == "late"

    command = f'echo begun; exec {sys.executable} -c "{ECHO}" for-{end}'
    limit_s = 1.0 if end == "late" else WAIT_S
    with pytest.raises(AssertionError) if end == "error" else contextlib.nullcontext():
        assert connection.relay(command, take, lambda chunk: None, timeout_s=limit_s) is None
    until(lambda: not lab.hosts[1].processes(f"for-{end}"))
    assert connection.run("true", WAIT_S).code == 0


def test_a_lost_connection_has_no_exit_code(lab: Lab, ssh: SshSection) -> None:
    def take(chunk: bytes) -> bool:
        for process in sessions(lab.hosts[2]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        return True

    lost = raises(HostFailed, host="h2", cause="the connection is lost")
    with connected(target_of(lab, 2), ssh) as connection, lost:
        connection.relay("echo begun; cat", take, lambda chunk: None, timeout_s=WAIT_S)


@pytest.mark.parametrize("end", ["channel", "connection"])
def test_a_process_that_watches_its_stdin_ends_with_channel_or_connection(
    lab: Lab, tmp_path: Path, end: str, ssh: SshSection
) -> None:
    with connected(target_of(lab, 2), ssh) as connection:
        channel = connection.start(f'{sys.executable} -c "{ECHO}" for-{end}', tmp_path / "log")
        until(lambda: [p for p in lab.hosts[2].processes(f"for-{end}") if p.argv[0] == sys.executable])
        if end == "connection":
            connection.close()
        channel.close()
        until(lambda: not lab.hosts[2].processes(f"for-{end}"))


def test_the_end_of_lines_reports_a_lost_connection(lab: Lab, tmp_path: Path, ssh: SshSection) -> None:
    with connected(target_of(lab, 2), ssh) as connection:
        channel = connection.start("cat", tmp_path / "log")
        channel.write(b"half a line")
        for process in sessions(lab.hosts[2]):
            with contextlib.suppress(ProcessLookupError):  # it was the child of one before
                os.kill(process.pid, signal.SIGKILL)
        assert list(channel.lines()) in ([], ["half a line"])
        assert channel.exit_status(WAIT_S) == -1
        until(lambda: not connection.is_alive())
        with raises(HostFailed, host="h2", cause="the connection is lost"):
            connection.run("true", WAIT_S)
        channel.close()


@at_once
def test_writing_to_a_process_that_does_not_read_never_blocks(connection: Connection, tmp_path: Path) -> None:
    channel = connection.start("sleep 600 & echo $!; wait", tmp_path / "log")
    pid = next(channel.lines())
    for _ in range(60):
        channel.write(bytes(1_000_000))
    with pytest.raises(HostFailed) as caught:
        channel.write(bytes(10_000_000))
    # Pipes and the window of the channel may have taken in some of the first writes.
    causes = [
        f"the remote process does not read its input ({unsent} bytes unsent); the connection was closed"
        for unsent in range(66_000_000, 71_000_000, 1_000_000)
    ]
    assert caught.value.host == "h1" and caught.value.cause in causes
    channel.close()
    connection.run(f"kill {pid}", WAIT_S)


def test_files_go_and_come_whole(lab: Lab, connection: Connection, tmp_path: Path) -> None:
    far = f"{lab.hosts[1].hosts_yaml()['workdir']}/runs/7"
    (tmp_path / "source").write_bytes(bytes(range(256)) * 10_000)
    connection.put(b"old", f"{far}/deep/file")
    connection.put(tmp_path / "source", f"{far}/deep/file", mode=0o640)
    assert connection.run(f"stat -c %a {far}/deep/file; ls {far}/deep", WAIT_S).stdout == b"640\nfile\n"
    connection.get(f"{far}/deep/file", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == (tmp_path / "source").read_bytes()
    connection.run(f"mkdir {far}/out && touch {far}/out/kept && ln -s {far}/out {far}/deep/link", WAIT_S)
    connection.remove_tree(f"{far}/deep")
    connection.remove_tree(f"{far}/deep")
    assert connection.run(f"ls {far} {far}/out", WAIT_S).stdout.split()[-1] == b"kept"
    assert connection.run("cd; pwd", WAIT_S).stdout
    for folder in ("", "/", "~", "~/", "~/../x"):
        with raises(HostFailed, host="h1"):
            connection.remove_tree(folder)


def test_a_file_that_cannot_be_written_or_read_is_named(connection: Connection, tmp_path: Path) -> None:
    with raises(HostFailed, host="h1", cause="/proc/none/file: No such file"):
        connection.put(b"x", "/proc/none/file")
    with raises(HostFailed, host="h1", cause="/none: No such file"):
        connection.get("/none", tmp_path / "none")
    assert not list(tmp_path.iterdir())


def test_a_reverse_tunnel_leads_back_to_here(lab: Lab, connection: Connection) -> None:
    with socket.create_server((lab.hosts[0].address, 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        ports = [connection.forward_back([server.getsockname()[:2]]) for server in (first, second)]
        for server, port in zip((first, second), ports, strict=True):
            server.settimeout(WAIT_S)
            code = (
                "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])));"
                "s.sendall(b'x' * 3000000); s.shutdown(1); print(s.makefile().read())"
            )
            channel = connection.start(f'{sys.executable} -c "{code}" {port}', Path("/dev/null"))
            near, _ = server.accept()
            with near:
                near.settimeout(WAIT_S)
                got = 0
                while data := near.recv(65536):
                    got += len(data)
                near.sendall(f"{got} of {port}".encode())
            assert next(channel.lines()) == f"3000000 of {port}"
            channel.close()


def test_a_tunnel_leads_to_the_first_address_that_answers(lab: Lab, connection: Connection) -> None:
    """The first address of a host is often that of a bridge which no other host reaches."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = server.getsockname()[:2]

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    near, _ = server.accept()
                    with near, contextlib.suppress(OSError):  # one may only test whether anything listens
                        near.sendall(b"here")

        answering = threading.Thread(target=answer)
        answering.start()
        port = connection.forward_back([("127.0.0.2", place[1]), ("192.0.2.1", place[1]), place])
        for _ in range(2):
            reader = f"import socket; print(socket.create_connection(('127.0.0.1', {port})).recv(9).decode())"
            assert connection.run(f'{sys.executable} -c "{reader}"', WAIT_S).stdout == b"here\n"
        server.shutdown(socket.SHUT_RDWR)
        answering.join(WAIT_S)


def test_a_tunnel_without_listener_closes_at_once(connection: Connection) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = server.getsockname()[:2]
    port = connection.forward_back([nobody])
    code = f"import socket; print(socket.create_connection(('127.0.0.1', {port})).recv(1))"
    assert connection.run(f'{sys.executable} -c "{code}"', WAIT_S).stdout.strip() == b"b''"


COUNTER = """import contextlib, socket, sys, threading
def serve():
    while True:
        near, _ = server.accept()
        got = 0
        with near, contextlib.suppress(OSError):
            while data := near.recv(65536):
                got += len(data)
            near.sendall(str(got).encode())
server = socket.create_server(('127.0.0.1', 0))
print(server.getsockname()[1], flush=True)
threading.Thread(target=serve, daemon=True).start()
sys.stdin.read()"""


def test_a_port_here_leads_to_one_on_the_loopback_there(connection: Connection, tmp_path: Path) -> None:
    channel = connection.start(f'{sys.executable} -c "{COUNTER}"', tmp_path / "log")
    port = int(next(iter(channel.lines())))
    with contextlib.closing(PortForward("h1", connection.open_port, port)) as forward:
        place = ("127.0.0.1", forward.port)
        for count in (0, 3_000_000):
            with socket.create_connection(place, WAIT_S) as near:
                near.sendall(bytes(count))
                near.shutdown(socket.SHUT_WR)
                assert near.makefile().read() == str(count)
        with pytest.raises(OSError):
            PortForward("h1", connection.open_port, port, forward.port)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(place, WAIT_S)
    channel.end_input()
    assert channel.exit_status(WAIT_S) == 0
    channel.close()
    with pytest.raises(HostFailed) as caught:
        PortForward("h1", connection.open_port, port)
    assert "refused a connection to a port" in caught.value.cause and "AllowTcpForwarding" in caught.value.fix


def test_hosts_behind_one_jump_host_share_a_connection_to_it(lab: Lab) -> None:
    jump = target_of(lab, 1)
    targets = [target_of(lab, index, host=f"{index}-{n}", jump=jump) for index in (0, 2) for n in range(3)]
    opened = dict(open_all(make_client(SSH), targets))
    try:
        connections = [found for found in opened.values() if isinstance(found, Connection)]
        assert len(connections) == 6, opened
        assert len(sessions(lab.hosts[1])) == 1
        for connection in connections[:-1]:
            connection.close()
        source = connections[-1].run("echo $SSH_CONNECTION", WAIT_S).stdout.split()[0].decode()
        assert source == lab.hosts[1].address
    finally:
        for found in opened.values():
            assert isinstance(found, Connection)
            found.close()
    until(lambda: not sessions(lab.hosts[1]))


@pytest.mark.long
def test_forty_connections_at_once_come_through_one_sshd(lab: Lab, ssh: SshSection) -> None:
    """Its MaxStartups 10:30:100 hangs up on callers at random: none of that reaches the caller."""
    target, client = target_of(lab, 2), make_client(ssh)
    opened: list[Connection] = []
    failed: list[HostFailed] = []

    def call() -> None:
        try:
            opened.append(client.open(target))
        except HostFailed as error:
            failed.append(error)

    threads = [threading.Thread(target=call) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for connection in opened:
        connection.close()
    assert not failed
    assert len(opened) == 40


@pytest.mark.parametrize("ssh", ["paramiko", long("openssh")], indirect=True)
def test_forty_hosts_are_connected_to_in_turn(lab: Lab, ssh: SshSection) -> None:
    targets = [target_of(lab, 2, host=f"n{index}") for index in range(40)]
    names = []
    for name, found in open_all(make_client(ssh), targets):
        assert isinstance(found, Connection)
        found.close()
        names.append(name)
    assert sorted(names) == sorted(target.host for target in targets)


def test_an_abandoned_open_all_closes_undelivered_connections(lab: Lab, ssh: SshSection) -> None:
    results = open_all(make_client(ssh), [target_of(lab, 2, host=f"n{index}") for index in range(12)])
    _, first = next(results)
    assert isinstance(first, Connection)
    results.close()  # type: ignore[attr-defined]
    first.close()
    until(lambda: not sessions(lab.hosts[2]))


def test_a_cut_cable_ends_it_only_after_the_keepalive_timeout(lab: Lab, ssh: SshSection) -> None:
    if not lab.isolated:
        pytest.skip(lab.why_not_isolated)
    target = target_of(lab, 2)
    with (
        contextlib.closing(make_client(ssh, 1.0).open(target)) as hasty,
        contextlib.closing(make_client(ssh, 60.0).open(target)) as patient,
    ):
        lab.link(2, False)
        try:
            for connection in (hasty, patient):
                if isinstance(connection, ParamikoConnection):
                    connection.transport.send_ignore()  # what is not acknowledged is what it waits for
            until(lambda: not hasty.is_alive())
        finally:
            lab.link(2, True)
        assert patient.run("echo there", WAIT_S).stdout == b"there\n"
        for process in sessions(lab.hosts[2]):  # the far end of `hasty` has nothing to send: it would never learn
            os.kill(process.pid, signal.SIGKILL)
