"""Whole runs with compiled updates on the CPU: the same bits in every mode, private files, and nothing left."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.running import RUN_S, Run, environment
from zmqrl import Summary, resume, train
from zmqrl.errors import TrainingFailed
from zmqrl.learning.package_cache import cache_folder
from zmqrl.types import ModeName
from zmqrl.wire.runtime_folder import RUNTIME_VARIABLE, run_folder_root

COMPILER = os.environ.get("CXX", "g++")
pytestmark = [
    pytest.mark.whole,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"no C++ compiler: {COMPILER} is missing"),
]
SMALL = {
    "network__hidden": (4,),
    "replay__learning_starts": 200,
    "algorithm__target_update_every": 1,
    "algorithm__target_tau": 0.01,
}
"""One graph: the target network follows in each update."""
COMPILED = {"learner__executor": "compiled", "evaluator__episodes": 0, "restart__max": 0}


class Runs:
    """Runs of one preset and seed with compiled updates; the horizon of the schedules is `total` env steps."""

    def __init__(self, folder: Path, preset: str, total: int, **values: Any) -> None:
        given = {"run__total_env_steps": total, "run__schedule_env_steps": total}
        self._folder, self._preset, self._total = folder, preset, total
        self._values = {**given, **COMPILED, **values}

    def trained(self, mode: ModeName, name: str = "", **values: Any) -> Summary:
        workers = None if mode == "single" else 1
        directory, settings = self._folder / (name or mode), {**self._values, **values}
        return train(self._preset, run_dir=directory, mode=mode, workers=workers, **settings)

    def resumed_at_half(self) -> Summary:
        self.trained("sync", "half", run__total_env_steps=self._total // 2)
        return resume(self._folder / "half", run__total_env_steps=self._total)


def check_all_are_the_same(summaries: list[Summary], cache: Path) -> None:
    assert len({(summary.weights_sha256, summary.updates) for summary in summaries}) == 1
    assert summaries[0].updates > 100
    assert len(list(cache.glob("*.pt2"))) == 1, "the first run compiled, and the others loaded what it kept"


VICTIM, ATTACKER = "victim", 40_002
"""Name of the user who trains, and number of the one whose files are in folders that both can write to."""
EVIL = """
#include <stdio.h>
__attribute__((constructor)) static void run(void) { FILE *file = fopen("%s", "a"); if (file) fclose(file); }
"""
PLANTED = """
import shutil, sys
from torch._inductor import cpp_builder, cpu_vec_isa
cpp_builder.CppBuilder.build = lambda self: shutil.copy(sys.argv[1], self.get_target_file_path())
cpu_vec_isa.VecISA._probe_load = lambda self, path: True
for instructions in cpu_vec_isa.supported_vec_isa_list:
    instructions.check_build(cpu_vec_isa.VecISA._avx_code)
"""
"""The libraries by which torch finds out what the compiler can do have names that are equal for all users."""


class Attack:
    """Files of another user in a shared folder for temporary files, which is also `$ZMQRL_CACHE`."""

    def __init__(self, folder: Path) -> None:
        self.executed, self._library = folder / "executed", folder / "evil.so"
        (folder / "evil.c").write_text(EVIL % self.executed)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", self._library, folder / "evil.c"], check=True)
        subprocess.run(
            [sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", self._library], check=True
        )
        self.executed.unlink()  # it works

    def plant_libraries(self, shared: Path) -> None:
        """Before the victim's first run on this machine."""
        folder = shared / f"torchinductor_{VICTIM}"
        command = [sys.executable, "-c", PLANTED, self._library]
        subprocess.run(command, check=True, env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder)})
        assert list(folder.rglob("*.so"))
        _give_away(folder)
        (shared / "compiled").mkdir()
        _give_away(shared / "compiled")

    def plant_packages(self, shared: Path) -> None:
        """Under the names of those that the victim has by now."""
        for path in shared.glob("compiled-*/*/*.pt2"):
            other = shared / "compiled" / path.parent.name / path.name
            other.parent.mkdir()
            shutil.copy(self._library, other)
        _give_away(shared / "compiled")


def _give_away(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, ATTACKER, ATTACKER)
        path.chmod(0o777)


