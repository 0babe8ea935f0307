"""MLflow: a run of the tracking store, found again by a tag. Steps are the numbers of rows."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from zmqrl.config.codec import by_dotted_keys
from zmqrl.errors import ConfigError
from zmqrl.metrics.upload import Destination, NumberedRow, UploadedRun, imported, service_errors

DEFAULT_URI = "sqlite:///mlflow.db"
ID_TAG, MARK = "zmqrl.id", "env_steps"
"""`MARK` is sent as the last metric of its row: where it is stored, so is the row."""
MOST_METRICS, MOST_LENGTH = 1000, 500
"""Metrics of one transaction, and characters of a parameter, that MLflow takes."""
VARIABLES = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}
_REFUSED = re.compile(r"[^\w\-. /:]")


class MlflowRun(Destination):
    """A store writes each batch as one transaction, and a metric that it has only once."""

    def __init__(self, run: UploadedRun, uri: str | None) -> None:
        """`uri`: of the tracking store or server; None: `MLFLOW_TRACKING_URI`, else a SQLite file here."""
        self._run, self._uri = run, uri or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI
        if "://" not in self._uri or self._uri.startswith("file:"):
            what = "a folder is not a place for MLflow: its file store doubles rows that are sent again"
            raise ConfigError(what, key=("--to",), value=self._uri, fix=f"for example {DEFAULT_URI}")
        self._client: Any = None
        self._id = ""

    def open(self) -> int:
        for name, value in VARIABLES.items():
            os.environ.setdefault(name, value)
        mlflow, _ = imported("mlflow", "mlflow"), imported("sqlalchemy", "mlflow")
        with service_errors("MLflow", Exception):
            self._client = mlflow.MlflowClient(self._uri)
            self._id = self._found()
            known = self._client.get_run(self._id).data.params
            values = {_REFUSED.sub("_", key): value for key, value in by_dotted_keys(self._run.config)}
            shown = {key: str(value)[:MOST_LENGTH] for key, value in values.items() if value not in (None, {})}
            params = [mlflow.entities.Param(key, text) for key, text in shown.items() if key not in known]
            for begin in range(0, len(params), 100):
                self._client.log_batch(self._id, params=params[begin : begin + 100])
            self._client.update_run(self._id, "RUNNING")
            return 1 + max((metric.step for metric in self._client.get_metric_history(self._id, MARK)), default=-1)

    def write(self, rows: Sequence[NumberedRow]) -> None:
        metric = imported("mlflow.entities", "mlflow").Metric
        metrics = [
            metric(_REFUSED.sub("_", name), value, int(values["wall_s"] * 1000), step)
            for step, values in rows
            for name, value in sorted(values.items(), key=lambda item: item[0] == MARK)
        ]
        with service_errors("MLflow", Exception):
            for begin in range(0, len(metrics), MOST_METRICS):
                self._client.log_batch(self._id, metrics[begin : begin + MOST_METRICS])

    def close(self, exit_code: int | None) -> None:
        if self._id and exit_code is not None:
            with service_errors("MLflow", Exception):
                self._client.set_terminated(self._id, "FAILED" if exit_code else "FINISHED")

    def _found(self) -> str:
        experiment = self._client.get_experiment_by_name(self._run.project)
        number = self._client.create_experiment(self._run.project) if experiment is None else experiment.experiment_id
        runs = self._client.search_runs([number], f"tags.`{ID_TAG}` = '{self._run.id}'", max_results=1)
        if runs:
            return str(runs[0].info.run_id)
        tags = {ID_TAG: self._run.id, "zmqrl.run_dir": str(self._run.directory.absolute())}
        return str(self._client.create_run(number, tags=tags, run_name=self._run.directory.name).info.run_id)
