"""Templates of commands, and what remains of a run by the answer of an engine."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import pytest

from tests.agent.plans import stand_in_plan
from tests.support.raising import raises
from tests.support.waiting import WAIT_S
from zmqrl.config.sections import Config, HostSection
from zmqrl.errors import HostFailed
from zmqrl.launch.run.boots import boots
from zmqrl.messages.orchestrator import Reaped
from zmqrl.orchestrators.access import HostAccess
from zmqrl.orchestrators.agent import HostEnd
from zmqrl.orchestrators.command import CommandAccess, CommandConfig, CommandOrchestrator
from zmqrl.orchestrators.on_hosts import ended_by_engine, ended_over
from zmqrl.orchestrators.piped import PipedShell

LIST = ("sh", "-c", 'cd "$0" && ls | grep "^{name}" || [ -d "$0" ]')
FILES = ("sh", "-c", 'cd "$0" && rm -f -- "$@"')


def engine(folder: Path, cancel: tuple[str, ...] = FILES) -> CommandAccess:
    """Jobs are files of a folder."""
    config = CommandConfig(("true",), ("env", "{name}"), (*LIST, str(folder)), (*cancel, str(folder)))
    return CommandAccess(config, Config())


@pytest.mark.parametrize("keys", [
    {"run": ()},
    {"run": ("env", "{hst}")},
    {"run": ("env", "{name}")},
    {"run": ("ssh", "{host}", "exec {command}")},
    {"run": ("env",), "remaining": ("ps",)},
    {"run": ("env",), "cancel": ("kill",)},
    {"run": ("env",), "remaining": ("ps", "{command}"), "cancel": ("kill",)},
])  # fmt: skip
def test_a_wrong_template_is_refused(keys: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(ValueError):
        CommandConfig(**keys)


@pytest.mark.parametrize(("remaining", "start", "is_refused"), [
    (("squeue", "-h", "-o", "%i"), ("srun", "{name}"), True),
    (("ps", "{run_id}"), ("srun", "{name}"), True),
    (("ps", "{host}"), ("srun", "{name}"), True),
    (("ps", "{name}"), (), True),
    (("ps", "{name}"), ("srun", "{run_id}"), True),
    (("ps", "{name}"), ("srun", "{name}"), False),
    (("ps", "{name}"), ("srun", "zmqrl-{run_id}-{host}"), False),
    (("ps", "{run_id} .*{host}"), (), False),
])  # fmt: skip
def test_what_may_list_other_jobs_or_misses_those_of_the_run_is_refused(
    remaining: tuple[str, ...], start: tuple[str, ...], is_refused: bool
) -> None:
    """The last one finds the line of the host agent, which has both."""
    with pytest.raises(ValueError) if is_refused else contextlib.nullcontext():
        CommandConfig(("env",), start, remaining, ("kill",))


@pytest.mark.parametrize("words", [("env", "ON={host}"), ("sh", "-c", 'eval "$*"', "sh", "{command}")])
def test_a_command_that_joins_its_words_receives_the_line(words: tuple[str, ...]) -> None:
    shell = CommandOrchestrator.shell(CommandConfig(words), Config(), "n1")
    assert shell.run("printf '%s|' \"a  b\" 'c d'", WAIT_S).stdout == b"a  b|c d|"


def test_the_agent_is_started_by_start_and_the_rest_by_run(tmp_path: Path) -> None:
    plan = stand_in_plan(tmp_path)
    config = CommandConfig(("env", "BY=run"), ("env", "BY={name}-{run_id}-{host}"))
    ((host, shell),) = list(CommandOrchestrator(config, plan).shells({"n1": boots(plan)["local"]}))
    pipe = shell.start("echo $BY", tmp_path / "log")
    assert (host, list(pipe.lines())) == ("n1", [f"zmqrl-{plan.run_id}-n1-{plan.run_id}-n1"])
    pipe.close()
    assert shell.run("echo $BY", WAIT_S).stdout == b"run\n"


def test_jobs_are_awaited_cancelled_and_named(tmp_path: Path) -> None:
    for name in ("zmqrl-r-n1.7", "zmqrl-r-n2.8", "zmqrl-other-n1.9"):
        (tmp_path / name).touch()
    access = engine(tmp_path)
    found = dict(access.reap(["n1", "n2", "n3"], "r", 0.0))
    assert found == {
        "n1": Reaped(killed=("job zmqrl-r-n1.7",)),
        "n2": Reaped(killed=("job zmqrl-r-n2.8",)),
        "n3": Reaped(),
    }
    assert os.listdir(tmp_path) == ["zmqrl-other-n1.9"]
    assert ended_by_engine(access, "n1", "r") == HostEnd()


def test_jobs_are_cancelled_however_long_the_first_answers_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zmqrl.orchestrators.on_hosts.CANCEL_S", 0.0)
    (tmp_path / "zmqrl-r-n1.7").touch()
    assert dict(engine(tmp_path).reap(["n1", "n2"], "r", 0.0)) == {
        "n1": Reaped(killed=("job zmqrl-r-n1.7",)),
        "n2": Reaped(),
    }


def test_all_hosts_are_asked_at_once() -> None:
    both = threading.Barrier(2)

    class Engine(HostAccess):
        lists_jobs = True

        def remaining(self, host: str, run_id: str) -> list[str]:
            both.wait(WAIT_S)
            return []

    assert dict(Engine(None, Config()).reap(["n1", "n2"], "r", 0.0)) == {"n1": Reaped(), "n2": Reaped()}


def test_empty_lines_of_remaining_are_no_jobs() -> None:
    remaining = ("printf", "\\n 7 \\n\\n", "{name}")
    access = CommandAccess(CommandConfig(("true",), ("env", "{name}"), remaining, FILES), Config())
    assert access.remaining("n1", "r") == ["7"]


def test_a_command_that_fails_without_a_word_is_named_by_its_exit_code() -> None:
    remaining = ("sh", "-c", "exit 3", "{name}")
    access = CommandAccess(CommandConfig(("false",), ("env", "{name}"), remaining, FILES), Config())
    fix = "try: sh -c 'exit 3' zmqrl-r-n1"
    with raises(HostFailed, cause="orchestrator.remaining ended with exit code 3", fix=fix):
        access.remaining("n1", "r")
    ((_, shell),) = access.shells(["n1"])
    assert isinstance(shell, PipedShell)
    assert ended_over(shell, HostSection(), "r", "n1") == HostEnd(left=("n1/? (unreachable: exit code 1)",))


@pytest.mark.parametrize(("cancel", "cause"), [
    (("true",), ""),
    (("false",), " (orchestrator.cancel ended with exit code 1)"),
    (("sh", "-c", "echo no such job >&2; exit 3"), " (orchestrator.cancel ended with exit code 3: no such job)"),
    (("kil",), " (kil cannot be started: No such file or directory)"),
])  # fmt: skip
def test_a_job_that_stays_is_left_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cancel: tuple[str, ...], cause: str
) -> None:
    monkeypatch.setattr("zmqrl.orchestrators.on_hosts.CANCEL_S", 0.0)
    (tmp_path / "zmqrl-r-n1.7").touch()
    assert dict(engine(tmp_path, cancel).reap(["n1"], "r", 0.0)) == {"n1": Reaped(left=(f"job zmqrl-r-n1.7{cause}",))}


def test_an_engine_that_does_not_answer_has_not_confirmed_the_end(tmp_path: Path) -> None:
    access = engine(tmp_path / "absent")
    ((host, found),) = access.reap(["n1"], "r", 0.0)
    assert host == "n1" and isinstance(found, HostFailed)
    with raises(HostFailed, host="n1"):
        ended_by_engine(access, "n1", "r")
