"""The recorded metrics of a run as data."""

from __future__ import annotations

import importlib
from os import PathLike
from typing import Any, Literal, TypeAlias, overload

from zmqrl.api.runs import Run
from zmqrl.config.paths import expanded
from zmqrl.errors import ConfigError
from zmqrl.metrics.attempts import current_metrics

Source: TypeAlias = "Run | str | PathLike[str]"


@overload
def read_metrics(run: Source, frame: Literal[False]) -> list[dict[str, float]]: ...
@overload
def read_metrics(run: Source, frame: bool | None = None) -> Any: ...
def read_metrics(run: Source, frame: bool | None = None) -> Any:
    """The rows of `metrics.jsonl`: of training about one per second, and one per score of the evaluator.

    Where two attempts overlap, the rows are those of the last one.

    Args:
        run: A run, or its directory.
        frame: A `pandas.DataFrame`; None: if pandas is installed. Otherwise a list with a dict per row.

    Raises:
        ConfigError: `metrics.jsonl` does not exist, or pandas is required and not installed.
    """
    directory = run.run_dir if isinstance(run, Run) else expanded(run)
    path = directory / "metrics.jsonl"
    if not path.is_file():
        raise ConfigError(f"{directory} has no metrics.jsonl; a run writes its first row after about one second")
    pandas = None if frame is False else _pandas(required=frame is True)
    rows = current_metrics(path)
    return rows if pandas is None else pandas.DataFrame(rows)


def _pandas(required: bool) -> Any:
    try:
        return importlib.import_module("pandas")
    except ModuleNotFoundError as error:
        if required:
            raise ConfigError("read_metrics(frame=True) needs pandas; run: pip install pandas") from error
        return None
