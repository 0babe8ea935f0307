"""Peak memory and processor time of a host's processes."""

from __future__ import annotations

from collections.abc import Iterable

from zmqrl.agent.children import Child
from zmqrl.messages.agent import ProcessUsage
from zmqrl.supervision.process_table import cpu_seconds, pss_mb

SAMPLE_EVERY_S = 5.0


class Usage:
    """Samples proportional set sizes and keeps the largest per role."""

    def __init__(self) -> None:
        self.peak_pss_mb: dict[str, float] = {}

    def sample(self, children: Iterable[Child]) -> dict[str, ProcessUsage]:
        """By `role-index`."""
        usage: dict[str, ProcessUsage] = {}
        for child in children:
            pss, cpu = pss_mb(child.identity.pid), cpu_seconds(child.identity.pid)
            if pss is None or cpu is None:
                continue
            role = child.place.role
            self.peak_pss_mb[role] = max(self.peak_pss_mb.get(role, 0.0), pss)
            usage[str(child.place)] = ProcessUsage(round(pss, 1), round(cpu, 2))
        return usage
