"""Power cuts of real runs on a file system of their own: `power_cut.py [--cuts 20] [--runs sync-ppo,...] [--seed 1]`.

The run directory is on an ext4 image in memory. At a random moment every process of the run is stopped, the image is
copied, and the processes are killed: the copy holds what had reached the disk. It is checked by `e2fsck`, mounted, and
the run resumed from it to its end, some of them after a second cut during the resume. Prints a table, and JSON with
`--json FILE`. Exit code 1 when a run that had begun could not be resumed, when more was lost than
`run.checkpoint_every_s` and a margin, or when a sync run ended with other weights than the undisturbed one.
Needs root, a loop device and mkfs.ext4.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

IMAGE_BYTES = 64 << 20
EVERY_S, MARGIN_S = 2.0, 1.0
END_S = 180.0
MOMENTS = ("start", "middle", "resume", "end")
COMMON = (
    "env.id=CartPole-v1", "env.vector_envs=4", "env.num_envs=2", "env.segment_steps=32", "network.hidden=[32, 32]",
    "run.stop_at_return=null", "evaluator.episodes=0", "limits.heartbeat_s=0.2",
    f"run.checkpoint_every_s={EVERY_S}",
)  # fmt: skip
DQN = ("replay.capacity=2000", "replay.learning_starts=500", "replay.ratio=0.05")
RUNS = {
    "sync-ppo": ("cartpole-ppo", "sync", 150_000, ("algorithm.epochs=2",)),
    "sync-dqn": ("cartpole-dqn", "sync", 100_000, DQN),
    "async-ppo": ("cartpole-ppo", "async", 150_000, ("algorithm.epochs=2", "algorithm.minibatch_size=64")),
    "async-dqn": ("cartpole-dqn", "async", 50_000, (*DQN, "store.async_replay=true")),
}
"""Preset, mode, env steps, settings."""
_VERSION = re.compile(r"v(\d+-\d+)\.safetensors")


@dataclass
class Cut:
    """What became of one."""

    run: str
    moment: str
    at_s: float = 0.0
    newest: str = ""
    """Version that had been published by then."""
    had_begun: bool = False
    """A first FULL was in the store: from then on every cut must be resumed."""
    e2fsck: int = 0
    resumed_from: str = ""
    lost_s: float = 0.0
    """Time since the first version that was lost: the round before it took what it took."""
    exit_code: int = 0
    said: str = ""
    sha256: str = ""
    faults: list[str] = field(default_factory=list)


def why_not() -> str | None:
    """Why no cut can be made here."""
    if os.geteuid() != 0:
        return "mounting an image needs root"
    missing = [name for name in ("mkfs.ext4", "e2fsck", "mount") if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        try:
            with mounted(_new_image(Path(folder) / "image"), Path(folder) / "mnt"):
                return None
        except subprocess.CalledProcessError as error:
            return f"an image cannot be mounted: {error.stderr.decode(errors='replace').strip()}"


def command(run: str, *more: str) -> list[str]:
    """The command line that trains `run`."""
    preset, mode, steps, settings = RUNS[run]
    sets = [*COMMON, *settings, f"run.total_env_steps={steps}"]
    return [*_zmqrl(), "train", preset, "--mode", mode, "--workers", "2", *_set(sets), *more]


def undisturbed(run: str) -> dict[str, Any]:
    """Its summary."""
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        run_dir = Path(folder) / "run"
        done = subprocess.run([*command(run), "--run-dir", str(run_dir)], capture_output=True, timeout=END_S)
        assert done.returncode == 0, done.stderr.decode()
        return _json(run_dir / "summary.json")


class Session:
    """The undisturbed runs are made once each."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._straight: dict[str, dict[str, Any]] = {}
        self._environment = dict(os.environ)

    def cut(self, run: str, moment: str) -> Cut:
        """One run, cut at `moment`, and resumed."""
        if run not in self._straight:
            self._straight[run] = undisturbed(run)
        cut = Cut(run, moment)
        with tempfile.TemporaryDirectory(dir=_memory()) as name:
            folder = Path(name)
            self._environment = {**os.environ, "ZMQRL_RUNTIME_DIR": name}  # what a killed run leaves goes with it
            image = _new_image(folder / "image")
            arguments: list[str] = command(run)
            if moment == "resume":  # cut before: what is resumed and cut again is the copy
                image = self._run_and_cut(cut, arguments, image, folder / "first", "middle")
                arguments = [*_zmqrl(), "train"]
            image = self._run_and_cut(cut, arguments, image, folder / "second", moment)
            self._resume(cut, image, folder / "last")
        return cut

    def _run_and_cut(self, cut: Cut, arguments: list[str], image: Path, folder: Path, moment: str) -> Path:
        folder.mkdir()
        mnt, copy = folder / "mnt", folder / "image"
        where = "--resume" if cut.newest else "--run-dir"
        with mounted(image, mnt), (folder / "log").open("wb") as log:
            begun = time.monotonic()
            started = [*arguments, where, str(mnt / "run")]
            process = subprocess.Popen(started, stdout=log, stderr=log, env=self._environment)
            versions = _Versions(mnt / "run" / "checkpoints")
            try:
                self._await_moment(cut.run, moment, begun, versions, process)
                cut.at_s = round(time.monotonic() - begun, 2)
                stopped = _stop_all(process.pid)
                at = time.monotonic()
                _copy(image, copy)
            finally:
                versions.end()
                for pid in {process.pid, *_tree(process.pid), *locals().get("stopped", ())}:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                process.wait()
            cut.newest, cut.had_begun = versions.newest, any((mnt / "run" / "checkpoints").glob("full-*-*"))
        checked = subprocess.run(["e2fsck", "-fp", copy], capture_output=True)
        cut.e2fsck = checked.returncode
        if checked.returncode & ~1:
            cut.faults.append(f"e2fsck: {checked.stdout.decode(errors='replace').strip()[-300:]}")
        with mounted(copy, mnt):
            cut.resumed_from = _loadable(mnt / "run" / "checkpoints")
            cut.lost_s = round(versions.lost_s(cut.resumed_from, at), 2)
            if cut.lost_s > EVERY_S + MARGIN_S:
                cut.faults.append(f"{cut.lost_s} s are lost")
            if cut.had_begun and not cut.resumed_from:
                cut.faults.append("no FULL can be loaded")
        return copy

    def _await_moment(
        self, run: str, moment: str, begun: float, versions: _Versions, process: subprocess.Popen[bytes]
    ) -> None:
        if moment in ("start", "resume"):
            _sleep_until(begun + self._dice.uniform(0.0, 5.0), process)
        elif moment == "middle":
            _wait(lambda: versions.newest, process)
            _sleep_until(time.monotonic() + self._dice.uniform(EVERY_S, 3 * EVERY_S), process)
        else:
            total, steps = RUNS[run][2], 256 * self._dice.randrange(1, 4)
            _wait(lambda: versions.env_steps >= total - steps, process)
            time.sleep(self._dice.uniform(0.0, 0.05))

    def _resume(self, cut: Cut, image: Path, folder: Path) -> None:
        folder.mkdir()
        with mounted(image, folder / "mnt"):
            run_dir = folder / "mnt" / "run"
            resume = [*_zmqrl(), "train", "--resume", str(run_dir)]
            done = subprocess.run(resume, capture_output=True, timeout=END_S, env=self._environment)
            cut.exit_code, said = done.returncode, (done.stdout + done.stderr).decode(errors="replace").strip()
            cut.said = said.splitlines()[-1] if said else ""
            if done.returncode == 2 and not cut.had_begun:
                return  # it had not begun, and that is what the command says
            if done.returncode != 0:
                cut.faults.append(f"exit code {done.returncode}: {said[-500:]}")
                return
            with suppress(OSError):
                self._compare(cut, _json(run_dir / "summary.json"))

    def _compare(self, cut: Cut, summary: dict[str, Any]) -> None:
        straight = self._straight[cut.run]
        cut.sha256 = summary["weights_sha256"]
        if summary["ledger"] is not None and not summary["ledger"]["balanced"]:
            cut.faults.append("the ledger does not balance")
        if cut.run.startswith("sync") and cut.sha256 != straight["weights_sha256"]:
            cut.faults.append(f"weights {cut.sha256[:12]}, undisturbed {straight['weights_sha256'][:12]}")
        if summary["env_steps"] < RUNS[cut.run][2]:
            cut.faults.append(f"it ended at {summary['env_steps']} env steps")


