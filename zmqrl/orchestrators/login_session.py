"""What ends with a login on a host, as systemd is configured there, and how a launcher that is to stay is started.

systemd-logind ends the processes of a login with it where `KillUserProcesses` is set, sessions of their own included.
A user scope is outside of the login; the user's manager, which holds it, lasts where linger is on for the user.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from zmqrl.ssh.shell import after_mark

MARK = "ZMQRL-SESSION "
SCOPE = 'env XDG_RUNTIME_DIR="${XDG_RUNTIME_DIR:-/run/user/$(id -u)}" systemd-run --user --scope --quiet --collect -- '
"""The variable is the place of the user's manager; not every sshd sets it."""
SCRIPT = f"""user=$(id -un)
linger=$(loginctl show-user "$user" -p Linger --value 2>/dev/null)
[ -n "$linger" ] || {{ [ ! -e "/var/lib/systemd/linger/$user" ] || linger=yes; }}
kills=$(loginctl show-session -p KillUserProcesses --value 2>/dev/null)
only=$(loginctl show-session -p KillOnlyUsers --value 2>/dev/null)
spared=$(loginctl show-session -p KillExcludeUsers --value 2>/dev/null)
scope=no
[ "$linger" != yes ] || ! {SCOPE}true >/dev/null 2>&1 </dev/null || scope=yes
echo "{MARK}user=$user;linger=$linger;kills=$kills;only=$only;spared=$spared;scope=$scope"
"""
"""For `sh -s`; prints one line that `LoginSession.parse` reads."""
_WORDS = re.compile(r"[^\s,]+")


@dataclass(frozen=True)
class LoginSession:
    """Facts of one login. All are false on a host without systemd."""

    user: str
    linger: bool
    """Linger is on: the user's manager lasts without a login."""
    scope: bool
    """A user scope was started for a trial. Not tried where linger is off."""
    kills: bool
    """KillUserProcesses is set, and applies to the user."""

    @classmethod
    def parse(cls, output: str) -> LoginSession | None:
        """Login session from the output of `SCRIPT`; None where its line is missing."""
        found = (after_mark(line, MARK) for line in output.splitlines())
        line = next((text for text in found if text is not None), None)
        if line is None:
            return None
        facts = dict(part.partition("=")[::2] for part in line.split(";"))
        user, only = facts.get("user", ""), _WORDS.findall(facts.get("only", ""))
        applies = user not in _WORDS.findall(facts.get("spared", "")) and (not only or user in only)
        kills = facts.get("kills") == "yes" and applies
        return cls(user, facts.get("linger") == "yes", facts.get("scope") == "yes", kills)

    @property
    def around(self) -> str:
        """The command around a launcher that outlives the login; empty where its own session is sufficient."""
        return SCOPE if self.scope else ""

    @property
    def refusal(self) -> str | None:
        """Why a launcher would end with the login, and the fix; None where it stays."""
        if self.scope or not self.kills:
            return None
        if self.linger:
            return "KillUserProcesses=yes, and `systemd-run --user --scope true` fails there: see its output"
        return (
            f"KillUserProcesses=yes, and linger is off for {self.user}: systemd would end the launcher with the login; "
            f"on that host: loginctl enable-linger {self.user}"
        )

    def __str__(self) -> str:
        how = "a systemd user scope" if self.scope else "a session of its own (setsid)"
        return (
            f"the launcher runs in {how}; linger {'on' if self.linger else 'off'}, "
            f"KillUserProcesses {'set' if self.kills else 'not set'}"
        )
