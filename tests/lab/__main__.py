"""A lab to try things by hand.

usage: python -m tests.lab [N] [-- COMMAND...]     COMMAND on the laptop (default: a shell), $LAB: the lab's folder

The laptop has ~/.ssh/config with h0, h1, ...; `$LAB/hosts.yaml` lists the hosts.
"""

from __future__ import annotations

import os
import sys

import yaml

from .lab import Lab


def main(arguments: list[str]) -> int:
    own, command = arguments, []
    if "--" in arguments:
        own, command = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    with Lab(int(own[0]) if own else 3) as lab:
        (lab.folder / "hosts.yaml").write_text(yaml.safe_dump({"hosts": lab.hosts_yaml()}, sort_keys=False))
        argv = command or [os.environ.get("SHELL", "sh")]
        print(f"LAB={lab.folder}", *(f"{h.name} {h.known_hosts_name}" for h in lab.hosts), sep="\n", file=sys.stderr)
        return lab.run_here(argv, env={**os.environ, "LAB": str(lab.folder)}).wait()


sys.exit(main(sys.argv[1:]))
