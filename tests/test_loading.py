"""What a process of zmqrl sets before it imports."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.waiting import WAIT_S
from zmqrl.loading import (
    PYGAME_BANNER,
    SAFE_PATH,
    SPIN,
    THREAD_VARIABLES,
    UNTIL_STARTED,
    importing_environment,
    lazy,
    limit_threads,
    loading,
)

THREADS = "import os; print(len(os.listdir('/proc/self/task')))"


def environment() -> Mapping[str, str]:
    """Without the variables that limit the threads of numpy."""
    return {name: value for name, value in os.environ.items() if name not in THREAD_VARIABLES}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="with one core numpy starts no threads")
def test_the_command_starts_no_blas_threads() -> None:
    code = f"from zmqrl.cli.main import main; import sys; sys.argv[1:] = ['presets']\ntry: main()\nfinally: {THREADS}"
    said = subprocess.check_output([sys.executable, "-c", code], env=environment(), text=True, timeout=WAIT_S)
    assert said.splitlines()[-1] == "1"


def test_pygame_prints_no_greeting_in_a_process_of_zmqrl() -> None:
    env = {name: value for name, value in os.environ.items() if name != PYGAME_BANNER}
    for prepared, lines in (("", 2), ("from zmqrl.loading import prepare; prepare(); ", 0)):
        code = [sys.executable, "-W", "ignore", "-c", f"{prepared}import pygame"]
        assert len(subprocess.check_output(code, env=env, text=True, timeout=WAIT_S).splitlines()) == lines


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="with one core numpy starts no threads")
def test_an_agent_starts_no_blas_threads_before_it_has_its_boot() -> None:
    command = [sys.executable, "-m", "zmqrl.entry", "zmqrl.agent", "RUN", "0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline()  # it has imported what makes a key
        assert len(list(Path(f"/proc/{process.pid}/task").iterdir())) == 1
        process.stdin.close()
        process.wait(WAIT_S)


SLOW = {"numpy", "annotated_types", "importlib.metadata"}
"""75, 4 and 12 ms of a start."""


@pytest.mark.parametrize(
    "module", ["agent.process", "broker.process", "agent.reaper", "orchestrators.handshake", "launch.requests"]
)
def test_a_process_that_computes_nothing_imports_nothing_slow(module: str) -> None:
    """A run with 40 hosts has 40 agents and, at its end, 40 reapers: with numpy each takes twice the time to start."""
    code = f"import sys, zmqrl.{module}; assert not {SLOW} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=WAIT_S).returncode == 0


def test_a_command_that_reads_a_configuration_imports_nothing_slow() -> None:
    """Of what it needs until the run is planned: the kinds are validated, and no id was registered here."""
    code = (
        "import sys, zmqrl.cli.start.train, zmqrl.launch.launcher, zmqrl.launch.start\n"
        "from zmqrl.planning import configure, own_code\n"
        "own_code.check_own_code(configure.load_config('cartpole-ppo'))\n"
        "assert not {'numpy', 'gymnasium'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=WAIT_S).returncode == 0


def test_libraries_that_are_imported_later_start_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, "x")
    monkeypatch.delenv(SPIN[0], raising=False)
    limit_threads()
    assert {os.environ[name] for name in THREAD_VARIABLES} == {"1"}
    assert os.environ[SPIN[0]] == SPIN[1]
    monkeypatch.setenv(SPIN[0], "7")
    limit_threads()
    assert os.environ[SPIN[0]] == "7", "the user's own"


def test_what_is_loaded_is_not_searched_for_garbage() -> None:
    frozen = gc.get_freeze_count()
    try:
        with loading():
            assert not gc.isenabled()
            kept = [[] for _ in range(1000)]  # type: list[list[object]]
            with loading():
                pass
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() >= frozen + len(kept)
    finally:
        gc.unfreeze()


def test_garbage_is_searched_for_again_after_an_import_that_failed() -> None:
    try:
        with pytest.raises(ImportError), loading():
            raise ImportError
        assert gc.isenabled()
    finally:
        gc.unfreeze()


def test_a_lazy_module_is_imported_at_its_first_use() -> None:
    code = (
        "import sys; from zmqrl.loading import lazy; m = lazy('colorsys'); hasattr(m, '__wrapped__'); repr(m)\n"
        "assert 'colorsys' not in sys.modules\n"
        "assert m.rgb_to_hsv(0, 0, 0) == (0, 0, 0) and m.rgb_to_hsv is sys.modules['colorsys'].rgb_to_hsv"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=WAIT_S).returncode == 0
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = lazy("colorsys").no_such_name
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        _ = lazy("no_such_module").name


def test_a_lazy_module_becomes_a_plain_one_that_has_what_is_imported_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python finds the attributes of a plain module without a call: the bus reads some for each segment."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "xml"]:
        monkeypatch.delitem(sys.modules, name)
    found = lazy("xml")
    assert "xml" not in sys.modules
    with pytest.raises(AttributeError, match="nothing"):
        _ = found.nothing
    import xml.dom

    assert type(found) is ModuleType
    assert found.dom is xml.dom


def test_own_folders_come_after_what_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a child, which `python -m` starts; what the child starts has its environment again."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv(SAFE_PATH, raising=False)
    (tmp_path / "queue.py").write_text("raise SystemExit('hidden')\n")
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit('hidden')\n")
    environment = importing_environment()
    assert environment[SAFE_PATH] == UNTIL_STARTED
    code = f"""import sys
from zmqrl.loading import add_own_paths
add_own_paths({str(tmp_path)!r}, "/of/the/directory")
import os, queue
print(sys.path[-2:], {SAFE_PATH!r} in os.environ)"""
    command = [sys.executable, "-c", code]
    text = subprocess.check_output(command, env=environment, cwd=tmp_path, text=True, timeout=WAIT_S)
    assert text.strip() == f"{[str(tmp_path), '/of/the/directory']} False"
    monkeypatch.setenv(SAFE_PATH, "1")
    assert importing_environment()[SAFE_PATH] == "1", "the user's own"
