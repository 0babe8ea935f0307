"""The user's code as a run used it: commit, uncommitted changes and untracked files of its git repositories."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from zmqrl.config.codec import replace, to_json
from zmqrl.config.sections import Config

OWN = "zmqrl"
MOST_DIFF_BYTES = 1_000_000
MOST_LISTED_BYTES = 200_000
MOST_LISTED = 200
MOST_REPOSITORIES = 4
GIT_S = 5.0
"""Time limit of each git command; one that takes longer leaves its part out, with an `error`."""
ENVIRONMENT = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_DIFF_OPTS": "", "LC_ALL": "C"}
DIFF = (
    *("diff", "--no-ext-diff", "--no-textconv", "--no-color"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--unified=3", "--submodule=short"),
)
"""For `git apply`, whatever the user's git is configured to show."""
BINARY = b"-\t-\t"
"""Before the name of a binary file in `--numstat`."""


@dataclass(frozen=True)
class Repository:
    """A git repository at the start of an attempt."""

    root: str
    commit: str | None
    """None: it has none yet, or git refuses to read it (`error`)."""
    branch: str | None = None
    error: str | None = None
    """Which git commands had no result, and why: their fields are empty."""
    diff: str | None = None
    """File with the changes since the commit, next to this record; None: nothing changed, or they are not recorded."""
    is_diff_cut: bool = False
    """The changes exceed `MOST_DIFF_BYTES`: the file has their beginning."""
    binary: tuple[str, ...] = ()
    """Changed binary files: the first `MOST_LISTED`. Their changes are not recorded."""
    binary_left_out: int = 0
    untracked: tuple[str, ...] = ()
    """Files and folders that git does not know: the first `MOST_LISTED`. Their content is not recorded."""
    untracked_left_out: int = 0


@dataclass(frozen=True)
class Snapshot:
    """A repository, and its changes."""

    repository: Repository
    changes: bytes = b""

    def named(self, diff: str) -> Snapshot:
        """Snapshot with the name of the file that `changes` are written to."""
        return replace(self, repository=replace(self.repository, diff=diff)) if self.changes else self


def snapshots(config: Config) -> list[Snapshot]:
    """Snapshots of the repositories that hold the user's own modules; without any, that of the working directory."""
    roots = _roots(_folders(config)) or _roots((Path.cwd(),))
    return [_snapshot(root, config.code.record_diff) for root in roots[:MOST_REPOSITORIES]]


def _roots(folders: Iterable[Path]) -> list[Path]:
    return list(dict.fromkeys(root for folder in folders if (root := _root(folder)) is not None))


def _folders(config: Config) -> Iterator[Path]:
    """Folders of `code.sync`, and of the modules that the configuration names. Nothing is imported."""
    for path in config.code.sync:
        yield Path(path) if Path(path).is_dir() else Path(path).parent
    for name in dict.fromkeys(module.partition(".")[0] for module in _modules(to_json(config))):
        with contextlib.suppress(ImportError, ValueError):  # `__main__` has no specification
            spec = importlib.util.find_spec(name)
            if spec is not None and name != OWN:
                package = list(spec.submodule_search_locations or ())
                yield Path(package[0]) if package else Path(str(spec.origin)).parent


def _modules(value: Any) -> Iterator[str]:
    """The modules of all dotted paths `a.b:Name` in a configuration."""
    if isinstance(value, str):
        module, colon, name = value.partition(":")
        if colon and name.isidentifier() and all(part.isidentifier() for part in module.split(".")):
            yield module
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from (*_modules(key), *_modules(inner))
    elif isinstance(value, Sequence):
        for inner in value:
            yield from _modules(inner)


def _root(folder: Path) -> Path | None:
    """The top folder of its repository; also of one that git refuses to read."""
    folder = folder.absolute()
    return next((path for path in (folder, *folder.parents) if (path / ".git").exists()), None)


