"""Files on another host, over sftp. A leading `~/` is the login's home."""

from __future__ import annotations

import contextlib
import posixpath
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from zmqrl.errors import HostFailed

if TYPE_CHECKING:
    import paramiko

ANSWER_S = 30.0
CHUNK = 1 << 20


class RemoteFiles:
    """One sftp session. Use by `with RemoteFiles(host, opening) as files`; every failure is a HostFailed."""

    def __init__(self, host: str, opening: Callable[[], paramiko.SFTPClient]) -> None:
        """`opening` is called at once."""
        self._host = host
        with self._named("sftp"):
            self._client = opening()
            self._client.get_channel().settimeout(ANSWER_S)  # type: ignore[union-attr]

    def __enter__(self) -> RemoteFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def put(self, content: bytes | Path, path: str, mode: int) -> None:
        """Write a file at once: never seen half written, and never with a wider mode. Its folders are made."""
        with self._named(path):
            path = from_home(path)
            self._make_folder(posixpath.dirname(path))
            temporary = f"{path}.{secrets.token_hex(4)}.tmp"
            try:
                with self._client.open(temporary, "wx") as remote:
                    remote.chmod(mode)
                    remote.set_pipelined(True)
                    for chunk in _chunks(content):
                        remote.write(chunk)
                self._client.posix_rename(temporary, path)
            except BaseException:
                with contextlib.suppress(OSError, EOFError):
                    self._client.remove(temporary)
                raise

    def get(self, path: str, target: Path) -> None:
        """Copy a file to here; `target` appears whole or not at all."""
        temporary = target.with_name(f"{target.name}.{secrets.token_hex(4)}.tmp")
        try:
            with self._named(path):
                self._client.get(from_home(path), str(temporary))
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

    def remove_tree(self, path: str) -> None:
        """Remove a folder and all in it; links are removed, not followed. One that is not there is removed already."""
        normalised = posixpath.normpath(from_home(path))
        if normalised in ("", ".", "/") or normalised.startswith(".."):
            raise HostFailed(self._host, f"{path!r} is not removed: not a folder of zmqrl", "give a path below it")
        with self._named(path), contextlib.suppress(FileNotFoundError):
            self._remove(normalised)

    def _remove(self, folder: str) -> None:
        for entry in self._client.listdir_attr(folder):
            path = posixpath.join(folder, entry.filename)
            if stat.S_ISDIR(entry.st_mode or 0):
                self._remove(path)
            else:
                self._client.remove(path)
        self._client.rmdir(folder)

    def _make_folder(self, folder: str) -> None:
        if not folder:
            return
        try:
            self._client.stat(folder)
        except FileNotFoundError:
            self._make_folder(posixpath.dirname(folder))
            with contextlib.suppress(OSError):  # another may just have made it; if not, the next step fails
                self._client.mkdir(folder, 0o755)

    @contextlib.contextmanager
    def _named(self, path: str) -> Iterator[None]:
        import paramiko

        try:
            yield
        except (OSError, EOFError, paramiko.SSHException, paramiko.SFTPError) as error:
            why = (
                getattr(error, "strerror", None)
                or str(error)
                or "the remote side closed the connection (possible cause: sftp disabled)"
            )
            raise HostFailed(
                self._host, f"{path}: {why}", "check on the host: ls -ld, df -h; Subsystem sftp"
            ) from error


def from_home(path: str) -> str:
    """Sftp starts in the home folder, and knows no `~`."""
    return path[2:] if path.startswith("~/") else "." if path == "~" else path


def _chunks(content: bytes | Path) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield from (content[start : start + CHUNK] for start in range(0, len(content), CHUNK))
    else:
        with content.open("rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk
