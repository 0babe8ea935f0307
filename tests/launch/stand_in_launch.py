"""A launcher process over the stand-ins.

`python -m tests.launch.stand_in_launch RUN_DIR MODE WORKERS DETACH key=value...`
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.agent.plans import START, stand_in_plan
from zmqrl.launch.launcher import Launcher
from zmqrl.launcher_place.detach import run_detached
from zmqrl.orchestrators.local import LocalOrchestrator
from zmqrl.run_files.run_directory import RunDirectory


def main() -> int:
    run_dir, mode, workers, detach = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] == "detach"
    behaviour = dict(pair.split("=", 1) for pair in sys.argv[5:])
    plan = stand_in_plan(run_dir, mode, workers, **behaviour)  # type: ignore[arg-type]
    orchestrator = LocalOrchestrator(agent_command=(sys.executable, START))
    if detach:
        return run_detached(
            run_dir, lambda ready: Launcher(plan, orchestrator, RunDirectory.own(plan), True, ready).run()
        )
    return Launcher(plan, orchestrator, RunDirectory.own(plan), True).run()


if __name__ == "__main__":
    sys.exit(main())
