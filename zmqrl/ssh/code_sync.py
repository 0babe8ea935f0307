"""`code.sync`: the user's own modules in one archive, sent once to each host, into a folder named after its sha256.

The folder goes onto the module search path there: what was `./my_envs` here is imported as `my_envs`.
"""

from __future__ import annotations

import hashlib
import io
import os
import shlex
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from zmqrl.config.sections import CodeSection
from zmqrl.errors import ConfigError, HostFailed
from zmqrl.ssh.config import Target
from zmqrl.ssh.connection import Connection
from zmqrl.ssh.shell import Finished, after_mark

MB = 1_000_000
CHECK_S, SEND_S = 30.0, 300.0
MOST_FILES = 20_000
HERE, ABSENT = "ZMQRL-CODE here ", "ZMQRL-CODE absent "

_BEGIN = """set -eu
base=$1
case $base in '~') base=$HOME ;; '~/'*) base=$HOME/${base#'~/'} ;; esac
base=$base/code
"""
_CHECK = 'if [ -d "$base/$2" ]; then echo "ZMQRL-CODE here $base/$2"; else echo "ZMQRL-CODE absent $base"; fi\n'
# Complete under another name first, renamed then: another run on this host sees the whole folder or none.
_UNPACK = """umask 077
mkdir -p "$base"
part=$(mktemp -d "$base/.part-XXXXXX")
trap 'rm -rf "$part"' EXIT
trap 'exit 1' HUP INT TERM
cat >"$part/archive"
echo "$2  $part/archive" | sha256sum -c - >/dev/null || { echo 'the archive arrived incomplete' >&2; exit 1; }
mkdir "$part/code"
tar -xf "$part/archive" -C "$part/code"
mv -T "$part/code" "$base/$2" || [ -d "$base/$2" ]
echo "ZMQRL-CODE here $base/$2"
"""


@dataclass(frozen=True)
class CodeArchive:
    """What is sent: the same files give the same bytes, whatever their times and owners are."""

    sha256: str
    content: bytes
    """A tar archive."""
    names: tuple[str, ...]
    """The files in it, sorted."""


def make_archive(code: CodeSection) -> CodeArchive | None:
    """The files of `code.sync` in one archive; None when there is nothing to send.

    Raises:
        ConfigError: They are more than `code.max_mb`, or one cannot be read.
    """
    if not code.sync:
        return None
    files = _collected(code)
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(files):
            _add(archive, name, files[name])
    data = content.getvalue()
    return CodeArchive(hashlib.sha256(data).hexdigest(), data, tuple(sorted(files)))


def _collected(code: CodeSection) -> dict[str, Path]:
    """Files by their name in the archive, while they are few and small enough."""
    files: dict[str, Path] = {}
    total, largest = 0, ("", 0)
    for sync in code.sync:
        for name, path, nbytes in _walk(Path(sync), Path(sync).name, code.exclude, ()):
            files[name] = path
            total += nbytes
            largest = max(largest, (name, nbytes), key=lambda file: file[1])
            if total > code.max_mb * MB or len(files) > MOST_FILES:
                raise ConfigError(
                    f"more than {code.max_mb:g} MB (code.max_mb) or {MOST_FILES} files; largest file: {largest[0]}, "
                    f"{largest[1] / MB:.1f} MB",
                    key=("code", "sync"),
                    value=f"{len(files)} files with {total / MB:.1f} MB, and more",
                    fix="exclude files with code.exclude, or raise code.max_mb",
                    others=(("code", "max_mb"),),
                )
    return files


def _walk(
    path: Path, name: str, exclude: tuple[str, ...], above: tuple[tuple[int, int], ...]
) -> Iterator[tuple[str, Path, int]]:
    """Regular files at and below `path`; links are followed, except back to a folder that they lie in."""
    try:
        status = path.stat()
        if stat.S_ISREG(status.st_mode):
            yield name, path, status.st_size
        if not stat.S_ISDIR(status.st_mode) or (status.st_dev, status.st_ino) in above:
            return
        entries = sorted(os.listdir(path))
    except FileNotFoundError:  # removed since it was listed, or a link to nothing
        return
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}", key=("code", "sync"), value=repr(str(path)), is_subject=True
        ) from error
    for entry in entries:
        inner = f"{name}/{entry}"
        if not any(fnmatchcase(entry, pattern) or fnmatchcase(inner, pattern) for pattern in exclude):
            yield from _walk(path / entry, inner, exclude, (*above, (status.st_dev, status.st_ino)))


def _add(archive: tarfile.TarFile, name: str, path: Path) -> None:
    """One file, without its time and owner."""
    try:
        data = path.read_bytes()
        executable = path.stat().st_mode & stat.S_IXUSR
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}", key=("code", "sync"), value=repr(str(path)), is_subject=True
        ) from error
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o755 if executable else 0o644
    archive.addfile(info, io.BytesIO(data))


def deliver(connection: Connection, archive: CodeArchive, workdir: str) -> str:
    """`find_code`, or `send_code` where it is not there."""
    return find_code(connection, archive, workdir) or send_code(connection, archive, workdir)


def find_code(connection: Connection, archive: CodeArchive, workdir: str) -> str | None:
    """The absolute path of the folder with `archive` on a host, for its `PYTHONPATH`; None: it is not there.

    Blocks for `CHECK_S` at most.

    Raises:
        HostFailed: The host does not answer, or went away.
    """
    found = connection.run(f"sh -s -- {_arguments(archive, workdir)}", CHECK_S, (_BEGIN + _CHECK).encode())
    there = _after(found, HERE)
    if there is None and _after(found, ABSENT) is None:
        raise _failed(connection.target, found, workdir)
    return there


def send_code(connection: Connection, archive: CodeArchive, workdir: str) -> str:
    """Bring `archive` to a host; returns as `find_code`.

    Blocks for `SEND_S` at most.

    Raises:
        HostFailed: The host cannot take it, or went away.
    """
    # The script is an argument here: stdin carries the archive.
    command = f"sh -c {shlex.quote(_one_line(_BEGIN + _UNPACK))} sh {_arguments(archive, workdir)}"
    sent = connection.run(command, SEND_S, archive.content)
    there = _after(sent, HERE) if sent.code == 0 else None
    if there is None:
        raise _failed(connection.target, sent, workdir)
    return there


def _arguments(archive: CodeArchive, workdir: str) -> str:
    return f"{shlex.quote(workdir)} {archive.sha256}"


def _one_line(script: str) -> str:
    """Without line ends: a csh takes none inside quotes."""
    return "; ".join(script.rstrip().split("\n"))


def _after(finished: Finished, mark: str) -> str | None:
    """The text after `mark`; login shells print other things before it."""
    lines = finished.stdout.decode(errors="replace").splitlines()
    return next((text for text in (after_mark(line, mark) for line in lines) if text is not None), None)


def _failed(target: Target, finished: Finished, workdir: str) -> HostFailed:
    text = (finished.stderr.strip() or finished.stdout.strip()).decode(errors="replace")
    tail = text.splitlines() or [f"exit code {finished.code}"]
    return HostFailed(
        target.host,
        f"the code of code.sync could not be unpacked below {workdir}: {tail[-1]}",
        f"check: {target.login_command()} 'df -h {workdir}; ls -ld {workdir}'; or set hosts.{target.host}.workdir",
    )
