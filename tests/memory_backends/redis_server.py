"""A private redis-server on a free port of the loopback, with a password; it ends with its context."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from ipaddress import ip_address
from pathlib import Path

import pytest

from tests.support.waiting import WAIT_S, until
from zmqrl.config.plan import RunPlan
from zmqrl.memory_backends.redis import PASSWORD_VARIABLE, RedisBackend, RedisConfig
from zmqrl.testing.memory_backend import BackendMaker, Ends

STARTS, LIFE_S = 3, 300
PASSWORD = "correct-horse"


class RedisServer:
    """Started by `start`, ended by `stop`, again and again on the same port."""

    def __init__(self, folder: Path, tls: bool = False) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._folder = folder / f"redis-{self.port}"
        self._folder.mkdir()
        ca = _certificate(self._folder) if tls else None
        self.config = RedisConfig(f"{'rediss' if tls else 'redis'}://127.0.0.1:{self.port}/0", ca and str(ca))
        lines = ["bind 127.0.0.1", 'save ""', "appendonly no", f"dir {self._folder}", f"logfile {self._folder}/log"]
        lines += [f"requirepass {PASSWORD}", f"port {0 if tls else self.port}"]
        if tls:
            lines += [f"tls-port {self.port}", f"tls-cert-file {ca}", f"tls-key-file {self._folder}/key.pem"]
            lines += [f"tls-ca-cert-file {ca}", "tls-auth-clients no"]
        (self._folder / "redis.conf").write_text("\n".join(lines))
        self._process: subprocess.Popen[bytes]

    def start(self) -> bool:
        """Whether it runs now: another process may have taken the port."""
        self._process = subprocess.Popen(["timeout", str(LIFE_S), "redis-server", self._folder / "redis.conf"])
        try:
            until(lambda: self.command("ping") == "PONG" or self._process.poll() is not None, "redis-server", WAIT_S)
        except BaseException:
            self.stop()
            raise
        return self._process.poll() is None

    def stop(self) -> None:
        """End it, with everything that it holds."""
        self._process.terminate()
        try:
            self._process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def command(self, *arguments: str) -> str:
        """Of redis-cli."""
        tls = ["--tls", "--cacert", self.config.ca] if self.config.ca else []
        command = ["redis-cli", "-h", "127.0.0.1", "-p", str(self.port), *tls, *arguments]
        environment = {**os.environ, PASSWORD_VARIABLE: PASSWORD}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
        return done.stdout.strip()


@contextmanager
def redis_server(folder: Path, tls: bool = False) -> Iterator[RedisServer]:
    """Skips the test, with the reason, where redis-server is not installed."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed: bin/lab-setup installs it")
    for _ in range(STARTS):
        server = RedisServer(folder, tls)
        if server.start():
            break
    else:
        raise AssertionError(f"redis-server does not start: see {folder}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PASSWORD_VARIABLE, PASSWORD)
        try:
            yield server
        finally:
            server.stop()


def redis_ends(server: RedisServer) -> BackendMaker:
    @contextmanager
    def make(plan: RunPlan) -> Iterator[Ends]:
        ends = Ends(RedisBackend(server.config, plan), RedisBackend(server.config, plan))
        try:
            yield ends
        finally:
            for end in ends:
                end.close()
        assert server.command("keys", f"*{plan.run_id}*") == "", "something of the run is left in Redis"

    return make


def _certificate(folder: Path) -> Path:
    """Of 127.0.0.1, which is its own authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "redis")]), datetime.now(timezone.utc)
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(hours=1))
    certificate = builder.add_extension(address, False).sign(key, hashes.SHA256())
    pem, unencrypted = serialization.Encoding.PEM, serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, unencrypted)
    (folder / "key.pem").write_bytes(private)
    path = folder / "cert.pem"
    path.write_bytes(certificate.public_bytes(pem))
    return path
