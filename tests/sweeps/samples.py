"""A sweep in a folder, whose runs the test ends itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zmqrl.queue.folder import QueueFolder, open_queue
from zmqrl.sweeps.folder import SweepFolder
from zmqrl.sweeps.sweep_file import Sweep, SweepFile

RATES = (0.1, 0.2, 0.3)


def made(folder: Path, **keys: Any) -> tuple[SweepFolder, QueueFolder]:
    """The folder `s` of a sweep over `RATES`, and the queue `q`."""
    (folder / "q").mkdir(exist_ok=True)
    own = SweepFile("cartpole-ppo", {"algorithm.learning_rate": RATES}, **keys)
    sweep = Sweep(own, str(folder), str(folder / "q"), first_seed=5)
    return SweepFolder.create(folder / "s", sweep), open_queue(folder / "q")
