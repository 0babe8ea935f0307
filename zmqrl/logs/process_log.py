"""The log of a process: its lines with time, level and module, and the first one, which its agent writes."""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING

from zmqrl.installed import installed

if TYPE_CHECKING:
    from zmqrl.config.sections import Config

FORMAT, TIME = "%(asctime)s %(levelname)s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S"
DEFAULT = "INFO"
VARIABLE = "ZMQRL_LOG_LEVEL"
"""The environment variable of the level; `hosts.NAME.env` sets it on a host."""


def log_to_stderr(level: str | None) -> None:
    """Write the messages of zmqrl at `level` and above to stderr; an unknown level is the default.

    The root logger is left to the user's modules: what they configure changes no line of zmqrl.
    """
    logger, handler = logging.getLogger("zmqrl"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT, TIME))
    known = logging.getLevelName((level or DEFAULT).upper())
    logger.setLevel(known if isinstance(known, int) else DEFAULT)
    logger.handlers, logger.propagate = [handler], False


def start_line(config: Config, role: str, index: int, pid: int, spawn: int = 0) -> str:
    """One line without its end. `spawn`: how often the process was started before."""
    is_learner = role == "learner"
    threads = (config.learner.threads or 1) if is_learner else 1
    device = config.learner.device if is_learner else "cpu"
    if device == "auto" and config.network.kind == "mlp":
        device = "cpu"
    parts = [
        f"zmqrl {installed('zmqrl')}",
        f"Python {'.'.join(map(str, sys.version_info[:3]))}",
        f"device {device}",
        f"{threads} thread{'' if threads == 1 else 's'}",
    ]
    if spawn:
        parts.append(f"restart {spawn}")
    return f"{time.strftime('%Y-%m-%d %H:%M:%S')} {role}-{index} (pid {pid}) starts: {', '.join(parts)}"
