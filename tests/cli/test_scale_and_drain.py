"""`scale` and `drain`: of a real run on this machine, and what they refuse, each with one message and exit code 2."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import Command, live_run
from tests.support.raising import compare
from tests.support.waiting import until
from zmqrl.agent.run_processes import processes_of
from zmqrl.run_files.run_info import RunInfo, read_info

pytestmark = pytest.mark.whole


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[Path, RunInfo]]:
    """One worker, and vector envs for four."""
    with live_run(tmp_path / "live") as info:
        yield tmp_path / "live", info


def workers_of(run_id: str) -> set[str]:
    return {name for name in processes_of(run_id).values() if name.startswith("worker-")}


def await_workers(run_id: str, wanted: set[str]) -> None:
    until(lambda: workers_of(run_id) == wanted, lambda: f"{wanted}; found {workers_of(run_id)}")


def without_changes(directory: Path) -> Path:
    """A hosts file that states what the run has."""
    file = directory / "hosts.yaml"
    file.write_text("hosts: {local: {workers: 1}}\n")
    return file


def await_none_left(requests: Path) -> None:
    """Every answer was taken, and the launcher forgets the last request."""
    until(lambda: not list(requests.iterdir()), lambda: f"the end of {list(requests.iterdir())}")


def test_a_live_run_gets_workers_and_loses_them_and_keeps_the_last(zmqrl: Command, live: tuple[Path, RunInfo]) -> None:
    directory, info = live
    more = zmqrl("scale", directory, "local=3")
    assert (more.code, more.out, more.err) == (0, "local: 3 workers\n", "")
    await_workers(info.run_id, {"worker-0", "worker-1", "worker-2"})
    fewer = zmqrl("scale", directory, "local=1", "--json")
    place = {"run_dir": str(directory), "run_id": info.run_id}
    assert (fewer.code, json.loads(fewer.out)) == (0, {**place, "workers": {"local": 1}, "done": "local: 1 worker"})
    await_workers(info.run_id, {"worker-0"})
    refusals = {
        (
            "scale",
            "local=5",
        ): "local=5 gives 5 workers for 4 vector envs: in sync each worker needs at least one; set fewer workers",
        ("scale", "local=0"): "local: no other host has workers, and a run needs one; to end the run: zmqrl stop",
        ("drain", "l0cal"): "unknown host 'l0cal'; hosts of this run: local",
        ("drain", "local"): "local: no other host has workers, and a run needs one; to end the run: zmqrl stop",
    }
    for (command, argument), why in refusals.items():
        refused = zmqrl(command, directory, argument)
        assert (refused.code, refused.out, refused.err) == (2, "", f"zmqrl: {why}\n")
    typo = zmqrl("scale", directory, "l0cal=2")
    assert (typo.code, typo.out) == (2, "")
    assert typo.err.startswith(
        "zmqrl: l0cal cannot join the run (did you mean 'local'? hosts of this run: local):\nl0cal: "
    )
    nothing = zmqrl("apply", without_changes(directory), directory)
    assert (nothing.code, nothing.out) == (0, "the run has the hosts of the file: nothing to change\n")
    assert workers_of(info.run_id) == {"worker-0"}
    await_none_left(directory / "requests")


def test_a_run_in_place_of_the_host_is_named(zmqrl: Command, finished: Path) -> None:
    """Else it would be the host of another run."""
    for run in (finished, finished / "seed-1"):
        refused = zmqrl("drain", run)
        assert (refused.code, refused.err) == (2, f"zmqrl: HOST is required: zmqrl drain {run} HOST\n")


NO_RUN = ": it is not a run directory, and not the id of a run that is active or in runs/"


@pytest.mark.parametrize(("arguments", "why"), [
    (("scale", "local=two"), "'local=two': expected HOST=N, where N is the number of workers, 0 or more"),
    (("scale", "local=-1"), "'local=-1': expected HOST=N, where N is the number of workers, 0 or more"),
    (("scale", "local=²"), "'local=²': expected HOST=N, where N is the number of workers, 0 or more"),
    (("scale", "local="), "'local=': expected HOST=N, where N is the number of workers, 0 or more"),
    (("scale", "=2"), "'=2': expected HOST=N, where N is the number of workers, 0 or more"),
    (("scale", "some-run", "local"), "'local': expected HOST=N, where N is the number of workers, 0 or more"),
    (("scale", "local=1", "local=2"), "'local=2': local is listed twice; write each host once"),
    (("scale", "some-run"), "HOST=N is required: a host and its number of workers"),
    (("scale", "a/lr=1", "local=1"), "no run 'a/lr=1'" + NO_RUN),
    (("scale",), "HOST=N is required: a host and its number of workers"),
    (("scale", "n0-run", "local=1"), "no run 'n0-run'" + NO_RUN),
    (("scale", "local=1"), "no active run and no run in runs/; give a run directory"),
    (("drain", "a", "b", "c"), "'a b c': write [RUN] HOST"),
    (("drain",), "HOST is required: zmqrl drain [RUN] HOST"),
    (("drain", "n0-run", "local"), "no run 'n0-run'" + NO_RUN),
    (("drain", "local"), "no active run and no run in runs/; give a run directory"),
])  # fmt: skip
def test_an_invalid_request_gives_one_message(zmqrl: Command, arguments: tuple[str, ...], why: str) -> None:
    refused = zmqrl(*arguments)
    assert (refused.code, refused.out, refused.err) == (2, "", f"zmqrl: {why}\n")


@pytest.mark.parametrize("arguments", [("scale", "local=2"), ("drain", "local")])
def test_a_run_that_is_over_is_not_waited_for(zmqrl: Command, finished: Path, arguments: tuple[str, str]) -> None:
    directory = finished / "seed-1"
    info = read_info(directory)
    assert info is not None
    refused = zmqrl(arguments[0], directory, arguments[1])
    assert (refused.code, refused.out) == (2, "")
    compare(refused.error, value=f"run {info.run_id} in {directory}", what="is not running")
    assert not (directory / "requests").exists()


def test_a_run_whose_launcher_died_is_not_waited_for(zmqrl: Command, finished: Path, tmp_path: Path) -> None:
    directory = tmp_path / "died"
    shutil.copytree(finished / "seed-1", directory)
    data = json.loads((directory / "run.json").read_text())
    another = data["start_time"] + 1  # the pid is another process's now
    (directory / "run.json").write_text(json.dumps({**data, "ended_at": None, "start_time": another}))
    refused = zmqrl("drain", directory, "local")
    assert (refused.code, refused.err) == (2, f"zmqrl: run {data['run_id']} in {directory} is not running\n")
