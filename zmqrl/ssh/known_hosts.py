"""Whether a host is the one it was: the known_hosts files, read as sshd(8) describes them."""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from zmqrl.errors import HostFailed
from zmqrl.ssh.config import Target
from zmqrl.ssh.refusals import UNKNOWN_HOST_KEY

AUTHORITY = "@cert-authority"


@dataclass(frozen=True)
class KnownKey:
    """One line of a known_hosts file that matches the host."""

    kind: str
    """Type of the key as in the file: ssh-ed25519, ssh-rsa, ecdsa-sha2-nistp256..."""
    blob: bytes
    marker: str
    """`@revoked`, `@cert-authority`, or empty."""
    source: str
    """`file:line`, for messages."""

    @property
    def revoked(self) -> bool:
        """Whether it is not to be trusted any more."""
        return self.marker == "@revoked"


@dataclass(frozen=True)
class SshHostKey:
    """The key that a host showed."""

    kind: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the key as `ssh-keygen -l` prints it."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")

    def __str__(self) -> str:
        return f"{self.kind} {self.fingerprint}"


def known_name(target: Target) -> str:
    """How known_hosts names a host: an alias, `host` or `[host]:port`."""
    if target.host_key_alias:
        return target.host_key_alias
    return target.hostname if target.port == 22 else f"[{target.hostname}]:{target.port}"


def known_keys(target: Target) -> tuple[KnownKey, ...]:
    """Every key that the user's and the system's files have for the host; missing files are empty ones."""
    return tuple(key for key in _lines(target) if key.marker != AUTHORITY)


def _lines(target: Target) -> tuple[KnownKey, ...]:
    name = known_name(target).lower()
    return tuple(key for path in target.known_hosts for key in _read(target, path, name))


def preferred_kinds(known: Sequence[KnownKey], offered: Sequence[str]) -> list[str]:
    """The algorithms to offer: those of the host's known keys first, else it shows a key that cannot be compared."""
    kinds = {key.kind for key in known if not key.revoked}
    if "ssh-rsa" in kinds:
        kinds |= {"rsa-sha2-512", "rsa-sha2-256"}
    return sorted(offered, key=lambda algorithm: algorithm not in kinds)


def check(target: Target, shown: SshHostKey, policy: Literal["strict", "accept-new"]) -> str | None:
    """Whether the host may be talked to.

    Returns: None, or what to report to the user about a key that was accepted and written down.

    Raises:
        HostFailed: the key is unknown (strict), differs from the known one, or is revoked.
    """
    known = known_keys(target)
    same = [key for key in known if key.blob == shown.blob]
    if any(key.revoked for key in same):
        raise revoked_key(target, shown.fingerprint, same[0].source)
    if same:
        return None
    trusted = [key for key in known if not key.revoked]
    if trusted:
        raise changed_key(target, str(shown), trusted[0])
    if policy == "strict":
        raise unknown_key(target, str(shown))
    return _write_down(target, shown)


def revoked_key(target: Target, fingerprint: str, source: str) -> HostFailed:
    """The key that the host showed is not to be trusted."""
    why = f"host key {fingerprint} is marked @revoked in {source}"
    return HostFailed(target.host, why, "contact the administrator; zmqrl does not connect")


def changed_key(target: Target, shown: str, known: KnownKey) -> HostFailed:
    """Another key than `known`. `shown`: kind and fingerprint."""
    file = known.source.rpartition(":")[0]
    return HostFailed(
        target.host,
        f"host key CHANGED: {target.address} shows {shown}, {known.source} has another key; not connected",
        f"if the host was reinstalled: ssh-keygen -f {file} -R '{known_name(target)}' && {target.login_command()} true",
    )


def unknown_key(target: Target, shown: str) -> HostFailed:
    """A key that no file of known hosts has. `shown`: kind and fingerprint."""
    authority = next((key for key in _lines(target) if key.marker == AUTHORITY), None)
    if authority is not None:
        return HostFailed(
            target.host,
            f"known_hosts has only a certificate authority for {target.address} ({authority.source}: {AUTHORITY}), and "
            f"host certificates are not supported; the host shows {shown}",
            f"append this line to {target.new_keys_file}: {known_name(target)} KEY, where KEY is the output of: "
            f"{target.login_command()} cat /etc/ssh/ssh_host_ed25519_key.pub   (or --set ssh.host_keys=accept-new)",
        )
    return HostFailed(
        target.host,
        f"{UNKNOWN_HOST_KEY}: {target.address} shows {shown}",
        "compare it on that host: for key in /etc/ssh/ssh_host_*_key.pub; do ssh-keygen -lf $key; done\n"
        f"   then: {target.login_command()} true   (or --set ssh.host_keys=accept-new)",
    )


def _write_down(target: Target, shown: SshHostKey) -> str:
    if target.new_keys_file is None:
        raise HostFailed(
            target.host,
            f"host key {shown.fingerprint} cannot be accepted: the SSH configuration has no "
            "UserKnownHostsFile to store it in",
            f"set one in ~/.ssh/config for {target.hostname}",
        )
    path = Path(target.new_keys_file)
    name = _hashed(known_name(target)) if target.hash_known_hosts else known_name(target)
    line = f"{name} {shown.kind} {base64.b64encode(shown.blob).decode()}\n"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(file).st_size
            unended = size > 0 and os.pread(file, 1, size - 1) != b"\n"
            os.write(file, ("\n" * unended + line).encode())  # one write: other connections append too
        finally:
            os.close(file)
    except OSError as error:
        raise HostFailed(target.host, f"{path} cannot be written: {error.strerror}", f"ls -l {path}") from error
    return accepted_key(target, str(shown), str(path))


def accepted_key(target: Target, shown: str, path: str) -> str:
    """What to report to the user. `shown`: kind and fingerprint."""
    return f"{target.host}: accepted new host key {shown} of {target.address} into {path}"


def _read(target: Target, path: str, name: str) -> Iterator[KnownKey]:
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return
    except OSError as error:
        raise HostFailed(target.host, f"{path} cannot be read: {error.strerror}", f"ls -l {path}") from error
    for number, line in enumerate(lines, 1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#"):
            continue
        if _names(fields[0], name):
            try:
                blob = base64.b64decode(fields[2], validate=True)
            except binascii.Error:
                continue  # as ssh does: a line that is not a key is skipped
            yield KnownKey(fields[1], blob, marker, f"{path}:{number}")


def _names(patterns: str, name: str) -> bool:
    """Whether a first field matches the host: `|1|salt|hash`, or names with * and ?, `!` before those left out."""
    if patterns.startswith("|1|"):
        _, _, salt, digest = patterns.split("|", 3)
        return hmac.compare_digest(_digest(salt, name), digest)
    found = False
    for pattern in patterns.lower().split(","):
        plain = pattern.removeprefix("!").replace("[", "[[]")  # brackets are no ranges here
        if fnmatch.fnmatchcase(name, plain):
            if pattern.startswith("!"):
                return False
            found = True
    return found


def _hashed(name: str) -> str:
    salt = base64.b64encode(os.urandom(20)).decode()
    return f"|1|{salt}|{_digest(salt, name.lower())}"


def _digest(salt: str, name: str) -> str:
    key = base64.b64decode(salt)
    return base64.b64encode(hmac.new(key, name.encode(), hashlib.sha1).digest()).decode()
