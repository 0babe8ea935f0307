"""What is recorded of the user's repositories: commit, changes and untracked files, of real git."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from zmqrl.config.sections import CodeSection, Config, EnvSection
from zmqrl.run_files import user_code
from zmqrl.run_files.user_code import Snapshot, snapshots

WHO = ("-c", "user.name=x", "-c", "user.email=x@y", "-c", "commit.gpgsign=false")


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *WHO, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With one commit of `my_walk/envs.py`; it is the working directory and importable."""
    folder = tmp_path / "project"
    (folder / "my_walk").mkdir(parents=True)
    (folder / "my_walk" / "envs.py").write_text("STEP = 1\n")
    (folder / ".gitignore").write_text("*.bin\n")
    git(folder, "init", "-q", "-b", "trunk")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    return folder


def only(config: Config | None = None) -> Snapshot:
    (snapshot,) = snapshots(config or Config())
    return snapshot


def test_of_a_clean_repository(repository: Path) -> None:
    snapshot = only()
    found = snapshot.repository
    assert (found.root, found.commit, found.branch) == (str(repository), git(repository, "rev-parse", "HEAD"), "trunk")
    assert (snapshot.changes, found.untracked, found.is_diff_cut, found.error) == (b"", (), False, None)
    git(repository, "checkout", "-q", "--detach")
    assert (only().repository.branch, only().repository.error) == (None, None)
    assert snapshot.named("x.diff").repository.diff is None


def applied(repository: Path, snapshot: Snapshot, clone: Path) -> Path:
    """A clone with the commit and the changes of a record, as docs/records.md has it."""
    diff = clone.with_name("x.diff")
    diff.write_bytes(snapshot.changes)
    git(clone.parent, "clone", "-q", str(repository), str(clone))
    git(clone, "checkout", "-q", str(snapshot.repository.commit))
    git(clone, "apply", str(diff))
    return clone


def test_changes_can_be_applied_to_the_commit(repository: Path, tmp_path: Path) -> None:
    (repository / "my_walk" / "envs.py").write_text("STEP = 2\n")
    (repository / "staged.py").write_text("x = 1\n")
    git(repository, "add", "staged.py")
    clone = applied(repository, only(), tmp_path / "clone")
    assert (clone / "my_walk" / "envs.py").read_text() == "STEP = 2\n"
    assert (clone / "staged.py").read_text() == "x = 1\n"


@pytest.mark.parametrize(
    "setting",
    [
        "diff.noprefix=true",
        "diff.mnemonicPrefix=true",
        "diff.context=0",
        "diff.external=false",
        "diff.py.textconv=false",
        "color.diff=always",
        "color.ui=always",
    ],
)
def test_settings_of_the_user_change_no_record(repository: Path, tmp_path: Path, setting: str) -> None:
    lines = [f"x{n} = {n}\n" for n in range(20)]
    (repository / "top.py").write_text("".join(lines))
    (repository / ".gitattributes").write_text("*.py diff=py\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "second")
    git(repository, "config", *setting.split("="))
    lines[10] = "x10 = 100\n"
    (repository / "top.py").write_text("".join(lines))
    clone = applied(repository, only(), tmp_path / "clone")
    assert (clone / "top.py").read_text() == "".join(lines)


def test_binary_files_are_named_and_the_other_changes_can_be_applied(repository: Path, tmp_path: Path) -> None:
    names = ["moved.dat", "policy é.dat", ":(top)odd.dat"]
    for name in names:
        (repository / name).write_bytes(bytes(range(256)))
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "second")
    (repository / "my_walk" / "envs.py").write_text("STEP = 2\n")
    git(repository, "mv", "moved.dat", "there.dat")
    for name in ("there.dat", *names[1:]):
        (repository / name).write_bytes(bytes(range(256)) + b"\x00")
    snapshot = only()
    clone = applied(repository, snapshot, tmp_path / "clone")
    assert (clone / "my_walk" / "envs.py").read_text() == "STEP = 2\n"
    assert set(snapshot.repository.binary) == {*names, "there.dat"}
    assert snapshot.repository.binary_left_out == 0
    git(repository, "checkout", "-q", "my_walk")
    snapshot = only()
    assert snapshot.named("x.diff").repository.diff is None, "nothing else was changed"
    assert len(snapshot.repository.binary) == 4


