"""Presets whose env comes with an extra of zmqrl that the tests do not install."""

from __future__ import annotations

from importlib.util import find_spec

PACKAGES = {
    "pong": ("ale_py", "atari"),
    "minatar": ("minatar", "minatar"),
    "halfcheetah": ("mujoco", "mujoco"),
    "spread": ("mpe2", "pettingzoo"),
}
"""First word of a preset: the package that it needs, and the extra that installs it."""


def missing_extra(preset: str) -> str | None:
    """The extra that the preset needs; None if its package is here."""
    package, extra = PACKAGES.get(preset.partition("-")[0], (None, None))
    return extra if package is not None and find_spec(package) is None else None
