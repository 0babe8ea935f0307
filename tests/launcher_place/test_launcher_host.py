"""What a launcher's host sends back: stderr without the prologue, and the stored configuration of a run."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.raising import raises
from zmqrl.config.codec import replace
from zmqrl.config.on_host import on_host
from zmqrl.config.sections import CodeSection, HostSection
from zmqrl.errors import ConfigError
from zmqrl.launcher_place.launcher_host import LauncherHost, _WithoutPrologue, stored_code, stored_copy
from zmqrl.planning.configure import load, load_config
from zmqrl.run_files.stored_config import stored_config
from zmqrl.ssh.shell import Finished


@pytest.mark.parametrize(
    ("chunks", "shown", "held"),
    [
        ([b"zmqrl: no run\n"], b"zmqrl: no run\n", b""),
        ([b"zmqrl: pro", b"logue begins\nloading\nzmqrl: prologue ended with exit code 0\nda", b"ta"], b"data", b""),
        ([b"zmqrl: prologue begins\nx", b"zmqrl: prologue ended with exit code 3\n"], b"", b"code 3\n"),
    ],
)
def test_stderr_without_the_prologue(chunks: list[bytes], shown: bytes, held: bytes) -> None:
    found: list[bytes] = []
    notes = _WithoutPrologue(found.append)
    for chunk in chunks:
        notes.take(chunk)
    assert b"".join(found) == shown
    assert notes.held.endswith(held) and bool(notes.held) == bool(held)


def test_a_resume_from_this_machine_has_the_values_of_the_run_and_the_hosts_and_modules_of_the_files(
    tmp_path: Path,
) -> None:
    """The run was started with a preset by its path, and `--set run.seed=3`."""
    preset, hosts = tmp_path / "mine.yaml", tmp_path / "hosts.yaml"
    preset.write_text("run: {total_env_steps: 4096}\n")
    (tmp_path / "my_envs.py").touch()
    hosts.write_text(
        "run: {preset: ./mine.yaml}\ncode: {sync: [./my_envs.py]}\n"
        "hosts: {local: {workers: 0}, gpu1: {workers: 1}, n2: {workers: 1}}\n"
    )
    started = on_host(load_config(hosts_file=hosts, overrides=["run.seed=3"]), "gpu1")
    there = replace(started, run=replace(started.run, preset=None), code=CodeSection(sync=("/srv/code/ab/my_envs.py",)))
    stored = json.dumps(stored_config(there)).encode()
    assert stored_code(stored) == "/srv/code/ab"
    copy = stored_copy(stored, tmp_path, str(preset))
    resumed = load(hosts_file=hosts, overrides=["hosts.n2.workers=2"], stored=copy).config
    assert resumed.run == started.run and resumed.run.seed == 3
    assert list(resumed.hosts) == ["local", "gpu1", "n2"] and resumed.hosts["n2"].workers == 2
    assert resumed.code.sync == (str(tmp_path / "my_envs.py"),)


def test_a_run_without_modules() -> None:
    assert stored_code(json.dumps(stored_config(load_config("cartpole-ppo"))).encode()) is None


class ShellHere:
    """In place of a connection."""

    def run(self, command: str, timeout_s: float, data: bytes = b"") -> Finished:
        done = subprocess.run(["sh", "-c", command], input=data, capture_output=True, timeout=timeout_s, check=False)
        return Finished(done.returncode, done.stdout, done.stderr)


@pytest.mark.skipif(os.geteuid() != 0, reason="files of another user need root")
@pytest.mark.parametrize("name", ["run", "run/config.json"])
def test_a_run_there_of_another_user_that_names_code_is_not_loaded_here(name: str, tmp_path: Path) -> None:
    connection: Any = ShellHere()
    there = LauncherHost("gpu1", HostSection(workdir=str(tmp_path)), connection, 1.0)
    (tmp_path / "run").mkdir()
    for env_id, is_refused in (("lab:Walk", True), ("CartPole-v1", False)):
        stored = json.dumps(stored_config(load_config("cartpole-ppo", overrides={"env.id": env_id}))).encode()
        (tmp_path / "run" / "config.json").write_bytes(stored)
        there.check_own("run", stored)
        os.chown(tmp_path / name, 4711, 4711)
        if is_refused:
            with raises(
                ConfigError,
                key=("--on",),
                value="gpu1",
                what="run is of another user, and names code: lab:Walk\n   resume it on that host",
            ):
                there.check_own("run", stored)
        else:
            there.check_own("run", stored)
        os.chown(tmp_path / name, 0, 0)
