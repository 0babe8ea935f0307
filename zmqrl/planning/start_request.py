"""The request to start a run, of the command line and of Python."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zmqrl.planning.without_preset import WithoutPreset
    from zmqrl.types import ModeName


@dataclass(frozen=True, kw_only=True)
class StartRequest:
    """Which run to start, and how it differs from its preset, hosts file or stored configuration."""

    preset: str | None = None
    hosts_file: Path | None = None
    without_preset: WithoutPreset | None = None
    overrides: Sequence[str] | Mapping[str, Any] = ()
    mode: ModeName | None = None
    workers: int | None = None
    seed: int | None = None
    limit: Sequence[str] = ()
    init_from: str | None = None
    run_dir: Path | None = None
    """Run directory of a new run."""
    resume: Path | None = None
    """Run directory of the run to continue."""
    for_env_steps: int | None = None
    from_scratch: bool = False
    """Whether a resume may begin at env step 0 where no full checkpoint can be loaded."""
    may_continue: bool = True
    """Not with `--from-scratch` of a run that the user names. A job that repeats its command continues where it can."""
    trusted: bool | None = None
    started_at: float = field(default_factory=time.time)

    @property
    def directory(self) -> Path:
        """Run directory of the new run, or of the one to continue."""
        directory = self.resume or self.run_dir
        assert directory is not None, "`new_directory` has the default"
        return directory

    def flags(self) -> Iterator[str]:
        """The options of a command that starts the run; it has its own preset or hosts file, and run directory."""
        named = (("--mode", self.mode), ("--workers", self.workers), ("--seed", self.seed))
        yield from (word for name, value in named if value is not None for word in (name, str(value)))
        yield from (word for pair in self.overrides for word in ("--set", pair))
        yield from (word for hosts in self.limit for word in ("--limit", hosts))
        if self.from_scratch:
            yield "--from-scratch"
        if self.init_from is not None:
            yield from ("--init-from", self.init_from)