class _Versions:
    """When each published version was first seen, by a thread that lists the store."""

    def __init__(self, store: Path) -> None:
        self._store, self._seen = store, dict[tuple[int, int], float]()
        self.env_steps = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @property
    def newest(self) -> str:
        """`incarnation-n`; empty before the first."""
        return "-".join(map(str, max(self._seen))) if self._seen else ""

    def lost_s(self, resumed_from: str, at: float) -> float:
        """Seconds from the first version after `resumed_from` to the cut."""
        from_then = [seen for version, seen in self._seen.items() if version > _parsed(resumed_from or "-1-0")]
        return max(0.0, at - min(from_then, default=at))

    def end(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.005):
            now, before = time.monotonic(), max(self._seen, default=(-1, -1))
            with suppress(OSError):
                found = {_parsed(m[1]) for m in map(_VERSION.fullmatch, os.listdir(self._store)) if m}
                newest = max(found, default=before)
                for version in found - set(self._seen):
                    self._seen[version] = now
                if newest > before:
                    self._read(newest)

    def _read(self, version: tuple[int, int]) -> None:
        content = (self._store / f"v{version[0]}-{version[1]}.safetensors").read_bytes()[:65536]
        steps = re.search(rb'"env_steps":"(\d+)"', content)
        self.env_steps = int(steps[1]) if steps else self.env_steps


