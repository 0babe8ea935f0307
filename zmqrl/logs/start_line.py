"""The first line in the log of a process: which process it is, and with what it runs."""

from __future__ import annotations

import platform
import time
from importlib import metadata

from zmqrl.config.sections import Config


def start_line(config: Config, role: str, index: int, pid: int, spawn: int = 0) -> str:
    """One line without its end. `spawn`: how often the process was started before."""
    is_learner = role == "learner"
    threads = (config.learner.threads or 1) if is_learner else 1
    device = config.learner.device if is_learner else "cpu"
    if device == "auto" and config.network.kind == "mlp":
        device = "cpu"
    parts = [
        f"zmqrl {metadata.version('zmqrl')}",
        f"Python {platform.python_version()}",
        f"device {device}",
        f"{threads} thread{'' if threads == 1 else 's'}",
    ]
    if spawn:
        parts.append(f"restart {spawn}")
    return f"{time.strftime('%Y-%m-%d %H:%M:%S')} {role}-{index} (pid {pid}) starts: {', '.join(parts)}"
