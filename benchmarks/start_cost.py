"""CPU and wall time of a start: `start_cost.py [--before CHECKOUT] [--rounds N] [--mode M] [--set KEY=VALUE]`.

Trains `cartpole-ppo` for a few rounds and samples /proc: of each process of the run its role, when it began and ended,
and its CPU seconds. The CPU seconds of the command are exact, from wait4; those of a process lack at most its last
`EVERY_S`. With `--before` another checkout takes turns, which begins every second round. `--brief` looks at no process,
and shows seconds also as multiples of `import torch` in the same round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zmqrl.supervision.process_table import ProcessId, identify

ROOT = Path(__file__).parents[1]
EVERY_S = 0.01
RUN_LIMIT_S = 600.0
TINY = {"run.stop_at_return": None, "run.total_env_steps": 1000, "limits.start_s": 600}
TRAINED = "[vf]*0-[1-9]*"
"""Files of versions after the first."""
STEP, ROUND = "first env step", "first trained round"
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass
class Seen:
    """A process of the run: seconds since the command was started."""

    role: str
    parent: int
    began_s: float
    ended_s: float = 0.0
    cpu_s: float = 0.0
    has_torch: bool = False


@dataclass
class Start:
    """One run."""

    cpu_s: float
    wall_s: float
    first_step_s: float
    first_round_s: float
    """Until the weights of the first trained round were published."""
    processes: list[Seen] = field(default_factory=list)


def role_of(pid: int, parent: Seen | None) -> str:
    """`worker-0`; a fork of the template that has no argv of its own is a check process."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    if len(words) < 6 or words[2] != "zmqrl.entry":
        return "command" if parent is None else Path(words[0]).name
    name = f"{words[3].removeprefix('zmqrl.')}-{words[5]}"
    return "check" if name == "template-0" and parent is not None and parent.role == name else name


class Sampler:
    """Looks at a process and all below it."""

    def __init__(self, pid: int) -> None:
        self._root, self._began = pid, time.monotonic()
        self.seen: dict[ProcessId, Seen] = {}
        self._by_pid: dict[int, Seen] = {}

    def look(self) -> None:
        """What is there now."""
        now, todo = time.monotonic() - self._began, [(self._root, 0)]
        while todo:
            pid, parent = todo.pop()
            try:
                self._look(pid, parent, now)
                for task in os.listdir(f"/proc/{pid}/task"):
                    children = Path(f"/proc/{pid}/task/{task}/children").read_text().split()
                    todo += [(int(child), pid) for child in children]
            except OSError:
                continue  # it has ended

    def _look(self, pid: int, parent: int, now: float) -> None:
        process = identify(pid)
        if process is None:
            return
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        role = role_of(pid, self._by_pid.get(parent)) if words[0] not in "ZX" else ""
        seen = self.seen.setdefault(process, Seen(role, parent, now))
        self._by_pid[pid] = seen
        seen.role = role or seen.role
        ticks = (int(words[11]) + int(words[12])) * TICK_S
        seen.ended_s, seen.cpu_s = now, max(seen.cpu_s, ticks)
        if not seen.has_torch and seen.cpu_s > 0.5:
            seen.has_torch = "libtorch" in Path(f"/proc/{pid}/maps").read_text()


def torch_s() -> float:
    """Seconds that a new interpreter takes to import torch."""
    code = "import time; begun = time.monotonic(); import torch; print(time.monotonic() - begun)"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return float(subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True).stdout)


def start(tree: Path, mode: str, settings: Sequence[str], brief: bool) -> Start:
    """Run the command of `tree` once."""
    with tempfile.TemporaryDirectory() as folder:
        given = [f"{key}={json.dumps(value)}" for key, value in TINY.items()] + list(settings)
        command = [sys.executable, "-P", "-m", "zmqrl", "train", "cartpole-ppo", "--plain", "--mode", mode]
        command += ["--run-dir", f"{folder}/run", "--workers", "2", "--seed", "1"]
        for setting in given:
            command += ["--set", setting]
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        with open(f"{folder}/log", "w+b") as log:
            begun = time.monotonic()
            process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
            sampler, published = Sampler(process.pid), Path(folder, "run", "checkpoints")
            first_round_s = float("nan")
            while not (ended := os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
                if not brief:
                    sampler.look()
                time.sleep(EVERY_S)
                if first_round_s != first_round_s and any(published.glob(TRAINED)):
                    first_round_s = time.monotonic() - begun
                if time.monotonic() - begun > RUN_LIMIT_S:
                    process.kill()
            wall_s = time.monotonic() - begun
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            log.seek(0)
            if ended is None or process.returncode != 0:
                raise SystemExit(log.read().decode(errors="replace"))
        summary: dict[str, Any] = json.loads(Path(f"{folder}/run/summary.json").read_text())
    first_step_s, seen = summary["first_env_step_s"], list(sampler.seen.values())
    return Start(usage.ru_utime + usage.ru_stime, wall_s, first_step_s, first_round_s, seen)


def table(starts: Sequence[Start], units: Sequence[float]) -> str:
    """Medians of the runs, a row for each process. `units`: `import torch` of the same rounds, in seconds."""
    rows: dict[str, list[Seen]] = defaultdict(list)
    for each in starts:
        number: Counter[str] = Counter()
        for seen in sorted(each.processes, key=lambda seen: seen.began_s):
            number[seen.role] += 1
            rows[seen.role + (f" ({number[seen.role]})" if number[seen.role] > 1 else "")].append(seen)
    lines = [f"{'process':24}{'CPU s':>8}{'begins':>8}{'ends':>8}  torch"]
    for role, seen in sorted(rows.items(), key=lambda row: row[1][0].began_s):
        figures = [statistics.median(getattr(each, name) for each in seen) for name in ("cpu_s", "began_s", "ended_s")]
        if figures[0] < TICK_S:  # between a template and what it forks
            continue
        lines.append(f"{role:24}{''.join(f'{figure:8.2f}' for figure in figures)}  {'*' * seen[0].has_torch}")
    for name, title in (("cpu_s", "CPU"), ("wall_s", "wall"), ("first_step_s", STEP), ("first_round_s", ROUND)):
        values = [getattr(each, name) for each in starts]
        of_torch = statistics.median(value / unit for value, unit in zip(values, units, strict=True))
        shown = f"{title}: {statistics.median(values):.2f} s of {[round(value, 2) for value in values]}"
        lines.append(f"{shown}, {of_torch:.2f} x import torch")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mode", action="append", help="default: sync and single")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--brief", action="store_true")
    given = parser.parse_args()
    trees = {"now": ROOT, **({"before": given.before.absolute()} if given.before else {})}
    for mode in given.mode or ("sync", "single"):
        found: dict[str, list[Start]] = {name: [] for name in trees}
        units = []
        for number in range(given.rounds):
            units.append(torch_s())
            for name in list(trees)[:: -1 if number % 2 else 1]:
                found[name].append(start(trees[name], mode, given.settings, given.brief))
        for name, starts in found.items():
            print(f"\n{mode}, {name}\n{table(starts, units)}", flush=True)
        if given.before:
            ratios = [now.cpu_s / old.cpu_s for now, old in zip(found["now"], found["before"], strict=True)]
            walls = [now.wall_s / old.wall_s for now, old in zip(found["now"], found["before"], strict=True)]
            print(f"{mode}: now / before, CPU {statistics.median(ratios):.3f}, wall {statistics.median(walls):.3f}")


if __name__ == "__main__":
    main()
