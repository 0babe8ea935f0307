"""How a host is reached: hosts.yaml and the user's ssh configuration put together.

Precedence: the host in hosts.yaml, ~/.ssh/config, the `defaults` of hosts.yaml, the defaults of ssh. The ssh client
itself reads its configuration (`ssh -G`): only it knows Include, Match and tokens in full.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zmqrl.config.codec import replace
from zmqrl.config.sections import DefaultsSection, HostSection
from zmqrl.errors import HostFailed, as_host_failed
from zmqrl.ssh.settings import NOT_AN_IDENTITY, Wanted, from_client, includes, without_client
from zmqrl.ssh.tokens import Tokens, token_values

MOST_JUMPS = 8
STANDARD_IDENTITIES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
_HOP = re.compile(r"^(?:ssh://)?(?:(?P<user>.+)@)?(?P<host>\[[^]]+\]|[^:@]+)(?::(?P<port>\d{1,5}))?/?$")


@dataclass(frozen=True)
class SshCall:
    """How `ssh` is called for a login; it reads the user's configuration itself."""

    name: str
    """What the user would give to ssh."""
    options: tuple[str, ...] = ()
    """What hosts.yaml sets for the host."""
    config: str = ""
    """A configuration that includes the user's and the system's, then the `defaults` of hosts.yaml."""
    control_path: str | None = None
    """Where a master of the user's own would listen."""


@dataclass(frozen=True)
class Target:
    """One login, with everything that is needed to make it. Paths are absolute, tokens are expanded."""

    host: str
    """The name in hosts.yaml; of a jump host, the name it is requested by."""
    hostname: str
    """Name or address to connect to."""
    port: int
    user: str
    identities: tuple[str, ...]
    identities_only: bool
    """Whether only those of the agent's keys that are in `identities` are tried."""
    known_hosts: tuple[str, ...]
    new_keys_file: str | None
    """Where accepted keys go: the user's first known_hosts; None when that is switched off."""
    jump: Target | None = None
    """The host before this one; it may have one before itself."""
    proxy_command: str | None = None
    host_key_alias: str | None = None
    hash_known_hosts: bool = False
    agent: str | None = None
    """Socket of the ssh agent, `none` for no agent; None: the one that the environment names."""
    connect_timeout_s: float = 0.0
    """What ssh's configuration allows; the larger of this and hosts.yaml's holds."""
    call: SshCall = SshCall("")
    """The same login by the ssh client."""

    @property
    def address(self) -> str:
        """For messages: `name:port`."""
        return f"{self.hostname}:{self.port}"

    def login_command(self) -> str:
        """The ssh command that makes the same login by hand."""
        port = f" -p {self.port}" if self.port != 22 else ""
        hops, jump = [], self.jump
        while jump is not None:
            hops.append(f"{jump.user}@{jump.hostname}" + (f":{jump.port}" if jump.port != 22 else ""))
            jump = jump.jump
        through = f" -J {','.join(reversed(hops))}" if hops else ""
        return f"ssh{port}{through} {self.user}@{self.hostname}"


def resolve(host: str, section: HostSection, defaults: DefaultsSection, config: Path | None = None) -> Target:
    """The login for a host of hosts.yaml.

    Args:
        host: its name there; `section.ssh` is the name given to ssh, default the same.
        section: the configuration of this host.
        defaults: what holds for hosts that do not say otherwise.
        config: an ssh configuration to read in place of the user's and the system's.

    Raises:
        HostFailed: ssh refuses its configuration, a value of hosts.yaml cannot be one, or `ssh -G` cannot be run.
    """
    name = section.ssh or host
    if defaults.jump and (hop := _HOP.match(defaults.jump)) and name in (hop["host"], defaults.jump):
        defaults = replace(defaults, jump=None)  # the jump host of all the others is a host itself
    wanted = Wanted(host, name, section.user, section.port, section.identity, section.jump, fallback=defaults)
    with as_host_failed(host):
        return _target(wanted, config, depth=0)


