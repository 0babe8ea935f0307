"""Which FULLs and versions stay. Pure: names and what is known of them in, what may go out."""

from __future__ import annotations

from collections.abc import Iterable

from zmqrl.types import Version

KEPT = 2


class Milestones:
    """Which versions stay for good: the first one at or after each multiple of `every` env steps."""

    def __init__(self, every: int, kept_at: int) -> None:
        """`kept_at`: env steps of the newest version that was kept before; 0 where there is none."""
        self._every = every
        self._passed = kept_at // every

    def is_due(self, env_steps: int) -> bool:
        """Whether a version of `env_steps` is to be kept."""
        return env_steps // self._every > self._passed

    def kept(self, env_steps: int) -> None:
        """A version of `env_steps` is kept."""
        self._passed = env_steps // self._every


class FullRetention:
    """The newest two stay, and the last two that survive a power cut; what was found stays until one does.

    One thread may call `written` while another thread reads: single set operations, each of them atomic.
    """

    def __init__(self) -> None:
        self._versions: set[Version] = set()
        self._found: set[Version] = set()
        self._volatile: set[Version] = set()
        """Written by this process, and never durable."""
        self._durable: list[Version] = []

    def found(self, versions: Iterable[Version]) -> None:
        """Written by an earlier process: whether they are durable is unknown."""
        new = {*versions} - self._versions
        self._found.update(new)
        self._versions.update(new)

    def written(self, version: Version, durable: bool) -> None:
        """Written by this process."""
        self._found.discard(version)
        self._volatile.add(version)
        if durable:
            self.synced(version)
        self._versions.add(version)

    def synced(self, version: Version) -> None:
        """Content and name survive a power failure from now on, independent of the writer."""
        self._durable = [*(v for v in self._durable if v != version), version][-KEPT:]
        self._volatile.discard(version)

    def may_recycle(self, version: Version) -> bool:
        """Whether the retired file may be overwritten in place: this process wrote it, and it never was durable."""
        return version in self._volatile

    def drop(self, version: Version) -> None:
        """Remove a version that was retired."""
        for known in (self._versions, self._found, self._volatile):
            known.discard(version)

    def superseded(self) -> list[Version]:
        """Versions that may be retired, oldest first; the caller that retires one calls `drop`."""
        versions = sorted(self._versions)
        kept = {*versions[-KEPT:], *self._durable, *(() if self._durable else self._found)}
        return [v for v in versions if v not in kept]
