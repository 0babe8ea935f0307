"""An examining agent as a real process: what it says, when it ends, and that the user's env cannot take it along."""

from __future__ import annotations

import base64
import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
from msgspec import structs

from tests.supervision.test_check_process import sleepers
from tests.support.marks import at_once
from tests.support.raising import raises
from tests.support.waiting import WAIT_S, until
from zmqrl.agent.run_processes import agents
from zmqrl.config.codec import to_json
from zmqrl.config.sections import CodeSection, EnvSection, HostSection
from zmqrl.doctor.examination import Examination, HostRequests
from zmqrl.doctor.links import HostLink, link_here
from zmqrl.doctor.machine import examine_folder
from zmqrl.doctor.measurement import Hello, Measurement
from zmqrl.doctor.runner import Runner
from zmqrl.errors import ConfigError, HostFailed
from zmqrl.messages.command import EXAMINATION, BeginExamination
from zmqrl.messages.doctor import Broken, Curve, EnvFacts, Examined, Folders, read_reply, reply_line
from zmqrl.messages.doctor_requests import Examine, Finish, request_line
from zmqrl.messages.frames import PROTOCOL
from zmqrl.messages.lines import line_of
from zmqrl.messages.orchestrator import Handshake
from zmqrl.orchestrators.handshake import SENTINEL
from zmqrl.orchestrators.piped import PipedShell
from zmqrl.ssh.code_sync import make_archive
from zmqrl.ssh.shell import HostShell
from zmqrl.supervision.host_lock import HostLock
from zmqrl.supervision.process_table import await_gone, identify

pytestmark = pytest.mark.whole
HERE = Path(__file__).parent


def env_text(**fields: Any) -> str:
    return json.dumps(to_json(EnvSection(**fields)))


ASKED = Examine("/tmp", None, env_text(id="odd_env:Env"), "sync", "1", env_limit_s=WAIT_S)
COMMAND = [sys.executable, "-m", "zmqrl.entry", "zmqrl.agent", "-", "0"]
EXAMINE = line_of(BeginExamination())


def examined(request: Examine, env: Mapping[str, str]) -> Measurement:
    """What is found on this machine, as `zmqrl doctor` finds it."""
    examination = Examination({"local": HostRequests(request, None, False)}, "local")
    runner = Runner(examination, print, answer_s=request.env_limit_s + WAIT_S)
    return runner.run([("local", lambda: link_here(HostSection(env=env)))])["local"]


def packed(path: Path) -> str:
    modules = make_archive(CodeSection(sync=(str(path),)))
    assert modules is not None
    return base64.b64encode(modules.content).decode()


def env_of(how: str, request: Examine = ASKED) -> EnvFacts:
    facts = examined(request, {"PYTHONPATH": str(HERE), "ODD_ENV": how}).env
    assert facts is not None
    return facts


def test_a_host_is_measured_whole() -> None:
    found = examined(ASKED, {"PYTHONPATH": str(HERE)})
    assert found.failure is None and found.hello is not None
    assert found.hello.python == sys.executable and found.hello.versions["protocol"] == str(PROTOCOL)
    assert found.clock is not None and abs(found.clock.skew_s) <= found.clock.round_trip_s / 2 + 0.01
    assert found.machine is not None and found.machine.cores >= 1 and found.machine.available_bytes > 1e7
    assert found.folders is not None and found.folders.workdir.error is None
    assert found.curve is not None and found.curve.has and (found.curve.mb_per_s or 0) > 1
    env = found.env
    assert env is not None and (env.stage, env.error, env.repeats, env.checker) == ("done", None, True, "")
    assert env.spaces == "float32 [3] -> discrete 3" and (env.steps_per_s or 0) > 1000


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("import", "the simulator's licence has run out"),
        ("nan", "observation has NaN"),
        ("crash", "steps: the user's code ended its process (signal SIGABRT)"),
    ],
)
def test_an_env_that_fails_is_named_and_the_rest_is_measured(how: str, says: str) -> None:
    facts = env_of(how)
    assert facts.error is not None and says in facts.error
    assert facts.steps_per_s is None


def test_what_an_env_starts_is_not_left_on_the_host() -> None:
    facts = env_of("", structs.replace(ASKED, env=env_text(id="tests.envs.rude_envs:Rude", kwargs={"how": "daemon"})))
    assert (facts.stage, facts.error, sleepers()) == ("done", None, [])


