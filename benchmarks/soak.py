"""A run over hosts that fail: `python -m benchmarks.soak [--hosts 20] [--mode sync] [--for 600] [--faults crash]`.

The hosts are those of `tests/lab` (root, Linux): each with its own network, processes and sshd, on this machine. Every
`--every` seconds one of them has a fault:

    crash      every process of it is killed; its sshd is back after `--down` seconds
    power      as crash, and nothing answers until then
    cable      its network is cut off for `--down` seconds
    sleep      all its processes are stopped for `--down` seconds, as by a laptop that sleeps
    slow       its workers get a tenth of a processor for `--down` seconds
    loss       its network loses a twentieth of the packets for `--down` seconds
    disk       as crash, but its sshd is back at once, and for `--down` seconds the disk with its workdir is full
    store      the disk of the run directory, on the learner's host, is full for `--down` seconds

All limits have their defaults. A host is present in a second if it has stored a segment in the 5 s before; the records
of the broker are read in shared memory, ten times a second. After `--for` seconds one host more joins (`zmqrl scale`).
Then the run is stopped and checked: the exit code, rows that were lost or stored twice, in sync the weights against one
process that does not fail, memory and descriptors of launcher, agent, broker and learner, and what is left on the
hosts. With crashes alone: the time from the answer of sshd to the first stored segment (p95 of 10 s at most), the
seconds with all hosts but two (95 % at least), and the 10 s in which the last host joins. Prints JSON, also to
`--json FILE`. Exit code 1 when a check fails.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lab import Lab
from tests.support.runs.ssh_runs import FarRun, processes
from zmqrl.bench.report import machine
from zmqrl.drill.shared_view import SharedView
from zmqrl.drill.small_disk import fill, mount, release, unmount
from zmqrl.planning.configure import load
from zmqrl.planning.plan_run import plan_run

LOOK_EVERY_S = 0.1
PRESENT_S = 5.0
RUN = "soak"
KEEP_EVERY = 500_000
"""Env steps between two versions that are kept: the first that differs from one process tells when to look."""
SETTLE_S = 30.0
START_S = 120.0
END_S = 120.0
SLICE_S = 0.02
FAULTS = ("crash", "power", "cable", "sleep", "slow", "loss", "disk", "store")
RUN_DISK_MB = 512
GROWTH_MB, GROWTH_FDS = 40.0, 20
"""What a process may gain between the first fifth of the run and its end."""
PRESENT_SHARE = 0.95
RETURN_S = JOIN_S = 10.0
"""From the answer of sshd, and from the command, to the first stored segment."""


@dataclass
class Return:
    """One fault of one host."""

    host: str
    fault: str
    at_s: float
    answered_s: float | None = None
    """When its sshd answered again, from the start of the run."""
    stored_s: float | None = None
    """When it stored its first segment after that."""

    @property
    def took_s(self) -> float | None:
        """From the answer to the segment."""
        if self.answered_s is None or self.stored_s is None:
            return None
        return self.stored_s - self.answered_s


@dataclass
class Seen:
    """What the samples showed."""

    present: list[int] = field(default_factory=list)
    """Hosts in each second."""
    memory: dict[str, list[float]] = field(default_factory=dict)
    descriptors: dict[str, list[int]] = field(default_factory=dict)


class Watch:
    """Who has stored when, from the stream records of the broker."""

    def __init__(self, run: FarRun, hosts: Sequence[str], config_file: Path) -> None:
        self._run, self._hosts = run, hosts
        self._plan = plan_run(load(hosts_file=config_file).config, run.run_dir, time.time())
        self._view: SharedView | None = None
        self._stored: tuple[int, ...] = ()
        self._host_of: dict[int, str] = {}
        self.last: dict[str, float] = {}
        """Host to the moment of its newest segment."""

    def look(self, now: float) -> None:
        """Take one sample."""
        if self._view is None:
            agent = self._run.processes().get("agent-0")
            self._view = None if agent is None else SharedView.open(self._plan, agent.pid)
        if self._view is None:
            return
        stored = self._view.stored()
        holders = self._view.holders()
        # each time: the rows of a host are removed when its next agent is there
        self._host_of |= {row["index"]: row["host"] for row in self._run.status().get("workers", ())}
        for before, after, holder in zip(self._stored or (0,) * len(stored), stored, holders, strict=True):
            host = self._host_of.get(holder)
            if after > before and host is not None:
                self.last[host] = now
        self._stored = stored

    def present(self, now: float) -> int:
        """Hosts with a segment in the last `PRESENT_S`."""
        return sum(now - self.last.get(host, -PRESENT_S) < PRESENT_S for host in self._hosts)

    def close(self) -> None:
        """Let go of the memory."""
        if self._view is not None:
            self._view.close()


class Faults:
    """Begins and ends them. Each host has one at most."""

    def __init__(self, lab: Lab, run: FarRun, names: Sequence[str], kinds: Sequence[str], down_s: float) -> None:
        self._lab, self._run, self._names, self._kinds, self._down_s = lab, run, names, kinds, down_s
        self._ends: list[tuple[float, int, Callable[[], None]]] = []
        self._booting: list[threading.Thread] = []
        self.open: dict[int, Return] = {}
        """By the number of the host: the fault whose end was not seen yet."""

    def begin(self, dice: random.Random, now: float) -> Return | None:
        """A fault of a host without one."""
        free = [index for index in range(1, len(self._names) + 1) if index not in self.open]
        if not free:
            return None
        index, kind = dice.choice(free), dice.choice(self._kinds)
        fault = self.open[index] = Return(self._names[index - 1], kind, now)
        end = getattr(self, f"_{kind}")(index)
        heapq.heappush(self._ends, (now + self._down_s, index, end))
        return fault

    def end_due(self, now: float, all_of_them: bool = False) -> None:
        """End those whose time has come."""
        while self._ends and (all_of_them or self._ends[0][0] <= now):
            _, index, end = heapq.heappop(self._ends)
            thread = threading.Thread(target=self._end, args=(index, end), name=f"end of a fault of h{index}")
            thread.start()
            self._booting.append(thread)

    def join(self) -> None:
        """Wait until every host is up."""
        for thread in self._booting:
            thread.join(START_S)

    def _end(self, index: int, end: Callable[[], None]) -> None:
        end()
        host = self._lab.hosts[index]
        with self._lab.here():
            until = time.monotonic() + START_S
            while time.monotonic() < until:
                with contextlib.suppress(OSError), socket.create_connection((host.address, host.port), 1.0) as probe:
                    probe.settimeout(1.0)
                    if probe.recv(4):
                        self.open[index].answered_s = time.monotonic()
                        return
                time.sleep(LOOK_EVERY_S)

    def _crash(self, index: int) -> Callable[[], None]:
        self._lab.hosts[index].crash()
        return self._lab.hosts[index].boot

    def _power(self, index: int) -> Callable[[], None]:
        self._lab.power_off(index)

        def on() -> None:
            self._lab.link(index, True)
            self._lab.hosts[index].boot()

        return on

    def _cable(self, index: int) -> Callable[[], None]:
        self._lab.link(index, False)
        return lambda: self._lab.link(index, True)

    def _loss(self, index: int) -> Callable[[], None]:
        self._lab.delay(index, 1.0, 0.05)
        return lambda: self._lab.delay(index, 0.0)

    def _disk(self, index: int) -> Callable[[], None]:
        host = self._lab.hosts[index]
        host.crash()
        fill(host.tmp)
        host.boot()
        return lambda: release(host.tmp)

    def _store(self, index: int) -> Callable[[], None]:
        fill(self._run.run_dir)
        return lambda: release(self._run.run_dir)

    def _sleep(self, index: int) -> Callable[[], None]:
        pids = [process.pid for process in self._lab.hosts[index].processes()]
        _signal(pids, signal.SIGSTOP)
        return lambda: _signal(pids, signal.SIGCONT)

    def _slow(self, index: int) -> Callable[[], None]:
        over = threading.Event()
        pids = [process.pid for process in self._lab.hosts[index].processes("zmqrl.worker")]

        def brake() -> None:
            while not over.wait(SLICE_S):
                _signal(pids, signal.SIGSTOP)
                over.wait(9 * SLICE_S)
                _signal(pids, signal.SIGCONT)

        thread = threading.Thread(target=brake, name=f"brake of h{index}")
        thread.start()

        def off() -> None:
            over.set()
            thread.join()
            _signal(pids, signal.SIGCONT)

        return off


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _settings(arguments: argparse.Namespace, lab: Lab, names: Sequence[str]) -> dict[str, Any]:
    hosts = {name: lab.hosts[index + 1].hosts_yaml(workers=1) for index, name in enumerate(names)}
    defaults = {key: lab.hosts[1].hosts_yaml()[key] for key in ("python", "workdir")}
    vector_envs = max(6, len(names) + 1)
    batch = {"batch_segments": vector_envs} if arguments.mode == "async" else {}
    return {
        "run": {
            "preset": "cartpole-ppo", "mode": arguments.mode, "total_env_steps": 1_000_000_000,
            "stop_at_return": None, "schedule_env_steps": 1_000_000_000,
        },
        "env": {"vector_envs": vector_envs, "num_envs": 2, "segment_steps": 32},
        "algorithm": {"minibatch_size": 64 * vector_envs, "epochs": 1, **batch},
        "evaluator": {"episodes": 0},
        "store": {"keep_every": KEEP_EVERY},
        "defaults": defaults,
        "hosts": {"local": {"workers": 0}, **hosts},
    }  # fmt: skip


def soak(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run it. The report, as JSON data."""
    dice = random.Random(arguments.seed)
    names = [f"h{index}" for index in range(1, arguments.hosts + 1)]
    with Lab(arguments.hosts + 2, isolated=True) as lab, contextlib.ExitStack() as disks:
        if {"disk", "store"} & set(arguments.faults.split(",")):
            _small_disks(lab, disks)
        settings = _settings(arguments, lab, names)
        run = FarRun(lab, RUN, settings)
        errors: list[str] = []
        drain = threading.Thread(target=lambda: errors.extend(run.process.stderr or ()), daemon=True)
        drain.start()
        threading.Thread(target=lambda: list(run.process.stdout or ()), daemon=True).start()
        watch = Watch(run, names, lab.folder / "soak.yaml")
        faults = Faults(lab, run, names, arguments.faults.split(","), arguments.down)
        try:
            returns, seen = _observe(arguments, run, watch, faults, dice)
            join_s = _join(run, watch, f"h{arguments.hosts + 1}")
            env_steps = run.status().get("env_steps", 0)
            stopped = run.command("stop", str(run.run_dir))[0]
            code = run.process.wait(END_S)
            drain.join(END_S)
            left = {name: len(processes(lab.hosts[index + 1], run.run_id)) for index, name in enumerate(names)}
            summary = run.summary()
        finally:
            faults.end_due(time.monotonic(), all_of_them=True)
            faults.join()
            watch.close()
            if run.process.poll() is None:
                run.process.kill()
                run.process.wait(END_S)
        report = _report(arguments, returns, seen, summary)
        report |= {"exit_code": code, "stop": stopped, "left": {n: c for n, c in left.items() if c}}
        report |= {"join_s": join_s, "rejoins": sum("was away for" in line for line in errors)}
        report["errors"] = sorted({line.strip()[:200] for line in errors if "rror" in line})[:20]
        if arguments.mode == "sync":
            report["sha256_of_one_process"] = _alone(lab.folder / "alone", settings, summary["env_steps"])
            report["first_other_version"] = _first_other(run.run_dir, lab.folder / "alone")
    report["env_steps"] = env_steps
    report["failed"] = _failed(arguments, report)
    return report


