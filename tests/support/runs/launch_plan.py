"""A launcher process: `python -m tests.support.runs.launch_plan PLAN`, the plan as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from zmqrl.config.codec import from_json
from zmqrl.config.plan import RunPlan
from zmqrl.launch.launcher import Launcher
from zmqrl.orchestrators.make import make_orchestrator
from zmqrl.run_files.run_directory import RunDirectory
from zmqrl.supervision import check_process

if __name__ == "__main__":
    check_process.start()  # as a command does, whose first calls are those of a plan
    plan = from_json(RunPlan, json.loads(Path(sys.argv[1]).read_text()))
    sys.exit(Launcher(plan, make_orchestrator(plan), RunDirectory.own(plan), plain=True).run())
