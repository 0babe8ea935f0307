"""Why a host refuses a connection, and what fixes it: the same text whichever client found it."""

from __future__ import annotations

from collections.abc import Sequence

from zmqrl.errors import HostFailed
from zmqrl.ssh.config import Target

LOGIN_REFUSED, NO_KEY, MORE_THAN_A_KEY = "login refused for user", "no usable key for user", "requires more than a key"
UNKNOWN_HOST_KEY = "unknown host key"
FORWARDING_DISABLED = "forwarding is disabled (AllowTcpForwarding)"


def is_about_keys(cause: str) -> bool:
    """Whether a host, or a jump host before it, is there and was not entered for want of a key."""
    return any(begin in cause for begin in (LOGIN_REFUSED, NO_KEY, MORE_THAN_A_KEY, UNKNOWN_HOST_KEY))


def unknown_name(target: Target, why: str) -> HostFailed:
    """The name has no address."""
    fix = (
        f"try: getent hosts {target.hostname}; or add {target.hostname} to ~/.ssh/config; or write the address of the "
        f"host (in a hosts file: hosts.{target.host}.ssh)"
    )
    return HostFailed(target.host, f"unknown host name {target.hostname!r} ({why})", fix)


def connection_refused(target: Target) -> HostFailed:
    """Nothing listens at the port."""
    return HostFailed(
        target.host,
        f"{target.address} refused the connection",
        f"on the host, check sshd: systemctl status ssh; in the hosts file, check hosts.{target.host}.port",
    )


def no_answer(target: Target, timeout_s: float) -> HostFailed:
    """The address is silent."""
    return HostFailed(
        target.host,
        f"no answer from {target.address} within {timeout_s:g} s",
        f"possible causes: host down, firewall; try: ping {target.hostname}; "
        "for a slow host: --set ssh.connect_timeout_s=30",
    )


def not_reachable(target: Target, why: str) -> HostFailed:
    """The kernel knows no way to the address."""
    return HostFailed(target.host, f"{target.address} cannot be reached: {why}", f"try: ping {target.hostname}")


def not_forwarded(target: Target, jump: Target, why: str) -> HostFailed:
    """The jump host opens no connection to the host."""
    return HostFailed(
        target.host,
        f"jump host {jump.host} cannot connect to {target.address}: {why}",
        f"try: {jump.login_command()} nc -vz {target.hostname} {target.port}",
    )


def through_jump(target: Target, error: HostFailed) -> HostFailed:
    """The jump host itself cannot be used."""
    return HostFailed(target.host, f"jump host {error.host}: {error.cause}", error.fix)


def proxy_command(target: Target, stderr: str) -> HostFailed:
    """The user's command failed."""
    return HostFailed(target.host, f"ProxyCommand: {stderr}", f"try manually: {target.proxy_command}")


def no_banner(target: Target, timeout_s: float) -> HostFailed:
    """The address takes connections, and sends nothing."""
    return HostFailed(
        target.host,
        f"{target.address} sent no SSH banner within {timeout_s:g} s",
        f"possible causes: no sshd, or a hanging sshd; see the output of: {target.login_command()} true",
    )


def closed_early(target: Target, attempts: int, why: str) -> HostFailed:
    """The address takes connections, and closes each before the banner."""
    return HostFailed(
        target.host,
        f"{target.address} closed the connection before the SSH banner ({attempts} attempts): {why}",
        f"possible causes: no sshd, a busy sshd (MaxStartups), a firewall; try: {target.login_command()} true",
    )


def no_key_exchange(target: Target, timeout_s: float) -> HostFailed:
    """The banner arrives, and full packets do not."""
    return HostFailed(
        target.host,
        f"{target.address} sent its SSH banner, and no key exchange followed within {timeout_s:g} s",
        "possible causes: full packets are lost on the way (MTU; a VPN), or a hanging sshd; "
        f"try: ping -M do -s 1400 {target.hostname}",
    )


def no_common_protocol(target: Target, why: str) -> HostFailed:
    """Error for a server that is not an sshd, or one without a common algorithm."""
    return HostFailed(
        target.host,
        f"{target.address} is not an SSH server, or has no algorithm in common with this client: {why}",
        f"see the output of: {target.login_command()} true",
    )


def login_refused(
    target: Target, tried: Sequence[str], left_out: Sequence[str] = (), allowed: Sequence[str] = ()
) -> HostFailed:
    """No key is accepted.

    Args:
        target: The login.
        tried: Files, and keys of the agent as `agent NAME`.
        left_out: What was not tried, with the reason.
        allowed: Methods that sshd names.
    """
    why = f"{LOGIN_REFUSED} {target.user}; tried {', '.join(tried) or 'no key'}"
    if left_out:
        why += f"; not tried: {'; '.join(left_out)}"
    if allowed:
        why += f"; allowed methods: {', '.join(allowed)}"
    files = [name for name in tried if not name.startswith("agent ")]
    return HostFailed(target.host, why, copy_id(target, files[0]) if files else by_hand(target))


def copy_id(target: Target, identity: str) -> str:
    """The command that puts a public key on the host."""
    public = identity if identity.endswith(".pub") else f"{identity}.pub"
    return target.login_command().replace("ssh", f"ssh-copy-id -i {public}", 1).replace(" -J ", " -o ProxyJump=", 1)


def by_hand(target: Target) -> str:
    """The command that shows what the login does."""
    return f"see the output of: {target.login_command().replace('ssh', 'ssh -v', 1)} true"


def no_forward(host: str, why: str) -> HostFailed:
    """The host's sshd connects to no port of the host."""
    cause = f"the host's sshd refused a connection to a port on its loopback ({why})"
    return HostFailed(host, cause, "set AllowTcpForwarding yes in its sshd_config")


def no_tunnel(host: str, why: str) -> HostFailed:
    """The host's sshd forwards nothing."""
    return HostFailed(
        host,
        f"the host's sshd refused a reverse tunnel ({why})",
        f"set AllowTcpForwarding yes in its sshd_config, or hosts.{host}.tunnel: false",
    )