def _parsed(version: str) -> tuple[int, int]:
    incarnation, n = version.rsplit("-", 1)
    return int(incarnation), int(n)


@contextmanager
def mounted(image: Path, mnt: Path) -> Iterator[None]:
    """`image` at `mnt`."""
    mnt.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop", image, mnt], check=True, capture_output=True)
    try:
        yield
    finally:
        until = time.monotonic() + 10.0
        while subprocess.run(["umount", mnt], capture_output=True).returncode and time.monotonic() < until:
            time.sleep(0.1)
        subprocess.run(["umount", "-l", mnt], capture_output=True)


def _new_image(path: Path) -> Path:
    with path.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-F", path], check=True, capture_output=True)
    return path


def _copy(image: Path, to: Path) -> None:
    """What the disk holds, at one moment: two readings are alike when nothing was written in between."""
    before = b""
    while (content := image.read_bytes()) != before:
        before = content
    to.write_bytes(content)


def _tree(pid: int) -> list[int]:
    """The processes below it."""
    found, todo = [], [pid]
    while todo:
        at = todo.pop()
        with suppress(OSError):
            children = [int(c) for c in Path(f"/proc/{at}/task/{at}/children").read_text().split()]
            found += children
            todo += children
    return found


def _stop_all(pid: int) -> set[int]:
    """Whoever could write; again until nobody new is there."""
    stopped: set[int] = set()
    while new := {pid, *_tree(pid)} - stopped:
        for each in new:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGSTOP)
        stopped |= new
    return stopped


def _loadable(store: Path) -> str:
    """Version of the newest FULL that loads, as a learner would find it; empty: none."""
    from zmqrl.data_stores.directory import DirectoryStore
    from zmqrl.errors import StoreError

    try:
        full = DirectoryStore(str(store), 8).newest_full()
    except StoreError:
        return ""
    return "" if full is None else str(full.version)


def _wait(condition: Any, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + END_S
    while not condition() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.002)


def _sleep_until(at: float, process: subprocess.Popen[bytes]) -> None:
    while time.monotonic() < at and process.poll() is None:
        time.sleep(0.002)


def _memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _zmqrl() -> list[str]:
    return [sys.executable, "-m", "zmqrl"]


def _set(settings: Sequence[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def _json(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--runs", default=",".join(RUNS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    why = why_not()
    if why is not None:
        sys.exit(why)
    session, runs, cuts = Session(given.seed), given.runs.split(","), []
    for number in range(given.cuts):
        cut = session.cut(runs[number % len(runs)], MOMENTS[(number // len(runs)) % len(MOMENTS)])
        cuts.append(cut)
        begun = f"published {cut.newest or '-':8} resumed from {cut.resumed_from or '-':8} lost {cut.lost_s:5.2f} s"
        outcome = "; ".join(cut.faults) or f"exit {cut.exit_code} {cut.sha256[:12]}"
        at = f"{cut.run:10} {cut.moment:7} at {cut.at_s:6.2f} s"
        print(f"{number + 1:3} {at}  {begun}  e2fsck {cut.e2fsck}  {outcome}", flush=True)
    failed = [cut for cut in cuts if cut.faults]
    print(f"{len(cuts)} cuts, {len(failed)} failed; most lost {max(cut.lost_s for cut in cuts):.2f} s")
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(cut) for cut in cuts], indent=2) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
