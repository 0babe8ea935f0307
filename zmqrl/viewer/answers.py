"""What the page of `zmqrl view` shows, as data: the runs below a folder, their curves, and one run in detail.

A run is named by its directory, and only one that the list has is looked into.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

import msgspec
import numpy as np

from zmqrl.config.codec import by_dotted_keys, names_of, object_of, replace, to_json
from zmqrl.config.paths import content_of, no_link
from zmqrl.errors import ConfigError
from zmqrl.metrics.curves import RETURN, X_AXES, IqmCurve, XAxis, curve_of, series_from
from zmqrl.metrics.groups import METRICS
from zmqrl.metrics.plot import PlotLine, write_points
from zmqrl.queue.folder import QueueFolder
from zmqrl.queue.listing import JobRow, job_rows, with_jobs
from zmqrl.queue.records import JobStatus
from zmqrl.run_files.records import read_record
from zmqrl.run_files.run_list import RunRow, runs_below
from zmqrl.sweeps.folder import SWEEP, SweepFolder
from zmqrl.sweeps.report import SweepReport
from zmqrl.viewer.row_cache import ReadMetric, RowCache
from zmqrl.views.base import HOST_COLUMNS, host_cells
from zmqrl.views.problem import shown_problems

LIST_EVERY_S = 1.0
"""The runs are listed again after this time."""
MOST_LINES, MOST_CURVES, MOST_SMOOTHED, MOST_JOBS, MOST_SWEEPS, MOST_TRIALS = 200, 1_000, 10_000, 200, 4, 200
LOG_BYTES = 65_536
"""The end of a log that is shown."""
VIDEOS, VIDEO_TYPES = "videos", {".mp4": "video/mp4", ".gif": "image/gif"}
MOST_VIDEO_BYTES = 256_000_000
ENDED = get_args(JobStatus)
OF_SEEDS, OF_TRIAL = re.compile(r"seed-\d+"), re.compile(r"trial-\d+")
Query = Mapping[str, Sequence[str]]


class Answers:
    """Used by several threads. The methods take the query of a request, and raise ConfigError for one that is wrong."""

    def __init__(self, folder: Path, queue: Path | None = None) -> None:
        self._queue, self._jobs = None if queue is None else QueueFolder(queue), list[JobRow]()
        self._folder, self._cache, self._lock = folder, RowCache(), threading.Lock()
        self._rows: dict[str, RunRow] = {}
        self._curves: dict[tuple[Any, ...], tuple[list[tuple[Path, int, int]], IqmCurve | None]] = {}
        self._sweeps: dict[Path, tuple[SweepFolder, QueueFolder]] = {}
        self._listed_at_s = -float("inf")

    def runs(self, query: Query) -> dict[str, Any]:
        """The rows of `zmqrl runs` and of `zmqrl queue list`, the jobs that have not ended and the newest first."""
        with self._lock:
            if time.monotonic() - self._listed_at_s > LIST_EVERY_S:
                with contextlib.suppress(OSError):  # there is no queue, or it cannot be read
                    self._jobs = job_rows(self._queue.read()) if self._queue is not None else []
                rows = with_jobs(runs_below(self._folder), self._jobs, [self._folder])
                self._rows = {row.run_dir: row for row in rows}
                self._listed_at_s = time.monotonic()
            found = [{**to_json(row), "name": self._name(row.run_dir)} for row in self._rows.values()]
            jobs = sorted(self._jobs, key=lambda row: (row.state in ENDED, row.position or 0, -row.job))[:MOST_JOBS]
        shown = (replace(row, run=self._name(row.run)) for row in jobs)
        queue = [names_of(JobRow), *(list(to_json(row).values()) for row in shown)] if jobs else []
        return {"folder": str(self._folder.absolute()), "now": time.time(), "runs": found, "queue": queue}

    def sweeps(self, query: Query) -> list[dict[str, Any]]:
        """The sweeps whose runs the list has, with the newest run first."""
        if not self._rows:
            self.runs(query)
        with self._lock:
            trials = (Path(run).parent for run in self._rows)
            folders = dict.fromkeys(trial.parent for trial in trials if OF_TRIAL.fullmatch(trial.name))
            found = (folder for folder in folders if (folder / SWEEP).exists())
            return [self._sweep(folder) for folder in itertools.islice(found, MOST_SWEEPS)]

    def curves(self, query: Query) -> dict[str, Any]:
        """The lines of the chart, and the names of the metrics that the runs have."""
        found = self._found(query)
        lines = [_plain(line) for line in self._lines(found, query)]
        return {"lines": lines, "metrics": sorted({name for read in found.values() for name in read.names})}

    def points(self, query: Query) -> str:
        """The points of these lines as CSV."""
        text = io.StringIO()
        write_points(list(self._lines(self._found(query), query)), text)
        return text.getvalue()

    def details(self, query: Query) -> dict[str, Any]:
        """Hosts as `zmqrl status` has them, problems, result, configuration, names of logs and videos of one run."""
        (run, *_) = self._runs(query)
        status, summary = (read_record(run / name) for name in ("status.json", "summary.json"))
        hosts = [host_cells(host) for host in (status or {}).get("hosts", [])]
        files = {"logs": _files(run / "logs"), "videos": _videos(run)}
        table = [[*HOST_COLUMNS, ""], *hosts] if hosts else []
        shown = {"status": status, "hosts": table, "problems": shown_problems(status or {}), "summary": summary}
        return {**shown, "config": _config(run), **files}

    def log(self, query: Query) -> str:
        """The end of a log of a run."""
        (run, *_), name = self._runs(query), _one(query, "log", "")
        if name not in _files(run / "logs"):
            raise ConfigError(f"no log {name!r}")
        with open(run / "logs" / name, "rb", opener=no_link) as file:
            file.seek(max(0, file.seek(0, io.SEEK_END) - LOG_BYTES))
            return file.read().decode(errors="backslashreplace")

    def video(self, query: Query) -> tuple[str, bytes]:
        """Type and content of a video that the evaluator of a run has written."""
        (run, *_), name = self._runs(query), _one(query, "video", "")
        if name not in _videos(run):
            raise ConfigError(f"no video {name!r}")
        with open(run / VIDEOS / name, "rb", opener=no_link) as file:
            content = file.read(MOST_VIDEO_BYTES + 1)
        if len(content) > MOST_VIDEO_BYTES:
            raise ConfigError(f"{name} has more than {MOST_VIDEO_BYTES / 1e6:.0f} MB")
        return VIDEO_TYPES[Path(name).suffix], content

    def differences(self, query: Query) -> list[tuple[str, Any, Any]]:
        """Keys of the configuration whose values differ in two runs, with both values; null: the run lacks the key."""
        runs = self._runs(query)
        if len(runs) < 2:
            raise ConfigError("two runs are required: run=A&run=B")
        one, other = [_config(run) for run in runs[:2]]
        keys = sorted({*one, *other})
        return [(key, one.get(key), other.get(key)) for key in keys if one.get(key) != other.get(key)]

    def _sweep(self, path: Path) -> dict[str, Any]:
        """Counts, table and parallel coordinates of a sweep, or why it cannot be read."""
        try:
            if path not in self._sweeps:
                folder = SweepFolder(path)
                self._sweeps[path] = folder, QueueFolder(Path(folder.sweep.queue))
            report = SweepReport(*self._sweeps[path])
        except (ConfigError, OSError) as error:
            return {"name": self._name(str(path)), "summary": [str(error)], "table": [], "axes": [], "drawn": []}
        drawn = [(trial, report.is_complete(trial)) for trial in report.drawn]
        table, axes = report.table()[: MOST_TRIALS + 1], to_json(report.axes())
        shown = {"summary": report.summary(), "table": table, "axes": axes}
        return {"name": self._name(str(path)), "best": report.best, "drawn": drawn, **shown}

    def _runs(self, query: Query) -> list[Path]:
        """The runs that are named, each once."""
        named = list(dict.fromkeys(query.get("run", ())))
        if not named or not self._rows.keys() >= {*named}:
            self.runs({})
        unknown = [name for name in named if name not in self._rows]
        if unknown or not named:
            raise ConfigError(f"no run {unknown[0]!r}" if unknown else "run is required")
        return [Path(name) for name in named[:MOST_LINES]]

    def _name(self, run_dir: str) -> str:
        """Relative to the folder; absolute: the run of a job is elsewhere."""
        path, folder = Path(run_dir).absolute(), self._folder.absolute()
        if path == folder:
            return path.name
        return str(path.relative_to(folder) if path.is_relative_to(folder) else path)

    def _found(self, query: Query) -> dict[Path, ReadMetric]:
        """The metric of each run that is named and has a row."""
        found, metric = dict[Path, ReadMetric](), _one(query, "metric", RETURN)
        for run in self._runs(query):
            with contextlib.suppress(OSError):  # no row yet
                found[run] = self._cache.current(run / METRICS, metric)
        return found

    def _lines(self, found: Mapping[Path, ReadMetric], query: Query) -> Iterator[PlotLine]:
        """One for each run, or with `band` for the seeds of a folder, as `zmqrl plot` draws them."""
        metric, axis = _one(query, "metric", RETURN), _axis(_one(query, "x", X_AXES[0]))
        window, groups = _window(_one(query, "smooth", "1")), dict[str, dict[Path, ReadMetric]]()
        for run, read in found.items():
            is_of_seeds = "band" in query and OF_SEEDS.fullmatch(run.name)
            groups.setdefault(self._name(str(run.parent if is_of_seeds else run)), {})[run] = read
        for label, group in groups.items():
            curve = self._curve((label, metric, axis, window), group, axis, window)
            if curve is not None:
                yield PlotLine(label, metric, axis, curve)

    def _curve(
        self, key: tuple[Any, ...], group: Mapping[Path, ReadMetric], axis: XAxis, window: int
    ) -> IqmCurve | None:
        """Interquartile mean of these runs, computed again where one has new rows."""
        drawn = [(run, read.inode, read.nbytes) for run, read in group.items()]
        known = self._curves.get(key)
        if known is None or known[0] != drawn:
            found = [series_from(run, read.thinned.rows, window) for run, read in group.items()]
            series = [one for one in found if one is not None and not np.isnan(one.x(axis)).any()]
            known = drawn, curve_of(series, axis) if series else None
            if len(self._curves) >= MOST_CURVES:
                self._curves.clear()
            self._curves[key] = known
        return known[1]


def _plain(line: PlotLine) -> dict[str, Any]:
    """Bounds are those of several runs."""
    names = ("x", "value", "low", "high") if line.curve.runs > 1 else ("x", "value")
    return {
        "label": line.label,
        "runs": line.curve.runs,
        **{name: getattr(line.curve, name).tolist() for name in names},
    }


def _config(run: Path) -> dict[str, Any]:
    """Values by dotted keys; empty: the file cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        return dict(by_dotted_keys(object_of(content_of(run / "config.json")).get("config")))
    return {}


