"""What a check is given: one host's measurement, what the run needs of it, and where to note what is wrong."""

from __future__ import annotations

from dataclasses import dataclass

from zmqrl.doctor.fault import Complaints
from zmqrl.doctor.measurement import Measurement
from zmqrl.doctor.needs import HostNeed, Needs


@dataclass(frozen=True)
class Case:
    """One host: what was measured, what is needed, and where to note what is wrong."""

    measured: Measurement
    need: HostNeed
    needs: Needs
    complaints: Complaints

    @property
    def host(self) -> str:
        return self.measured.host

    def again(self, command: str) -> str:
        """A command of zmqrl's for this host alone."""
        return f"zmqrl {command} {self.needs.hosts_file} --limit {self.host}"

    def install(self) -> str:
        """The command that installs this zmqrl there."""
        if self.need.by_ssh:
            return self.again("setup")
        return f"{self.need.python} -m pip install zmqrl=={self.needs.versions['zmqrl']}"

    def there(self, command: str) -> str:
        """A command to be run on that host."""
        return f"{self.need.login} '{command}'" if self.need.login else command
