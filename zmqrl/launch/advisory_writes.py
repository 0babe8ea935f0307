"""Writes into the run directory that a run does not depend on: status, metrics, logs. None of them ends it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

from zmqrl.views.problem import Problem

Arguments = ParamSpec("Arguments")


class AdvisoryWrites:
    """Reports the first write that fails, and when all that failed succeed again. Owned by the main thread."""

    def __init__(self, run_dir: Path, report: Callable[[Problem], None]) -> None:
        self._where, self._report = f"run directory {run_dir}", report
        self._failing: set[str] = set()
        self._since = 0.0

    def attempt(
        self, what: str, write: Callable[Arguments, object], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> bool:
        """Whether `write` raised no OSError; `what` names the file. The caller tries again with its next data."""
        try:
            write(*args, **kwargs)
        except OSError as error:
            if not self._failing:
                self._since = time.monotonic()
                cause = f"{what} cannot be written: {error.strerror or error}"
                self._report(
                    Problem(self._where, cause, "the run continues, retrying; if the disk is full, free space there")
                )
            self._failing.add(what)
            return False
        if what in self._failing:
            self._failing.remove(what)
            if not self._failing:
                failed_s = time.monotonic() - self._since
                cause = f"{what} could not be written for {failed_s:.1f} s"
                self._report(Problem(self._where, cause, "writes succeed again"))
        return True
