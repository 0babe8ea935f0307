"""Lines of a process log: time, level and module, through `logging`."""

from __future__ import annotations

import logging
import sys

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