def _small_disks(lab: Lab, disks: contextlib.ExitStack) -> None:
    """Each workdir, and the run directory, on a disk that can be filled."""
    run_dir = lab.shared / RUN
    run_dir.mkdir()
    mount(run_dir, RUN_DISK_MB)
    disks.callback(unmount, run_dir)
    for host in lab.hosts[1:]:
        host.crash()
        mount(host.tmp)
        disks.callback(unmount, host.tmp)
        host.boot()


def _observe(
    arguments: argparse.Namespace, run: FarRun, watch: Watch, faults: Faults, dice: random.Random
) -> tuple[list[Return], Seen]:
    returns: list[Return] = []
    seen = Seen()
    began = time.monotonic()
    while len(watch.last) < arguments.hosts:
        if time.monotonic() - began > START_S or run.process.poll() is not None:
            raise RuntimeError(f"{len(watch.last)} of {arguments.hosts} hosts have stored a segment: {run.status()}")
        watch.look(time.monotonic())
        time.sleep(LOOK_EVERY_S)
    began = time.monotonic()
    next_fault, next_second = began, began
    while (now := time.monotonic()) < began + arguments.seconds + SETTLE_S and run.process.poll() is None:
        watch.look(now)
        faults.end_due(now)
        for index, fault in list(faults.open.items()):
            stored = watch.last[fault.host]
            if fault.answered_s is not None and stored > fault.answered_s:
                fault.stored_s = stored
                del faults.open[index]
        if now >= next_fault and now < began + arguments.seconds:
            begun = faults.begin(dice, now)
            returns += [begun] if begun is not None else []
            next_fault += arguments.every
        if now >= next_second:
            seen.present.append(watch.present(now))
            next_second += 1.0
            if len(seen.present) % 5 == 0:
                _measure(run, seen)
        time.sleep(LOOK_EVERY_S)
    seen.present = seen.present[: int(arguments.seconds)]
    return returns, seen


