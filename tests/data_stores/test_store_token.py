"""Whether two hosts see one store."""

from __future__ import annotations

from pathlib import Path

from zmqrl.data_stores.store_token import remove_token, sees_token, write_token


def test_only_the_same_directory_shows_the_token(tmp_path: Path) -> None:
    token = write_token(tmp_path / "deep" / "store", "r1")
    assert sees_token(tmp_path / "deep" / "store", "r1", token)
    assert not sees_token(tmp_path / "deep" / "store", "r2", token)
    assert not sees_token(tmp_path / "deep" / "store", "r1", "another")
    assert not sees_token(tmp_path / "nowhere", "r1", token)
    write_token(tmp_path / "other", "r1")
    assert not sees_token(tmp_path / "other", "r1", token), "a directory of that name on another disk"


def test_a_new_token_takes_the_old_ones_place_and_nothing_is_left(tmp_path: Path) -> None:
    old, new = write_token(tmp_path, "r"), write_token(tmp_path, "r")
    assert (sees_token(tmp_path, "r", old), sees_token(tmp_path, "r", new)) == (False, True)
    for _ in range(2):
        remove_token(tmp_path, "r")
    assert list(tmp_path.iterdir()) == []