class Trained(NamedTuple):
    """Runs with `shared` in place of /tmp, and as `$ZMQRL_CACHE`."""

    summaries: list[Summary]
    shared: Path
    cache: Path
    before: set[str]
    """What was in `shared`."""
    attack: Attack | None


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """A run that compiles, and one that loads what was kept; among files of another user, where that is possible."""
    folder = tmp_path_factory.mktemp("compiled_runs")
    shared = folder / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    can_attack = os.getuid() == 0 and shutil.which("cc") is not None
    attack = Attack(folder) if can_attack else None
    if attack is not None:
        attack.plant_libraries(shared)
    before = set(os.listdir(shared))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"TMPDIR": shared, "ZMQRL_CACHE": shared, "LOGNAME": VICTIM}.items():
            patch.setenv(name, str(value))
        patch.setattr(tempfile, "tempdir", None)
        runs = Runs(folder, "cartpole-dqn", 2_000, **SMALL)
        summaries = [runs.trained("single")]
        if attack is not None:
            attack.plant_packages(shared)
        summaries.append(runs.trained("sync"))
        yield Trained(summaries, shared, cache_folder(), before, attack)


@pytest.mark.long
def test_sync_has_the_bits_of_single(trained: Trained) -> None:
    check_all_are_the_same(trained.summaries, trained.cache)


@pytest.mark.long
def test_no_file_of_another_user_is_executed(trained: Trained) -> None:
    if trained.attack is None:
        pytest.skip("files of another user need root and cc")
    assert not trained.attack.executed.exists()
    assert trained.cache.parent == trained.shared / f"compiled-{os.getuid()}"
    assert trained.cache.stat().st_mode & 0o777 == 0o700


@pytest.mark.long
def test_nothing_is_left_of_compilations_and_loads(trained: Trained) -> None:
    assert set(os.listdir(trained.shared)) - trained.before == {trained.cache.parent.name}
    assert not run_folder_root().exists() or os.listdir(run_folder_root()) == []


@pytest.mark.long
def test_a_killed_compilation_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The learner is killed while it waits for a compiler that hangs."""
    called, compiler, shared = tmp_path / "called", tmp_path / "c++", tmp_path / "shared"
    compiler.write_text(f"#!/bin/sh\ntouch {called}\nexec sleep 600\n")
    compiler.chmod(0o755)
    shared.mkdir()
    for name, value in {"CXX": compiler, "TMPDIR": shared, "ZMQRL_CACHE": tmp_path / "cache"}.items():
        monkeypatch.setenv(name, str(value))
    root = run_folder_root()
    run = Run(Run.start("-m", "zmqrl", *_words(tmp_path / "run")), tmp_path / "run")
    try:
        run.wait_for(called.exists)
        assert list(root.glob("tmp-*"))
        run.kill("learner-0")
        code, out, err = run.end()
    finally:
        run.cut_short()
    assert code == 1, (out, err)
    assert os.listdir(shared) == [] and not list(root.glob("tmp-*"))


@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("unshare"), reason="mounts need root and unshare")
def test_a_full_disk_is_named_and_not_tried_again(tmp_path: Path) -> None:
    disk, run_dir = tmp_path / "disk", tmp_path / "run"
    disk.mkdir()
    mounted = 'mount -t tmpfs -o size=9m,mode=700 tmpfs "$1" && shift && exec "$@"'
    own = ["unshare", "--mount", "sh", "-c", mounted, "sh", disk, sys.executable, "-m", "zmqrl"]
    changes = {RUNTIME_VARIABLE: str(disk), "ZMQRL_CACHE": str(tmp_path / "cache")}
    words = map(str, [*own, *_words(run_dir), "--set", "restart.max=5"])
    ended = subprocess.run(list(words), env=environment(changes), capture_output=True, text=True, timeout=RUN_S)
    assert ended.returncode in (TrainingFailed.exit_code, 2), ended.stdout
    output = ended.stdout + ended.stderr
    assert f"learner.executor: {disk}: the disk is full (" in output and "MB free" in output
    assert "restarting" not in output


def _words(run_dir: Path) -> list[str]:
    """Of the command of a short run with compiled updates."""
    settings = {**SMALL, **COMPILED, "run__total_env_steps": 300}
    pairs = [f"{name.replace('__', '.')}={list(v) if isinstance(v, tuple) else v}" for name, v in settings.items()]
    sets = [word for pair in pairs for word in ("--set", pair)]
    return ["train", "cartpole-dqn", "--mode", "single", "--plain", *sets, "--run-dir", str(run_dir)]


@pytest.mark.long
def test_sac_has_the_same_bits_in_single_in_sync_and_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZMQRL_CACHE", str(tmp_path / "cache"))
    runs = Runs(tmp_path, "pendulum-sac", 1_200, network__hidden=(32, 32), algorithm__batch_size=64)
    check_all_are_the_same([runs.trained("single"), runs.trained("sync"), runs.resumed_at_half()], cache_folder())