def _join(run: FarRun, watch: Watch, host: str) -> float | None:
    """A host that the run does not have joins it: seconds from the command to its first segment; None: it did not."""
    began = time.monotonic()
    run.command("scale", str(run.run_dir), f"{host}=1")
    while host not in watch.last and time.monotonic() - began < SETTLE_S:
        watch.look(time.monotonic())
        time.sleep(LOOK_EVERY_S)
    return round(time.monotonic() - began, 2) if host in watch.last else None


def _measure(run: FarRun, seen: Seen) -> None:
    pids = {"launcher": run.process.pid, **{name: process.pid for name, process in run.processes().items()}}
    for name, pid in pids.items():
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            rss = next(line for line in status.splitlines() if line.startswith("VmRSS"))
            seen.memory.setdefault(name, []).append(int(rss.split()[1]) / 1024)
            seen.descriptors.setdefault(name, []).append(len(os.listdir(f"/proc/{pid}/fd")))


def _growth(series: Sequence[float]) -> float:
    """Median of the last fifth less that of the second fifth, when everything has been loaded."""
    part = max(1, len(series) // 5)
    return statistics.median(series[-part:]) - statistics.median(series[part : 2 * part] or series[:1])


def _report(
    arguments: argparse.Namespace, returns: Sequence[Return], seen: Seen, summary: dict[str, Any]
) -> dict[str, Any]:
    took = sorted(found.took_s for found in returns if found.took_s is not None)
    enough = arguments.hosts - 2
    return {
        **machine(),
        "load": os.getloadavg(),
        "arguments": vars(arguments),
        "faults": len(returns),
        "faults_by_kind": dict(Counter(one.fault for one in returns)),
        "returned": len(took),
        "not_returned": [f"{one.host} {one.fault}" for one in returns if one.took_s is None],
        "return_s": {"median": _percentile(took, 0.5), "p95": _percentile(took, 0.95), "most": max(took, default=None)},
        "present": {
            "at_least": enough,
            "share": sum(count >= enough for count in seen.present) / max(1, len(seen.present)),
            "least": min(seen.present, default=0),
        },
        "ledger": summary["ledger"],
        "lost": summary["ledger"]["dropped"].get("unknown", 0),
        "doubled": summary["ledger"]["overbooked"],
        "status": summary["status"],
        "stored_env_steps": summary["env_steps"],
        "weights_sha256": summary["weights_sha256"],
        "memory_mb": {name: round(series[-1], 1) for name, series in seen.memory.items()},
        "memory_growth_mb": {name: round(_growth(series), 1) for name, series in seen.memory.items()},
        "descriptors_growth": {name: _growth(series) for name, series in seen.descriptors.items()},
    }


def _percentile(values: Sequence[float], share: float) -> float | None:
    return round(values[min(len(values) - 1, int(share * len(values)))], 2) if values else None


def _alone(run_dir: Path, settings: dict[str, Any], env_steps: int) -> str:
    """The weights of one process after as many env steps."""
    file = run_dir.with_suffix(".yaml")
    settings = {**settings, "hosts": {"local": {"workers": 1}}}
    settings["run"] = {**settings["run"], "mode": "single", "total_env_steps": env_steps}
    file.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "zmqrl", "launch", str(file), "--plain", "--run-dir", str(run_dir)]
    subprocess.run(command, check=True, capture_output=True)
    return str(json.loads((run_dir / "summary.json").read_text())["weights_sha256"])


