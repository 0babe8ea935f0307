"""A program for a guest: runs the commands that it receives, one JSON line each, and reports code and output."""

from __future__ import annotations

import json
import os
import subprocess
import sys


def main() -> None:
    print("SHELL up", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        env = {**os.environ, **request["env"]}
        commands = request["commands"]
        kept = {"cwd": request["cwd"], "env": env, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        running = [subprocess.Popen(command, **kept) for command in commands]
        ends = []
        for process in running:
            output, _ = process.communicate(timeout=request["timeout_s"])
            ends.append([process.returncode, output])
        print("SHELL " + json.dumps(ends), flush=True)


if __name__ == "__main__":
    main()
