"""Which run a command means: a run directory, a run id, or the newest one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from zmqrl.agent.run_processes import agents as agents
from zmqrl.config.paths import expanded
from zmqrl.errors import ConfigError
from zmqrl.run_files.run_info import RunInfo, has_launcher_here, is_live, read_info, refuse_damaged_info
from zmqrl.run_files.stored_config import refuse_folder_of_runs

RUNS = Path("runs")


def find_run(run: str | None) -> tuple[Path, RunInfo]:
    """The run directory and its `run.json`. Default: the newest live run below this directory, else that of `runs/`.

    A run elsewhere has to be named: on a shared account it may be another person's. Of a folder of runs, as that of
    `--seeds`, it is the one that is live.

    Raises:
        ConfigError: The run was not found.
    """
    _refuse_empty(run)
    if run is not None and (info := read_info(Path(run))) is not None:
        return Path(run), info
    active = list(runs_of_agents())
    if run is not None:
        named = next((pair for pair in (*active, *runs_here()) if pair[1].has_id(run)), None)
        if named is None:
            named = _live_run_in(Path(run))
        if named is None:
            refuse_damaged_info(Path(run))
            refuse_folder_of_runs(Path(run))
            raise ConfigError(
                f"no run {run!r}: it is not a run directory, and not the id of a run that is active or in {RUNS}/"
            )
        return named
    found = [*(pair for pair in active if is_below_here(pair[0])), *runs_here()]
    if not found:
        if not active:
            raise ConfigError(f"no active run and no run in {RUNS}/; give a run directory")
        elsewhere = "".join(f"\n  {directory}" for directory, _ in active)
        here = f"no active run below {Path.cwd()} and no run in {RUNS}/"
        raise ConfigError(here, fix=f"give RUN: your active runs elsewhere are{elsewhere}")
    return max(found, key=lambda pair: (has_launcher_here(*pair), pair[1].started_at))


def _live_run_in(folder: Path) -> tuple[Path, RunInfo] | None:
    """The live run in a folder of runs; None where there are several, or none."""
    found = ((path.parent, read_info(path.parent)) for path in folder.glob("*/run.json"))
    live = [(path, info) for path, info in found if info is not None and is_live(path, info)]
    return live[0] if len(live) == 1 else None


def directory_of(run: str) -> Path:
    """The run directory that `run` names: a path, or the id of any attempt of a run.

    Where no run has this id, it is a path: the command that uses it reports what is missing there.
    """
    _refuse_empty(run)
    path = expanded(run)
    if path.exists() or "/" in run:
        return path
    with contextlib.suppress(ConfigError):
        return find_run(run)[0]
    return path


def _refuse_empty(run: str | None) -> None:
    if run == "":
        raise ConfigError("'': the name of the run is empty; give a run directory or a run id")


def is_below_here(directory: Path) -> bool:
    """Whether `directory` is in the working directory."""
    return directory.resolve().is_relative_to(Path.cwd().resolve())


def runs_of_agents() -> Iterator[tuple[Path, RunInfo]]:
    """This user's runs on this machine in any directory, also of launchers that have exited."""
    for pid, run_id in agents():
        directory = _directory_of(pid)
        info = read_info(directory) if directory is not None else None
        if directory is not None and info is not None and info.run_id == run_id:
            yield directory, info


def _directory_of(pid: int) -> Path | None:
    """An agent's stderr is `<run directory>/logs/<host>-agent-0.log`: it gives the directory of the run."""
    try:
        log = Path(os.readlink(f"/proc/{pid}/fd/2"))
    except OSError:
        return None
    return log.parent.parent if log.parent.name == "logs" else None


def runs_here() -> Iterator[tuple[Path, RunInfo]]:
    """Runs whose directories are in `runs/`."""
    for path in RUNS.glob("**/run.json"):
        info = read_info(path.parent)
        if info is not None:
            yield path.parent, info
