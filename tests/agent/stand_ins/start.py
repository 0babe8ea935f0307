"""As `python -m zmqrl.entry`, with stand-ins for the roles: `python start.py zmqrl.<role> RUN INDEX`."""

from __future__ import annotations

import sys
from pathlib import Path

from zmqrl import entry
from zmqrl.loading import add_own_paths

MODULES = {f"zmqrl.{role}": f"{role}_role" for role in ("agent", "broker", "learner", "worker", "evaluator")}

if __name__ == "__main__":
    add_own_paths(str(Path(__file__).parent))  # Python leaves the folder of the script out (PYTHONSAFEPATH)
    sys.exit(entry.run(sys.argv[1], MODULES))
