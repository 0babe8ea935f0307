"""Memory of every role over a long async run whose learner is stopped and goes on: `memory.py [SECONDS] [PRESET]`.

Prints JSON: per role the mean of the first and of the last third of the samples after warming up, the slope of a
straight line through them in MB an hour and its standard error. Exit code 1 when a role grows: by more than three
standard errors and more than 1 % of its size over the run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

EVERY_S = 2.0
WARM_S = 60.0
STOPPED_S = 30.0
END_S = 60.0


def processes(run_id: str) -> dict[str, int]:
    """`role-index` to pid."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            argv = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if run_id in argv and "zmqrl.entry" in argv:
            found[f"{argv[3].removeprefix('zmqrl.')}-{argv[5]}"] = int(path.parent.name)
    return found


def own_mb(pid: int) -> float | None:
    """Anonymous memory in 10^6 bytes; what is shared with others changes as they come and go. None when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("Anonymous:")), None)


def fitted(samples: list[tuple[float, float]]) -> dict[str, float]:
    """A straight line through (seconds, MB)."""
    seconds, sizes = np.array(samples).T
    hours = seconds / 3600
    (slope, _), covariance = np.polyfit(hours, sizes, 1, cov=True)
    third = max(1, len(sizes) // 3)
    return {
        "first_mb": round(float(sizes[:third].mean()), 2),
        "last_mb": round(float(sizes[-third:].mean()), 2),
        "mb_per_hour": round(float(slope), 2),
        "standard_error": round(float(covariance[0, 0] ** 0.5), 2),
        "hours": round(float(hours[-1] - hours[0]), 3),
    }


def grows(line: dict[str, float]) -> bool:
    """More than noise, and more than a hundredth of it."""
    grown_mb = line["mb_per_hour"] * line["hours"]
    return line["mb_per_hour"] > 3 * line["standard_error"] and grown_mb > 0.01 * line["first_mb"]


def watch(launcher: subprocess.Popen[bytes], run_dir: Path, seconds: float) -> dict[str, list[tuple[float, float]]]:
    """Sample until the run ends; its learner is stopped for a while in the middle."""
    begun, samples, stopped = time.monotonic(), {}, False  # type: ignore[var-annotated]
    while launcher.poll() is None and time.monotonic() - begun < seconds + END_S:
        time.sleep(EVERY_S)  # the pace of the samples
        at = time.monotonic() - begun
        run = run_dir / "run.json"
        held = processes(json.loads(run.read_text())["run_id"]) if run.is_file() else {}
        if not stopped and at > seconds / 2 and "learner-0" in held:
            stopped = True
            os.kill(held["learner-0"], signal.SIGSTOP)
            time.sleep(STOPPED_S)
            os.kill(held["learner-0"], signal.SIGCONT)
        for name, pid in held.items():
            size = own_mb(pid)
            if at > WARM_S and size is not None and at < seconds:
                samples.setdefault(name, []).append((at, size))
    return samples


def main(seconds: float = 900.0, preset: str = "cartpole-dqn") -> int:
    """Run, watch, judge."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        sets = (f"run.max_wall_s={seconds}", "run.total_env_steps=1000000000", "run.stop_at_return=null")
        words = [word for pair in sets for word in ("--set", pair)]
        command = [sys.executable, "-m", "zmqrl", "train", preset, "--mode", "async", "--workers", "2", "--plain"]
        with (Path(folder) / "out").open("wb") as out:
            launcher = subprocess.Popen([*command, "--run-dir", str(run_dir), *words], stdout=out, stderr=out)
            samples = watch(launcher, run_dir, seconds)
            code = launcher.wait(END_S)
        summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    roles = {name: fitted(found) for name, found in sorted(samples.items()) if len(found) > 10}
    growing = [name for name, line in roles.items() if grows(line)]
    kept = {name: summary[name] for name in ("env_steps", "updates", "restarts", "ledger", "wall_s")}
    print(json.dumps({"roles": roles, "growing": growing, "exit_code": code, **kept}, indent=2))
    return 1 if growing or code or not summary["ledger"]["balanced"] else 0


if __name__ == "__main__":
    sys.exit(main(*([float(sys.argv[1])] if sys.argv[1:] else []), *sys.argv[2:3]))
