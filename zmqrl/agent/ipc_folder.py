"""The private folder of a run's ipc sockets: gone with the run."""

from __future__ import annotations

import shutil
from pathlib import Path

from zmqrl.config.plan import Endpoints
from zmqrl.wire.runtime_folder import check_length, make_private, remove_left_folders, run_folder_root


class IpcFolder:
    """Makes the folder and names the broker's endpoints in it."""

    def __init__(self, root: Path, run_id: str) -> None:
        """ConfigError when `root` is not private to this user."""
        self.path = root / run_id
        make_private(root)
        make_private(self.path)

    def endpoints(self) -> Endpoints:
        """One ipc socket per channel. ConfigError when their paths are too long."""
        check_length(self.path / "descriptors")
        return Endpoints(*(f"ipc://{self.path}/{name}" for name in ("segments", "descriptors", "notices", "control")))

    def close(self) -> None:
        """Remove the folder and what is in it. Safe to call twice."""
        shutil.rmtree(self.path, ignore_errors=True)


def private_folder(run_id: str) -> Path:
    """Where the folder of a run is on this machine."""
    return run_folder_root() / run_id


def remove_left_folder(run_id: str) -> None:
    """What an agent that was killed could not remove. Every process of the run must have ended."""
    shutil.rmtree(private_folder(run_id), ignore_errors=True)
    remove_left_folders()
