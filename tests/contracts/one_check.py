"""`python -m tests.contracts.one_check CHECK FOLDER SETTINGS`: a check of the orchestrators, in its own process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from zmqrl.testing.deployed import Hosts
from zmqrl.testing.orchestrator import ORCHESTRATOR


def main(name: str, folder: str, settings: str) -> None:
    check = next(check for check in ORCHESTRATOR if check.__name__ == name)
    check(lambda: Hosts(Path(folder), json.loads(settings)))


if __name__ == "__main__":
    main(*sys.argv[1:])