@at_once
def test_an_env_that_hangs_is_stopped_in_time() -> None:
    facts = env_of("hang", structs.replace(ASKED, env_limit_s=5.0))
    assert facts.stage == "steps, out of time" and facts.spaces is not None and facts.error is None


def test_a_libzmq_without_encryption_is_found(tmp_path: Path) -> None:
    text = "import zmq\nzmq.has = lambda name: False\ndel zmq.curve_keypair\n"
    (tmp_path / "sitecustomize.py").write_text(text)
    found = examined(structs.replace(ASKED, env=None), {"PYTHONPATH": f"{tmp_path}:{HERE.parents[1]}"})
    assert found.curve == Curve(False, None)


def test_an_env_that_does_not_repeat_itself_is_found() -> None:
    facts = env_of("drift")
    assert facts.repeats is False and facts.differing == "8 of 8 envs"


@pytest.mark.parametrize(("env_id", "repeats"), [("BipedalWalker-v3", False), ("Pendulum-v1", True)])
def test_known_envs_repeat_themselves_or_not(env_id: str, repeats: bool) -> None:
    request = structs.replace(ASKED, env=env_text(id=env_id, num_envs=2), env_limit_s=WAIT_S)
    facts = env_of("", request)
    assert (facts.error, facts.repeats) == (None, repeats)