def _first_other(run_dir: Path, alone: Path) -> str | None:
    """The first kept version that one process has not, bit for bit."""
    kept = sorted(run_dir.glob("checkpoints/kept-*"), key=lambda path: int(path.stem.rpartition("-")[2]))
    for path in kept:
        other = alone / "checkpoints" / path.name
        if not other.exists() or other.read_bytes() != path.read_bytes():
            return path.name
    return None


def _failed(arguments: argparse.Namespace, report: dict[str, Any]) -> list[str]:
    failed = []
    if report["exit_code"] != 0 or report["stop"] != 0:
        failed.append(f"the run ended with exit code {report['exit_code']}, its stop with {report['stop']}")
    if not report["ledger"]["balanced"] or report["lost"] or report["doubled"]:
        failed.append(f"{report['lost']} rows lost, {report['doubled']} stored twice: the ledger is not balanced")
    if report["left"]:
        failed.append(f"processes left: {report['left']}")
    if arguments.mode == "sync" and report["weights_sha256"] != report["sha256_of_one_process"]:
        failed.append(
            f"the weights are not those of one process, first in {report['first_other_version'] or 'the last'}"
        )
    late = [one for one in report["not_returned"] if not one.endswith("slow")]
    if len(late) > 1:  # the last fault may be too late to be seen
        failed.append(f"not returned: {late}")
    if set(arguments.faults.split(",")) <= {"crash", "power"}:
        if (report["return_s"]["p95"] or 1e9) > RETURN_S:
            failed.append(f"p95 of the returns: {report['return_s']['p95']} s")
        if (report["join_s"] or 1e9) > JOIN_S:
            failed.append(f"one host more joined in {report['join_s']} s")
        if report["present"]["share"] < PRESENT_SHARE:
            failed.append(f"{report['present']['at_least']} hosts were present in {report['present']['share']:.3f}")
    failed += [f"{n} gained {g} MB" for n, g in report["memory_growth_mb"].items() if g > GROWTH_MB]
    return failed + [f"{n} gained {g} descriptors" for n, g in report["descriptors_growth"].items() if g > GROWTH_FDS]


def main(words: Sequence[str] | None = None) -> int:
    """As the module describes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=20)
    parser.add_argument("--mode", choices=("sync", "async"), default="sync")
    parser.add_argument("--for", dest="seconds", type=float, default=600.0, help="seconds with faults")
    parser.add_argument("--every", type=float, default=20.0, help="seconds from one fault to the next")
    parser.add_argument("--down", type=float, default=10.0, help="seconds that a fault lasts")
    parser.add_argument("--faults", default="crash", help=f"of {', '.join(FAULTS)}, separated by commas")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(words)
    unknown = set(arguments.faults.split(",")) - set(FAULTS)
    if unknown:
        parser.error(f"--faults: unknown: {', '.join(sorted(unknown))}; known: {', '.join(FAULTS)}")
    report = soak(arguments)
    print(json.dumps(report, indent=2, default=str))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=2, default=str) + "\n")
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
