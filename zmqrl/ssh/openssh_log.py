"""What `ssh -v` logs while it logs in, as the failures that every client reports. Pure: text in, errors out."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Sequence

from zmqrl.errors import HostFailed
from zmqrl.ssh import refusals
from zmqrl.ssh.config import Target
from zmqrl.ssh.connection import HungUp
from zmqrl.ssh.known_hosts import SshHostKey, accepted_key, changed_key, known_keys, revoked_key, unknown_key

DEBUG = "debug1: "
STEPS_OF_A_JUMP = 3
"""Connection, key exchange and login of a jump host take place before the log shows anything of the host."""
_RESOLVE = re.compile(r"Could not resolve hostname \S+: (.*)")
_CONNECT = re.compile(r"connect to (?:host|address) \S+ port \d+: (.*)")
_KEY = re.compile(r"Server host (?:key|certificate): (\S+) (SHA256:[^\s,]+)")
_OFFERED = re.compile(r"Offering public key: (\S+)")
_ALLOWED = re.compile(r"Authentications that can continue: (\S+)")
_REFUSED = re.compile(r"Permission denied \(([^)]*)\)")
_REVOKED = re.compile(r"is marked as revoked|REVOKED HOST KEY")
_HUNG_UP = re.compile(r"kex_exchange_identification: (?:read: )?(Connection (?:closed|reset).*)")
_NOT_SSH = re.compile(r"kex_exchange_identification: (.*)|(Unable to negotiate .*)|banner exchange: .*(invalid format)")
_FORWARD = re.compile(r"channel \d+: open failed: ([^:]+)(?:: (.*))?")
_ACCEPTED = re.compile(r"Permanently added '[^']*'")


class Step(enum.IntEnum):
    """Step of a login."""

    CONNECT = 0
    BANNER = 1
    KEY_EXCHANGE = 2
    LOGIN = 3


_STEPS = (
    ("Connection established.", Step.BANNER),
    ("Executing proxy command", Step.BANNER),
    ("Remote protocol version", Step.KEY_EXCHANGE),
    ("SSH2_MSG_NEWKEYS received", Step.LOGIN),
)


class StartLog:
    """The lines so far."""

    def __init__(self, target: Target, timeout_s: float) -> None:
        self.target, self.timeout_s = target, timeout_s
        self.lines: list[str] = []
        self.step = Step.CONNECT
        self._rest = ""

    @property
    def limit_s(self) -> float:
        """Seconds of silence after which the login has failed; ssh counts in whole seconds, and ends on its own."""
        hops, jump = 0, self.target.jump
        while jump is not None:
            hops, jump = hops + 1, jump.jump
        return (math.ceil(self.timeout_s) + 1) * (1 + STEPS_OF_A_JUMP * hops)

    def take(self, chunk: bytes) -> bool:
        """More of the log; whether there was any."""
        *whole, self._rest = (self._rest + chunk.decode(errors="replace")).split("\n")
        for line in whole:
            self.lines.append(line.rstrip("\r"))
            self.step = max(self.step, *(step for text, step in _STEPS if text in line), Step.CONNECT)
        return bool(chunk)

    @property
    def accepted(self) -> tuple[str, ...]:
        """What to report to the user of host keys that were unknown, and are now known."""
        if not any(_ACCEPTED.search(line) for line in self.lines):
            return ()
        return (accepted_key(self.target, self.shown_key, str(self.target.new_keys_file)),)

    @property
    def shown_key(self) -> str:
        """Kind and fingerprint of the key that the host showed last."""
        found = _last(_KEY, self.lines)
        return f"{found[1]} {found[2]}" if found else "a key"


def failure(log: StartLog, proxy: str, is_late: bool) -> HostFailed | HungUp:
    """Why ssh did not log in.

    Args:
        log: Of ssh.
        proxy: What the commands before the host wrote to stderr: a ProxyCommand, or the ssh of a jump host.
        is_late: It was silent for too long, and killed.
    """
    target = log.target
    if target.jump is not None:
        of_jump = _of_jump(target, target.jump, proxy.splitlines(), log.timeout_s)
        if of_jump is not None:
            return of_jump
    elif target.proxy_command is not None and log.step <= Step.BANNER and proxy.strip():
        return refusals.proxy_command(target, proxy.strip()[-2000:])
    found = _of_lines(target, log.lines, log.step, log.timeout_s)
    if found is not None:
        return found
    if is_late or "timed out" in _tail(log.lines):
        return _late(target, log.step, log.timeout_s)
    return HostFailed(target.host, f"ssh: {_tail(log.lines) or _tail(proxy.splitlines())}", refusals.by_hand(target))


def _of_jump(target: Target, jump: Target, lines: Sequence[str], timeout_s: float) -> HostFailed | None:
    """What the ssh to the last jump host reported, if that is the cause."""
    forwarded = _last(_FORWARD, lines)
    if forwarded is not None:
        is_disabled = "prohibited" in forwarded[1]
        return refusals.not_forwarded(
            target, jump, refusals.FORWARDING_DISABLED if is_disabled else forwarded[2] or forwarded[1]
        )
    found = _of_lines(jump, lines, Step.CONNECT, timeout_s)
    if isinstance(found, HungUp):
        return None  # the next attempt may have more luck
    return None if found is None else refusals.through_jump(target, found)


def _of_lines(target: Target, lines: Sequence[str], step: Step, timeout_s: float) -> HostFailed | HungUp | None:
    """A failure that the log names."""
    text = "\n".join(line for line in lines if not line.startswith(DEBUG))
    if found := _RESOLVE.search(text):
        return refusals.unknown_name(target, found[1])
    if "Host key verification failed" in text or "HOST IDENTIFICATION HAS CHANGED" in text or _REVOKED.search(text):
        return _host_key(target, lines, text)
    if _REFUSED.search(text) or "Too many authentication failures" in text:
        return _login(target, lines, text)
    if found := _CONNECT.search(text):
        return _connect(target, found[1], timeout_s)
    if "timed out" in text:
        return _late(target, step, timeout_s)
    if found := _HUNG_UP.search(text):
        return HungUp(found[1])
    if found := _NOT_SSH.search(text):
        sent = [line.partition("debug1: kex_exchange_identification: banner line ")[2] for line in lines]
        quoted = next((line for line in sent if line), "")
        why = next(part for part in found.groups() if part)
        return refusals.no_common_protocol(target, f"{why} {quoted}".strip())
    return None


def _connect(target: Target, why: str, timeout_s: float) -> HostFailed:
    if "refused" in why:
        return refusals.connection_refused(target)
    if "timed out" in why:
        return refusals.no_answer(target, timeout_s)
    return refusals.not_reachable(target, why)


def _host_key(target: Target, lines: Sequence[str], text: str) -> HostFailed:
    found = _last(_KEY, lines)
    shown, fingerprint = (f"{found[1]} {found[2]}", found[2]) if found else ("a key", "")
    same = {known: SshHostKey(known.kind, known.blob).fingerprint == fingerprint for known in known_keys(target)}
    if _REVOKED.search(text):
        source = next((known.source for known in same if known.revoked and same[known]), "RevokedHostKeys")
        return revoked_key(target, fingerprint, source)
    if "HAS CHANGED" in text:
        other = next((known for known in same if not known.revoked and not same[known]), None)
        if other is not None:
            return changed_key(target, shown, other)
    return unknown_key(target, shown)


def _login(target: Target, lines: Sequence[str], text: str) -> HostFailed:
    offered = [match[1] for line in lines if (match := _OFFERED.search(line))]
    tried = [name if "/" in name else f"agent {name}" for name in dict.fromkeys(offered)]
    allowed = _last(_ALLOWED, lines)
    left_out = ["further keys (too many tries)"] if "Too many authentication failures" in text else []
    return refusals.login_refused(target, tried, left_out, allowed[1].split(",") if allowed else ())


def _late(target: Target, step: Step, timeout_s: float) -> HostFailed:
    if step is Step.CONNECT:
        return refusals.no_answer(target, timeout_s)
    if step is Step.BANNER:
        return refusals.no_banner(target, timeout_s)
    if step is Step.KEY_EXCHANGE:
        return refusals.no_key_exchange(target, timeout_s)
    why = f"the login of {target.user} at {target.address} did not proceed within {timeout_s:g} s"
    return HostFailed(target.host, why, refusals.by_hand(target))


def _last(pattern: re.Pattern[str], lines: Sequence[str]) -> re.Match[str] | None:
    return next((match for line in reversed(lines) if (match := pattern.search(line))), None)


def _tail(lines: Sequence[str]) -> str:
    return next((line for line in reversed(lines) if line.strip() and not line.startswith(DEBUG)), "")
