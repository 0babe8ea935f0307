"""Calls in check processes: what the user's code does to its process, how it ends, and what it leaves."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.envs.rude_envs import crash, hang
from tests.supervision.called import ERRORS, OwnFault
from tests.support.raising import raises
from tests.support.running import environment
from tests.support.waiting import WAIT_S, until
from zmqrl.agent.run_processes import role_in
from zmqrl.config.sections import Config, EnvSection, LimitsSection
from zmqrl.envs.make import probe
from zmqrl.errors import ConfigError, EnvFault, ZmqrlError
from zmqrl.orchestrators.handshake import SENTINEL
from zmqrl.planning.checked import checked_env
from zmqrl.supervision import check_process
from zmqrl.supervision.served_call import CheckEnded, Subject
from zmqrl.types import EnvSpec

RUDE = "tests.envs.rude_envs"
CALLED = "tests.supervision.called"
SLEEPERS = (b"sleep\0" + b"600.25\0", b"sleep\0" + b"600.5\0")
MODULES = {
    "parses": "import argparse\nargparse.ArgumentParser().parse_args()\n",
    "requires": "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('g')\nparser.parse_args()\n",
    "leaves": "import sys\nsys.exit(0)\n",
    "vanishes": "import os\nprint('no display')\nos._exit(0)\n",
    "hangs": "import time\ndef wait():\n    time.sleep(600)\nwait()\n",
}


@pytest.fixture(scope="module", autouse=True)
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Modules that do something when they are imported."""
    folder = tmp_path_factory.mktemp("modules")
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(f"{text}from tests.envs.rude_envs import Rude\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


@pytest.fixture(scope="module", autouse=True)
def template(modules: None, check_processes: None) -> None:
    """It finds the modules."""


def call(function: str, *arguments: Any) -> Any:
    return check_process.call(f"{CALLED}:{function}", *arguments, subject=Subject("'x'", ("key",)), limit_s=60.0)


def check(env: str, limit_s: float = 60.0, **kwargs: Any) -> EnvSpec:
    env_id = env if ":" in env else f"{RUDE}:{env}"
    config = Config(env=EnvSection(id=env_id, kwargs=kwargs), limits=LimitsSection(start_s=limit_s))
    try:
        return checked_env(config)
    finally:
        check_process._found.clear()
        assert not sleepers()


def sleepers() -> list[str]:
    """Processes that the envs have started."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        found += [name] if command in SLEEPERS else []
    return found


ACCEPTED = (
    "chdir", "at_exit", "thread", "sigchld", "timer", "limit", "close_some", "prints", "no_streams", "daemon",
)  # fmt: skip


@pytest.mark.parametrize("how", ACCEPTED)
def test_what_an_env_does_to_its_process_stays_there(how: str, capfd: pytest.CaptureFixture[str]) -> None:
    before = os.getcwd(), signal.getsignal(signal.SIGCHLD)
    assert check("Rude", how=how) == probe(EnvSection(id=f"{RUDE}:Rude"))
    assert (os.getcwd(), signal.getsignal(signal.SIGCHLD)) == before
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("env", ["Simulator", "Child", "Threaded", "SamePid"])
def test_an_env_that_owns_a_process_or_a_thread_is_accepted(env: str) -> None:
    assert check(env).action.n == 4


@pytest.mark.parametrize("where", ["init", "reset", "step"])
@pytest.mark.parametrize(("how", "named"), [("sys_exit", "SystemExit"), ("interrupt", "KeyboardInterrupt")])
def test_an_exception_that_would_end_the_command_is_an_error_of_the_env(where: str, how: str, named: str) -> None:
    with raises(ConfigError, key=("env", "id")) as caught:
        check("Rude", how=how, where=where)
    assert named in caught.value.what and "rude_envs.py:" in caught.value.what


SEGFAULT = "the user's code ended its process (signal SIGSEGV)"
STAGES = {"init": "construction", "reset": "first reset and step", "step": "first reset and step", "close": "close"}


@pytest.mark.parametrize("where", STAGES)
def test_an_env_that_ends_its_process_is_refused(where: str) -> None:
    with raises(CheckEnded, stage=STAGES[where], cause="the user's code ended its process (exit code 0)"):
        check("Rude", how="os_exit", where=where)


def test_the_end_of_the_process_in_a_later_step_is_named() -> None:
    with raises(CheckEnded, stage="further steps"):
        check("Rude", how="os_exit", where="step", at=7)


def test_a_crash_is_named_with_its_place() -> None:
    place = f"tests/envs/rude_envs.py:{crash.__code__.co_firstlineno + 1}, in crash"
    with raises(CheckEnded, cause=SEGFAULT, place=place):
        check("Rude", how="crash", where="step")


def test_the_place_of_a_crash_is_that_of_the_main_thread_however_deep() -> None:
    with raises(CheckEnded, cause=SEGFAULT) as caught:
        call("crash_below", 200)
    assert re.fullmatch(r"tests/supervision/called\.py:\d+, in crash_below", caught.value.place)


def test_closed_descriptors_are_named() -> None:
    with raises(CheckEnded, stage="construction", cause="the user's code closed the file descriptors of its process"):
        check("Rude", how="close_all")


def test_arguments_of_zmqrl_are_not_those_of_a_module() -> None:
    assert check("parses:Rude").action.n == 4


@pytest.mark.parametrize(
    ("module", "line", "code", "output"),
    [("requires", 4, 2, "the following arguments are required: g"), ("leaves", 2, 0, "in <module>)")],
)
def test_a_module_that_exits_is_named_with_its_line(module: str, line: int, code: int, output: str) -> None:
    with raises(ConfigError, key=("env", "id"), value=f"'{module}:Rude'") as caught:
        check(f"{module}:Rude")
    exited = rf"construction: sys\.exit was called: SystemExit: {code} \(\S*{module}\.py:{line}, in <module>\)"
    assert re.match(exited, caught.value.what) and caught.value.what.endswith(output)


def test_a_module_that_ends_the_process_is_refused() -> None:
    with pytest.raises(CheckEnded):
        check("vanishes:Rude")


@pytest.mark.parametrize(
    ("where", "how"), [*((where, "hang") for where in STAGES), ("init", "hang_with_the_lock"), ("init", "hang_deaf")]
)
def test_a_hang_is_named_and_refused_at_the_limit(
    where: str, how: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_process, "WAITING_S", 0.5)
    with raises(CheckEnded, stage=STAGES[where], is_late=True) as caught:
        check("Rude", 10.0 if how == "hang_with_the_lock" else 1.0, how=how, where=where)  # faulthandler's turn is last
    assert re.fullmatch(rf"tests/envs/rude_envs\.py:\d+, in {how}", caught.value.place)
    noted = capfd.readouterr().err.splitlines()
    assert len(noted) == 1 and STAGES[where] in noted[0]
    if how == "hang":
        assert f"rude_envs.py:{hang.__code__.co_firstlineno + 1}, in hang" in noted[0]


def test_an_import_that_hangs_is_named_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_process, "WAITING_S", 0.5)
    with raises(CheckEnded, stage="construction", is_late=True) as caught:
        check("hangs:Rude", 1.0)
    assert caught.value.place.endswith("hangs.py:3, in wait")


def test_a_call_that_only_takes_long_survives_the_looks_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an import of torch from a slow disk.

    A dump without the interpreter's lock crashes a process that runs, so one is made only where the lock was held for a
    whole interval. On a loaded machine 10 ms pass by chance.
    """
    monkeypatch.setattr(check_process, "WAITING_S", 0.1)
    assert call("imports", 1.0)


def test_a_later_step_that_hangs_is_left_to_the_workers() -> None:
    assert check("Rude", how="hang", where="step", at=7) == probe(EnvSection(id=f"{RUDE}:Rude"))


@pytest.mark.parametrize("value", [None, 1 << 80, float("inf"), "\ud800\n", {"a": [1.5, {}]}, "x" * 3_000_000])
def test_plain_data_passes_as_it_is(value: Any) -> None:
    assert call("echoed", value) == value


def test_a_copy_of_the_process_gives_no_answer() -> None:
    assert call("forked") == "the process"


@pytest.mark.parametrize("which", range(len(ERRORS)))
def test_an_error_has_its_class_and_its_attributes(which: int) -> None:
    expected = ERRORS[which]
    with pytest.raises(ZmqrlError) as caught:
        call("raises", which)
    found = caught.value
    assert type(found) is (EnvFault if isinstance(expected, OwnFault) else type(expected))
    assert str(found) == str(expected) and found.exit_code == expected.exit_code
    assert vars(found) == vars(expected)


def test_another_exception_is_an_error_of_the_configuration_with_its_place() -> None:
    with raises(ConfigError, key=("key",), value="'x'"):
        call("bug")


def test_a_stage_that_goes_on_in_time_is_not_the_answer() -> None:
    assert call("stages") == "known at last"


def test_one_of_several_calls_with_the_same_key_is_carried_out() -> None:
    arguments: dict[str, Any] = {"subject": Subject("key"), "limit_s": 60.0, "key": "same"}
    try:
        values = [check_process.call(f"{CALLED}:echoed", value, **arguments) for value in (1, 2)]
        assert values == [1, 1]
    finally:
        check_process._found.clear()


COMMAND = f"""
from zmqrl.config.sections import Config, EnvSection
from zmqrl.planning.checked import checked_env
checked_env(Config(env=EnvSection(id="{RUDE}:Hanging")))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_command_that_ends_leaves_nothing(number: signal.Signals) -> None:
    process = subprocess.Popen([sys.executable, "-c", COMMAND], env=environment(), stderr=subprocess.DEVNULL)
    try:
        until(lambda: len(sleepers()) == 2, "the processes of the env")
        template = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
        process.send_signal(number)
        process.wait(WAIT_S)
        until(lambda: not sleepers() and not Path(f"/proc/{template}").exists(), "their end")
    finally:
        process.kill()
        process.wait()


def test_the_template_lives_until_the_outermost_end() -> None:
    with check_process.none_left():
        check_process.start()
        with check_process.none_left():
            before = check_process._template
        assert check_process._template is before is not None
    assert check_process._template is None


def test_the_template_becomes_the_host_agent(tmp_path: Path) -> None:
    words, log = [sys.executable, "-m", "zmqrl.entry", "zmqrl.agent", "run-of-a-test", "0"], tmp_path / "log"
    check_process.start()
    agent = check_process.become(words, {**environment(), "ONLY_OF_THE_AGENT": "1"}, log)
    assert agent is not None and agent.stdin is not None and agent.stdout is not None
    with agent:
        assert SENTINEL in agent.stdout.readline().decode()
        assert role_in(Path(f"/proc/{agent.pid}/cmdline").read_text().rstrip("\0").split("\0")) is not None
        assert "ONLY_OF_THE_AGENT=1" in Path(f"/proc/{agent.pid}/environ").read_text().split("\0")
        agent.stdin.write(b"{}\n")  # no boot
        agent.stdin.flush()
        assert agent.wait(WAIT_S) == 1
    assert "Error" in log.read_text()
    assert check_process._template is None
    assert check("Rude").action.n == 4, "a new template"
    check_process.end()


def test_a_template_that_was_killed_becomes_no_agent(tmp_path: Path) -> None:
    check_process.start()
    assert check_process._template is not None
    process = check_process._template._process
    process.kill()
    process.wait(WAIT_S)
    assert check_process.become([], {}, tmp_path / "log") is None
