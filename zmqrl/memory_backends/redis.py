"""Experience of remote workers over Redis streams: `memory_backend: {kind: redis, url: rediss://redis.lab:6379}`.

The password is taken from the environment variable REDISCLI_AUTH of each host that has workers, and of the learner's
host. Redis may lose everything (FLUSHALL, a restart) and close every connection: a worker sends a segment again until
the broker has acknowledged it over the bus, and the broker stores it once.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import FORBID_UNKNOWN
from zmqrl.errors import ConfigError, TransportError
from zmqrl.memory_backends.base import MemoryBackend

if TYPE_CHECKING:
    import redis
    from typing_extensions import Buffer

PASSWORD_VARIABLE = "REDISCLI_AUTH"
CALL_S = 3.0
"""Limit of a connection attempt, and of each call beyond its own wait."""
MOST_READ = 64
"""Messages of one call of `receive`."""
MOST_KEPT = 10_000
"""Messages in Redis: more are of a run whose broker is away for long; the oldest are dropped and sent again."""
EXPIRE_S = 3600
"""Redis removes a stream that receives no message for so long."""


@dataclass(frozen=True)
class RedisConfig:
    """Experience of other hosts travels over Redis streams. Needs the extra `redis` on every host of the run."""

    __pydantic_config__ = FORBID_UNKNOWN

    url: str
    """`rediss://HOST:PORT/DB`; `redis://` (without TLS) for an address of the loopback only. Without password."""
    ca: str | None = None
    """File with the certificate authority of the server, on each host; null: those of the system."""


class RedisBackend(MemoryBackend):
    """One Redis stream per run. The broker reads from its beginning and deletes what it has read."""

    Config: ClassVar[type[Any]] = RedisConfig

    def __init__(self, config: RedisConfig, plan: RunPlan) -> None:
        super().__init__(config, plan)
        _check(config.url)
        if find_spec("redis") is None:
            what, fix = (
                "the package redis is not installed on this host",
                "run in the checkout of zmqrl: pip install '.[redis]'",
            )
            raise ConfigError(what, key=("memory_backend", "kind"), value="'redis'", fix=fix)
        self._key = f"zmqrl:{plan.run_id}:segments"
        self._receives = False
        self._client: redis.Redis | None = None

    def send(self, frames: Sequence[Buffer]) -> bool:
        fields = {f"{number:04}": bytes(frame) for number, frame in enumerate(frames)}
        with self._mapped() as client:
            pipeline = client.pipeline(transaction=False)
            pipeline.xadd(self._key, fields, maxlen=MOST_KEPT)  # type: ignore[arg-type]
            pipeline.expire(self._key, EXPIRE_S)
            pipeline.execute()
        return True

    def receive(self, timeout_s: float) -> list[list[bytes]]:
        self._receives = True
        with self._mapped() as client:
            streams: Any = client.xread({self._key: "0"}, MOST_READ, max(1, int(timeout_s * 1000)))
            entries = streams[0][1] if streams else []
            if entries:
                client.xdel(self._key, *[number for number, _ in entries])
        return [list(fields.values()) for _, fields in entries]

    def close(self) -> None:
        if self._client is None:
            return
        import redis

        try:
            if self._receives:
                self._client.delete(self._key)
        except redis.RedisError:
            pass  # Redis removes it after EXPIRE_S
        finally:
            self._client.close()

    @contextmanager
    def _mapped(self) -> Iterator[redis.Redis]:
        """The client; its errors become those of zmqrl."""
        import redis

        try:
            if self._client is None:
                self._client = self._connect()
            yield self._client
        except redis.AuthenticationError as error:
            fix = f"set {PASSWORD_VARIABLE} on this host"
            raise ConfigError(str(error), key=(), value=self.config.url, fix=fix) from error
        except redis.RedisError as error:
            raise TransportError(f"{self.config.url}: {type(error).__name__}: {error}") from error

    def _connect(self) -> redis.Redis:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        tls = {"ssl_ca_certs": self.config.ca} if self.config.ca and self.config.url.startswith("rediss:") else {}
        client: redis.Redis = redis.Redis.from_url(
            self.config.url,
            password=os.environ.get(PASSWORD_VARIABLE),
            socket_connect_timeout=CALL_S,
            socket_timeout=CALL_S,
            retry=Retry(NoBackoff(), 1),
            protocol=2,
            **tls,
        )
        return client


def _check(url: str) -> None:
    """ConfigError unless the URL is one of Redis, without a password, and encrypted outside of this machine."""
    key, fix = ("memory_backend", "url"), "write rediss://HOST:PORT/DB"
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigError("not a URL", key=key, fix=fix) from None  # it may have a password
    if parts.password is not None or parts.query or ("@" in url and parts.username is None):
        what = "it has a password or a query, which would be stored with the run"
        raise ConfigError(what, key=key, fix=f"set {PASSWORD_VARIABLE} in the environment of each host")
    try:
        port = parts.port or 6379
    except ValueError as error:
        raise ConfigError(str(error), key=key, value=repr(url), fix=fix) from error
    if parts.scheme not in ("redis", "rediss") or not parts.hostname:
        raise ConfigError(key=key, value=repr(url), fix=fix)
    clean = f"{parts.hostname}:{port}{parts.path}"
    if parts.scheme == "redis" and not _is_loopback(parts.hostname):
        fix = f"write rediss://{clean}, which needs TLS in Redis"
        raise ConfigError("experience would travel unencrypted", key=key, value=repr(url), fix=fix)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
