"""Figures of a run in the text format of Prometheus, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from zmqrl.views.base import reports_of


class MetricFamily(NamedTuple):
    """A metric family. `key`: in the record that has its value."""

    name: str
    kind: Literal["counter", "gauge"]
    text: str
    key: str
    factor: float = 1.0


RUN_FIGURES = (
    MetricFamily("zmqrl_run_live", "gauge", "1 while the launcher of the run is alive.", "live"),
    MetricFamily("zmqrl_run_state", "gauge", "1 for the phase of a live run, or for how an ended one ended.", "state"),
    MetricFamily("zmqrl_run_exit_code", "gauge", "Exit code of a run that has ended.", "exit_code"),
    MetricFamily("zmqrl_run_written_timestamp_seconds", "gauge", "Unix time of the last status.", "written_at"),
    MetricFamily("zmqrl_run_wall_seconds", "gauge", "Seconds since the start of the attempt.", "wall_s"),
    MetricFamily(
        "zmqrl_run_eta_seconds", "gauge", "Seconds until the first limit of the run, at its mean speed.", "eta_s"
    ),
    MetricFamily("zmqrl_run_progress_ratio", "gauge", "Share of the first limit of the run.", "progress"),
    MetricFamily("zmqrl_run_attempts_total", "counter", "Attempts of the run.", "attempt"),
    MetricFamily("zmqrl_run_env_steps_total", "counter", "Valid rows stored.", "env_steps"),
    MetricFamily("zmqrl_run_updates_total", "counter", "Optimiser steps.", "updates"),
    MetricFamily("zmqrl_run_episodes_total", "counter", "Finished training episodes.", "episodes"),
    MetricFamily("zmqrl_run_restarts_total", "counter", "Restarts of processes of the attempt.", "restarts"),
    MetricFamily("zmqrl_run_env_steps_per_second", "gauge", "Env steps per second.", "env_steps_per_s"),
    MetricFamily("zmqrl_run_updates_per_second", "gauge", "Optimiser steps per second.", "updates_per_s"),
    MetricFamily("zmqrl_run_train_return_mean", "gauge", "Mean return of 100 episodes.", "train_return_mean_100"),
    MetricFamily("zmqrl_run_eval_return_mean", "gauge", "Mean return of the last score.", "eval_return_mean"),
    MetricFamily("zmqrl_run_ready_workers", "gauge", "Workers that are ready.", "ready_workers"),
    MetricFamily("zmqrl_run_expected_workers", "gauge", "Workers of the hosts of the run.", "expected_workers"),
)
HOST_FIGURES = (
    MetricFamily("zmqrl_host_state", "gauge", "1 for the state of a host of a live run.", "state"),
    MetricFamily("zmqrl_host_workers", "gauge", "Workers of the host.", "workers"),
    MetricFamily("zmqrl_host_ready_workers", "gauge", "Workers of the host that are ready.", "ready"),
    MetricFamily("zmqrl_host_env_steps_per_second", "gauge", "Env steps per second.", "env_steps_per_s"),
    MetricFamily("zmqrl_host_cpu_cores", "gauge", "Cores in use by the processes of the run.", "cpu"),
    MetricFamily("zmqrl_host_memory_bytes", "gauge", "Proportional set size of these processes.", "pss_mb", 1e6),
    MetricFamily("zmqrl_host_restarts_total", "counter", "Restarts of the workers of the host.", "restarts"),
    MetricFamily("zmqrl_host_last_event_seconds", "gauge", "Seconds since the last event from the host.", "last_s"),
)
REPORT_FIGURES = (MetricFamily("zmqrl_run_report", "gauge", "Mean of a number of env.report.", "report"),)


def prometheus_text(labels: Mapping[str, str], run: Mapping[str, Any]) -> str:
    """Metric families with their help, type and samples; those without a value are left out.

    Args:
        labels: Of each sample. Samples of hosts have their own `host`.
        run: `live` and `state` of the run, and the fields of its status and its summary.
    """
    status = (run["status"] if run["live"] else run["summary"]) or {}
    figures = {"eval_return_mean": status.get("score", {}).get("return_mean"), **status.get("metrics", {}), **status}
    figures |= {name: value for name, value in run.items() if name not in ("status", "summary")}
    reports = reports_of(status.get("metrics", {})) or status.get("train_reports", {})
    parts = (
        (RUN_FIGURES, [(labels, figures)]),
        (REPORT_FIGURES, [({**labels, "name": name}, {"report": mean}) for name, mean in reports.items()]),
        (HOST_FIGURES, [({**labels, "host": host["host"]}, host) for host in status.get("hosts", [])]),
    )
    return "\n".join(line for family, rows in parts for figure in family for line in _family(figure, rows))


def _family(figure: MetricFamily, rows: Sequence[tuple[Mapping[str, str], Mapping[str, Any]]]) -> Iterator[str]:
    samples = [_sample(figure, *row) for row in rows if row[1].get(figure.key) is not None]
    if samples:
        yield f"# HELP {figure.name} {figure.text}"
        yield f"# TYPE {figure.name} {figure.kind}"
        yield from samples


def _sample(figure: MetricFamily, labels: Mapping[str, str], record: Mapping[str, Any]) -> str:
    value = record[figure.key]
    if isinstance(value, str):  # the name of a state
        labels, value = {**labels, figure.key: value}, 1
    shown = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
    return f"{figure.name}{{{shown}}} {float(value) * figure.factor!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
