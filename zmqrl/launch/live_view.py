"""The run on a terminal: progress, return, speeds, one row per worker, one word for the bottleneck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from zmqrl.launch.run_state import RunState
from zmqrl.launch.status import host_status
from zmqrl.launch.view import View, progress

REDRAW_EVERY_S = 0.25
ROWS_SHOWN = 16
BLOCKS = "▁▂▃▄▅▆▇█"


class LiveView(View):
    """Redraws at most four times a second."""

    def __init__(self, state: RunState) -> None:
        self._console = Console()
        self._errors = Console(stderr=True)
        self._live = Live(Text("starting"), console=self._console, auto_refresh=False, transient=False)
        self._live.start()
        self._next_at = 0.0

    def update(self, state: RunState, now: float) -> None:
        if now < self._next_at:
            return
        self._next_at = now + REDRAW_EVERY_S
        self._live.update(picture(state, now), refresh=True)

    def message(self, text: str) -> None:
        self._live.console.print(Text(text, style="red"))

    def close(self) -> None:
        self._live.stop()


def picture(state: RunState, now: float) -> Group:
    """All of it as one renderable."""
    alone = len(list(state.hosts)) == 1
    table = _worker_table(state) if alone else _host_table([host_status(state, row, now) for row in state.hosts])
    return Group(_progress_line(state, now), _learner_line(state), table)


def sparkline(values: Sequence[float]) -> str:
    """One block per value, from the least to the largest."""
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((value - low) * scale)] for value in values)


def duration(seconds: float) -> str:
    """`h:mm:ss`."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


def _progress_line(state: RunState, now: float) -> Table:
    done, eta_s = progress(state, now)
    run = state.plan.config.run
    line = Table.grid(padding=(0, 2))
    line.add_row(
        Text(f"zmqrl {run.name} [{run.mode}] {state.plan.run_id}", style="bold"),
        duration(now - state.plan.started_at),
        ProgressBar(total=1.0, completed=done, width=30),
        f"{100 * done:.0f}%  {state.env_steps:,}/{run.total_env_steps:,} env steps",
        "" if eta_s is None else f"eta {duration(eta_s)}",
    )
    return line


def _learner_line(state: RunState) -> Text:
    m = state.metrics
    text = Text()
    if "train_return_mean_100" in m:
        text.append(f"return {m['train_return_mean_100']:.1f} ", style="bold green")
        text.append(sparkline(list(state.returns)[-30:]) + "  ", style="green")
    if state.score:
        text.append(f"evaluated {state.score['return_mean']:.1f}  ")
    text.append(f"{m.get('env_steps_per_s', 0.0):,.0f} env steps/s  {m.get('updates_per_s', 0.0):,.0f} updates/s  ")
    text.append(f"lag {m.get('policy_lag_mean', 0.0):.1f} (max {m.get('policy_lag_max', 0):.0f})  ")
    if "leases" in m:
        text.append(f"leases {m['leases']:.0f}  ")
    text.append(f"learner waits {100 * m.get('wait_fraction', 0.0):.0f}%  ")
    text.append(f"bottleneck: {state.bottleneck or '-'}", style="yellow")
    return text


def _host_table(hosts: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("HOST", "STATE", "WORKERS", "STEPS/s", "CPU", "MB", "MS", "LAST", "RESTARTS", ""):
        table.add_column(name, justify="left" if name in ("HOST", "STATE", "") else "right")
    for host in hosts[:ROWS_SHOWN]:
        style = {"ready": "", "connecting": "dim", "joining": "dim", "drained": "dim"}.get(host["state"], "red")
        numbers = [_or_dash(host[name], form) for name, form in (("cpu", ".1f"), ("pss_mb", ",.0f"), ("ms", ".1f"))]
        table.add_row(
            host["host"],
            host["state"],
            f"{host['ready']}/{host['workers']}",
            f"{host['env_steps_per_s']:,.0f}",
            *numbers,
            _or_dash(host["last_s"], ".0f"),
            str(host["restarts"]),
            host["cause"].splitlines()[0] if host["cause"] else "",
            style=style,
        )
    if len(hosts) > ROWS_SHOWN:
        table.add_row(f"and {len(hosts) - ROWS_SHOWN} more")
    return table


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _worker_table(state: RunState) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("HOST", "WORKER", "STATE", "STEPS/s", "STEPS", "EPISODES", "WAITS", "RESTARTS"):
        table.add_column(name, justify="left" if name in ("HOST", "STATE") else "right")
    rows = sorted(state.workers.values(), key=lambda row: row.index)
    for row in rows[:ROWS_SHOWN]:
        style = {"ready": "", "starting": "dim"}.get(row.state, "red")
        table.add_row(
            row.host,
            str(row.index),
            row.state,
            f"{row.env_steps_per_s:,.0f}",
            f"{row.env_steps:,}",
            f"{row.episodes:,}",
            f"{100 * row.wait_fraction:.0f}%",
            str(row.restarts),
            style=style,
        )
    if len(rows) > ROWS_SHOWN:
        table.add_row("", "", f"and {len(rows) - ROWS_SHOWN} more")
    return table
