"""What is kept of a compilation is of this user and whole, or it is not loaded; where it is compiled is private."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.learning.reports import Reports
from tests.support.raising import raises
from tests.support.running import environment
from tests.support.waiting import WAIT_S
from zmqrl.errors import ConfigError
from zmqrl.learning import package_cache
from zmqrl.learning.package_cache import (
    REDIRECTED,
    cache_folder,
    compilation_folder,
    keep_package,
    read_package,
)
from zmqrl.wire.kept_files import PART, PART_S
from zmqrl.wire.runtime_folder import RUNTIME_VARIABLE

ANOTHER_USER = 40_002
PACKAGE = bytes(range(256)) * 64
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="a file of another user needs root")
needs_mounts = pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("unshare"), reason="mounts need root and unshare"
)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A package that is kept."""
    path = tmp_path / "cache" / "compiled" / "machine" / "key.pt2"
    reports = Reports()
    keep_package(path, PACKAGE, reports)
    assert read_package(path, reports) == PACKAGE and not reports
    return path


def test_packages_are_kept_privately(kept: Path) -> None:
    assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert kept.parent.parent.stat().st_mode & 0o777 == 0o700
    assert os.listdir(kept.parent) == ["key.pt2"]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda content: b"", id="emptied"),
        pytest.param(lambda content: content[:20], id="cut within the checksum"),
        pytest.param(lambda content: content[:-1], id="cut"),
        pytest.param(lambda content: content + b"\0", id="longer"),
        pytest.param(lambda content: bytes(len(content)), id="zeros"),
        pytest.param(lambda content: content[:4096] + bytes(4096) + content[8192:], id="a page of zeros"),
        *(
            pytest.param(
                lambda content, at=at: content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :],
                id=f"bit in byte {at}",
            )
            for at in (0, 31, 32, 9_999, len(PACKAGE) + 31)
        ),
    ],
)
def test_a_damaged_package_is_named_and_not_loaded(kept: Path, damage: Callable[[bytes], bytes]) -> None:
    kept.write_bytes(damage(kept.read_bytes()))
    reports = Reports()
    assert read_package(kept, reports) is None
    assert reports == [(f"{kept} is damaged: its checksum differs", "the update is compiled again")]
    keep_package(kept, PACKAGE, reports)
    assert read_package(kept, reports) == PACKAGE and len(reports) == 1


def test_the_package_of_another_update_is_not_loaded(kept: Path) -> None:
    other = kept.with_name("other.pt2")
    shutil.copy(kept, other)
    assert read_package(other, reports := Reports()) is None
    assert len(reports) == 1


