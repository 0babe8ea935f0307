"""`status --prometheus`, read by the parser of Prometheus' own Python client."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args

import pytest
import yaml

from tests.support.running import ROOT
from tests.views.test_tables import LAB
from zmqrl.launch.run.host_records import HostState
from zmqrl.views.prometheus import HOST_FIGURES, REPORT_FIGURES, RUN_FIGURES, prometheus_text

parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
LABELS = {"run": "/home/ada/runs/a", "env": "CartPole-v1", "algorithm": "ppo", "host": "desk"}
LIVE: dict[str, Any] = {"live": True, "state": "running", "attempt": 2, "status": LAB, "summary": None}
PAGE = ROOT / "docs" / "prometheus.md"


def _text(record: Mapping[str, Any], labels: Mapping[str, str] = LABELS) -> str:
    return prometheus_text(labels, record) + "\n"


def _samples(record: Mapping[str, Any], labels: Mapping[str, str] = LABELS) -> dict[tuple[str, str], tuple[Any, Any]]:
    """By name and host: value and labels."""
    text = _text(record, labels)
    families = list(parser.text_string_to_metric_families(text))
    assert all(family.documentation and family.type in ("counter", "gauge") for family in families)
    assert text.count("# TYPE") == len(families)
    return {(s.name, s.labels["host"]): (s.value, s.labels) for family in families for s in family.samples}


def test_a_live_run_has_its_figures_and_those_of_each_host() -> None:
    found = _samples(LIVE)
    assert found["zmqrl_run_env_steps_total", "desk"] == (LAB["env_steps"], LABELS)
    assert found["zmqrl_run_state", "desk"] == (1.0, {**LABELS, "state": "running"})
    assert found["zmqrl_run_attempts_total", "desk"][0] == 2 and found["zmqrl_run_live", "desk"][0] == 1
    assert found["zmqrl_run_train_return_mean", "desk"][0] == LAB["metrics"]["train_return_mean_100"]
    assert found["zmqrl_run_eval_return_mean", "desk"][0] == LAB["score"]["return_mean"]
    assert ("zmqrl_run_exit_code", "desk") not in found
    assert found["zmqrl_host_state", "node07"] == (1.0, {**LABELS, "host": "node07", "state": "lost"})
    assert found["zmqrl_host_memory_bytes", "node01"][0] == 2.31e9
    assert ("zmqrl_host_memory_bytes", "gpu-a") not in found


def test_an_ended_run_has_its_summary_and_no_hosts() -> None:
    summary = {"status": "failed", "exit_code": 1, "env_steps": 12, "eval_return_mean": None, "hosts_lost": 1}
    found = _samples({**LIVE, "live": False, "state": "failed", "summary": summary})
    assert {host for _, host in found} == {"desk"}
    assert found["zmqrl_run_state", "desk"][1]["state"] == "failed" and found["zmqrl_run_live", "desk"][0] == 0
    assert (found["zmqrl_run_exit_code", "desk"][0], found["zmqrl_run_env_steps_total", "desk"][0]) == (1, 12)
    killed = _samples({**LIVE, "live": False, "state": "unknown", "summary": None})
    assert killed["zmqrl_run_state", "desk"][1]["state"] == "unknown"


def test_each_number_of_env_report_is_a_sample_with_its_name() -> None:
    status = {**LAB, "metrics": {**LAB["metrics"], "report/comfort": -0.5, "report/cost": 2.0}}
    summary = {"train_reports": {"comfort": -0.5, "cost": 2.0}}
    for record in ({**LIVE, "status": status}, {**LIVE, "live": False, "state": "done", "summary": summary}):
        families = {family.name: family for family in parser.text_string_to_metric_families(_text(record))}
        samples = families["zmqrl_run_report"].samples
        assert [(s.labels, s.value) for s in samples] == [
            ({**LABELS, "name": "comfort"}, -0.5),
            ({**LABELS, "name": "cost"}, 2.0),
        ]


def test_labels_are_escaped() -> None:
    labels = {**LABELS, "run": 'a"b\\n\n} 1'}
    assert _samples(LIVE, labels)["zmqrl_run_live", "desk"][1] == labels


def _alerts() -> dict[str, dict[str, Any]]:
    """Rules of the page by their names."""
    (rules,) = re.findall(r"```yaml\n(groups:.*?)```", PAGE.read_text(), re.DOTALL)
    return {rule["alert"]: rule for group in yaml.safe_load(rules)["groups"] for rule in group["rules"]}


def test_the_alert_of_a_lost_host_covers_all_states_between_its_loss_and_its_return() -> None:
    maximum = re.fullmatch(
        r'max by \(run, host\) \(zmqrl_host_state{state=~"(.+)"}\) == 1', _alerts()["HostLost"]["expr"]
    )
    assert maximum is not None
    assert {*maximum[1].split("|")} == {*get_args(HostState), "silent"} - {"ready", "leaving", "drained", "ended"}


def test_the_alerts_of_the_page_name_figures_and_states_that_exist() -> None:
    alerts = _alerts().values()
    named = {name for alert in alerts for name in re.findall(r"zmqrl_\w+", alert["expr"])}
    assert len(alerts) > 3 and named <= {figure.name for figure in (*RUN_FIGURES, *HOST_FIGURES)}
    assert all({"alert", "expr", "for", "annotations"} <= alert.keys() for alert in alerts)
    assert all(f"`{figure.name}`" in PAGE.read_text() for figure in (*RUN_FIGURES, *REPORT_FIGURES, *HOST_FIGURES))
