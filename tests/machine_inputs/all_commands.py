"""`all_commands.py BAD FINISHED`: each command with BAD in the place of each path, without the rights of root.

Prints a JSON line per command: its words, exit code, output, and the type of what it raised. All in one process: the
imports are what takes time.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence

from tests.machine_inputs.unprivileged import drop_privileges
from zmqrl.cli.main import main

READ, WRITTEN, FINISHED = "{read}", "{written}", "{finished}"
"""A path that must exist, one that the command would make, and the directory of a finished run."""
RUNS: Sequence[Sequence[str]] = [[READ], ["--on", "h", "--hosts", READ]]
COMMANDS: dict[str, Sequence[Sequence[str]]] = {
    "launch": [
        [READ],
        ["hosts.yaml", "--run-dir", WRITTEN],
        ["hosts.yaml", "--resume", READ],
        ["hosts.yaml", "--init-from", READ],
    ],
    "train": [
        [READ],
        ["./{read}/p.yaml"],
        ["cartpole-ppo", "--run-dir", WRITTEN],
        ["--resume", READ],
        ["cartpole-ppo", "--resume", READ],
        ["cartpole-ppo", "--init-from", READ, "--dry-run"],
        ["cartpole-ppo", "--set", "store.path={written}"],
    ],
    "presets": [],
    "setup": [[READ], ["hosts.yaml", "--wheels", READ], ["hosts.yaml", "--constraints", READ]],
    "runs": [*RUNS, ["--lab", READ]],
    "view": [[READ], ["--on", "h", "--hosts", READ]],
    "queue": [
        ["add", "cartpole-ppo", "--queue", WRITTEN],
        ["add", READ],
        ["run", READ],
        *([name, "--queue", READ] for name in ("list", "run")),
        *([name, "1", "--queue", READ] for name in ("stop", "hold", "log")),
    ],
    "sweep": [[READ], *([name, READ] for name in ("status", "stop", "resume", "table", "plot"))],
    "upload": [["mlflow", READ], ["wandb", FINISHED, "--to", WRITTEN, "--retry", "0"]],
    "status": [*RUNS, ["-f", READ], ["--json", READ]],
    "logs": [*RUNS, [READ, "worker"], ["-f", READ]],
    "worker": [["--connect", READ]],
    "scale": [[READ, "h=1"], ["--on", "h", "--hosts", READ, "h=1"]],
    "drain": [[READ, "h"], [READ], ["--on", "h", "--hosts", READ, "h"]],
    "apply": [[READ], ["hosts.yaml", READ]],
    "stop": [*RUNS, [READ, "--wait", "1"]],
    "down": [*RUNS, [READ, "--limit", "h"]],
    "clean": [["--on", "h", "--hosts", READ]],
    "fetch": [["run", "--on", "h", "--hosts", READ]],
    "install-unit": [[READ], ["hosts.yaml", "--run-dir", WRITTEN], ["hosts.yaml", "--on", "h", "--hosts", READ]],
    "eval": [[READ], [FINISHED, "--video", "{written}.mp4"]],
    "watch": [[READ]],
    "record": [[READ, "out"], [FINISHED, WRITTEN]],
    "plot": [[READ], [FINISHED, READ], [FINISHED, "--out", "{written}.png"], [FINISHED, "--csv", WRITTEN]],
    "export": [[READ, "out", "--to", "numpy"], [FINISHED, WRITTEN, "--to", "numpy"]],
    "trust": [],
    "bench": [["e2e", "--sb3-python", READ]],
    "drill": [[READ], ["cartpole-ppo", "--run-dir", WRITTEN], ["cartpole-ppo", "--json", WRITTEN]],
    "import": [[READ], ["python ppo.py --env-id CartPole-v1", "--output", WRITTEN]],
    "version": [],
    "config": [],
    "completion": [],
    "doctor": [[READ]],
}
"""The words of each command after its name; a command without a path has none."""
IN_RUNS: Sequence[Sequence[str]] = [
    *([name] for name in ("status", "logs", "stop", "down", "clean")),
    ["down", "--all"],
    ["scale", "h=1"],
    ["drain", "h"],
    ["apply", "hosts.yaml"],
    ["train", "cartpole-ppo"],
    ["launch", "hosts.yaml"],
    ["install-unit", "hosts.yaml"],
]
"""Commands that use `runs/`, which is BAD for them."""


def outcome(words: Sequence[str]) -> tuple[object, str, str]:
    """Exit code, output and type of what was raised."""
    sys.argv = ["zmqrl", *words]
    code: object = None
    with tempfile.TemporaryFile() as file, redirected(file.fileno()):
        try:
            main()
        except SystemExit as ended:
            code, raised = ended.code, ""
        except BaseException as error:  # noqa: BLE001 - it is what is looked for
            raised = f"{type(error).__name__}: {error}"
        sys.stdout.flush()
        sys.stderr.flush()
        file.seek(0)
        return code, file.read().decode(), raised


@contextlib.contextmanager
def redirected(to: int) -> Iterator[None]:
    kept = os.dup(1), os.dup(2)
    os.dup2(to, 1)
    os.dup2(to, 2)
    try:
        yield
    finally:
        for number, descriptor in enumerate(kept, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)


def run_all(bad: str, finished: str) -> None:
    for command, calls in COMMANDS.items():
        for call in calls:
            paths = {"read": bad, "written": f"{bad}/new", "finished": finished}
            run([command, *(word.format_map(paths) for word in call)])
    os.symlink(os.path.abspath(bad), "runs")
    for words in IN_RUNS:
        run(words)


def run(words: Sequence[str]) -> None:
    code, output, raised = outcome(words)
    print(json.dumps({"words": words, "code": code, "output": output, "raised": raised}), flush=True)


if __name__ == "__main__":
    drop_privileges()
    run_all(*sys.argv[1:])
