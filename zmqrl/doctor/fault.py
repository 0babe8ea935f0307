"""What is wrong with a host, in the shape in which it is shown, and what a rule that finds it is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zmqrl.doctor.measurement import Measurement
from zmqrl.doctor.needs import HostNeed, Needs
from zmqrl.types import Severity


@dataclass(frozen=True)
class HostFault:
    """One line for the user."""

    host: str
    check: str
    """Name of the check."""
    cause: str
    """What is wrong, with the value found."""
    fix: str
    """A command, or a setting."""
    severity: Severity = "error"
    """An error prevents a launch."""

    def data(self) -> dict[str, Any]:
        """JSON data of the fault; the severity is the key `grave` there."""
        shown = {"host": self.host, "check": self.check, "cause": self.cause, "fix": self.fix}
        return {**shown, "grave": self.severity == "error"}

    def __str__(self) -> str:
        return f"{self.host}: {self.check}: {self.cause}\n   {self.fix}"


class Findings:
    """Faults of one host, noted one after the other."""

    def __init__(self, host: str) -> None:
        self._host = host
        self.found: list[HostFault] = []

    def fault(self, check: str, cause: str, fix: str) -> None:
        """A fault prevents a launch."""
        self.found.append(HostFault(self._host, check, cause, fix))

    def warning(self, check: str, cause: str, fix: str) -> None:
        """Something is worth knowing."""
        self.found.append(HostFault(self._host, check, cause, fix, severity="warning"))


@dataclass(frozen=True)
class HostCheck:
    """One host: what was measured, what is needed, and where to note what is wrong."""

    measured: Measurement
    need: HostNeed
    needs: Needs
    findings: Findings

    @property
    def name(self) -> str:
        return self.measured.host

    def again(self, command: str) -> str:
        """A command of zmqrl's for this host alone."""
        return f"zmqrl {command} {self.needs.hosts_file} --limit {self.name}"

    def install(self) -> str:
        """The command that installs this zmqrl there."""
        if self.need.by_ssh:
            return self.again("setup")
        version = self.needs.versions["zmqrl"]
        return f"in a checkout of zmqrl {version} there, run {self.need.python} -m pip install -c constraints.txt '.'"

    def there(self, command: str) -> str:
        """A command to be run on that host."""
        return f"{self.need.login} '{command}'" if self.need.login else command
