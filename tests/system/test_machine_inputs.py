"""Commands on machines that others have set up: their processes, containers, files and mounts, by whole commands.

Each class has the inputs of public reports (`tests/machine_inputs`), and one that differs in more than names.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cgroups import MB, group_or_skip
from tests.cli.commands import ENDLESS
from tests.running import environment
from tests.waiting import WAIT_S, until

pytestmark = pytest.mark.whole

FILES = Path(__file__).parents[1] / "machine_inputs"
ZMQRL = (sys.executable, "-m", "zmqrl")
DONE, REFUSED, INTERRUPTED = 0, 2, 130


def command(folder: Path, words: Sequence[str | Path], *before: str | Path) -> tuple[int, str]:
    """Exit code and output of `zmqrl WORDS` in `folder`, started by the command `before`."""
    done = subprocess.run(
        [*before, *ZMQRL, *words],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WAIT_S,
    )
    return done.returncode, done.stdout


# Limits of containers


def hosts_file(folder: Path, text: str) -> Path:
    path = folder / "hosts.yaml"
    path.write_text(text)
    return path


def in_groups(*groups: Path) -> Sequence[str]:
    """Begins a command in these cgroups."""
    enter = "; ".join(f"echo $$ > {group}/cgroup.procs" for group in groups)
    return "sh", "-c", f'{enter}; exec "$@"', "sh"


def examined(folder: Path, file: Path, *before: str) -> tuple[Mapping[str, Any], str]:
    """What doctor measures on this machine, and the text of its findings."""
    _, output = command(folder, ["doctor", file, "--json"], *before)
    found = json.loads(output)
    return found["hosts"]["local"], json.dumps([*found["faults"], *found["warnings"]])


TWO_WORKERS = "run: {preset: cartpole-ppo}\nhosts: {local: {workers: 2}}\n"


@pytest.mark.parametrize(("cpus", "nested"), [(1.0, False), (1.5, True)])
def test_a_cpu_quota(tmp_path: Path, cpus: float, nested: bool) -> None:
    with group_or_skip("cpu", cpus=cpus, nested=nested) as group:
        found, findings = examined(tmp_path, hosts_file(tmp_path, TWO_WORKERS), *in_groups(group))
    assert found["machine"]["cores"] == 1 and "2 workers for 1 cores" in findings


LARGE = """
run: {preset: cartpole-dqn, mode: async, total_env_steps: 20000}
replay: {capacity: CAPACITY}
hosts: {local: {workers: 1}}
"""


@pytest.mark.parametrize(("limit_mb", "nested", "capacity"), [(700, False, 20_000_000), (400, True, 12_000_000)])
def test_replay_that_a_memory_limit_does_not_allow(tmp_path: Path, limit_mb: int, nested: bool, capacity: int) -> None:
    """The limit is of the group of the command, or of the one above it."""
    file = hosts_file(tmp_path, LARGE.replace("CAPACITY", str(capacity)))
    with group_or_skip("memory", nbytes=limit_mb * MB, nested=nested) as group:
        found, findings = examined(tmp_path, file, *in_groups(group))
        assert found["machine"]["available_bytes"] <= limit_mb * MB and "arena" in findings
        code, output = command(tmp_path, ["launch", file, "--run-dir", "run"], *in_groups(group))
    assert code == REFUSED and "lower replay.capacity" in output, output
    assert "Traceback" not in output


@pytest.mark.parametrize(("reads", "nested"), [(1, False), (3, True)])
def test_cache_of_files_is_available_memory(tmp_path: Path, reads: int, nested: bool) -> None:
    """In a container, which sees its own part of the tree, and in a job; a file read often is active cache."""
    big = tmp_path / "big.bin"
    big.write_bytes(bytes(250 * MB))
    subprocess.run(["sync", big], check=True)
    subprocess.run(["dd", f"if={big}", "iflag=nocache", "count=0"], check=True, capture_output=True)
    with group_or_skip("memory", nbytes=300 * MB, nested=nested) as group:
        for _ in range(reads):
            subprocess.run([*in_groups(group), "cat", big], stdout=subprocess.DEVNULL, check=True)
        assert int(group.joinpath("memory.usage_in_bytes").read_text()) > 200 * MB
        mount = f"mount --bind {group} {group.parent}"
        container = () if nested else ("unshare", "-m", "sh", "-c", f'{mount}; exec "$@"', "sh")
        found, _ = examined(tmp_path, hosts_file(tmp_path, TWO_WORKERS), *in_groups(group), *container)
    assert found["machine"]["available_bytes"] > 150 * MB


@contextmanager
def few_inodes(folder: Path, count: int) -> Iterator[Path]:
    """A tmpfs with room for `count` files, and 200 MB."""
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size=200m,nr_inodes={count}", "none", disk]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def fill(disk: Path) -> list[Path]:
    made = []
    try:
        while True:
            made.append(disk / f"f{len(made)}")
            made[-1].touch()
    except OSError:
        made.pop()
    return made


def test_a_disk_without_inodes_before_the_run(tmp_path: Path) -> None:
    with few_inodes(tmp_path, 60) as disk:
        file = hosts_file(disk, TWO_WORKERS)
        found, findings = examined(disk, file)
        assert found["folders"]["workdir"]["free_inodes"] < 60 and "df -i" in findings
        fill(disk)
        code, output = command(disk, ["train", "cartpole-ppo", "--run-dir", "run"])
    assert code == REFUSED and "inodes" in output and f"df -i {disk}" in output, output


@pytest.mark.long
def test_a_disk_without_inodes_in_mid_run(tmp_path: Path) -> None:
    words = [*ZMQRL, "train", "cartpole-ppo", *ENDLESS, "--set", "run.checkpoint_every_s=1", "--run-dir", "run"]
    log = tmp_path / "log"
    with (
        few_inodes(tmp_path, 120) as disk,
        log.open("w") as out,
        subprocess.Popen(words, cwd=disk, env=environment(), stdout=out, stderr=out) as launcher,
    ):
        try:
            until(lambda: list(disk.glob("run/checkpoints/full-*.safetensors")), "a full checkpoint")
            made: list[Path] = []
            until(lambda: made.extend(fill(disk)) or "inodes free" in log.read_text(), log.read_text, every_s=0.1)
            for path in made:
                path.unlink(missing_ok=True)
            code, _ = command(disk, ["stop", "run", "--wait"])
            launcher.wait(WAIT_S)
        finally:
            launcher.kill()
    output = log.read_text()
    assert (code, launcher.returncode) == (DONE, DONE), output
    assert "MB and 0 inodes free: delete files" in output and f"df -i {disk}" in output, output


# The process that starts zmqrl


def inherit(kinds: str) -> Sequence[str | Path]:
    return sys.executable, FILES / "inherit.py", kinds


@pytest.mark.parametrize("kinds", ["sigchld", "ignore,block,umask,close012"])
def test_an_inherited_state_does_not_change_the_check_of_the_env(tmp_path: Path, kinds: str) -> None:
    code, output = command(tmp_path, ["train", "cartpole-ppo", "--dry-run"], *inherit(kinds))
    assert code == DONE, output


@pytest.mark.parametrize(
    ("kinds", "number", "code"), [("blockterm", signal.SIGUSR1, DONE), ("ignore,block", signal.SIGTERM, INTERRUPTED)]
)
def test_a_run_with_inherited_signals_ends_by_a_signal(tmp_path: Path, kinds: str, number: int, code: int) -> None:
    train = [*inherit(kinds), *ZMQRL, "train", "cartpole-ppo", *ENDLESS, "--plain", "--run-dir", "run"]
    with subprocess.Popen(train, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as launcher:
        try:
            until((tmp_path / "run" / "status.json").exists, "status.json")
            launcher.send_signal(number)
            output, _ = launcher.communicate(timeout=WAIT_S)
        finally:
            launcher.kill()
    assert launcher.returncode == code, output
    assert "killed" not in output and "0 left" in output, "each process ended by SIGTERM"
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["exit_code"] == code


@pytest.mark.parametrize("kinds", ["gone", "moved"])
@pytest.mark.parametrize("words", [["status"], ["presets"]])
def test_a_working_directory_that_was_removed(tmp_path: Path, kinds: str, words: Sequence[str]) -> None:
    code, output = command(tmp_path, words, *inherit(kinds))
    assert code == REFUSED and len(output.splitlines()) == 1 and "working directory" in output, output