def test_a_power_cut_leaves_the_whole_package_or_none(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    keep_package(kept, PACKAGE, Reports())
    assert synced == [kept.stat().st_size]


def test_files_of_processes_that_were_killed_are_removed(kept: Path) -> None:
    old, new = kept.with_name(f"old{PART}"), kept.with_name(f"new{PART}")
    for path in (old, new):
        path.touch()
    then = old.stat().st_mtime - PART_S - 60
    os.utime(old, (then, then))
    keep_package(kept, PACKAGE, Reports())
    assert new.exists() and not old.exists()


def test_a_file_that_others_can_write_is_not_loaded(kept: Path) -> None:
    kept.chmod(0o622)
    assert read_package(kept, Reports()) is None


def test_what_is_not_a_file_is_not_loaded(tmp_path: Path) -> None:
    """In a folder that others can write to: a pipe, which would be waited for, a folder, a link."""
    pipe, folder, link = (tmp_path / f"{name}.pt2" for name in ("pipe", "folder", "link"))
    os.mkfifo(pipe)
    folder.mkdir()
    link.symlink_to(folder)
    assert [read_package(path, Reports()) for path in (pipe, folder, link)] == [None, None, None]


@needs_root
def test_a_file_of_another_user_is_not_loaded(kept: Path) -> None:
    """Also where it was put into the folder of this one, with the right checksum."""
    os.chown(kept, ANOTHER_USER, ANOTHER_USER)
    assert read_package(kept, Reports()) is None


@needs_root
def test_in_a_shared_folder_each_user_has_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that another user has taken first, with a folder or a link, is left to that user."""
    monkeypatch.setenv("ZMQRL_CACHE", str(tmp_path))
    tmp_path.chmod(0o1777)
    first, own = cache_folder(), tmp_path / f"compiled-{os.getuid()}"
    assert first.parent == tmp_path / "compiled"
    first.mkdir(parents=True)
    for path in (first, first.parent):
        os.chown(path, ANOTHER_USER, ANOTHER_USER)
    assert cache_folder() == own / first.name
    shutil.rmtree(first.parent)
    first.parent.symlink_to(tmp_path / "elsewhere")
    assert cache_folder() == own / first.name
    keep_package(cache_folder() / "key.pt2", PACKAGE, reports := Reports())
    assert not reports and not (tmp_path / "elsewhere").exists()


def test_a_cache_that_is_not_private_is_not_used(kept: Path) -> None:
    kept.parent.chmod(0o777)
    before = kept.read_bytes()
    keep_package(kept, PACKAGE[1:], reports := Reports())
    ((cause, done),) = reports
    assert str(kept.parent) in cause and "not private" in cause and "not kept" in done
    assert kept.read_bytes() == before


def test_a_cache_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "compiled" / "machine" / "key.pt2"
    keep_package(path, PACKAGE, reports := Reports())
    assert reports == [
        (f"{path.parent}: Not a directory", "the compiled update is not kept: each start compiles it again")
    ]
    assert read_package(path, reports) is None and len(reports) == 1


def test_a_user_without_a_home_directory_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ZMQRL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert cache_folder().is_relative_to("/~/.cache/zmqrl")


ON_A_DISK = """
import json, os, sys
from pathlib import Path
from zmqrl.errors import ConfigError
from zmqrl.learning.package_cache import check_disk, compilation_folder, keep_package
reports = []
path = Path(sys.argv[1], "compiled", "machine", "key.pt2")
keep_package(path, os.urandom(2 << 20), lambda *words: reports.append(words))
for act in (check_disk, lambda folder: (folder / "object").write_bytes(bytes(2 << 20))):
    try:
        with compilation_folder() as folder:
            act(folder)
    except ConfigError as error:
        reports.append(str(error))
print(json.dumps(reports))
"""


def on_a_disk(disk: Path, options: str) -> list[str]:
    """What is reported when cache and runtime folder are on a disk that is mounted with `options`."""
    disk.mkdir(mode=0o700)
    mounted = f'mount -t tmpfs -o {options} tmpfs "$1" && exec "$0" -c "$2" "$1"'
    command = ["unshare", "--mount", "sh", "-c", mounted, sys.executable, str(disk), ON_A_DISK]
    ended = subprocess.run(command, env=environment({RUNTIME_VARIABLE: str(disk)}), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    loaded: list[str] = json.loads(ended.stdout)
    return loaded


@needs_mounts
def test_a_full_disk_is_named_with_its_free_space(tmp_path: Path) -> None:
    (kept, done), before, meanwhile = on_a_disk(tmp_path / "disk", "size=1m,mode=700")
    assert kept.startswith(f"{tmp_path}/disk/compiled/machine: the disk is full (") and "MB free" in kept
    assert "not kept" in done
    for message in (before, meanwhile):
        assert message.startswith(f"learner.executor: {tmp_path}/disk: the disk is full (") and "MB free" in message
        assert f"set ${RUNTIME_VARIABLE}" in message


@needs_mounts
def test_a_disk_without_execution_is_named(tmp_path: Path) -> None:
    message = on_a_disk(tmp_path / "disk", "size=100m,mode=700,noexec")[0]
    assert message.startswith(f"learner.executor: {tmp_path}/disk is mounted with noexec; set ${RUNTIME_VARIABLE}")


def test_libraries_use_the_folder_of_the_compilation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUNTIME_VARIABLE, str(tmp_path / "root"))
    monkeypatch.setenv("TMPDIR", "/usual")
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    before = tempfile.gettempdir()
    with compilation_folder() as folder:
        assert {os.environ[name] for name in REDIRECTED} == {tempfile.gettempdir()} == {str(folder)}
        assert folder.is_relative_to(tmp_path / "root")
    assert os.environ["TMPDIR"] == "/usual" and "TRITON_CACHE_DIR" not in os.environ
    assert tempfile.gettempdir() == before and not folder.exists()


def test_a_nearly_full_disk_is_the_cause_of_any_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUNTIME_VARIABLE, str(tmp_path / "root"))
    monkeypatch.setattr(package_cache, "LEAST_BYTES", 1 << 60)
    with (
        raises(
            ConfigError,
            key=("learner", "executor"),
            fix="set $ZMQRL_RUNTIME_DIR to a folder on another disk, or start a new run with learner.executor: eager",
        ),
        compilation_folder(),
    ):
        raise RuntimeError("unexpected pos 171008 vs 170787")


def test_a_file_of_another_writer_may_be_finished_while_the_folder_is_read(tmp_path: Path) -> None:
    """A name that is listed, and is gone when its age is read: here a link to nothing."""
    kept = tmp_path / "machine" / "key.pt2"
    keep_package(kept, b"first", print)
    kept.with_name(f"gone{PART}").symlink_to(tmp_path / "nowhere")
    reports: list[object] = []
    keep_package(kept, b"second", lambda *words: reports.append(words))
    assert read_package(kept, print) == b"second" and reports == []


WRITER = """
import sys
from pathlib import Path
from zmqrl.learning.package_cache import keep_package, read_package
path, package = Path(sys.argv[1]), sys.argv[2].encode() * (1 << 20)
for _ in range(30):
    keep_package(path, package, lambda *words: sys.exit(str(words)))
    found = read_package(path, lambda *words: sys.exit(str(words)))
    assert found is not None and len(set(found)) == 1
"""


@pytest.mark.whole
def test_two_processes_share_a_cache(tmp_path: Path) -> None:
    """Each writes another package for the same update: a reader has one of them, whole."""
    path = tmp_path / "cache" / "compiled" / "machine" / "key.pt2"
    commands = [[sys.executable, "-c", WRITER, str(path), letter] for letter in "ab"]
    writers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    for writer in writers:
        _, error = writer.communicate(timeout=WAIT_S)
        assert writer.returncode == 0, error
    assert os.listdir(path.parent) == ["key.pt2"]
