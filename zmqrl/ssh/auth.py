"""Logging in with keys: which ones, in which order, and what to say when none is taken. Never with a password."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from zmqrl.errors import HostFailed, name_of
from zmqrl.ssh.config import Target
from zmqrl.ssh.refusals import MORE_THAN_A_KEY, NO_KEY, by_hand, copy_id, login_refused

if TYPE_CHECKING:
    import paramiko

MOST_KEYS = 5
"""sshd closes the connection after 6 tries (MaxAuthTries), and newer ones then refuse the address for a while."""
AGENT_S = 5.0


@dataclass
class Candidates:
    """The keys to try, in order, and why others are not among them."""

    keys: list[tuple[str, paramiko.PKey]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    locked: list[str] = field(default_factory=list)
    """Files with a passphrase whose key no agent holds."""


class _Signing:
    """A key as paramiko uses it: where it does not sign, as a key of an agent may, it is one that sshd refuses.

    paramiko signs in the thread of the connection, which an error there would end.
    """

    def __init__(self, key: paramiko.PKey) -> None:
        self._key = key
        self.fault = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._key, name)

    def sign_ssh_data(self, data: bytes, algorithm: str | None = None) -> Any:
        try:
            return self._key.sign_ssh_data(data, algorithm)
        except Exception as error:  # noqa: BLE001 - of the agent, its socket, or the key
            self.fault = str(error) or name_of(error)
            return b""


def log_in(transport: paramiko.Transport, target: Target) -> None:
    """Authenticate on a connection whose host key has been checked. HostFailed when no key is taken."""
    import paramiko

    with _agent_keys(target) as (held, about_agent):
        candidates = _candidates(target, held)
        if about_agent:
            candidates.left_out.append(about_agent)
        if not candidates.keys:
            raise _nothing_to_try(target, candidates)
        allowed: tuple[str, ...] = ()
        tried = []
        for name, key in candidates.keys[:MOST_KEYS]:
            signing = _Signing(key)
            try:
                further = transport.auth_publickey(target.user, cast("paramiko.PKey", signing))
            except paramiko.BadAuthenticationType as error:
                allowed = tuple(error.allowed_types)
                if "publickey" not in allowed:
                    break
            except (paramiko.SSHException, EOFError, OSError) as error:
                if not transport.is_active() or "timeout" in str(error).lower():
                    raise HostFailed(
                        target.host, f"connection closed during the login of {target.user}: {error}", by_hand(target)
                    ) from error
            else:
                if not further:
                    return
                also = ", ".join(further)
                why = f"sshd {MORE_THAN_A_KEY} for user {target.user} (also {also}), which zmqrl does not support"
                raise HostFailed(target.host, why, "allow login by key only (AuthenticationMethods in sshd_config)")
            if signing.fault:
                candidates.left_out.append(f"{name} (does not sign: {signing.fault})")
            else:
                tried.append(name)
    raise login_refused(target, tried, candidates.left_out, allowed)


def _candidates(target: Target, held: dict[bytes, paramiko.PKey]) -> Candidates:
    found = Candidates()
    seen: set[bytes] = set()
    for path in target.identities:
        key = _load(path, held, found)
        if key is not None and key.asbytes() not in seen:
            seen.add(key.asbytes())
            found.keys.append((path, key))
    others = [] if target.identities_only else [(blob, key) for blob, key in held.items() if blob not in seen]
    agents = [(f"agent {key.get_name()} {getattr(key, 'comment', '')}".strip(), key) for _, key in others]
    found.keys += agents
    found.left_out += [f"{name} (over {MOST_KEYS} tries)" for name, _ in found.keys[MOST_KEYS:]]
    return found


def _load(path: str, held: dict[bytes, paramiko.PKey], found: Candidates) -> paramiko.PKey | None:
    """The key of an identity file: the agent's, when it holds the same one, for that needs no passphrase."""
    import paramiko

    public = _public_blob(path)
    if public is not None and public in held:
        return held[public]
    try:
        return paramiko.PKey.from_path(path)
    except FileNotFoundError:
        found.left_out.append(f"{path} (no such file)")
    except OSError as error:
        found.left_out.append(f"{path} (cannot be read: {error.strerror})")
    except (paramiko.PasswordRequiredException, TypeError):
        found.left_out.append(f"{path} (has a passphrase, and no SSH agent holds it)")
        found.locked.append(path)
    except (paramiko.SSHException, paramiko.pkey.UnknownKeyType, ValueError) as error:
        found.left_out.append(f"{path} (not a private key: {error})")
    return None


def _public_blob(path: str) -> bytes | None:
    import paramiko

    with contextlib.suppress(OSError, ValueError, IndexError):
        public = path if path.endswith(".pub") else f"{path}.pub"
        return paramiko.pkey.PublicBlob.from_file(public).key_blob
    return None


@contextlib.contextmanager
def _agent_keys(target: Target) -> Iterator[tuple[dict[bytes, paramiko.PKey], str]]:
    """The agent's keys by public blob, usable until the end of `with`, and why there are none."""
    import paramiko

    if target.agent == "none":
        yield {}, "agent (disabled by IdentityAgent none)"
        return
    try:
        agent = _agent_at(target.agent) if target.agent else paramiko.Agent()
    except (OSError, paramiko.SSHException) as error:
        yield {}, f"agent (no answer: {error})"
        return
    try:
        keys = {key.asbytes(): key for key in agent.get_keys()}
        yield dict(keys), "" if keys else "agent (not running, or without keys)"
    finally:
        agent.close()


def _agent_at(path: str) -> paramiko.Agent:
    """An agent whose socket ssh's configuration names; paramiko itself knows only the environment's."""
    import paramiko

    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(AGENT_S)
    agent: Any = paramiko.Agent.__new__(paramiko.Agent)
    paramiko.agent.AgentSSH.__init__(agent)
    try:
        connection.connect(path)
        agent._connect(connection)
    except BaseException:
        connection.close()
        raise
    made: paramiko.Agent = agent
    return made


def _nothing_to_try(target: Target, candidates: Candidates) -> HostFailed:
    why = f"{NO_KEY} {target.user}: {'; '.join(candidates.left_out)}"
    if candidates.locked:
        return HostFailed(target.host, why, f'eval "$(ssh-agent)" && ssh-add {candidates.locked[0]}')
    first = target.identities[0] if target.identities else "~/.ssh/id_ed25519"
    make = f"ssh-keygen -t ed25519 -f {first} && " if not Path(first).exists() else f"ls -l {first}; "
    return HostFailed(target.host, why, f"{make}{copy_id(target, first)}   (or set another identity)")
