"""Objects below a URL (S3, GCS, Azure, HTTP, file) by obstore; the one place that maps its errors.

Credentials come from the host's own chain (environment, `~/.aws` where boto3 is installed, instance role).
zmqrl neither reads, stores nor logs them.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from zmqrl.errors import ConfigError, StoreError, StoreRefused, key_of

SCHEMES = ("s3", "gs", "az", "abfs", "abfss", "azure", "http", "https", "file")
CONTAINER_AT_ACCOUNT = ("abfs", "abfss")
"""Schemes of Azure: `abfss://container@account.dfs.core.windows.net/path`."""
CONNECT_S, REQUEST_S, CHECK_S = 3.0, 20.0, 4.0
"""Limits of a connection, of a request, and of a request that checks a place before a run."""
RETRIES, RETRY_S = 2, 4.0
PIECE_BYTES, PIECES_AT_ONCE = 8 << 20, 4
"""Larger objects are sent and fetched in pieces, each a request of its own."""
LONGEST_CAUSE = 300
NOT_INSTALLED = {
    "cause": "obstore is not installed on this host",
    "fix": "run in the checkout of zmqrl: pip install '.[object]'",
}
MISSING, REFUSED = 404, (400, 401, 403)
OTHER_REGION = ("AuthorizationHeaderMalformed", "PermanentRedirect")
PLACE_MISSING = ("NoSuchBucket", "ContainerNotFound", "bucket does not exist")
NEVER_MISSING = object()
_STATUS = re.compile(r"status code: (\d{3})")
_REPLY = re.compile(r"<Code>([^<]*)</Code>\s*<Message>([^<]*)</Message>")
_SYSTEM = re.compile(r'(?:message|error): "([^"]+)"')
"""The words of the operating system in the debug text of obstore."""


def check_url(key: str, url: str) -> None:
    """Raise `ConfigError` naming `key` when `url` is of an unknown kind, or holds credentials."""
    parts = urlsplit(url)
    has_user = parts.username is not None and parts.scheme not in CONTAINER_AT_ACCOUNT
    if has_user or parts.password is not None or parts.query or parts.fragment:
        place = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
        raise ConfigError(
            "has credentials or a query",
            key=key_of(key),
            value=repr(place),
            is_subject=True,
            fix="a URL is stored with the run and shown in messages: set credentials in the environment or in ~/.aws "
            "of the host",
        )
    is_file = parts.scheme == "file"
    if parts.scheme not in SCHEMES or is_file == bool(parts.netloc) or (is_file and parts.path in ("", "/")):
        what = f"write a URL such as s3://bucket/runs ({', '.join(SCHEMES)})"
        raise ConfigError(what, key=key_of(key), value=repr(url))


class Objects:
    """Objects by name directly below one URL.

    Every method blocks, for the limit of a request at most per piece and try.

    Raises:
        StoreRefused: Credentials, bucket, clock or library: another try has the same result until that is corrected.
        StoreError: The service did not answer, or failed.
    """

    def __init__(self, url: str, request_s: float = REQUEST_S) -> None:
        """Nothing is read or sent yet."""
        self.url, self._request_s = url.rstrip("/"), request_s
        self._opened: Any = None

    def put(self, name: str, content: bytes | Path) -> None:
        """Write an object, whole or not at all; one of that name is replaced. `content` may be a file."""
        sizes = {"chunk_size": PIECE_BYTES, "max_concurrency": PIECES_AT_ONCE}
        self._call(name, "cannot be written", lambda api, store: api.put(store, name, content, **sizes))

    def get(self, name: str) -> bytes | None:
        """Content of an object; None when it is missing."""
        pieces = [*self.pieces(name)]
        return None if not pieces else pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def pieces(self, name: str) -> Iterator[bytes]:
        """Content of an object, at least one piece; nothing when the object is missing."""

        def first_piece(api: Any, store: Any) -> tuple[bytes, int]:
            found = api.get(store, name)
            nbytes = int(found.meta["size"])
            if nbytes <= PIECE_BYTES:
                return bytes(found.bytes()), nbytes
            return _part(name, 0, PIECE_BYTES)(api, store), nbytes

        first = self._call(name, "cannot be read", first_piece, missing=None)
        if first is None:
            return
        content, nbytes = first
        yield content
        for start in range(len(content), nbytes, PIECE_BYTES):
            yield self._call(name, "cannot be read", _part(name, start, min(nbytes, start + PIECE_BYTES)))

    def starts_with(self, name: str, nbytes: int, head: bytes) -> bool:
        """Whether an object has `nbytes` bytes, of which the first are `head`."""

        def compared(api: Any, store: Any) -> bool:
            return bool(api.head(store, name)["size"] == nbytes) and _part(name, 0, len(head))(api, store) == head

        return bool(self._call(name, "cannot be read", compared, missing=False))

    def names(self) -> list[str]:
        """Names of the objects directly below the URL."""
        found = self._call("", "cannot be listed", lambda api, store: api.list_with_delimiter(store)["objects"])
        return [str(each["path"]).rpartition("/")[2] for each in found]

    def delete(self, names: Sequence[str]) -> None:
        """Safe where they are gone."""
        for name in names:
            self._call(name, "cannot be deleted", partial(_delete, name), missing=None)

    def move(self, name: str, target: str) -> None:
        """Give an object another name; `target` may be in a folder below the URL. Safe where it is gone."""
        what = f"cannot be moved to {target}"
        self._call(name, what, lambda api, store: api.rename(store, name, target), missing=None)

    def _call(self, name: str, what: str, call: Callable[[Any, Any], Any], missing: Any = NEVER_MISSING) -> Any:
        """Result of `call` with the module obstore and the store; `missing` for an object that does not exist."""
        try:
            import obstore
        except ImportError:
            raise StoreRefused(what, name=name, place=self.url, **NOT_INSTALLED) from None
        try:
            return call(obstore, self._open())
        except (obstore.exceptions.BaseError, OSError, ValueError) as error:
            is_place = any(code in str(error) for code in PLACE_MISSING)
            if isinstance(error, FileNotFoundError) and missing is not NEVER_MISSING and not is_place:
                return missing
            # Without the foreign error as its cause: a traceback would show the reply of the service in full.
            kind, fields = _mapped(error)
            raise kind(what, name=name, place=self.url, **fields) from None

    def _open(self) -> Any:
        if self._opened is None:
            from obstore.store import from_url

            self._opened = from_url(self.url, **_options(urlsplit(self.url).scheme, self._request_s))
        return self._opened


def check_writable(key: str, url: str, name: str) -> None:
    """Raise `ConfigError` naming `key` when an object `name` cannot be written below `url` and removed.

    Raises:
        StoreError: The service does not answer.
    """
    check_url(key, url)
    objects = Objects(url, CHECK_S)
    try:
        objects.put(name, b"zmqrl")
        objects.delete([name])
    except StoreRefused as error:
        raise ConfigError(str(error), key=key_of(key)) from error


def _part(name: str, start: int, end: int) -> Callable[[Any, Any], bytes]:
    return lambda api, store: bytes(api.get_range(store, name, start=start, end=end))


def _delete(name: str, api: Any, store: Any) -> None:
    api.delete(store, name)


def _options(scheme: str, request_s: float) -> dict[str, Any]:
    if scheme == "file":
        return {"mkdir": True}
    found: dict[str, Any] = {
        "client_options": {
            "connect_timeout": f"{CONNECT_S:g}s",
            "timeout": f"{request_s:g}s",
            "allow_http": True,
        },
        "retry_config": {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_S)},
    }
    if scheme == "s3" and importlib.util.find_spec("boto3") is not None:  # reads ~/.aws, which obstore does not
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider

        try:
            found["credential_provider"] = Boto3CredentialProvider()
        except BotoCoreError as error:
            raise ValueError(str(error)) from error
    return found


def _mapped(error: Exception) -> tuple[type[StoreError], dict[str, str]]:
    """The one mapping, to a class and fields: what the user has to correct is refused, anything else is an outage."""
    text = str(error)
    reply, status = _REPLY.search(text), _STATUS.search(text)
    code, cause = (reply[1], f"{reply[1]}: {reply[2]}") if reply else ("", _shown(text))
    if "get_credentials" in text:
        cause = "this host has no credentials"
    fix = _fix(error, text, int(status[1]) if status else 0, code)
    return (StoreError, {"cause": cause}) if fix is None else (StoreRefused, {"cause": cause, "fix": fix})


def _fix(error: Exception, text: str, status: int, code: str) -> str | None:
    """What to correct; None where the service is only away, or the object."""
    if code == "RequestTimeTooSkewed":
        return "set the clock of this host, for example with chrony"
    if "URL error" in text:
        return "correct the URL"
    if status == MISSING:
        return None if code == "NoSuchKey" else "create the bucket, or correct the URL or AWS_ENDPOINT_URL"
    if code == "RequestTimeout":
        return None
    if code in OTHER_REGION or "redirect without LOCATION" in text:
        return "set AWS_REGION to the region of the bucket"
    if status in REFUSED or isinstance(error, (PermissionError, ValueError)):
        return "check this host's credentials (environment, ~/.aws, instance role), their permissions and the region"
    return None


def _shown(text: str) -> str:
    head, _, debug = text.partition("Debug source")
    system = _SYSTEM.search(debug)
    cause = " ".join(head.split())
    if len(cause) > LONGEST_CAUSE:
        cause = f"{cause[:LONGEST_CAUSE]}..."
    return f"{cause}: {system[1]}" if system else cause