def test_modules_that_would_be_sent_are_found(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text((HERE / "odd_env.py").read_text())
    request = structs.replace(ASKED, env=env_text(id="mine:Env"))
    assert "module 'mine' was not found" in (env_of("", request).error or "")
    assert env_of("", structs.replace(request, code=packed(tmp_path / "mine"))).stage == "done"


def test_a_host_that_sends_nothing_has_failed(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(600)\n")
    examination = Examination({"local": HostRequests(ASKED, None, False)}, "local")
    links = [("local", lambda: link_here(HostSection(env={"PYTHONPATH": str(tmp_path)})))]
    failure = Runner(examination, print, answer_s=0.3).run(links)["local"].failure
    assert failure is not None and failure.check == "answer"
    assert failure.cause == "connected, but no answer within 0.3 s to: the handshake"


def test_an_error_while_hosts_are_reached_ends_the_command() -> None:
    def opening() -> Iterator[tuple[str, Any]]:
        raise ConfigError("the allocation is too small")
        yield

    examination = Examination({"local": HostRequests(ASKED, None, False)}, "local")
    with raises(ConfigError, key=(), what="the allocation is too small"):
        Runner(examination, print).run(opening())


def test_a_full_disk_of_this_machine_is_the_failure_of_each_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**options: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("zmqrl.doctor.links.tempfile.mkstemp", full)
    shells = {name: create_autospec(HostShell, instance=True, accepted=()) for name in "ab"}
    opening = {name: partial(HostLink, name, shell, HostSection()) for name, shell in shells.items()}
    examination = Examination(dict.fromkeys("ab", HostRequests(ASKED, None, False)), "a")
    for name, found in Runner(examination, print).run(opening.items()).items():
        assert found.failure is not None and "No space left on device" in found.failure.cause
        assert "df -h" in found.failure.fix
        assert shells[name].close.called


def test_an_error_of_a_reader_is_the_failure_of_its_host() -> None:
    link = create_autospec(HostLink, instance=True, accepted=(), has_prologue=False, has_handshake=False, waits_for="")
    link.reaper_failure.return_value = None
    link.replies.side_effect = RuntimeError("can't start new thread")
    examination = Examination({"far": HostRequests(ASKED, None, False)}, "far")
    found = Runner(examination, print).run([("far", lambda: link)])["far"]
    assert found.failure is not None and "can't start new thread" in found.failure.cause
    assert link.release.called


@pytest.fixture
def probe() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_it_ends_with_its_stdin_also_in_the_middle_of_a_check(probe: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert probe.stdin is not None and probe.stdout is not None
    assert probe.stdout.readline().decode().startswith(SENTINEL)
    asleep = tmp_path / "asleep"
    (tmp_path / "napping.py").write_text(f"import time\nopen({str(asleep)!r}, 'w').close()\ntime.sleep(600)\n")
    code = packed(tmp_path / "napping.py")
    request = structs.replace(ASKED, env=env_text(id="napping:Env"), code=code, env_limit_s=60.0)
    probe.stdin.write(EXAMINE + request_line(request))
    probe.stdin.flush()
    until(asleep.exists)
    (child,) = (identify(pid) for pid in children(probe.pid))
    assert child is not None
    probe.stdin.close()
    assert probe.wait(WAIT_S) == 1
    assert await_gone([child], WAIT_S) == []


def test_it_belongs_to_no_run_and_holds_nothing_of_one(probe: subprocess.Popen[bytes]) -> None:
    assert probe.stdin is not None and probe.stdout is not None
    probe.stdout.readline()
    probe.stdin.write(EXAMINE + request_line(structs.replace(ASKED, env=None)))
    probe.stdin.flush()
    replies = (read_reply(line.decode().rstrip()) for line in probe.stdout)
    assert any(isinstance(reply, Examined) for reply in replies)
    assert probe.pid not in {pid for pid, _ in agents()}, "`down --all` ends the runs of these"
    assert probe.pid not in {entry.pid for entry in HostLock().entries()}
    assert not [fd for fd in Path(f"/proc/{probe.pid}/fd").iterdir() if "memfd" in os.readlink(fd)]


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


@pytest.mark.parametrize(
    "line", ["", "Welcome to node07!", '{"word": "Broken", "cause": "c"}', "ZMQRL-PROBER {}", "ZMQRL ZMQRL-PROBE {}"]
)
def test_a_shell_banner_is_not_a_reply(line: str) -> None:
    assert read_reply(line) is None


@pytest.mark.parametrize(("text", "reason"), [
    ('{"word": "Hello", "node": 1', "not JSON"),
    ('["Pwned", {}]', "not JSON"),
    ('{"word": "Pwned"}', "unknown word"),
    ('{"word": "Clock"}', "fields"),
    ('{"word": "Clock", "time_s": 1.0, "more": 1}', "fields"),
    ('{"word": "Clock", "time_s": "now"}', "value"),
])  # fmt: skip
def test_a_malformed_message_is_refused_and_the_next_one_is_read(text: str, reason: str) -> None:
    link = link_here(HostSection())
    try:
        replies = list(link.replies_in(["Welcome!", f"ZMQRL-PROBE {text}", reply_line(Broken("c"))]))
    finally:
        link.release()
    assert (replies, link.refused) == ([Broken("c")], {reason: 1})


def agent_of(tmp_path: Path, handshake: Handshake) -> HostSection:
    """An agent of another version: its handshake, then it waits for its first line and ends."""
    python = tmp_path / "python"
    (tmp_path / "line").write_text(SENTINEL + line_of(handshake).decode())
    python.write_text(f"#!/bin/sh\ncat {tmp_path}/line\nhead -n 1 > {tmp_path}/received\n")
    python.chmod(0o755)
    return HostSection(python=str(python), workdir=str(tmp_path))


@pytest.mark.parametrize(("versions", "received"), [
    ({"zmqrl": "9.9", "examination": str(EXAMINATION)}, EXAMINE),
    ({"zmqrl": "0.0.9", "examination": str(EXAMINATION + 1)}, b""),
    ({"zmqrl": "0.0.9"}, b""),
])  # fmt: skip
def test_an_agent_of_another_version_is_checked_if_it_takes_the_same_commands(
    tmp_path: Path, versions: dict[str, str | None], received: bytes
) -> None:
    section = agent_of(tmp_path, Handshake(versions, 7, 1.0, node="n", user="u", python="/p"))
    examination = Examination({"far": HostRequests(ASKED, None, False)}, "far")
    found = Runner(examination, print).run([("far", lambda: HostLink("far", PipedShell("far"), section))])["far"]
    assert found.hello == Hello("n", "u", "/p", versions)
    assert (tmp_path / "received").read_bytes() == received
    assert (found.failure is None) == (received == b""), "an agent that ends after it received `examine` has failed"


def test_a_host_without_zmqrl_or_without_python_is_described_by_a_shell(tmp_path: Path) -> None:
    bare = HostSection(python=sys.executable, env={"PYTHONPATH": str(tmp_path)}, workdir=str(tmp_path))
    (tmp_path / "zmqrl").mkdir()
    (tmp_path / "zmqrl" / "__init__.py").touch()
    missing = "raise ModuleNotFoundError(\"No module named 'zmqrl.entry'\", name='zmqrl.entry')"
    (tmp_path / "zmqrl" / "entry.py").write_text(missing)  # else an editable zmqrl of this Python is found
    nothing = HostSection(python="/opt/none/python", workdir=str(tmp_path))
    opening = {
        name: partial(HostLink, name, PipedShell(name), section) for name, section in (("a", bare), ("b", nothing))
    }
    examination = Examination(dict.fromkeys("ab", HostRequests(ASKED, None, False)), "a")
    found = Runner(examination, print).run(opening.items())
    without_zmqrl, without_python = found["a"], found["b"]
    assert without_zmqrl.failure is not None and without_zmqrl.failure.check == "zmqrl"
    assert without_zmqrl.hello is not None and without_zmqrl.hello.versions["msgspec"] is not None
    assert without_python.failure is not None and without_python.failure.check == "python"
    uname = os.uname()
    assert without_python.hello is not None and without_python.hello.node == uname.nodename
    assert without_python.hello.versions == {"machine": uname.machine}


def test_where_a_directory_is_to_be_made_is_tried_for_real(tmp_path: Path) -> None:
    found = examine_folder(str(tmp_path / "a" / "b"))
    assert (found.there, found.error) == (str(tmp_path), None) and found.free_bytes > 0
    assert list(tmp_path.iterdir()) == []
    assert examine_folder("/proc/none").error == "/proc: No such file or directory"
    (tmp_path / "file").write_text("")
    assert "is not a directory" in (examine_folder(str(tmp_path / "file" / "x")).error or "")


def test_an_order_that_is_none_ends_the_probe(probe: subprocess.Popen[bytes]) -> None:
    assert probe.stdin is not None and probe.stdout is not None
    probe.stdin.write(EXAMINE + b'{"order": "Examine", "workdir": 3}\n')
    probe.stdin.flush()
    replies = [read_reply(line.decode().rstrip()) for line in probe.stdout]
    assert isinstance(replies[1], Broken) and replies[1].cause.startswith("WireError: fields: Examine: ")
    assert probe.wait(WAIT_S) == 1


def test_a_host_without_msgspec_still_reports_its_identity(tmp_path: Path) -> None:
    (tmp_path / "msgspec.py").write_text("raise ImportError('no msgspec here')\n")
    found = examined(ASKED, {"PYTHONPATH": f"{tmp_path}:{HERE.parents[1]}"})
    assert found.hello is not None and found.hello.versions["zmqrl"]
    assert found.failure is not None and "ImportError: no msgspec here" in found.failure.cause


def test_words_are_read_whatever_they_name() -> None:
    reply = Broken("no such file: caf\u00e9 \udce4")
    assert read_reply(reply_line(reply)) == Broken("no such file: caf\u00e9 ?")


def test_a_probe_in_another_locale_reads_and_writes_utf_8(tmp_path: Path) -> None:
    folder = tmp_path / "caf\u00e9"
    folder.mkdir()
    env = {**os.environ, "PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1"}
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as probe:
        assert probe.stdin is not None and probe.stdout is not None
        probe.stdin.write(EXAMINE + request_line(structs.replace(ASKED, workdir=str(folder), env=None)))
        probe.stdin.write(request_line(Finish()))
        probe.stdin.flush()
        replies = [read_reply(line.decode().rstrip()) for line in probe.stdout]
    (folders,) = (reply for reply in replies if isinstance(reply, Folders))
    assert (folders.workdir.path, folders.workdir.error) == (str(folder), None)


def test_large_integers_of_an_env_reach_it() -> None:
    request = structs.replace(ASKED, env=env_text(id="odd_env:Env", kwargs={"more": 1 << 70}), seed=str(1 << 70))
    facts = env_of("", request)
    assert "more" in (facts.error or "")


def test_an_error_ends_the_wait_for_a_host_that_is_being_opened() -> None:
    """As Ctrl-C does: a pod may wait for a node."""
    abandoned = threading.Event()

    def make() -> HostLink:
        raise HostFailed("far", "abandoned" if abandoned.wait(WAIT_S) else "waited for", "")

    def opening() -> Iterator[tuple[str, Callable[[], HostLink]]]:
        yield "far", make
        raise RuntimeError("of the engine")

    examination = Examination({"far": HostRequests(ASKED, None, False)}, "far")
    with pytest.raises(RuntimeError):
        Runner(examination, print, abandon=abandoned.set).run(opening())
    assert abandoned.is_set()