def _target(wanted: Wanted, config: Path | None, depth: int, before: Target | None = None) -> Target:
    if depth > MOST_JUMPS:
        why = f"more than {MOST_JUMPS} jump hosts, or a cycle of jump hosts"
        raise HostFailed(wanted.host, why, f"ssh -G {wanted.name} | grep proxy")
    _check(wanted)
    client = shutil.which("ssh")
    found = from_client(client, wanted, config) if client else without_client(wanted, config)
    one = {key: values[0] for key, values in found.items()}
    last_jump = _HOP.match((_clean(one.get("proxyjump")) or "").rpartition(",")[2])
    jump_host = last_jump["host"].strip("[]") if last_jump else ""
    tokens = Tokens(wanted.host, token_values(wanted.name, one, jump_host))
    if client and any("%C" in value for values in found.values() for value in values):
        tokens.values["C"] = from_client(client, wanted, config, "-o", "ControlPath=%C")["controlpath"][0]
    spec = None if before else _clean(one.get("proxyjump"))
    named = [path for path in found.get("identityfile", ()) if path not in (NOT_AN_IDENTITY, "none")]
    proxy = _clean(one.get("proxycommand"))
    own = wanted.identity or (None if named else wanted.fallback.identity)
    identities = [own] if own else named or STANDARD_IDENTITIES
    users, systems = (
        [tokens.path(path) for path in one.get(key, "").split() if path not in ("none", "/dev/null")]
        for key in ("userknownhostsfile", "globalknownhostsfile")
    )
    return Target(
        host=wanted.host,
        call=_call(wanted, config, one, own),
        hostname=one["hostname"],
        port=int(one["port"]),
        user=one["user"],
        identities=tuple(map(tokens.path, identities)),
        identities_only=own is not None or one.get("identitiesonly") == "yes",
        known_hosts=(*users, *systems),
        new_keys_file=users[0] if users else None,
        jump=before or (_jump(spec, wanted, config, depth) if spec else None),
        proxy_command=tokens.command(proxy) if proxy and not (before or spec) else None,
        host_key_alias=_clean(one.get("hostkeyalias")),
        hash_known_hosts=one.get("hashknownhosts") == "yes",
        agent=tokens.agent(one.get("identityagent")),
        connect_timeout_s=float(_clean(one.get("connecttimeout")) or 0),
    )


def _call(wanted: Wanted, config: Path | None, one: Mapping[str, str], own: str | None) -> SshCall:
    """`one` is what ssh would use; `own` is the identity of hosts.yaml, where it counts."""
    is_default_jump = wanted.jump is None and wanted.fallback.jump is not None
    jump = wanted.fallback.jump if is_default_jump and one.get("proxyjump") == wanted.fallback.jump else wanted.jump
    options = [
        *(["-l", wanted.user] if wanted.user else []),
        *(["-p", one["port"]] if wanted.port or wanted.fallback.port else []),
        *(["-J", jump] if jump else []),
        *(["-i", own, "-o", "IdentitiesOnly=yes"] if own else []),
    ]
    # Not the port and the jump host: a jump host reads this too, and has others.
    defaults = {"User": wanted.fallback.user, "IdentityFile": own and f'"{own}"'}
    rest = ["Host *", *(f"  {key} {value}" for key, value in defaults.items() if value)]
    text = "\n".join([*includes(config), *rest, ""])
    return SshCall(wanted.name, tuple(options), text, _clean(one.get("controlpath")))


def _jump(spec: str, wanted: Wanted, config: Path | None, depth: int) -> Target | None:
    """The chain of jump hosts `a,b,c`: a is reached by its own configuration, b through a, c through b."""
    before = None
    for hop in spec.split(","):
        match = _HOP.match(hop.strip())
        if match is None:
            raise HostFailed(wanted.host, f"jump {hop!r} is not [user@]host[:port]", f"hosts.{wanted.host}.jump")
        name = match["host"].strip("[]")
        if name.lower() == wanted.name.lower():
            continue  # `Host *.lab` with ProxyJump gw.lab also matches gw.lab: ssh does not jump over a host to itself
        fallback = DefaultsSection(user=wanted.fallback.user, identity=wanted.identity or wanted.fallback.identity)
        port = int(match["port"]) if match["port"] else None
        before = _target(Wanted(name, name, match["user"], port, None, None, fallback), config, depth + 1, before)
    return before


def _check(wanted: Wanted) -> None:
    """Values become arguments and lines of a configuration: they may not be more than one."""
    for key, value in (
        ("ssh", wanted.name),
        ("user", wanted.user),
        ("jump", wanted.jump),
        ("user", wanted.fallback.user),
        ("jump", wanted.fallback.jump),
    ):
        if value is not None and (not value or value.startswith("-") or re.search(r"[\s\"'\\\x00-\x1f]", value)):
            raise HostFailed(wanted.host, f"{key}: invalid value {value!r}", f"correct hosts.{wanted.host}.{key}")


def _clean(value: str | None) -> str | None:
    return None if value in (None, "", "none") else value
