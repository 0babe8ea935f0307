"""Whether hosts can participate in one run: versions and platforms that their agents report. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from zmqrl.types import Mode

MOST_SKEW_S = 30.0
MUST_AGREE = ("zmqrl", "protocol", "byteorder")
"""The boot line and every message depend on these."""
MAJOR_AGREES = ("numpy", "msgpack", "msgspec", "pyzmq", "torch")
MINOR_AGREES = ("python", "gymnasium")
"""Where another one is likely to give other bits, or another env."""

ORDERED_STORES = ("x86_64", "AMD64")
"""Processors whose stores other cores see in program order, as `platform.machine` names them."""


def processor_refusal(machine: str | None, mode: Mode) -> str | None:
    """Why a host with this processor cannot participate in `mode`; None when it can, or does not name its processor.

    The processes of sync and async write payload, seal and record into shared memory without barriers between them.
    """
    if mode == "single" or machine is None or machine in ORDERED_STORES:
        return None
    return (
        f"the processor is {machine}, and run.mode {mode} needs x86-64: other processors may reorder the stores by "
        "which processes share segments and weights; run.mode single is supported"
    )


def refusals(here: Mapping[str, str | None], there: Mapping[str, str | None]) -> list[str]:
    """What the remote host has, and cannot participate with."""
    return [
        f"{name} {there.get(name) or 'none'} there, {here.get(name)} here"
        for name in MUST_AGREE
        if there.get(name) != here.get(name)
    ]


def warnings(here: Mapping[str, str | None], there: Mapping[str, str | None]) -> list[str]:
    """What differs and may do."""
    parts = [*((name, 1) for name in MAJOR_AGREES), *((name, 2) for name in MINOR_AGREES)]
    return [
        f"{name} {there.get(name) or 'none'} there, {here.get(name)} here"
        for name, count in parts
        if _head(there.get(name), count) != _head(here.get(name), count)
    ]


def clock_warnings(there: float, here: float) -> list[str]:
    """What two clocks, in Unix seconds, differ by when it is more than the way between them can explain."""
    ahead_s = there - here
    if abs(ahead_s) <= MOST_SKEW_S:
        return []
    word = "ahead of" if ahead_s > 0 else "behind"
    return [f"the host's clock is {abs(ahead_s):.0f} s {word} this machine's; set it: sudo timedatectl set-ntp true"]


def _head(version: str | None, count: int) -> list[str]:
    return (version or "").split(".")[:count]