def _files(folder: Path) -> list[str]:
    """Names of the files in a folder of a run. A link leads outside of it."""
    with contextlib.suppress(OSError):
        if not folder.is_symlink():
            return sorted(entry.name for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False))
    return []


def _videos(run: Path) -> list[str]:
    """Names of the whole videos: one that is being written begins with a dot."""
    return [name for name in _files(run / VIDEOS) if Path(name).suffix in VIDEO_TYPES and not name.startswith(".")]


def _one(query: Query, name: str, default: str) -> str:
    return query[name][0] if query.get(name) else default


def _axis(text: str) -> XAxis:
    if text not in get_args(XAxis):
        raise ConfigError(f"x is {text!r}; expected one of {', '.join(get_args(XAxis))}")
    return cast(XAxis, text)


def _window(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_SMOOTHED:
        raise ConfigError(f"smooth is {text!r}; expected an integer from 1 to {MOST_SMOOTHED}")
    return int(text)


def as_json(data: Any) -> bytes:
    """JSON that every browser reads: what is not a finite number is null."""
    try:
        return msgspec.json.encode(data)
    except (OverflowError, UnicodeEncodeError):  # a name that is not UTF-8, an integer of more than 64 bits
        return json.dumps(_finite(data), allow_nan=False).encode()


def _finite(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not -float("inf") < data < float("inf") else data
