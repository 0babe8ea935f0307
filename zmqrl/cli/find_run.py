"""Which run a command means: a run directory, a run id, or the newest one."""

from __future__ import annotations

from pathlib import Path

from zmqrl.errors import ConfigError
from zmqrl.launch.run_directory import RunInfo, read_info

RUNS = Path("runs")


def find_run(run: str | None) -> tuple[Path, RunInfo]:
    """The run directory and its `run.json`. Default: the newest live run in `runs/`, else the newest there.

    Raises:
        ConfigError: There is no such run.
    """
    if run is not None and (info := read_info(Path(run))) is not None:
        return Path(run), info
    found = [(path.parent, info) for path in RUNS.glob("**/run.json") if (info := read_info(path.parent)) is not None]
    if run is not None:
        named = [pair for pair in found if pair[1].run_id == run]
        if not named:
            raise ConfigError(f"{run!r} is neither a run directory nor the id of a run in {RUNS}/")
        return named[0]
    if not found:
        raise ConfigError(f"there is no run in {RUNS}/: name a run directory")
    return max(found, key=lambda pair: (pair[1].live, pair[1].started_at))
