"""A fault for the user: what failed, where, the cause, its last log lines, and the action taken. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import indent
from typing import Any

from zmqrl.logs.printable import printable
from zmqrl.types import Severity

LOG_LINES_SHOWN = 12
LAST_LINES_SHOWN = 4
"""Lines shown of the exception that was raised from another one, counted in `LOG_LINES_SHOWN`."""
RAISED_FROM = "The above exception was the direct cause of the following exception:"
FATAL, CURRENT = "Fatal Python error:", "Current thread "
"""What faulthandler writes, the thread that was at work last; its innermost call comes first."""
EXTENSIONS = "Extension modules:"


@dataclass(frozen=True)
class Problem:
    """What failed, where, the cause, and the action taken."""

    where: str
    cause: str
    action_taken: str
    detail: Mapping[str, Any] = field(default_factory=dict)
    log: str = ""
    log_tail: tuple[str, ...] = ()
    is_repeated: bool = False
    """The same was reported before: its traceback is not shown again."""
    severity: Severity = "warning"

    @property
    def shown(self) -> str:
        """The severity, and the text."""
        return f"{self.severity}: {self}"

    def __str__(self) -> str:
        in_cause = {name: f"{name.replace('_', ' ')} {value}" in self.cause for name, value in self.detail.items()}
        detail = ", ".join(f"{name} {short(value)}" for name, value in self.detail.items() if not in_cause[name])
        lines = [f"{self.where}: {self.cause}" + (f" ({detail})" if detail else "")]
        lines += [f"    {line}" for line in ([] if self.is_repeated else shown_tail(self.log_tail))]
        if self.log:
            lines.append(f"  log: {self.log}")
        return printable("\n".join([*lines, indent(self.action_taken, "  ")]))


def shown_problems(status: Mapping[str, Any]) -> dict[str, Severity]:
    """The problems of a `status.json` as they are shown, with their severity; zmqrl 0.2 has written none."""
    texts = status.get("problems", [])
    severities = status.get("severities") or ["warning"] * len(texts)
    return {f"{severity}: {text}": severity for severity, text in zip(severities, texts, strict=False)}


def shown_tail(lines: Sequence[str]) -> list[str]:
    """At most `LOG_LINES_SHOWN` lines of the end of a log; of a traceback, what states where it went wrong."""
    lines = [line for line in lines if line.strip(" ^~") and not line.startswith(EXTENSIONS)]
    current = _last(lines, CURRENT)
    if current is not None and all(line.startswith(" ") for line in lines[current + 1 :]):
        fatal = _last(lines[:current], FATAL)
        return [*(lines[fatal : fatal + 1] if fatal is not None else ()), *lines[current:]][:LOG_LINES_SHOWN]
    raised = _last(lines[:-LAST_LINES_SHOWN], RAISED_FROM)
    if raised is not None:
        return [*lines[:raised][-LOG_LINES_SHOWN + LAST_LINES_SHOWN :], "...", *lines[-LAST_LINES_SHOWN + 1 :]]
    return lines[-LOG_LINES_SHOWN:]


def _last(lines: Sequence[str], begin: str) -> int | None:
    return max((at for at, line in enumerate(lines) if line.startswith(begin)), default=None)


def counted(number: object, noun: str) -> str:
    """`1 worker`, `2 workers`, `auto workers`."""
    return f"{number} {noun}{'s' * (number != 1)}"


def report_cells(reports: Mapping[str, float]) -> list[str]:
    """Numbers of `env.report` for people: `comfort -0.61`."""
    return [f"{name} {short(value)}" for name, value in reports.items()]


def short(value: object) -> str:
    """A value for people: at most 4 significant digits of a fraction; status.json and summary.json keep all."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"
