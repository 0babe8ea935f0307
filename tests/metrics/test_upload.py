"""Rows of `metrics.jsonl` in W&B and MLflow, read back by their own libraries, also after kills of the upload."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.marks import long
from tests.support.raising import raises
from tests.support.running import environment
from tests.support.waiting import WAIT_S
from zmqrl.errors import ConfigError
from zmqrl.metrics.attempts import current_metrics
from zmqrl.metrics.upload import Destination, MetricsTail, NumberedRow, Upload, UploadedRun, UploadError, reserve
from zmqrl.metrics.upload_mlflow import MlflowRun

PACKAGES = {"wandb": "wandb", "mlflow": "mlflow"}
TARGETS = {"wandb": "zmqrl.metrics.upload_wandb.WandbRun", "mlflow": "zmqrl.metrics.upload_mlflow.MlflowRun"}
ROWS = 800
"""More than a block of a `.wandb` file has, and several transactions of MLflow."""
KILLED = f"""
import importlib, os, signal, sys
service, row, end = sys.argv[1], int(sys.argv[2]), sys.argv[3]
module, _, name = {TARGETS!r}[service].rpartition(".")
kind = getattr(importlib.import_module(module), name)
write = kind.write
def killed(self, rows):
    cut = [each for each in rows if each.step < row]
    write(self, cut)
    if len(cut) < len(rows):
        os.kill(os.getpid(), signal.SIGKILL)
kind.write = killed
if end == "inside":  # between two transactions of one call, and between two rows of a batch
    kind.write = write
    if service == "mlflow":
        import mlflow
        log, calls = mlflow.MlflowClient.log_batch, []
        def once(self, run_id, metrics=(), **further):
            calls.extend([1] * bool(metrics))
            log(self, run_id, metrics=metrics, **further)
            if len(calls) > row // 100:
                os.kill(os.getpid(), signal.SIGKILL)
        mlflow.MlflowClient.log_batch = once
    else:
        import wandb
        log = wandb.Run.log
        def once(self, data, step, **further):
            log(self, data, step=step, **further)
            if step >= row:
                os.kill(os.getpid(), signal.SIGKILL)
        wandb.Run.log = once
