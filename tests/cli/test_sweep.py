"""`zmqrl sweep`: what its commands print, write and refuse. `tests/sweeps/test_kills.py` has the runs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import Command
from tests.queue.samples import record
from tests.support.raising import compare, fields
from tests.sweeps.samples import RATES, made
from zmqrl.cli.sweep import resume_command
from zmqrl.config.codec import replace
from zmqrl.queue.folder import open_queue
from zmqrl.queue.records import JobEnd
from zmqrl.sweeps.driver import SweepDriver
from zmqrl.sweeps.folder import SweepFolder, ValueRecord
from zmqrl.sweeps.sweep_file import Sweep

FILE = "preset: cartpole-ppo\nparameters: {algorithm.learning_rate: [1e-3, 1e-2]}\n"


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    """Three trials: one is pruned, one complete, one runs."""
    found, queue = made(tmp_path, rungs=(1000,), startup_trials=1)
    for trial, values in enumerate([(5.0, 9.0), (4.0,), (6.0,)]):
        found.create_record(f"trial-{trial}", {"algorithm.learning_rate": RATES[trial]})
        queue.add(replace(record(os.geteuid()), run_dir=str(found.run_dir(trial, 0))), is_numbered=False)
        for stage, value in enumerate(values):
            found.create_record(f"value-{trial}-0-{stage}", ValueRecord(value))
    queue.end_job(1, JobEnd("done", 0))
    return found


def test_trials_are_listed_the_best_first_and_drawn(zmqrl: Command, folder: SweepFolder) -> None:
    lines = [
        "3 of 3 trials: 1 complete, 1 pruned, 1 running",
        "best: trial 0, 9.00: algorithm.learning_rate=0.1",
        f"no driver is active; to continue: zmqrl sweep resume {folder.path}",
    ]
    assert zmqrl("sweep", "status", "s").out.splitlines() == lines
    assert zmqrl("sweep", "table", "s").err.splitlines() == lines[-1:]
    with SweepDriver(folder, open_queue(Path("q")), print):
        assert zmqrl("sweep", "status", "s").out.splitlines() == lines[:-1]
    assert zmqrl("sweep", "status", "s").out.splitlines() == lines
    assert [line.split() for line in zmqrl("sweep", "table", "s").out.splitlines()] == [
        ["TRIAL", "STATE", "VALUE", "algorithm.learning_rate"],
        ["0", "complete", "9", "0.1"],
        ["2", "running", "6", "0.3"],
        ["1", "pruned", "at", "1,000", "4", "0.2"],
    ]
    rows = json.loads(zmqrl("sweep", "table", "s", "--json").out)
    assert rows[2] == {"trial": 1, "state": "pruned at 1,000", "value": 4.0, "algorithm.learning_rate": 0.2}
    assert zmqrl("sweep", "plot", "s", "--out", "s.png").code == 0
    assert Path("s.png").read_bytes()[1:4] == b"PNG"
    compare(zmqrl("sweep", "plot", "s", "--out", "s.xyz").error, **fields("--out", "s.xyz"))


def test_a_stop_holds_the_jobs(zmqrl: Command, folder: SweepFolder) -> None:
    assert zmqrl("sweep", "stop", "s").code == 0
    states = [row["state"] for row in json.loads(zmqrl("queue", "list", "--queue", "q", "--json").out)]
    assert states == ["done", "held", "held"]
    assert "(stopped)" in zmqrl("sweep", "status", "s").out


def test_a_stop_of_a_sweep_that_has_ended_changes_nothing(zmqrl: Command, tmp_path: Path) -> None:
    folder, queue = made(tmp_path)
    for trial, rate in enumerate(RATES[: folder.sweep.keys.count]):
        folder.create_record(f"trial-{trial}", {"algorithm.learning_rate": rate})
        queue.add(replace(record(os.geteuid()), run_dir=str(folder.run_dir(trial, 0))), is_numbered=False)
        queue.end_job(trial + 1, JobEnd("done", 0))
        folder.create_record(f"value-{trial}-0-0", ValueRecord(1.0))
    assert zmqrl("sweep", "stop", "s").out == "all trials have ended\n"
    assert not folder.is_stopped
    assert len(zmqrl("sweep", "status", "s").out.splitlines()) == 2


def test_a_sweep_without_a_value_is_not_drawn(zmqrl: Command, tmp_path: Path) -> None:
    made(tmp_path)
    compare(zmqrl("sweep", "plot", "s").error, **fields(value="s"))
    assert zmqrl("sweep", "table", "s").out.split() == ["TRIAL", "STATE", "VALUE"]


def test_a_file_is_run_in_a_folder_of_its_name(zmqrl: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    driven: list[SweepFolder] = []

    def drive(folder: SweepFolder, *_: object) -> None:
        driven.append(folder)
        if len(driven) > 1:
            (folder.path / "best.yaml").touch()

    monkeypatch.setattr("zmqrl.sweeps.driver.drive", drive)
    Path("lr.yaml").write_text(f"{FILE}set: {{run.seed: 3, evaluator.best_by: x, env.report: {{x: sum}}}}\n")
    ended = zmqrl("sweep", "lr.yaml", "--queue", "lab")
    assert ended.code == 1, ended.err  # no trial is complete
    assert zmqrl("sweep", "resume", "runs/lr").code == 0
    folder = driven[0]
    assert folder.path == Path("runs/lr").absolute()
    expected = Sweep(folder.sweep.keys, os.getcwd(), str(Path("lab").absolute()), first_seed=3, best_by="x")
    assert folder.sweep == expected


def test_a_sweep_continues_where_its_output_is_closed(
    folder: SweepFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def drive(folder: SweepFolder, queue: object, hosts: object, show: Callable[[str], None]) -> None:
        for _ in range(3):
            show("job 1 starts")
        (folder.path / "best.yaml").touch()

    read, write = os.pipe()
    os.close(read)
    monkeypatch.setattr("zmqrl.sweeps.driver.drive", drive)
    with capsys.disabled(), os.fdopen(write, "w", buffering=1) as output:
        monkeypatch.setattr("sys.stdout", output)
        code = resume_command.main(["s"], standalone_mode=False)
    assert code == 0 and (folder.path / "best.yaml").exists()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["none.yaml"], fields(source="none.yaml")),
        (["run", "lr.yaml", "none.yaml"], fields(source="none.yaml")),
        (["bad.yaml"], fields("algorithm.learning_rtae", source="bad.yaml:2")),
        (["set.yaml"], fields("algorithm.clop", source="set.yaml:3", others=(("run", "sed"),))),
        (["list.yaml"], fields("algorithm.lr", source="list.yaml:3")),
        (["preset.yaml"], fields("run.preset", source="preset.yaml:1")),
        (["hosts.yaml"], fields("hosts", "a")),
        (["store.yaml"], fields("store.kind", "object", source="store.yaml:4")),
        (["rungs.yaml"], fields("rungs", "2,000", source="rungs.yaml:3")),
        (["secret.yaml"], fields("--set", 'webhook="https://hooks.lab/..."')),
        (["status", "."], fields(value=".")),
        (["resume", "none"], fields(value="none")),
    ],
)
def test_what_is_refused(zmqrl: Command, words: list[str], error: dict[str, Any]) -> None:
    Path("lr.yaml").write_text(FILE)
    Path("bad.yaml").write_text(FILE.replace("rate", "rtae"))
    Path("set.yaml").write_text(f"{FILE}set: {{algorithm.clop: 1, run: {{sed: 2}}}}\n")
    Path("list.yaml").write_text("preset: cartpole-ppo\nmethod: list\nparameters: [{algorithm.lr: 1}]\n")
    Path("preset.yaml").write_text(FILE.replace("cartpole", "cartpool"))
    Path("rungs.yaml").write_text(f"{FILE}rungs: [1000, 2000]\nset: {{run.total_env_steps: 1999}}\n")
    Path("hosts.yaml").write_text(f"{FILE}set: {{hosts.a.workers: 1}}\n")
    Path("secret.yaml").write_text(f"{FILE}set: {{webhook: https://hooks.lab/SECRET}}\n")
    Path("store.yaml").write_text(f"{FILE}rungs: [10]\nset: {{store.kind: object, store.url: file:///x}}\n")
    ended = zmqrl("sweep", *words)
    assert ended.code == 2
    compare(ended.error, **error)
