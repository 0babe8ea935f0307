"""Where other hosts may find this one."""

from __future__ import annotations

import socket


def own_addresses() -> list[str]:
    """IPv4 addresses of interfaces that are up, loopback left out."""
    import psutil  # only the learner's host of a run with others needs it

    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    found = [
        address.address
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if name in up and address.family == socket.AF_INET
    ]
    return [address for address in found if not address.startswith("127.")]
