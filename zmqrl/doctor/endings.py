"""Interpretation of the exit code and stderr of a remote program. Pure."""

from __future__ import annotations

import re

from zmqrl.doctor.measurement import Failure

NOT_FOUND, NOT_EXECUTABLE = 127, 126
_MISSING = re.compile(r"No module named '?([\w.]+)'?")


def why_it_ended(code: int | None, stderr: str) -> Failure:
    """Of a probe that ended before its time; what fixes it follows from the kind."""
    last = next((line.strip() for line in reversed(stderr.splitlines()) if line.strip()), "no output")
    if code == NOT_FOUND:
        return Failure("python", f"python was not found: {last}")
    if code == NOT_EXECUTABLE:
        return Failure("python", f"python cannot be started: {last}")
    missing = _MISSING.search(last)
    if missing and missing[1].partition(".")[0] == "zmqrl":
        return Failure("zmqrl", f"zmqrl is missing or of another version in the host's Python: {last}")
    if missing:
        return Failure("packages", f"a package is missing in the host's Python: {last}")
    return Failure("probe", f"the probe exited (code {'unknown' if code is None else code}): {last}")
