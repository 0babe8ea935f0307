"""What is packed: the same files give the same bytes, only what is wanted, and never too much."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from tests.support.raising import raises
from zmqrl.config.sections import CodeSection
from zmqrl.errors import ConfigError
from zmqrl.ssh.code_sync import CodeArchive, make_archive


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package = tmp_path / "my_envs"
    (package / "__pycache__").mkdir(parents=True)
    (package / "data").mkdir()
    for name, text in (("__init__.py", ""), ("walker.py", "x = 1\n"), ("data/map.txt", "m"), ("big.pt", "w" * 999)):
        (package / name).write_text(text)
    (package / "__pycache__" / "walker.pyc").write_text("x")
    (tmp_path / "tool.py").write_text("y = 2\n")
    return tmp_path


def packed(*sync: Path, **options: object) -> CodeArchive:
    found = make_archive(CodeSection(sync=tuple(map(str, sync)), **options))  # type: ignore[arg-type]
    assert found is not None
    return found


def test_what_is_in_it(folder: Path) -> None:
    made = packed(folder / "my_envs", folder / "tool.py")
    assert made.names == ("my_envs/__init__.py", "my_envs/data/map.txt", "my_envs/walker.py", "tool.py")
    with tarfile.open(fileobj=io.BytesIO(made.content)) as archive:
        assert tuple(archive.getnames()) == made.names
        file = archive.extractfile("my_envs/walker.py")
        assert file is not None and file.read() == b"x = 1\n"


def test_nothing_to_send() -> None:
    assert make_archive(CodeSection()) is None


def test_times_order_and_owners_do_not_count_and_content_does(folder: Path) -> None:
    before = packed(folder / "my_envs", folder / "tool.py")
    os.utime(folder / "my_envs" / "walker.py", (1, 1))
    (folder / "my_envs" / "walker.py").chmod(0o600)
    assert packed(folder / "tool.py", folder / "my_envs") == before
    (folder / "my_envs" / "walker.py").write_text("x = 2\n")
    assert packed(folder / "my_envs", folder / "tool.py").sha256 != before.sha256


def test_exclude_takes_names_and_paths(folder: Path) -> None:
    made = packed(folder / "my_envs", exclude=("my_envs/data/*", "__pycache__"))
    assert made.names == ("my_envs/__init__.py", "my_envs/big.pt", "my_envs/walker.py")


def test_links_are_followed_but_not_in_circles_and_pipes_are_passed_by(folder: Path) -> None:
    package = folder / "my_envs"
    (package / "alias.py").symlink_to("walker.py")
    (package / "round").symlink_to(package)
    (package / "nothing.py").symlink_to("gone.py")
    os.mkfifo(package / "pipe")
    (folder / "linked").symlink_to(package)
    assert set(packed(folder / "linked").names) == {
        "linked/__init__.py", "linked/alias.py", "linked/data/map.txt", "linked/walker.py",
    }  # fmt: skip


def test_too_much_is_refused_with_the_largest_file(folder: Path) -> None:
    (folder / "my_envs" / "video.mp4").write_bytes(bytes(1_500_000))
    assert packed(folder / "my_envs", max_mb=1.6)
    with raises(
        ConfigError,
        key=("code", "sync"),
        value="3 files with 1.5 MB, and more",
        what="more than 1.2 MB (code.max_mb) or 20000 files; largest file: my_envs/video.mp4, 1.5 MB",
    ):
        packed(folder / "my_envs", max_mb=1.2)


def test_what_cannot_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)  # root may read everything
    with raises(ConfigError, key=("code", "sync"), value=repr(str(folder / "tool.py"))):
        packed(folder / "tool.py")
