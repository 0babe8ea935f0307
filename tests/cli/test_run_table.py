"""`zmqrl runs`: a row per run, also of one that is damaged, for as little as reading its files costs."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agent.plans import stand_in_plan
from tests.cli.commands import Command
from tests.cli.test_damaged_files import STATUS
from tests.support.running import environment
from tests.support.stored_runs import summary_data
from tests.support.waiting import WAIT_S
from tests.support.yardstick import cpu_s
from zmqrl.config.codec import replace, to_json
from zmqrl.config.paths import content_of
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.data_stores.tensors import dump
from zmqrl.run_files.publication import Publication
from zmqrl.run_files.run_info import RunInfo
from zmqrl.run_files.run_list import runs_below
from zmqrl.supervision.host_entry import user_name
from zmqrl.supervision.process_table import identify
from zmqrl.supervision.run_owner import RunOwner
from zmqrl.types import Version

CONFIG = {"format_version": 2, "config": {"env": {"id": "CartPole-v1"}, "algorithm": {"kind": "ppo"}}}
ROW = {"wall_s": 1, "env_steps": 5, "train_return_mean_100": 2.0}
FILES = ("run.json", "config.json", "summary.json", "status.json", "metrics.jsonl")
MOST_TIMES = 4.0
"""CPU time of a row over that of opening, reading and parsing the files of the run: 1.1 measured."""


def stored(path: Path, age_s: float = 0.0, live: bool = False, config: Any = CONFIG, **summary: Any) -> Path:
    """A run `age_s` old, with a summary of these fields unless it is `live`."""
    (path / "checkpoints").mkdir(parents=True)
    me, begun = identify(os.getpid()), time.time() - age_s
    assert me is not None
    host = socket.gethostname()
    info = RunInfo(path.name, me.pid, me.start_time, host, begun, None, None if live else begun + 9)
    files = {"run.json": to_json(info), "config.json": config, "status.json": {**STATUS, "run_id": path.name}}
    if not live:
        files["summary.json"] = summary_data(run_id=path.name, **{"env_steps": 5, **summary})
    for name, content in {**files, "metrics.jsonl": ROW}.items():
        (path / name).write_text(json.dumps(content) + "\n")
    return path


@pytest.fixture
def runs(empty_directory: Path) -> Path:
    """A run that was done, a failed one and a live one, the last of them the newest."""
    done = stored(Path("runs/sweep/a"), 3 * 86_400, env_steps=5_000, train_return_mean_100=7.25)
    store = DirectoryStore(str(done / "checkpoints"), 8)
    for number, score in ((1, 3.5), (2, 9.5)):
        store.save_best(Version(0, number), dump({}, {"env_steps": "1"}), score)
    acrobot = {**CONFIG, "config": {"env": {"id": "Acrobot-v1"}, "algorithm": {"kind": "dqn"}}}
    stored(Path("runs/b"), 7_300, status="failed", error="\x1b]0;title\nmore", config=acrobot)
    stored(Path("runs/c"), 40, live=True)
    return Path("runs")


def ids(zmqrl: Command, *arguments: object) -> list[str]:
    return [row["run_id"] for row in json.loads(zmqrl("runs", *arguments, "--json").out)]


def test_the_table(zmqrl: Command, runs: Path) -> None:
    ended = zmqrl("runs")
    assert (ended.code, ended.err) == (0, "")
    head, *rows = (line.split() for line in ended.out.splitlines())
    assert head == [
        "RUN",
        "ID",
        "ENV",
        "ALGORITHM",
        "STATE",
        "ENV",
        "STEPS",
        "RETURN",
        "BEST",
        "AGE",
        "HOST",
        "USER",
        "REASON",
    ]
    host = [socket.gethostname(), user_name(os.getuid())]
    assert rows[0] == ["runs/c", "c", "CartPole-v1", "ppo", "ending", "5", "-", "-", rows[0][8], *host]
    assert rows[1] == ["runs/b", "b", "Acrobot-v1", "dqn", "failed", "5", "-", "-", "2h", *host, "\\x1b]0;title"]
    assert rows[2] == ["runs/sweep/a", "a", "CartPole-v1", "ppo", "done", "5,000", "7.2", "9.5", "3d", *host]


def test_the_best_score_names_the_number_that_it_is_the_mean_of(zmqrl: Command, runs: Path) -> None:
    config = {"env": {"id": "CartPole-v1"}, "algorithm": {"kind": "ppo"}, "evaluator": {"best_by": "comfort"}}
    (runs / "sweep/a/config.json").write_text(json.dumps({**CONFIG, "config": config}))
    assert "9.5 comfort   3d" in zmqrl("runs", "runs/sweep").out
    assert json.loads(zmqrl("runs", "runs/sweep", "--json").out)[0]["best_by"] == "comfort"
    assert json.loads(zmqrl("runs", "runs/b", "--json").out)[0]["best_by"] is None


def test_text_of_another_user_in_the_table(zmqrl: Command, runs: Path) -> None:
    config = {"env": {"id": "CartPole-v1\nruns/x"}, "algorithm": {"kind": "\x1b]0;title\x07"}}
    (runs / "b/config.json").write_text(json.dumps({**CONFIG, "config": config}))
    row = zmqrl("runs").out.splitlines()[2].split()
    assert row[:4] == ["runs/b", "b", r"CartPole-v1\nruns/x", r"\x1b]0;title\x07"]


def test_folders_are_nested_to_any_depth(runs: Path) -> None:
    found, below = len(runs_below(runs)), runs
    for _ in range(sys.getrecursionlimit()):
        below /= "d"
        below.mkdir()
    try:
        assert len(runs_below(runs)) == found
    finally:  # shutil.rmtree cannot remove them
        subprocess.run(["rm", "-r", str(runs / "d")], check=True, timeout=60)


def test_json_and_filters(zmqrl: Command, runs: Path, tmp_path: Path) -> None:
    row = json.loads(zmqrl("runs", "runs/sweep", "--json").out)[0]
    results = (row["env_steps"], row["train_return_mean_100"], row["best_score"])
    assert results == (5_000, 7.25, 9.5) and row["run_dir"] == str(tmp_path / "runs/sweep/a")
    assert (row["live"], row["state"], row["reason"]) == (False, "done", None)
    for arguments, expected in (
        ((), ["c", "b", "a"]),
        (("--env", "CartPole-*"), ["c", "a"]),
        (("--algo", "dqn"), ["b"]),
        (("--state", "done", "--state", "failed"), ["b", "a"]),
        (("--since", "3h"), ["c", "b"]),
        (("--since", "1.5m"), ["c"]),
        (("--user", user_name(os.getuid())), ["c", "b", "a"]),
        (("--user", "nobody else"), []),
        (("runs/b", "runs/sweep", "runs/b"), ["b", "a"]),
    ):
        assert ids(zmqrl, *arguments) == expected, arguments
    assert ids(zmqrl, "runs/b") == ["b"], "a run directory is a folder with one run"


def test_what_has_no_rows(zmqrl: Command, runs: Path) -> None:
    ended = zmqrl("runs", "--algo", "sac", "--json")
    assert (ended.code, ended.out, ended.err) == (0, "[]\n", "none of 3 runs matches in runs\n")
    assert zmqrl("runs", "runs/none").code == 2
    assert zmqrl("runs", "--since", "2w").code == 2


def _without_summary(run: Path) -> None:
    (run / "summary.json").unlink()
    (run / "status.json").unlink()


def _pipes(run: Path) -> None:
    for name in (*FILES, "checkpoints/best-0-1.safetensors"):
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)


@pytest.mark.parametrize(
    ("damage", "state", "reason"),
    [
        (_without_summary, "unknown", "ended without a summary"),
        (lambda run: (run / "summary.json").write_text("{"), "unknown", "summary.json is damaged"),
        (lambda run: (run / "run.json").write_text("{}"), "damaged", "run.json cannot be read: "),
        (lambda run: (run / "run.json").unlink(), "damaged", "run.json cannot be read: No such file"),
        (_pipes, "damaged", "run.json cannot be read: not a regular file"),
    ],
)
def test_a_damaged_run_has_a_row(runs: Path, damage: Callable[[Path], object], state: str, reason: str) -> None:
    damage(runs / "b")
    (row,) = (row for row in runs_below(runs) if row.run_dir == "runs/b")
    assert row.state == state and reason in (row.reason or "")
    if damage is _without_summary:
        assert (row.env_steps, row.train_return_mean_100) == (5, 2.0), "of the last row of metrics.jsonl"


def test_what_this_user_may_not_read_is_not_damaged(runs: Path, tmp_path: Path) -> None:
    """A folder and a file; a link to such a folder leads to no run."""
    (runs / "private").mkdir(mode=0)
    (runs / "b" / "run.json").chmod(0)
    (tmp_path / "elsewhere").mkdir(mode=0)
    (runs / "link").symlink_to(tmp_path / "elsewhere")
    start = [sys.executable, "-m", "tests.machine_inputs.unprivileged", sys.executable, "-m", "zmqrl", "runs"]
    ended = subprocess.run(
        [*start, "runs/private", "runs", "--json"], capture_output=True, timeout=WAIT_S, env=environment(), check=True
    )
    rows = [(row["run_dir"], row["state"], row["reason"]) for row in json.loads(ended.stdout)]
    denied = [(str(tmp_path / "runs" / name), "unreadable", "permission denied") for name in ("b", "private")]
    assert [row for row in rows if row[1] == "unreadable"] == denied and len(rows) == 4


def test_a_pipe_in_place_of_the_other_files_is_not_waited_for(runs: Path) -> None:
    info = (runs / "b" / "run.json").read_bytes()
    _pipes(runs / "b")
    (runs / "b" / "run.json").unlink()
    (runs / "b" / "run.json").write_bytes(info)
    row = runs_below(runs / "b")[0]
    assert (row.run_id, row.state, row.env, row.env_steps, row.best_score) == ("b", "unknown", None, None, None)


def test_launchers_elsewhere_are_watched_once_for_all(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One renews its record, one does not."""
    for name, renews in (("d", True), ("e", False)):
        owner = RunOwner.acquire(stored(runs / name, live=True), name)
        owner._record = replace(owner._record, machine="another kernel", host="another host")
        owner._write(owner._record)
        if not renews:
            owner._ended.set()
    monkeypatch.setattr("zmqrl.supervision.run_owner.RENEW_S", 0.5)
    found = {row.run_id: row for row in runs_below(runs)}
    assert (found["d"].live, found["e"].live, found["e"].state) == (True, False, "unknown")
    assert "unknown whether it has ended" in (found["e"].reason or "")


