"""Where the checkpoints of a run are: computed here and nowhere else."""

from __future__ import annotations

from pathlib import Path


def store_path(configured: str | None, run_dir: Path | str, lineage: str | None) -> Path:
    """Directory of a lineage's checkpoints on this host.

    Args:
        configured: `store.path`. None: checkpoints stay in the run directory, which belongs to one run.
        run_dir: The run directory.
        lineage: Id of the lineage; None for a run of 0.1, whose checkpoints are directly in `store.path`.
    """
    if configured is None:
        return Path(run_dir) / "checkpoints"
    root = Path(configured).expanduser().absolute()
    return root if lineage is None else root / lineage
