"""How an agent ends its host for a command, and for the end of its launcher."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import call, create_autospec

import pytest

from tests.agent.plans import stand_in_plan
from zmqrl.agent.commands import Commands
from zmqrl.agent.data_plane import NoDataPlane
from zmqrl.agent.host_agent import HostAgent
from zmqrl.agent.host_processes import HostProcesses
from zmqrl.agent.output import AgentOutput
from zmqrl.agent.process_spawner import ProcessSpawner
from zmqrl.agent.shutdown_policy import ShutdownMode
from zmqrl.config.plan import Boot
from zmqrl.messages.command import Command, KillAll, Stop
from zmqrl.messages.lines import line_of

CLEAN, FAILED, HURRIED, KILL = ShutdownMode


@pytest.mark.parametrize(("sent", "is_closed", "modes"), [
    ([Stop()], False, [CLEAN]),
    ([Stop(failed=True)], False, [FAILED]),
    ([KillAll()], False, [KILL]),
    ([], True, [HURRIED]),
    ([KillAll()], True, [HURRIED, KILL]),
])  # fmt: skip
def test_each_end_has_its_mode_and_the_hardest_comes_last(
    tmp_path: Path, sent: list[Command], is_closed: bool, modes: list[ShutdownMode]
) -> None:
    (commands, write_fd), (read_fd, output) = os.pipe(), os.pipe()
    boot = Boot("agent", 0, 0, "local", stand_in_plan(tmp_path / "run"))
    spawner = create_autospec(ProcessSpawner, instance=True)
    host = HostAgent(boot, spawner, NoDataPlane(), Commands(commands), AgentOutput(output))
    host._processes = create_autospec(HostProcesses, instance=True, ending=False)
    os.write(write_fd, b"".join(map(line_of, sent)))
    if is_closed:
        os.close(write_fd)
        host._commands.is_end_requested()
    host._read_commands()
    assert host._processes.end.call_args_list == [call(mode) for mode in modes]
    for fd in (commands, read_fd, output, host._wakeup_read, host._wakeup_write, *(() if is_closed else (write_fd,))):
        os.close(fd)
