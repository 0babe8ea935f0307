"""Interface of a view of a run on the launcher's terminal. A view draws the data of `status.json`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from zmqrl.logs.printable import printable
from zmqrl.types import Severity

Status: TypeAlias = Callable[[], Mapping[str, Any]]
"""The current content of `status.json`."""
HOST_COLUMNS = {
    "HOST": "{host}",
    "STATE": "{state}",
    "WORKERS": "{ready}/{workers}",
    "STEPS/s": "{env_steps_per_s:,.0f}",
    "CPU": "{cpu:.1f}",
    "MB": "{pss_mb:,.0f}",
    "MS": "{ms:.1f}",
    "LAST": "{last_s:.0f}",
    "RESTARTS": "{restarts}",
}
"""Head of each column to the format of its cells, by the keys that a host has in `status.json`."""
UNKNOWN, REPORT = "-", "report/"


def aligned(rows: Sequence[Sequence[str]], right: Container[str] = ()) -> list[str]:
    """The lines of a table of a head and rows, each `printable`. `right`: columns that are aligned to the right."""
    shown = [[printable(cell).replace("\n", r"\n") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in zip(rows[0], row, widths, strict=True)
        ).rstrip()
        for row in shown
    ]


def host_cells(host: Mapping[str, Any]) -> list[str]:
    """A host's row of the table of hosts, and the first line of why it is not part of the run."""
    known = {key: value for key, value in host.items() if value is not None}
    cells = [_cell(form, known) for form in HOST_COLUMNS.values()]
    return [*cells, str(host.get("cause") or "").partition("\n")[0]]


def _cell(form: str, known: Mapping[str, Any]) -> str:
    try:
        return form.format_map(known)
    except (KeyError, TypeError, ValueError):
        return UNKNOWN


def reports_of(metrics: Mapping[str, float]) -> dict[str, float]:
    """Means of the numbers of `env.report` over the last 100 training episodes, by name."""
    return {name.removeprefix(REPORT): mean for name, mean in metrics.items() if name.startswith(REPORT)}


def bottleneck_of(status: Mapping[str, Any]) -> str:
    """`workers: node02 (worker 3), 6x slower`; `-` where it is not known."""
    late = status.get("slowest")
    return (status["bottleneck"] or "-") + (f": {late}" if late and status["bottleneck"] == "workers" else "")


class View:
    """Only the launcher's main thread calls it. The base class shows nothing, for a caller in this process."""

    def update(self, status: Status, now: float) -> None:
        """Show the run at monotonic time `now`. Called often; a view that is due calls `status` and draws it."""

    def message(self, text: str, severity: Severity = "note") -> None:
        """Print a block to stderr without breaking the view."""

    def close(self, status: Status) -> None:
        """Show the end of the run where it replaces what is shown, and return the terminal to its normal state."""


class LastingView(View):
    """Another view, and plain lines from its first exception on: no terminal ends a run."""

    def __init__(self, view: View) -> None:
        self._view, self._has_failed = view, False

    def update(self, status: Status, now: float) -> None:
        self._show(lambda view: view.update(status, now))

    def message(self, text: str, severity: Severity = "note") -> None:
        self._show(lambda view: view.message(text, severity))

    def close(self, status: Status) -> None:
        self._show(lambda view: view.close(status))

    def _show(self, show: Callable[[View], None]) -> None:
        try:
            show(self._view)
        except Exception as error:
            if self._has_failed:
                raise
            from zmqrl.views.plain import PlainView

            failed, self._view, self._has_failed = self._view, PlainView(), True
            with suppress(Exception):
                failed.close(dict)  # draws nothing
            self._view.message(f"the live view failed ({type(error).__name__}: {error}); plain lines follow")
            show(self._view)


def make_view(plain: bool, quiet: bool = False) -> View:
    """The live view on a terminal, plain lines elsewhere and with `--plain`."""
    if quiet:
        return View()
    if plain or not sys.stdout.isatty():
        from zmqrl.views.plain import PlainView

        return PlainView()
    from zmqrl.views.live import LiveView

    return LastingView(LiveView())
