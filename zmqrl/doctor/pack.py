"""The user's own modules in one archive, for hosts that have not been sent them yet."""

from __future__ import annotations

import base64
import io
import os
import tarfile
from fnmatch import fnmatchcase

from zmqrl.config.sections import CodeSection
from zmqrl.errors import ConfigError


def packed(code: CodeSection) -> str:
    """tar, gzip, base64; each path under its own name, as it is imported.

    Raises:
        ConfigError: It is more than `code.max_mb`.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path in code.sync:
            archive.add(path, os.path.basename(path), filter=lambda member: _wanted(member, code.exclude))
    if buffer.tell() > code.max_mb * 1e6:
        raise ConfigError(
            f"code.max_mb: {code.max_mb:g}: code.sync is {buffer.tell() / 1e6:.1f} MB; exclude what is not code"
        )
    return base64.b64encode(buffer.getvalue()).decode()


def _wanted(member: tarfile.TarInfo, excluded: tuple[str, ...]) -> tarfile.TarInfo | None:
    name = os.path.basename(member.name)
    return None if any(fnmatchcase(name, pattern) for pattern in excluded) else member
