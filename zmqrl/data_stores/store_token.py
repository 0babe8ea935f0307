"""Whether two hosts see the same store: a random token that one writes and the other looks for."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_token(store: Path, run_id: str) -> str:
    """Put a new token into the store. OSError when it cannot be written."""
    store.mkdir(parents=True, exist_ok=True)
    token = secrets.token_hex(16)
    temporary = store / f".token-{run_id}.{os.getpid()}.tmp"
    temporary.write_text(token, encoding="utf-8")
    temporary.rename(_path(store, run_id))
    return token


def sees_token(store: Path, run_id: str, token: str) -> bool:
    """Whether the token is there. The directory is listed first: NFS remembers that a name was absent."""
    try:
        return (
            _path(store, run_id).name in os.listdir(store) and _path(store, run_id).read_text(encoding="utf-8") == token
        )
    except OSError:
        return False


def remove_token(store: Path, run_id: str) -> None:
    """Safe to call twice."""
    _path(store, run_id).unlink(missing_ok=True)


def _path(store: Path, run_id: str) -> Path:
    return store / f".token-{run_id}"
