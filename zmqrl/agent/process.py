"""The host agent as a process: boot line on stdin, sentinel and events on stdout."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import replace

from zmqrl.agent.children import CommandLine, Nursery, entry_command
from zmqrl.agent.data_plane import DataPlane, NoDataPlane
from zmqrl.agent.host_agent import HostAgent
from zmqrl.agent.ipc_folder import IpcFolder, run_folder_root
from zmqrl.agent.output import AgentOutput
from zmqrl.config.plan import Boot
from zmqrl.entry import PARENT_VARIABLE, STDIN, STDOUT


def main(boot: Boot, command: CommandLine = entry_command) -> int:
    """Hold this host's part of the run until it ends. `command` is how children are started."""
    if os.getsid(0) != os.getpid():
        os.setsid()
    sys.stdout = sys.stderr  # a stray print is no event
    output = AgentOutput(STDOUT)
    output.sentinel({"pid": os.getpid(), "host": boot.host, "node": socket.gethostname(), "run": boot.plan.run_id})
    if boot.plan.config.run.mode == "single":
        return _hold(boot, NoDataPlane(), output, command)
    from zmqrl.agent.shared_data_plane import SharedDataPlane

    folder = IpcFolder(run_folder_root(os.environ.get("XDG_RUNTIME_DIR"), os.getuid()), boot.plan.run_id)
    try:
        endpoints = folder.endpoints()
        return _hold(
            replace(boot, endpoints=endpoints),
            SharedDataPlane(boot.plan, endpoints, boot.host),
            output,
            command,
        )
    finally:
        folder.close()


def _hold(boot: Boot, data_plane: DataPlane, output: AgentOutput, command: CommandLine) -> int:
    try:
        return HostAgent(boot, Nursery(boot, PARENT_VARIABLE, command), data_plane, output, STDIN).run()
    finally:
        data_plane.close()
