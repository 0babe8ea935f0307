"""`--json`: stdout has JSON alone, whatever else is printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.cli.commands import RUN, Command
from tests.stand_ins.refused_learners import FAULT
from tests.support.raising import compare
from tests.support.running import environment
from tests.support.waiting import WAIT_S
from zmqrl.cli.main import COMMANDS, cli
from zmqrl.logs.standard_output import output_as_errors

WITHOUT = {
    "bench": "prints JSON",
    "drill": "writes JSON to a file",
    "plot": "draws",
    "setup": "installs",
    "worker": "runs",
    "completion": "prints a script",
    "export": "writes files",
    "fetch": "copies files",
    "import": "prints a preset",
    "install-unit": "writes a file",
    "view": "serves a page",
    "trust": "prints a prefix per line",
    "upload": "sends rows",
    "watch": "opens a window",
}


def test_every_other_command_has_it() -> None:
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        commands = [command, *getattr(command, "commands", {}).values()]
        has = any("--json" in parameter.opts for found in commands for parameter in found.params)
        assert has or name in WITHOUT, name


@pytest.mark.whole
def test_train_prints_the_summary_as_one_line(zmqrl: Command, tmp_path: Path) -> None:
    ended = zmqrl(*RUN, "--json", "--run-dir", "r")
    assert ended.code == 0, ended.err
    (line,) = ended.out.splitlines()
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert json.loads(line) == {"run_dir": str(tmp_path / "r"), **summary}
    assert f"run {summary['run_id']}: done" in ended.err


def test_a_refused_configuration_prints_nothing(zmqrl: Command) -> None:
    for arguments in (("--set", "run.sead=1"), ("--dry-run",), ("--run-dir", "/proc/x")):
        ended = zmqrl(*RUN, "--json", *arguments)
        assert (ended.code, ended.out) == (2, ""), arguments


@pytest.mark.parametrize("options", [(), ("--seeds", "2")], ids=["one run", "seeds"])
def test_what_a_module_of_the_user_prints_goes_to_stderr(
    zmqrl: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.delitem(sys.modules, "loud", raising=False)
    (tmp_path / "loud.py").write_text("print('loaded')\nfrom zmqrl.bench.noop import NoUpdate as Loud\n")
    ended = zmqrl("train", "--env", "CartPole-v1", "--algo", "loud:Loud", "--json", *options, "--set", "run.sead=1")
    assert (ended.code, ended.out) == (2, "")
    compare(ended.error, key=("run", "sead"), source="--set")
    assert "loaded" in ended.err.splitlines()


def test_what_native_code_and_children_print_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with output_as_errors() as output:
        os.write(1, b"banner\n")
        subprocess.run(["echo", "child"], check=True)
        print("python")
        print("data", file=output, flush=True)
    print("after")
    found = capfd.readouterr()
    assert found.out.split() == ["data", "after"]
    assert sorted(found.err.split()) == ["banner", "child", "python"]


@pytest.mark.whole
def test_a_run_that_its_learner_refuses_after_env_steps_keeps_its_results(zmqrl: Command, tmp_path: Path) -> None:
    """Before env steps nothing is left of it, and nothing printed."""
    kind = "algorithm.kind=tests.stand_ins.refused_learners:"
    ended = zmqrl(*RUN, "--json", "--run-dir", "a", "--set", f"{kind}Refused")
    assert (ended.code, ended.out) == (2, "") and FAULT in ended.err and not (tmp_path / "a").exists()
    ended = zmqrl(*RUN, "--json", "--run-dir", "b", "--set", f"{kind}RefusedLater", "--set", "run.total_env_steps=1e5")
    assert ended.code == 2 and FAULT in ended.err
    summary = json.loads(ended.out)
    assert (summary["status"], summary["exit_code"]) == ("failed", 2) and FAULT in summary["error"]
    assert summary["env_steps"] > 0 and (tmp_path / "b" / "config.json").exists()


@pytest.mark.whole
def test_detached_it_prints_the_run_directory_and_holds_no_pipe(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "zmqrl", *RUN, "--set", "run.total_env_steps=1e7", "--run-dir", "d"]
    done = subprocess.run(
        [*command, "--detach", "--json"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env=environment(),
        cwd=tmp_path,
    )
    place = json.loads(done.stdout)
    stopped = subprocess.run(
        [sys.executable, "-m", "zmqrl", "stop", place["run_dir"], "--wait", "60", "--json"],
        capture_output=True, text=True, timeout=WAIT_S, env=environment(), cwd=tmp_path,
    )  # fmt: skip
    assert json.loads(stopped.stdout)["summary"]["run_id"] == place["run_id"]
    assert place["run_dir"] == str(tmp_path / "d") and place["pid"] > 0


@pytest.mark.whole
def test_detached_a_run_that_its_learner_refuses_never_continues(tmp_path: Path) -> None:
    """The learner reports READY once it is built."""
    refused = (
        "--set",
        "algorithm.kind=tests.stand_ins.refused_learners:Refused",
        "--run-dir",
        "d",
        "--detach",
        "--json",
    )
    done = subprocess.run(
        [sys.executable, "-m", "zmqrl", *RUN, *refused],
        capture_output=True, text=True, timeout=WAIT_S, env=environment(), cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "") and FAULT in done.stderr
    assert not (tmp_path / "d").exists()


def test_version_and_clean(zmqrl: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(json.loads(zmqrl("version", "--json").out)) == {"zmqrl", "python", "torch", "gymnasium", "numpy"}
    monkeypatch.setenv("ZMQRL_RUNTIME_DIR", str(tmp_path / "runtime"))
    assert json.loads(zmqrl("clean", "--json").out) == {"removed": [], "elsewhere": []}
