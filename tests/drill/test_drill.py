"""`zmqrl drill` as a user runs it: real runs, real faults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.commands import IDLE, SLOW
from tests.support.marks import long
from tests.support.running import RUN_S
from tests.support.waiting import WAIT_S, until
from zmqrl.cli.main import main
from zmqrl.cli.start.drill import _folder
from zmqrl.drill.scenarios import SCENARIOS

pytestmark = pytest.mark.whole
DRILL = (sys.executable, "-m", "zmqrl", "drill")


KINDS = (
    *(f"{role}:kill" for role in ("worker", "broker", "learner", "evaluator", "agent", "launcher")),
    *("worker:pause", "worker:hang", "worker:stall", "learner:damage", "learner:no-space"),
)
QUIET = (*IDLE, *(word for key, value in SLOW.items() for word in ("--set", f"{key}={value}")))
"""Without a threshold, for which CartPole is trained 90,000 env steps; test_session.py has how it is awaited."""


@pytest.mark.parametrize(("changes", "lasts"), [(QUIET, "12s"), long((), "20s")], ids=["quiet", "learning"])
def test_nothing_is_lost_in_a_drill_of_every_role(tmp_path: Path, changes: Sequence[str], lasts: str) -> None:
    wanted = [part for kind in KINDS for part in ("--at-least", f"{kind}=1")]
    more = ["--seed", "37", "--run-dir", str(tmp_path / "d"), *changes, *wanted]
    arguments = ["--for", lasts, "--faults", str(len(KINDS)), *more]
    done = subprocess.run(
        [*DRILL, "cartpole-ppo", *arguments], capture_output=True, text=True, timeout=2 * RUN_S, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    report = json.loads((tmp_path / "d" / "drill.json").read_text())
    assert report["verdict"] == "pass"
    assert {f"{o['role']}:{o['kind']}" for o in report["outcomes"]} == {*KINDS}
    assert all(outcome["recovered_s"] is not None for outcome in report["outcomes"])
    assert [minimum["injected"] for minimum in report["at_least"]] == [1] * len(KINDS)
    assert report["outside"]["rows"] == report["books_rows"][0] > 1000
    assert "verdict: no row lost, no row stored twice, all processes recovered" in done.stdout


@pytest.mark.long
def test_a_disk_that_is_really_full_loses_nothing_and_is_gone_afterwards(tmp_path: Path) -> None:
    can_mount = subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", tmp_path], capture_output=True)
    if can_mount.returncode:
        pytest.skip(f"mounting is not allowed here: {can_mount.stderr.decode().strip()}")
    folder = tmp_path / "d"
    arguments = ["--for", "5s", "--faults", "2", "--only", "run:disk-full", "--small-disk", "--run-dir", str(folder)]
    done = subprocess.run([*DRILL, *arguments], capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    report = json.loads((folder / "drill.json").read_text())
    assert [(o["run"], o["kind"], o["injected"]) for o in report["outcomes"]] == [("witness", "disk-full", True)] * 2
    assert "No space left on device" in (folder / "witness.log").read_text()
    assert (folder / "witness" / "summary.json").is_file() and not (folder / "witness" / "filler").exists()
    assert str(folder) not in Path("/proc/mounts").read_text()


@pytest.mark.long
def test_a_drill_with_a_planted_defect_fails_and_names_it(tmp_path: Path) -> None:
    arguments = ["--for", "3s", "--only", "worker:pause", "--plant", "tear", "--run-dir", str(tmp_path / "d")]
    done = subprocess.run([*DRILL, *arguments], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 1, f"{done.stdout}\n{done.stderr}"
    assert "FAULT: outside check: " in done.stdout and "verdict: FAIL" in done.stdout
    assert json.loads((tmp_path / "d" / "drill.json").read_text())["plant"] == "tear"


def test_the_scenarios_are_listed() -> None:
    done = subprocess.run([*DRILL, "--list"], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(SCENARIOS)


def test_an_interrupted_drill_ends_its_runs(tmp_path: Path) -> None:
    """130, and the fixtures find nothing left."""
    folder = tmp_path / "d"
    drill = subprocess.Popen([*DRILL, "--for", "60s", "--run-dir", str(folder)], stderr=subprocess.PIPE, text=True)

    def both_began() -> bool:
        assert drill.poll() is None
        return all(list(folder.glob(f"{run}/checkpoints/v0-*")) for run in ("learning", "witness"))

    until(both_began, "both runs", WAIT_S)
    os.kill(drill.pid, signal.SIGINT)
    _, err = drill.communicate(timeout=WAIT_S)
    assert drill.returncode == 130
    assert "its runs were stopped" in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["cartpole-pppo"], "did you mean 'cartpole-ppo'?"),
        (["--for", "soon"], "'soon' is not a duration of more than 0: write 60s, 10m or 90"),
        (["--only", "brokr"], "--only brokr: unknown fault"),
        (["--only", "broker", "--mode", "single"], "--only: the fault does not apply to any process"),
        (["--set", "run.seedd=1"], "run.seed"),
        (["--json", "/nowhere/at/all.json"], "/nowhere/at does not exist"),
        (["--json", "."], "--json .: cannot be written: Is a directory"),
        (["--only", "run:disk-full"], "disk-full requires --small-disk"),
        (["--at-least", "run:disk-full=1"], "disk-full requires --small-disk"),
        (["--long", "--faults", "24"], "--long needs at least 216 faults: 24 (--at-least) in each of 9 scenarios"),
        (["--scenario", "dqn-snyc"], "--scenario 'dqn-snyc': unknown; known: ppo-sync, dqn-sync"),
        (["--scenario", "dqn-sync", "--mode", "async"], "--scenario and --mode cannot be combined"),
        (["--long", "--set", "run.seed=1"], "--long and --set cannot be combined"),
        (["--at-least", "worker:kill=13"], "13 faults in all, and the drill has 12; set --faults 13"),
        (["--at-least", "worker:kill"], "--at-least worker:kill: write ROLE:FAULT=N"),
        (["--workers", "9", "--mode", "sync"], "vector_envs"),
    ],
)
def test_what_cannot_be_drilled_is_refused_and_nothing_written(
    tmp_path: Path,
    arguments: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command in this process."""
    folder = tmp_path / "d"
    monkeypatch.setattr(sys, "argv", ["zmqrl", "drill", *arguments, "--run-dir", str(folder)])
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        signal.signal(signal.SIGTERM, before)
    output = capsys.readouterr().err
    assert ended.value.code == 2, output
    assert says in output
    assert not folder.exists()


def test_a_folder_that_holds_anything_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("results")
    for folder, why in ((tmp_path, "not empty"), (tmp_path / "mine", "is a file, not a directory")):
        command = [*DRILL, "--run-dir", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert done.returncode == 2 and why in done.stderr


def test_two_drills_that_begin_in_the_same_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda _: "now")
    found = set()
    for pid in (11, 12):
        monkeypatch.setattr("os.getpid", lambda pid=pid: pid)
        found.add(_folder(None, None))
    assert found == {tmp_path / "runs" / "drill-now-11", tmp_path / "runs" / "drill-now-12"}
