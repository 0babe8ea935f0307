"""The live view of a run: progress, return, speeds, a row per host or worker, losses, the last messages.

Drawn from what `status.json` holds, so that every shell shows what the launcher does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from zmqrl.logs.printable import printable_data
from zmqrl.supervision.gpus import brief
from zmqrl.types import Gpu, Severity
from zmqrl.views.base import HOST_COLUMNS, bottleneck_of, host_cells, reports_of
from zmqrl.views.header import header, wrapped
from zmqrl.views.problem import report_cells, short, shown_problems

LEAST_ROWS = 4
"""Minimum of rows of the table, however low the terminal is."""
ROOMY = 40
"""Lines of a terminal from which the launcher's view repeats the last messages, which it also prints above."""
LONGEST_NAME = 24
"""Length of the longest name of a host on one line."""
WIDE = 120
"""Columns from which the columns of the table are two spaces apart."""
BLOCKS = "▁▂▃▄▅▆▇█"
STYLES = {"ready": "", **dict.fromkeys(("starting", "connecting", "joining", "drained", "away"), "dim")}
"""Styles of a row by its state; others are red."""
OF_SEVERITY: Mapping[Severity, str] = {"error": "red", "warning": "yellow", "note": "dim"}
"""Styles of messages."""
LOSSES = ("loss", "entropy", "approx_kl", "clip_fraction", "explained_variance", "grad_norm", "q_mean", "learning_rate")
"""Begin of the names of metrics that show how learning goes."""
WORKER_COLUMNS = ("HOST", "STATE", "WORKER", "STEPS/s", "STEPS", "EPISODES", "WAITS", "RESTARTS")


def render(status: Mapping[str, Any], footer: str = "") -> RunView:
    """All of it as one renderable, which fits into the terminal. `footer`: of the launcher's own view."""
    return RunView(printable_data(status), footer)


@dataclass(frozen=True)
class RunView:
    """Two lines of header, figures and a table; then, where there is room, losses, the last messages and the footer."""

    status: Mapping[str, Any]
    footer: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width, left = options.max_width, console.size.height - 2  # the cursor has a line of its own
        top = [*header(self.status, width), *wrapped(_figures(self.status), width)]
        yield from top
        left -= len(top)
        rows = _rows(self.status)
        shown = len(rows) if len(rows) < left else max(LEAST_ROWS, left - 2)
        yield _table(rows, shown, width, _is_by_host(self.status))
        left -= min(len(rows), shown) + 2
        losses = _losses(self.status, width)
        if losses and len(losses) < left:
            yield Text()
            yield from losses
            left -= len(losses) + 1
        gpus = _gpus(self.status, width)
        if gpus and len(gpus) < left:
            yield from gpus
            left -= len(gpus)
        if not self.footer or console.size.height >= ROOMY:
            messages = _messages(self.status, width, left - 4)
            yield from messages
            left -= len(messages)
        if self.footer and left > 1:
            yield Text()
            yield Text(self.footer, style="dim", overflow="fold")


def sparkline(values: Sequence[float]) -> str:
    """One block per value, from the least to the largest."""
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((value - low) * scale)] for value in values)


def _figures(status: Mapping[str, Any]) -> Iterator[Text]:
    m = status["metrics"]
    if "train_return_mean_100" in m:
        returns = sparkline(status.get("returns", [])[-30:])
        yield Text(f"return {m['train_return_mean_100']:.1f} {returns}", style="bold green")
    if status["score"] and status["score"]["return_mean"] is not None:
        yield Text(f"evaluated {status['score']['return_mean']:.1f}", style="green")
    for cell in report_cells(reports_of(m)):
        yield Text(cell, style="green")
    yield Text(f"{m.get('env_steps_per_s', 0.0):,.0f} env steps/s")
    yield Text(f"{m.get('updates_per_s', 0.0):,.0f} updates/s")
    yield Text(f"lag {m.get('policy_lag_mean', 0.0):.1f} (max {m.get('policy_lag_max', 0):.0f})")
    if "leases" in m:
        yield Text(f"leases {m['leases']:.0f}")
    yield Text(f"learner waits {100 * m.get('wait_fraction', 0.0):.0f}%")
    yield Text(f"bottleneck: {bottleneck_of(status)}", style="yellow")


def _gpus(status: Mapping[str, Any], width: int) -> list[Text]:
    """Memory used and whole of each GPU, and who uses it, a line per host."""
    hosts = [host for host in status.get("hosts", []) if host.get("gpus")]
    texts = [f"GPUs of {h['host']}: " + "; ".join(brief(msgspec.convert(gpu, Gpu)) for gpu in h["gpus"]) for h in hosts]
    lines = [Text(text, style="dim", no_wrap=True) for text in texts]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _losses(status: Mapping[str, Any], width: int) -> list[Text]:
    figures = {name: value for name, value in status["metrics"].items() if name.startswith(LOSSES)}
    return wrapped([Text(f"{name} {short(float(value))}", style="cyan") for name, value in figures.items()], width)


def _messages(status: Mapping[str, Any], width: int, most: int) -> list[Text]:
    """The last messages, the newest last: those that fit into `most` lines with an empty one above."""
    texts: list[Text] = []
    for message, severity in reversed(shown_problems(status).items()):
        lines = [Text(line, OF_SEVERITY.get(severity, ""), no_wrap=True) for line in message.splitlines()]
        if len(texts) + len(lines) >= most:
            break
        texts = [*lines, *texts]
    for text in texts:
        text.truncate(width, overflow="ellipsis")
    return [Text(), *texts] if texts else []


def _is_by_host(status: Mapping[str, Any]) -> bool:
    return len(status.get("hosts", [])) > 1


def _rows(status: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The state is the second of each; the first is the name."""
    if _is_by_host(status):
        return [tuple(host_cells(host)) for host in status["hosts"]]
    return [_worker_row(row) for row in status["workers"]]


def _table(rows: Sequence[tuple[str, ...]], shown: int, width: int, by_host: bool) -> Table:
    gap = 2 if width >= WIDE else 1
    table = Table(box=None, padding=(0, gap), pad_edge=False, collapse_padding=True, header_style="dim")
    names = (*HOST_COLUMNS, "") if by_host else WORKER_COLUMNS
    sizes = [max(map(len, column)) for column in zip(names, *rows[:shown], strict=True)]
    cause = width - sum(sizes[:-1]) - gap * (len(sizes) - 1)
    for name, size in zip(names, sizes, strict=True):
        justify: Literal["left", "right"] = "left" if name in ("HOST", "STATE", "") else "right"
        if name:  # these are never cut
            table.add_column(name, justify=justify, min_width=min(size, LONGEST_NAME), overflow="fold")
        else:
            table.add_column(name, no_wrap=True, overflow="ellipsis", max_width=max(1, cause))
    for row in rows[:shown]:
        table.add_row(*row, style=STYLES.get(row[1], "red"))
    if len(rows) > shown:
        table.add_row(f"and {len(rows) - shown} more", style="dim")
    return table


def _worker_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        row["host"],
        row["state"],
        str(row["index"]),
        f"{row['env_steps_per_s']:,.0f}",
        f"{row['env_steps']:,}",
        f"{row['episodes']:,}",
        f"{100 * row['wait_fraction']:.0f}%",
        str(row["restarts"]),
    )