sys.argv = ["zmqrl", "upload", service, "run", "--to", sys.argv[4]]
from zmqrl.cli.main import main
main()
"""


def _needs(service: str) -> None:
    if find_spec(PACKAGES[service]) is None:
        pytest.skip(f"{PACKAGES[service]} is not installed")


def _run(folder: Path, rows: int = ROWS) -> Path:
    """A run of two attempts that overlap, with scores that come late, a torn line and an unfinished one."""
    run = folder / "run"
    run.mkdir()
    (run / "config.json").write_text(json.dumps(_stored_config()))
    info = {"run_id": "r-1", "pid": 1, "start_time": 1, "host": "nowhere", "started_at": 1.0, "preset": None}
    (run / "run.json").write_text(json.dumps({**info, "ended_at": 2.0, "lineage": "r-0123456789ab", "attempt": 2}))
    lines = [json.dumps(_row(k, 1)) for k in range(rows // 2)]
    lines += ['{"wall_s": 1.0, "env_st']
    lines += [json.dumps(_row(k, 2)) for k in range(max(0, rows // 2 - 100), rows)]
    (run / "metrics.jsonl").write_text("\n".join(lines) + '\n{"wall_s": 9.9, ')
    return run


def _row(k: int, attempt: int) -> dict[str, float]:
    row = {"wall_s": k / 2, "env_steps": 10 * k, "attempt": attempt}
    if k % 50 == 49:
        return {**row, "env_steps": 10 * k - 200, "eval_return_mean": k / 7, "eval_return_std": 0.0}
    return {**row, "updates": float(k), "loss/policy": -1.0 / (k + 7), "entropy": float(k % 3)}


def _stored_config() -> dict[str, Any]:
    from zmqrl.planning.configure import load_config
    from zmqrl.run_files.stored_config import stored_config

    return stored_config(load_config("cartpole-ppo", overrides={}))


def _expected(run: Path) -> list[dict[str, float]]:
    return current_metrics(run / "metrics.jsonl")


def _upload(folder: Path, service: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "zmqrl", "upload", service, "run", "--to", _place(folder, service), *options]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=WAIT_S)


def _place(folder: Path, service: str) -> str:
    return str(folder / "offline") if service == "wandb" else f"sqlite:///{folder / 'mlflow.db'}"


def _killed(folder: Path, service: str, row: int, end: str) -> None:
    command = [sys.executable, "-c", KILLED, service, str(row), end, _place(folder, service)]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == -signal.SIGKILL, done.stderr


def _read(folder: Path, service: str) -> list[dict[str, float]]:
    return _read_wandb(folder) if service == "wandb" else _read_mlflow(folder)


def _read_wandb(folder: Path) -> list[dict[str, float]]:
    from zmqrl.metrics.upload_wandb import records

    found: dict[int, dict[str, float]] = {}
    for file in sorted((folder / "offline").glob("wandb/offline-run-*/*.wandb")):
        for record in records(file):
            if record.HasField("history"):
                items = {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in record.history.item}
                assert record.history.step.num not in found, "a row is there twice"
                row = {name: value for name, value in items.items() if not name.startswith("_")}
                found[record.history.step.num] = row
    return [found[step] for step in sorted(found)]


def _read_mlflow(folder: Path) -> list[dict[str, float]]:
    """By another process: it leaves connections to the database open."""
    code = (
        "import json, mlflow; client = mlflow.MlflowClient('sqlite:///mlflow.db');"
        "number = client.get_experiment_by_name('zmqrl').experiment_id; (run,) = client.search_runs([number]);"
        "assert run.info.status == 'FAILED' and run.data.params['run.seed'], run;"  # it has no summary
        "names = run.data.metrics;"
        "rows = [(m.step, m.key, m.value) for n in names for m in client.get_metric_history(run.info.run_id, n)];"
        "print(json.dumps(rows))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment(), capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.returncode == 0, done.stderr
    entries = json.loads(done.stdout)
    assert max(Counter((step, name) for step, name, _ in entries).values()) == 1, "a metric is there twice"
    steps = sorted({step for step, _, _ in entries})
    rows: dict[int, dict[str, float]] = {step: {} for step in steps}
    for step, name, value in entries:
        rows[step][name] = value
    return [rows[step] for step in steps]


KILLS = [
    ("wandb", [(600, "inside")]),
    ("mlflow", [(100, "inside")]),
    long("wandb", [(0, "before"), (1, "inside"), (450, "before"), (700, "inside"), (880, "before")]),
    long("mlflow", [(0, "before"), (0, "inside"), (450, "before"), (100, "inside"), (880, "before")]),
]
"""For each upload that is killed: the row, and whether before its rows are sent or inside of a call."""


@pytest.mark.whole
@pytest.mark.parametrize(("service", "kills"), KILLS)
def test_the_service_has_each_row_once_also_after_kills(
    tmp_path: Path, service: str, kills: Sequence[tuple[int, str]]
) -> None:
    _needs(service)
    run = _run(tmp_path)
    for row, end in kills:
        _killed(tmp_path, service, row, end)
    done = _upload(tmp_path, service)
    assert done.returncode == 0, done.stderr
    assert _read(tmp_path, service) == _expected(run)
    sent = int(done.stdout.split(": ")[1].split()[0])
    assert 0 < sent < len(_expected(run)) or kills[0][0] == 0, "it has begun again at the first row"
    if service == "wandb":
        with (run / "metrics.jsonl").open("a") as file:
            file.write(f'"torn\n{json.dumps(_row(ROWS + 5, 2))}\n')
        again = _upload(tmp_path, service, "-f")
        assert "run: 1 new rows in " in again.stdout, again.stdout + again.stderr
        assert _read(tmp_path, service) == _expected(run)


def test_a_growing_file_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = MetricsTail(path)
    assert tail.read(0) == []
    first, second = json.dumps(_row(1, 1)), json.dumps(_row(2, 1))
    path.write_text(f"{first}\n{second[:20]}")
    assert tail.read(0) == [NumberedRow(0, _row(1, 1))]
    path.write_text(f"{first}\n{second}\nnothing\n{json.dumps(_row(2, 2))}\n")
    assert tail.read(0) == [NumberedRow(2, _row(2, 2))], "the second attempt repeats row 1"
    assert MetricsTail(path).read(2) == [NumberedRow(2, _row(2, 2))]


class _Failing(Destination):
    """Takes rows only from `works_at` on."""

    def __init__(self, works_at: float) -> None:
        self.now, self.works_at = 0.0, works_at
        self.rows: list[NumberedRow] = []

    def open(self) -> int:
        if self.now < self.works_at:
            raise UploadError("no answer")
        return 0

    def write(self, rows: Sequence[NumberedRow]) -> None:
        self.rows += rows

    def close(self, exit_code: int | None) -> None:
        pass


@pytest.mark.parametrize("works_at", [50.0, 1000.0])
def test_a_service_that_fails_is_tried_again_up_to_the_bound(tmp_path: Path, works_at: float) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps(_row(1, 1)) + "\n")
    service, reports = _Failing(works_at), list[str]()
    run = UploadedRun("id", tmp_path, "zmqrl", {})
    upload = Upload(run, service, 100.0, reports.append, clock=lambda: service.now)
    failed = False
    while upload.is_waiting and not failed:
        try:
            upload.step()
        except UploadError:
            failed = True
        service.now += 0.5
    assert failed == (works_at > 100) and (100 <= service.now < 165 if failed else service.now < 80)
    assert len(service.rows) == (0 if failed else 1) and 5 <= len(reports) <= 8, "it waits longer each time"
    assert f"{tmp_path}: no answer; trying again for 100 s" in reports[0]


def test_a_folder_is_refused_for_mlflow(tmp_path: Path) -> None:
    for place in ("mlruns", f"file://{tmp_path}"):
        with raises(ConfigError, key=("--to",), value=place):
            MlflowRun(UploadedRun("id", tmp_path, "zmqrl", {}), place)


@pytest.mark.long
@pytest.mark.whole
@pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed")
def test_a_service_that_is_not_there_ends_the_upload_with_a_message(tmp_path: Path) -> None:
    _run(tmp_path, 10)
    command = [sys.executable, "-m", "zmqrl", "upload", "mlflow", "run", "--to", "http://127.0.0.1:9", "--retry", "0"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, done.stdout, done.stderr.count("zmqrl: ")) == (1, "", 1), done.stderr


def test_two_uploads_of_one_run_to_one_place_are_refused(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from zmqrl.metrics.upload import *\n"
        "held = reserve(sys.argv[1], UploadedRun('r-1', Path('run'), 'zmqrl', {}), None)\n"
        "print(flush=True); input()"
    )
    command, pipe = [sys.executable, "-c", program, "mlflow"], subprocess.PIPE
    run = UploadedRun("r-1", tmp_path, "zmqrl", {})
    with subprocess.Popen(command, env=environment(), stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "\n"
        with raises(ConfigError, what=f"{tmp_path}: another process uploads this run to mlflow"):
            reserve("mlflow", run, None)
        reserve("wandb", run, None).close()
        other.kill()
        other.wait()
    reserve("mlflow", run, None).close()


@pytest.mark.whole
@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
def test_a_missing_key_of_wandb_is_not_tried_again(tmp_path: Path) -> None:
    _run(tmp_path, 10)
    own = {name: value for name, value in environment().items() if not name.startswith("WANDB")}
    command = [sys.executable, "-m", "zmqrl", "upload", "wandb", "run"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**own, "HOME": str(tmp_path)}, capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.returncode == 2 and "trying again" not in done.stderr, done.stderr
