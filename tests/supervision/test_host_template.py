"""What a host agent's template forks: a child of the agent that differs in nothing from one that was executed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.running import environment
from tests.support.waiting import WAIT_S
from zmqrl.agent.process_spawner import entry_command
from zmqrl.supervision.process_table import ProcessId, await_gone, children_of, identify, is_alive

pytestmark = pytest.mark.whole
COMMAND = (sys.executable, "-m", "tests.supervision.forking_agent")


@contextmanager
def agent(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    variables = environment({"ONLY_OF_THE_AGENT": "1"})
    command = [*COMMAND, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def seen() -> list[dict[str, Any]]:
    """What two processes of one template have seen, with the pid and the exit code that their agent has."""
    with agent() as process:
        out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, err
    pids, lines = out.splitlines()[::2], [line.rpartition(" ") for line in out.splitlines()[1::2]]
    told = zip(pids, lines, strict=True)
    return [
        {**json.loads(text), "agent": process.pid, "told": int(pid), "code": int(code)} for pid, (text, _, code) in told
    ]


def test_it_is_a_child_of_the_agent_and_dies_with_it(seen: list[dict[str, Any]]) -> None:
    for each in seen:
        assert (each["role"], each["pid"], each["parent"]) == ("zmqrl.worker", each["told"], each["agent"])
        assert (each["boot"], each["dies_by"], each["code"]) == ("boot\n", signal.SIGKILL, 7)


def test_its_command_line_and_environment_are_its_own(seen: list[dict[str, Any]]) -> None:
    for index, each in enumerate(seen):
        assert each["words"] == [*entry_command("worker", "run-1", index), ""]
        assert each["executed"] == each["words"][:-1]
        variables = {"INDEX": str(index), "ZMQRL_PARENT": str(each["agent"]), "ODD": os.fsdecode(b"\xff=")}
        assert each["variables"] == variables
        assert {*each["shown"]} == {f"INDEX={index}", f"ZMQRL_PARENT={each['agent']}", "ODD=\ufffd=", ""}


def test_it_holds_what_it_was_given_alone(seen: list[dict[str, Any]]) -> None:
    for each in seen:
        assert (each["descriptors"], each["threads"], each["torch"]) == ([0, 1, 2, 3], 1, False)


def test_no_two_draw_the_same_numbers(seen: list[dict[str, Any]]) -> None:
    first, second = (each["drawn"] for each in seen)
    assert first[0] != second[0] and first[1] != second[1]


@contextmanager
def family() -> Iterator[tuple[ProcessId, ProcessId, list[ProcessId]]]:
    """An agent, its template, and two processes that it has forked."""
    with agent("600") as process:
        assert process.stdout is not None
        pids = [int(process.stdout.readline()) for _ in range(2)]
        forked = [found for pid in pids if (found := identify(pid)) is not None]
        (template,) = set(children_of(process.pid)) - set(forked)  # these may still show its command
        own = identify(process.pid)
        assert own is not None
        yield own, template, forked


def test_the_template_ends_alone() -> None:
    with family() as (own, template, forked):
        os.kill(template.pid, signal.SIGKILL)
        assert not await_gone([template], WAIT_S)
        assert is_alive(own) and all(map(is_alive, forked))


@pytest.mark.parametrize("both", [False, True])
def test_nothing_is_left_of_an_agent_that_was_killed(both: bool) -> None:
    with family() as (own, template, forked):
        for process in (template, own) if both else (own,):
            os.kill(process.pid, signal.SIGKILL)
        assert not await_gone([own, template, *forked], WAIT_S)
