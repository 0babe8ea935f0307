"""What is wrong with a host, in the shape in which it is shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One line for the user."""

    host: str
    check: str
    """Name of the check."""
    cause: str
    """What is wrong, with the value found."""
    fix: str
    """A command, or a setting."""
    grave: bool = True
    """It prevents a launch; else it is a warning."""

    def __str__(self) -> str:
        return f"{self.host}: {self.check}: {self.cause}\n   {self.fix}"


class Complaints:
    """Faults of one host, noted one after the other."""

    def __init__(self, host: str) -> None:
        self._host = host
        self.found: list[Fault] = []

    def fault(self, check: str, cause: str, fix: str) -> None:
        """A fault prevents a launch."""
        self.found.append(Fault(self._host, check, cause, fix))

    def warning(self, check: str, cause: str, fix: str) -> None:
        """Something is worth knowing."""
        self.found.append(Fault(self._host, check, cause, fix, grave=False))
