"""What was written in place of a preset: an env, an algorithm, a Python file, or a name that is spelled alike."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path

from zmqrl.config.yaml_source import shown

ENV_ID = re.compile(r"([\w.]+:)?([\w-]+/)?[\w-]+-v\d+")
"""As gymnasium writes ids; presets have no version."""
DOTTED_PATH = re.compile(r"[\w.]+:\w+")


def what_it_is(preset: str, envs: Mapping[str, str | None]) -> str:
    """The end of the message for an unknown preset, with what to write. `envs`: the env id of each preset."""
    kinds = {name.rpartition("-")[2] for name in envs}
    if preset.endswith(".py"):
        return f"{preset!r} is a Python file: zmqrl train --env {Path(preset).stem}:NAME trains in its env NAME"
    if ENV_ID.fullmatch(preset) or DOTTED_PATH.fullmatch(preset):
        named = [name for name, env in envs.items() if env == preset]
        found = f"; presets with it: {', '.join(named)}" if named else ""
        return f"{preset!r} is an env: zmqrl train --env {preset} --algo KIND ({', '.join(sorted(kinds))}){found}"
    if preset.lower() in kinds:
        named = [name for name in envs if name.endswith(f"-{preset.lower()}")]
        command = f"zmqrl train --env ID --algo {preset.lower()}"
        return f"{preset!r} is an algorithm: {command}; presets with it: {', '.join(named)}"
    near = difflib.get_close_matches(preset.lower(), envs, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown preset {shown(preset)}; {hint}known: {', '.join(envs)}"