def test_untracked_files_are_listed_and_ignored_ones_are_not(repository: Path) -> None:
    (repository / "notes.txt").write_text("secret")
    (repository / "big.bin").write_text("x")
    (repository / "runs" / "a").mkdir(parents=True)
    (repository / "runs" / "a" / "metrics.jsonl").write_text("")
    snapshot = only()
    assert snapshot.repository.untracked == ("notes.txt", "runs/")
    assert b"secret" not in snapshot.changes


def test_large_changes_and_long_lists_are_cut(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_code, "MOST_DIFF_BYTES", 1000)
    monkeypatch.setattr(user_code, "MOST_LISTED", 3)
    (repository / "my_walk" / "envs.py").write_text("x = 1\n" * 100_000)
    for name in "abcde":
        (repository / name).write_text("")
    snapshot = only()
    assert (len(snapshot.changes), snapshot.repository.is_diff_cut) == (1000, True)
    assert (snapshot.repository.untracked, snapshot.repository.untracked_left_out) == (("a", "b", "c"), 2)


def test_the_repository_of_the_modules_goes_before_the_working_directory(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert snapshots(Config()) == []
    assert only(Config(env=EnvSection(id="my_walk.envs:Walk"))).repository.root == str(repository)
    wrapped = EnvSection(wrappers=({"my_walk.envs:Slow": {"by": 2}},))
    assert only(Config(env=wrapped)).repository.root == str(repository)
    assert only(Config(code=CodeSection(sync=(str(repository / "my_walk"),)))).repository.root == str(repository)
    assert snapshots(Config(env=EnvSection(id="no_such_package:X"))) == []


def test_changes_are_left_out_if_the_configuration_forbids_them(repository: Path) -> None:
    (repository / "my_walk" / "envs.py").write_text("STEP = 2\n")
    snapshot = only(Config(code=CodeSection(record_diff=False)))
    assert (snapshot.changes, snapshot.repository.commit) == (b"", git(repository, "rev-parse", "HEAD"))


def test_without_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "a.py").write_text("")
    monkeypatch.chdir(tmp_path)
    found = only().repository
    assert (found.commit, found.untracked, found.error) == (None, ("a.py",), None)


def test_a_git_that_hangs_or_is_missing_leaves_its_part_out(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    fake, real = tmp_path / "bin" / "git", shutil.which("git")
    monkeypatch.setattr(user_code, "GIT_S", 0.5)
    monkeypatch.setenv("PATH", str(fake.parent), prepend=None)
    missing = only().repository
    assert missing.commit is None and missing.error is not None and "No such file" in missing.error
    fake.write_text("#!/bin/sh\nexec /bin/sleep 600\n")
    fake.chmod(0o755)
    hanging = only().repository
    assert (hanging.commit, hanging.error) == (None, "git rev-parse: no answer within 0.5 s")
    fake.write_text(f'#!/bin/sh\ncase "$*" in *diff*) exec /bin/sleep 600;; esac\nexec {real} "$@"\n')
    (repository / "new.py").write_text("")
    slow = only().repository
    assert (slow.diff, slow.error) == (None, "git diff: no answer within 0.5 s")
    assert slow.commit is not None and slow.untracked == ("new.py",), "each part is recorded if it can be read"


def test_a_diff_that_git_refuses_is_an_error_and_not_empty(repository: Path) -> None:
    (repository / ".gitattributes").write_text("*.dat filter=missing\n")
    (repository / "weights.dat").write_text("1\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "second")
    git(repository, "config", "filter.missing.clean", "no-such-command")
    git(repository, "config", "filter.missing.required", "true")
    (repository / "weights.dat").write_text("2\n")
    snapshot = only()
    assert (snapshot.changes, snapshot.repository.error) == (
        b"",
        "git diff: fatal: weights.dat: clean filter 'missing' failed",
    )


@pytest.mark.whole
def test_many_warnings_do_not_keep_git_from_answering(repository: Path) -> None:
    """One per file whose ends of lines would change: more than a pipe holds."""
    names = [f"{n:03}-{'x' * 100}.py" for n in range(600)]
    for name in names:
        (repository / name).write_text("1\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "second")
    git(repository, "config", "core.autocrlf", "true")
    for name in names:
        (repository / name).write_text("2\n")
    snapshot = only()
    assert snapshot.repository.error is None
    assert snapshot.changes.count(b"\n+2\n") == len(names)
