"""The live view of a run: progress, return, speeds, a row per host or worker, the bottleneck.

Drawn from what `status.json` holds, so that every shell shows what the launcher does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from zmqrl.supervision.gpus import brief
from zmqrl.types import Gpu
from zmqrl.views.base import bottleneck_of

ROWS_SHOWN = 16
BLOCKS = "▁▂▃▄▅▆▇█"


def render(status: Mapping[str, Any]) -> Group:
    """All of it as one renderable."""
    hosts = status.get("hosts", [])
    table = _host_table(hosts) if len(hosts) > 1 else _worker_table(status["workers"])
    gpus = [_gpu_line(host["host"], host["gpus"]) for host in hosts[:ROWS_SHOWN] if host.get("gpus")]
    return Group(_progress_line(status), _learner_line(status), table, *gpus)


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


def _progress_line(status: Mapping[str, Any]) -> Table:
    done, eta_s = status["progress"], status["eta_s"]
    line = Table.grid(padding=(0, 2))
    line.add_row(
        Text(f"zmqrl {status['name']} [{status['mode']}] {status['run_id']}", style="bold"),
        duration(status["wall_s"]),
        ProgressBar(total=1.0, completed=done, width=30),
        f"{100 * done:.0f}%  {status['env_steps']:,}/{status['total_env_steps']:,} env steps",
        "" if eta_s is None else f"eta {duration(eta_s)}",
    )
    return line


def _learner_line(status: Mapping[str, Any]) -> Text:
    m = status["metrics"]
    text = Text()
    if "train_return_mean_100" in m:
        text.append(f"return {m['train_return_mean_100']:.1f} ", style="bold green")
        text.append(sparkline(status.get("returns", [])[-30:]) + "  ", style="green")
    if status["score"] and status["score"]["return_mean"] is not None:
        text.append(f"evaluated {status['score']['return_mean']:.1f}  ")
    text.append(f"{m.get('env_steps_per_s', 0.0):,.0f} env steps/s  {m.get('updates_per_s', 0.0):,.0f} updates/s  ")
    text.append(f"lag {m.get('policy_lag_mean', 0.0):.1f} (max {m.get('policy_lag_max', 0):.0f})  ")
    if "leases" in m:
        text.append(f"leases {m['leases']:.0f}  ")
    text.append(f"learner waits {100 * m.get('wait_fraction', 0.0):.0f}%  ")
    text.append(f"bottleneck: {bottleneck_of(status)}", style="yellow")
    return text


def _gpu_line(host: str, gpus: Sequence[Mapping[str, Any]]) -> Text:
    """Memory used and whole of each GPU, and who uses it."""
    return Text(f"GPUs of {host}: " + "; ".join(brief(msgspec.convert(gpu, Gpu)) for gpu in gpus), style="dim")


def _host_table(hosts: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("HOST", "STATE", "WORKERS", "STEPS/s", "CPU", "MB", "MS", "LAST", "RESTARTS", ""):
        table.add_column(name, justify="left" if name in ("HOST", "STATE", "") else "right")
    for host in hosts[:ROWS_SHOWN]:
        style = {"ready": "", "connecting": "dim", "joining": "dim", "drained": "dim", "away": "dim"}.get(
            host["state"], "red"
        )
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


def _worker_table(workers: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("HOST", "WORKER", "STATE", "STEPS/s", "STEPS", "EPISODES", "WAITS", "RESTARTS"):
        table.add_column(name, justify="left" if name in ("HOST", "STATE") else "right")
    for row in workers[:ROWS_SHOWN]:
        style = {"ready": "", "starting": "dim"}.get(row["state"], "red")
        table.add_row(
            row["host"],
            str(row["index"]),
            row["state"],
            f"{row['env_steps_per_s']:,.0f}",
            f"{row['env_steps']:,}",
            f"{row['episodes']:,}",
            f"{100 * row['wait_fraction']:.0f}%",
            str(row["restarts"]),
            style=style,
        )
    if len(workers) > ROWS_SHOWN:
        table.add_row("", "", f"and {len(workers) - ROWS_SHOWN} more")
    return table
