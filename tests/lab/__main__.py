"""A lab to try things by hand.

usage: python -m tests.lab [N] [-- COMMAND...]     COMMAND on the laptop (default: a shell), $LAB: the lab's folder

The laptop has ~/.ssh/config with h0, h1, ...; `$LAB/hosts.yaml` lists the hosts. `echo crash 2 > $LAB/control` kills
every process of h2, `echo boot 2 > $LAB/control` starts it again.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import yaml

from .lab import Lab

CHANGES = ("crash", "boot")


def main(arguments: list[str]) -> int:
    own, command = arguments, []
    if "--" in arguments:
        own, command = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    with Lab(int(own[0]) if own else 3) as lab:
        (lab.folder / "hosts.yaml").write_text(yaml.safe_dump({"hosts": lab.hosts_yaml()}, sort_keys=False))
        os.mkfifo(lab.folder / "control")
        threading.Thread(target=obey, args=(lab, lab.folder / "control"), daemon=True).start()
        argv = command or [os.environ.get("SHELL", "sh")]
        print(f"LAB={lab.folder}", *(f"{h.name} {h.known_hosts_name}" for h in lab.hosts), sep="\n", file=sys.stderr)
        return lab.run_here(argv, env={**os.environ, "LAB": str(lab.folder)}).wait()


def obey(lab: Lab, control: Path) -> None:
    """Make the changes of hosts that are written to the pipe."""
    while True:
        for line in control.read_text().splitlines():
            change, index = line.split()
            assert change in CHANGES, line
            getattr(lab.hosts[int(index)], change)()


sys.exit(main(sys.argv[1:]))
