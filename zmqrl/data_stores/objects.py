"""Objects below a URL (S3, GCS, Azure, HTTP, file) by obstore; the one place that maps its errors.

Credentials come from the host's own chain (environment, `~/.aws` where boto3 is installed, instance role).
zmqrl neither reads, stores nor logs them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import urlsplit

from zmqrl.errors import ConfigError, StoreError

T = TypeVar("T")
SCHEMES = ("s3", "gs", "az", "abfs", "abfss", "azure", "http", "https", "file")
CONNECT_S, CALL_S = 3.0, 60.0
RETRIES, RETRY_S = 2, 4.0
FINAL = ("PermissionDeniedError", "UnauthenticatedError", "UnknownConfigurationKeyError", "InvalidPathError")
"""Errors of obstore that are not retried."""
LONGEST_CAUSE = 300


def is_url(place: str) -> bool:
    """Whether `place` names objects and not a directory of this host."""
    return "://" in place


def check_url(key: str, url: str) -> None:
    """Raise `ConfigError` naming `key` when `url` is of an unknown kind, or holds credentials."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES or not (parts.netloc or parts.path):
        raise ConfigError(f"{key}: {url!r}: write a URL such as s3://bucket/runs ({', '.join(SCHEMES)})")
    if parts.password is not None or parts.username is not None or parts.query:
        place = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
        raise ConfigError(
            f"{key}: {place!r} is followed or preceded by credentials or a query, which would be stored with the run; "
            "set credentials in the environment or in ~/.aws"
        )


class Objects:
    """Objects by name below one URL. Every method blocks for `CALL_S` at most per try, and raises StoreError."""

    def __init__(self, url: str) -> None:
        """Nothing is sent yet. ConfigError when obstore is not installed or does not take the URL."""
        try:
            import obstore
        except ImportError as error:
            raise ConfigError(f"{url}: obstore is not installed: pip install 'zmqrl[object]'") from error
        self.url, self._obstore = url.rstrip("/"), obstore
        try:
            self._store: Any = obstore.store.from_url(url, **_options(urlsplit(url).scheme))
        except (obstore.exceptions.BaseError, ValueError) as error:
            raise ConfigError(f"{url}: {_cause(error)}") from error

    def put(self, name: str, content: bytes) -> None:
        """Write an object, whole or not at all; one of that name is replaced."""
        self._call(f"{name} cannot be written", self._obstore.put, name, content)

    def get(self, name: str) -> bytes | None:
        """Content of an object; None when there is none."""
        try:
            return bytes(self._call(f"{name} cannot be read", lambda *a: self._obstore.get(*a).bytes(), name))
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        """Of the objects directly below the URL."""

        def listed(store: Any) -> list[str]:
            return [str(found["path"]) for found in self._obstore.list_with_delimiter(store)["objects"]]

        return [path.rpartition("/")[2] for path in self._call("the objects cannot be listed", listed)]

    def delete(self, names: Sequence[str]) -> None:
        """Safe where they are gone."""
        for name in names:
            try:
                self._call(f"{name} cannot be deleted", self._obstore.delete, name)
            except FileNotFoundError:
                continue

    def check_writable(self, key: str, name: str) -> None:
        """Write and remove an object. ConfigError naming `key`, with the words of the service."""
        try:
            self.put(name, b"zmqrl")
            self.delete([name])
        except StoreError as error:
            raise ConfigError(f"{key}: {error}") from error

    def _call(self, what: str, call: Callable[..., T], *arguments: object) -> T:
        try:
            return call(self._store, *arguments)
        except FileNotFoundError as error:
            if "bucket" in str(error).lower() or "container" in str(error).lower():
                raise StoreError(f"{self.url}: {what}: {_cause(error)}") from error
            raise
        except (self._obstore.exceptions.BaseError, OSError, ValueError) as error:
            raise StoreError(f"{self.url}: {what}: {_cause(error)}") from error


def _options(scheme: str) -> dict[str, Any]:
    if scheme == "file":
        return {"mkdir": True}
    found: dict[str, Any] = {
        "client_options": {"connect_timeout": f"{CONNECT_S:g}s", "timeout": f"{CALL_S:g}s", "allow_http": True},
        "retry_config": {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_S)},
    }
    if scheme == "s3" and importlib.util.find_spec("boto3") is not None:  # reads ~/.aws, which obstore does not
        from obstore.auth.boto3 import Boto3CredentialProvider

        found["credential_provider"] = Boto3CredentialProvider()
    return found


def _cause(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:LONGEST_CAUSE]}"
