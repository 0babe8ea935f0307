"""The real host agent without a data plane, whose children are the stand-ins beside this file."""

from __future__ import annotations

import sys
from pathlib import Path

from zmqrl.agent.commands import Commands
from zmqrl.agent.data_plane import NoDataPlane
from zmqrl.agent.host_agent import HostAgent
from zmqrl.agent.output import AgentOutput
from zmqrl.agent.process_spawner import ProcessSpawner
from zmqrl.config.plan import Boot
from zmqrl.entry import PARENT_VARIABLE, STDIN, STDOUT


def command(role: str, run_id: str, index: int) -> list[str]:
    return [sys.executable, str(Path(__file__).with_name("start.py")), f"zmqrl.{role}", run_id, str(index)]


def main(boot: Boot) -> int:
    spawner = ProcessSpawner(Path(boot.plan.run_dir) / "logs", PARENT_VARIABLE, command)
    return HostAgent(boot, spawner, NoDataPlane(), Commands(STDIN), AgentOutput(STDOUT)).run()
