"""A `timed` test that fails while the hypervisor withholds CPU time from the machine is run again, and this is shown.

Its bound in seconds is that of a machine that runs. Under /proc/stat's `steal`, a sleep of 1 ms was seen to take 12 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

WITHHELD = 0.05
"""The share of the CPU time wanted from which on a bound in seconds says nothing."""
ATTEMPTS = 3
PROPERTY = "run again"


@dataclass(frozen=True)
class CpuTime:
    """Of the machine since its start, in ticks."""

    used: int
    withheld: int

    @classmethod
    def now(cls) -> CpuTime:
        user, nice, system, _idle, _iowait, irq, softirq, steal = (
            int(n) for n in Path("/proc/stat").read_text().split(maxsplit=9)[1:9]
        )
        return cls(user + nice + system + irq + softirq, steal)

    def withheld_since(self, before: CpuTime) -> float:
        """Of the CPU time that was wanted, the share that was withheld."""
        withheld = self.withheld - before.withheld
        return withheld / max(1, withheld + self.used - before.used)


class RunAgain:
    """A plugin of pytest; `read` measures."""

    def __init__(self, read: Callable[[], CpuTime] = CpuTime.now) -> None:
        self._read = read
        self._shown: list[str] = []

    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if not item.get_closest_marker("timed"):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports(item, nextitem):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _reports(self, item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        """Of the last attempt."""
        for attempt in range(1, ATTEMPTS + 1):
            before = self._read()
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
            withheld = self._read().withheld_since(before)
            failed = [report for report in reports if report.when == "call" and report.failed]
            if not failed or withheld < WITHHELD or attempt == ATTEMPTS:
                break
            cause = str(failed[0].longreprtext).strip().splitlines()[-1]
            item.user_properties.append((PROPERTY, f"{withheld:.0%} of the CPU time was withheld: {cause}"))
        return reports

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self._shown += [f"{report.nodeid}: {text}" for name, text in report.user_properties if name == PROPERTY]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._shown:
            terminalreporter.section("timed tests that were run again")
            for line in self._shown:
                terminalreporter.write_line(line)
