"""Whether two hosts see one store."""

from __future__ import annotations

from pathlib import Path

from zmqrl.data_stores.directory import DirectoryStore


def test_only_the_same_directory_shows_the_token(tmp_path: Path) -> None:
    token = _at(tmp_path / "deep" / "store").leave_token("r1")
    assert _at(tmp_path / "deep" / "store").sees_token("r1", token)
    assert not _at(tmp_path / "deep" / "store").sees_token("r2", token)
    assert not _at(tmp_path / "deep" / "store").sees_token("r1", "another")
    assert not _at(tmp_path / "nowhere").sees_token("r1", token)
    _at(tmp_path / "other").leave_token("r1")
    assert not _at(tmp_path / "other").sees_token("r1", token), "a directory of that name on another disk"


def test_a_new_token_takes_the_old_ones_place_and_nothing_is_left(tmp_path: Path) -> None:
    old, new = _at(tmp_path).leave_token("r"), _at(tmp_path).leave_token("r")
    assert (_at(tmp_path).sees_token("r", old), _at(tmp_path).sees_token("r", new)) == (False, True)
    for _ in range(2):
        _at(tmp_path).remove_token("r")
    assert list(tmp_path.iterdir()) == []


def _at(folder: Path) -> DirectoryStore:
    return DirectoryStore(str(folder), 2)