def _snapshot(root: Path, with_diff: bool) -> Snapshot:
    errors: list[str] = []
    commit = branch = None
    untracked: list[bytes] = []
    binary: list[bytes] = []
    changes = b""
    with _kept(errors):
        commit = _git(root, "rev-parse", "-q", "--verify", "HEAD").decode().strip() or None
        branch = _git(root, "symbolic-ref", "--short", "-q", "HEAD").decode(errors="replace").strip() or None
    if errors:
        return Snapshot(Repository(str(root), commit, error=errors[0]))
    with _kept(errors):
        listed = ("ls-files", "--others", "--exclude-standard", "--directory", "-z")
        untracked = [name for name in _git(root, *listed, most=MOST_LISTED_BYTES).split(b"\0") if name]
    with _kept(errors):
        if with_diff and commit is not None:
            changes, binary = _changes(root)
    repository = Repository(
        str(root),
        commit,
        branch,
        error="; ".join(errors) or None,
        is_diff_cut=len(changes) > MOST_DIFF_BYTES,
        binary=_shown(binary),
        binary_left_out=max(0, len(binary) - MOST_LISTED),
        untracked=_shown(untracked),
        untracked_left_out=max(0, len(untracked) - MOST_LISTED),
    )
    return Snapshot(repository, changes[:MOST_DIFF_BYTES])


def _shown(names: Sequence[bytes]) -> tuple[str, ...]:
    return tuple(name.decode(errors="replace") for name in names[:MOST_LISTED])


def _changes(root: Path) -> tuple[bytes, list[bytes]]:
    """Diff of text files since the commit, `MOST_DIFF_BYTES` and one byte at most; and the changed binary files."""
    counts = _git(root, *DIFF, "--numstat", "--no-renames", "-z", "HEAD", most=MOST_DIFF_BYTES)
    binary = [line.removeprefix(BINARY) for line in counts.split(b"\0") if line.startswith(BINARY)]
    paths = (b":(top)", *(b":(top,exclude,literal)" + name for name in binary))
    return _git(root, *DIFF, "HEAD", "--", *paths, most=MOST_DIFF_BYTES + 1), binary


class _GitFailed(Exception):
    """Which git command has no result, and why."""


@contextlib.contextmanager
def _kept(errors: list[str]) -> Iterator[None]:
    """A git command that fails inside ends the block and is added to `errors`."""
    try:
        yield
    except _GitFailed as error:
        errors.append(str(error))


def _git(root: Path, *arguments: str | bytes, most: int = 4096) -> bytes:
    """The first `most` bytes of the output of a git command; empty for a silent exit code 1, which means no (`-q`)."""
    command: list[str | bytes] = ["git", "-C", str(root), *arguments]
    try:
        with tempfile.TemporaryFile() as errors:  # a pipe that is full of warnings would block git
            output, code = _read(command, errors, most)
            errors.seek(0)
            lines = errors.read().decode(errors="replace").splitlines()
    except OSError as error:
        raise _GitFailed(f"git {arguments[0]!s}: {error}") from error
    if len(output) == most or code == 0 or (code == 1 and not lines):
        return output
    fatal = [line for line in lines if line.startswith("fatal: ")]
    cause = next(iter([*fatal, *lines[-1:]]), f"exit code {code}")
    raise _GitFailed(f"git {arguments[0]!s}: {f'no answer within {GIT_S:g} s' if code == -signal.SIGKILL else cause}")


def _read(command: Sequence[str | bytes], errors: IO[bytes], most: int) -> tuple[bytes, int]:
    """At most `most` bytes of its output, and its exit code; the command is killed after them, and after `GIT_S`."""
    environment = {**os.environ, **ENVIRONMENT}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=environment
    ) as process:
        limit = threading.Timer(GIT_S, process.kill)
        limit.start()
        assert process.stdout is not None
        output = process.stdout.read(most)
        if len(output) == most:
            process.kill()
        code = process.wait()
        limit.cancel()
    return output, code
