"""The command line in this process (`zmqrl`), in an empty directory, and one short finished run."""

from __future__ import annotations

import fcntl
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import RUN, Command, Ended
from zmqrl.cli.main import main
from zmqrl.errors import ZmqrlError


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("zmqrl.cli.run.find_run.agents", lambda: iter(()))  # other runs are not this test's business
    return tmp_path


@pytest.fixture
def zmqrl(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """The command as a shell would see it: exit code, stdout, stderr."""
    before = signal.getsignal(signal.SIGTERM)

    def run(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["zmqrl", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        error = ended.value.__context__
        return Ended(int(ended.value.code or 0), out, err, error if isinstance(error, ZmqrlError) else None)

    yield run
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="package")
def finished(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Two seeds of a short run in single mode, `seed-1` and `seed-2`. Tests of all test processes only read it."""
    own = tmp_path_factory.getbasetemp()
    folder = (own if worker_id == "master" else own.parent) / "finished" / "runs"
    folder.parent.mkdir(exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "seed-2" / "summary.json").is_file():
            _train_two_seeds(folder)
    return folder


def _train_two_seeds(folder: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["zmqrl", *RUN, "--seeds", "2", "--run-dir", str(folder)])
        patch.setattr(sys, "path", [*sys.path])
        with pytest.raises(SystemExit) as ended:
            main()
    signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 0
