"""A run id names a run wherever a run directory does."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from tests.agent.plans import stand_in_plan
from tests.cli.commands import Command
from tests.support.raising import compare
from tests.support.stored_runs import begun, store_run
from zmqrl.cli.run.find_run import directory_of, find_run
from zmqrl.config.codec import replace, to_json
from zmqrl.run_files.run_info import RunInfo, read_info
from zmqrl.supervision.process_table import identify

NOW, EARLIER = "pole-0b0b0b", "pole-0a0a0a"


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    run_dir = tmp_path / "runs" / "pole"
    store_run("cartpole-ppo", run_dir)
    info = RunInfo(NOW, 1, 1, "elsewhere", 0.0, "cartpole-ppo", 1.0, attempt=2, earlier_ids=(EARLIER,))
    (run_dir / "run.json").write_text(json.dumps(to_json(info)))
    (run_dir / "metrics.jsonl").write_text('{"wall_s": 1, "env_steps": 5, "train_return_mean_100": 2.0}\n')
    return run_dir


@pytest.mark.parametrize("name", [NOW, EARLIER])
@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("eval", "{}", "--episodes", "1"), "version 0-4: return"),
        (("export", "{}", "out", "--to", "numpy"), "out/policy.py"),
        (("plot", "{}=mine", "--csv", "curve.csv"), "curve.csv"),
        (("train", "--resume", "{}", "--dry-run"), "run directory: {folder}"),
        (("status", "{}"), f"{NOW}: ended without a summary"),
    ],
)
@pytest.mark.whole
def test_every_command_takes_a_run_id(
    zmqrl: Command, stored: Path, command: tuple[str, ...], words: str, name: str
) -> None:
    ended = zmqrl(*(word.format(name) for word in command))
    assert ended.code == 0, ended.err
    assert words.format(folder=stored) in ended.out
    if command[0] == "plot":
        assert "mine," in Path("curve.csv").read_text()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("eval", ""), "the name of the run is empty"),
        (("status", ""), "the name of the run is empty"),
        (("eval", "~nouser/x"), "'~nouser/x': no user 'nouser' on this machine"),
        (("plot", "~nouser/x"), "'~nouser/x': no user 'nouser' on this machine"),
        (("train", "--resume", "~nouser/x"), "'~nouser/x': no user 'nouser' on this machine"),
        (("train", "cartpole-ppo", "--run-dir", "~nouser/x", "--dry-run"), "no user 'nouser'"),
        (("train", "cartpole-ppo", "--init-from", "~nouser/x", "--dry-run"), "--init-from '~nouser/x': no user"),
        (("train", "cartpole-ppo", "--init-from", "nothere", "--dry-run"), "--init-from: no run 'nothere'"),
        (("train", "--resume", "runs/pole/config.json"), "--resume runs/pole/config.json: is a file"),
        (("train", "--resume", "nothere"), "not the id of a run"),
        (
            ("train", "runs/pole"),
            "run.preset: 'runs/pole' is a run directory; to continue its run: zmqrl train --resume",
        ),
        (("train", ""), "a preset (`zmqrl presets` lists them), --env ID or --resume RUN is required"),
    ],
)
def test_what_names_no_run(zmqrl: Command, stored: Path, command: tuple[str, ...], words: str) -> None:
    ended = zmqrl(*command)
    assert ended.code == 2 and words in ended.err


def test_a_name_that_is_not_a_run_is_a_path(stored: Path) -> None:
    assert directory_of("nothing") == Path("nothing")
    assert directory_of("runs/nothing") == Path("runs/nothing")
    Path(NOW).mkdir()
    assert directory_of(NOW) == Path(NOW), "directories come first"


def test_a_resumed_run_keeps_the_ids_of_its_attempts(tmp_path: Path) -> None:
    plan = replace(stand_in_plan(tmp_path / "run"), run_id="a")
    for run_id in "abc":
        begun(replace(plan, run_id=run_id, resume=run_id != "a")).release()
    info = read_info(tmp_path / "run")
    assert info is not None and (info.run_id, info.earlier_ids) == ("c", ("a", "b"))
    assert all(map(info.has_id, "abc")) and not info.has_id("d")


def info_of(run_id: str, live: bool) -> RunInfo:
    """Of a run on this machine; a live one is driven by this process."""
    process = identify(os.getpid())
    assert process is not None
    ended_at = None if live else 2.0
    return RunInfo(run_id, process.pid, process.start_time, socket.gethostname(), 1.0, None, ended_at)


@pytest.fixture
def seeds(tmp_path: Path) -> Path:
    """The folder of `--seeds 3`, whose second run trains."""
    for seed in (1, 2, 3):
        run_dir = tmp_path / "seeds" / f"seed-{seed}"
        run_dir.mkdir(parents=True)
        (run_dir / "config.json").write_text("{}")
        (run_dir / "run.json").write_text(json.dumps(to_json(info_of(f"pole-00000{seed}", seed == 2))))
    return tmp_path / "seeds"


def test_a_folder_of_runs_names_the_live_one(seeds: Path) -> None:
    directory, info = find_run(str(seeds))
    assert (directory, info.run_id) == (seeds / "seed-2", "pole-000002")


@pytest.mark.parametrize("live", [0, 2])
@pytest.mark.parametrize("arguments", [("status", "{}"), ("stop", "{}"), ("scale", "{}", "local=2"), ("logs", "{}")])
def test_of_no_or_several_live_runs_of_a_folder_one_has_to_be_named(
    zmqrl: Command, seeds: Path, arguments: tuple[str, ...], live: int
) -> None:
    for seed in (1, 2, 3):
        info = info_of(f"pole-00000{seed}", seed <= live)
        (seeds / f"seed-{seed}" / "run.json").write_text(json.dumps(to_json(info)))
    ended = zmqrl(*(word.format(seeds) for word in arguments))
    assert ended.code == 2
    compare(ended.error, runs=tuple(f"{seeds}/seed-{seed}" for seed in (1, 2, 3)))