def test_links_lead_to_runs_and_in_no_circle(runs: Path) -> None:
    (runs / "circle").symlink_to(runs.absolute())
    (runs / "other").symlink_to((runs / "b").absolute())
    assert sorted(row.run_dir for row in runs_below(runs)) == ["runs/b", "runs/c", "runs/other", "runs/sweep/a"]


def test_the_live_runs_of_all_users_of_a_machine(zmqrl: Command, tmp_path: Path) -> None:
    plan = stand_in_plan(tmp_path / "run")
    publication = Publication(plan)
    publication.renew({"phase": "running", "env_steps": 5_000, "metrics": {"train_return_mean_100": 2.0}})
    try:
        head, *rows = (
            line.split() for line in zmqrl("runs", "--lab", "--user", user_name(os.getuid())).out.splitlines()
        )
        assert head[:2] == ["ID", "ENV"]
        (row,) = (row for row in rows if row[0] == plan.run_id)
        assert row[1:7] == ["CartPole-v1", "ppo", "running", "5,000", "2.0", "-"]
        found = {row["run_id"]: row for row in json.loads(zmqrl("runs", "--lab", "--json").out)}
        assert (found[plan.run_id]["env_steps"], found[plan.run_id]["run_dir"]) == (5_000, "")
        Path("lab.yaml").write_text("hosts: {local: {}, gpu1: {ssh: 127.0.0.1, port: 1}, n2: {manual: true}}\n")
        ended = zmqrl("runs", "--lab", "lab.yaml", "--json")
        assert plan.run_id in ids(lambda *_: ended) and ended.code == 0
        assert [line.split(": ")[1] for line in ended.err.splitlines() if line[0] != " "] == ["gpu1"]
    finally:
        publication.end()
    ended = zmqrl("runs", "--lab", "--env", "Walker-v0")
    assert (ended.code, ended.out) == (0, "") and len(ended.err.splitlines()) == 1
    assert zmqrl("runs", "runs", "--lab").code == zmqrl("runs", "--lab", "missing.yaml").code == 2


def test_it_imports_neither_torch_nor_numpy(runs: Path) -> None:
    code = (
        "import sys; from zmqrl.cli.main import cli; cli.main(['runs'], standalone_mode=False); "
        "assert not {'torch', 'numpy', 'zmq', 'gymnasium'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=WAIT_S, capture_output=True).returncode == 0


@pytest.mark.timed
def test_a_row_costs_little_more_than_reading_the_files(runs: Path) -> None:
    first = stored(Path("many/0"), 10)
    for number in range(1, 200):
        shutil.copytree(first, Path("many") / str(number))

    def read() -> None:
        for folder in Path("many").iterdir():
            for name in FILES:
                json.loads(content_of(folder / name))

    times = cpu_s(lambda: runs_below(Path("many"))) / cpu_s(read)
    assert times < MOST_TIMES, f"{times:.1f} times"
