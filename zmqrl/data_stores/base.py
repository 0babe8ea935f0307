"""The checkpoint seam. The suite `DATA_STORE` of `zmqrl.testing` checks every kind."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from msgspec import Struct, field

from zmqrl.config.kinds import NoKeys
from zmqrl.config.plan import Lineage
from zmqrl.data_stores.tensors import Rows
from zmqrl.errors import StoreError
from zmqrl.types import Array, ModeName, Version, Weights

MOST_NAMED = 2


class Saved(Struct, frozen=True):
    """The permanent identity of a file for notices."""

    key: str
    nbytes: int
    sha256: str


class Full(Struct, frozen=True):
    """Everything a learner needs to continue: flat named arrays, and plain JSON data alongside them."""

    version: Version
    arrays: Weights
    meta: Mapping[str, object]
    rows: Mapping[str, Rows] = field(default_factory=dict)
    """Further arrays, to be written from where they are; `newest_full` has them among `arrays`."""


def prefixed(prefix: str, arrays: Weights) -> dict[str, Array]:
    """Names under `prefix/`, as FULL holds them."""
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def unprefixed(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays under `prefix/`, by their own names."""
    return {name[len(prefix) + 1 :]: array for name, array in arrays.items() if name.startswith(f"{prefix}/")}


class DataStore(ABC):
    """Checkpoints by version. One writer (the learner; the evaluator writes only best), many readers.

    A checkpoint appears whole or not at all, and its content never changes. `read` repeats what may succeed later until
    its deadline. Every method that reads verifies the digest; content that does not verify is never returned, and
    nothing is unpickled.
    """

    Config: ClassVar[type[Any]] = NoKeys
    """Frozen dataclass of the keys of the kind; in files they are next to `kind` in the section `store`."""

    place_key: ClassVar[str] = "store.path"
    """The key of the configuration that names the place, for messages: of `owner`, and of another lineage there."""

    def __init__(self, place: str, keep: int, config: Any) -> None:
        """Open it; nothing is read or written yet.

        Args:
            place: From `place`.
            keep: How many published versions are kept.
            config: A `Config`.
        """
        del place, keep, config

    @classmethod
    @abstractmethod
    def place(cls, config: Any, run_dir: Path, lineage: str | None) -> str:
        """Where a lineage's checkpoints are. Called by the launcher, and by each host agent for its own host.

        Args:
            config: A `Config`.
            run_dir: The run directory on this host, absolute.
            lineage: Id of the lineage; None for a run of 0.1, whose checkpoints are not kept apart.
        """

    @classmethod
    def is_shared(cls, config: Any) -> bool:
        """Whether the place is outside the run directory, so that other runs and other hosts may see it.

        The checkpoints of a store that is not shared are copied to the launcher when the learner is on another host.
        """
        return True

    @classmethod
    def check(cls, config: Any, run_dir: Path) -> None:
        """Raise `ConfigError` when this host cannot write there.

        The launcher calls it before anything is started, where it is on the learner's host. On another host the agent
        writes the owner record first, and its failure ends the run with exit code 2.
        """
        del config, run_dir

    @classmethod
    def check_mode(cls, config: Any, mode: ModeName) -> None:
        """Raise `ConfigError` with the fix when the store does not suit `run.mode`. Called before anything starts."""
        del config, mode

    def is_visible(self) -> bool:
        """Whether this host sees the place that the learner writes to. Called by the launcher before a resume."""
        return True

    def leave_token(self, run_id: str) -> str | None:
        """Write a random token that `sees_token` looks for on other hosts; None where nothing has to be compared.

        Called by the agent of the learner's host, when other hosts participate. StoreError.
        """
        return None

    def sees_token(self, run_id: str, token: str) -> bool:
        """Whether `token` is there: whether this host sees the store that the learner writes to."""
        return False

    def remove_token(self, run_id: str) -> None:
        """The run ends. Safe to call twice."""
        del run_id

    @abstractmethod
    def save(self, version: Version, weights: Weights, meta: Mapping[str, str]) -> Saved:
        """Write the published weights of `version`. No fsync. StoreError when it cannot be written."""

    @abstractmethod
    def read(self, key: str, nbytes: int, sha256: str, deadline_s: float) -> bytes:
        """The verified bytes behind a notice, as safetensors. StoreError after `deadline_s`, with the cause."""

    @abstractmethod
    def save_full(self, full: Full, durable: bool) -> int:
        """Write FULL, return its bytes. It survives the process; with `durable` also a power cut once this returns.

        The last two durable FULL are kept, whatever is written after them (`retire`).
        """

    def sync_full(self, version: Version) -> None:
        """Make an existing FULL durable. No operation for kinds whose files are durable at once."""
        del version

    @abstractmethod
    def newest_full(self) -> Full | None:
        """The newest FULL that verifies; a truncated or corrupt one is passed over, and an older one is returned.

        None when there is none. StoreError when some exist and none can be loaded, or the listing failed: a start from
        scratch is not a resume. Where a crash can tear the first FULL of a run, a single damaged one is None too, and
        `passed_over` names it.
        """

    def passed_over(self) -> list[str]:
        """Damaged FULL and best versions that were not loaded since the last call, and why: for the user."""
        return []

    def damaged(self) -> Mapping[str, str]:
        """Names of the checkpoints of any kind that were read and not loaded, and why."""
        return {}

    @abstractmethod
    def save_best(self, version: Version, content: bytes, score: float) -> None:
        """Keep `content` (weights as read) as the best so far. It is durable before an earlier one is deleted.

        A kind may keep the previous one, which `best` returns when the newest is damaged.
        """

    @abstractmethod
    def best(self) -> tuple[Version, bytes, float] | None:
        """The best version's weights and score that verify, or None."""

    @abstractmethod
    def newest(self) -> tuple[Version, bytes] | None:
        """The newest version's weights, verified; None when there is none."""

    def keep(self, version: Version, weights: Weights, meta: Mapping[str, str]) -> None:
        """Write the weights of `version` for good, durable: `retire` and `finish` leave them (`store.keep_every`).

        Called by the learner after `save` of the same version. StoreError when it cannot be written. A kind without
        this method cannot be used with `store.keep_every`.
        """
        raise StoreError(
            f"cannot keep version {version}",
            name=f"a store of the kind {type(self).__name__}",
            fix="see store.keep_every",
        )

    def newest_kept(self) -> bytes | None:
        """The newest weights of `keep` that verify; None when there are none."""
        return None

    def versions(self) -> Sequence[Version]:
        """Versions whose weights can be read with `weights_of`, oldest first. For `--checkpoint`."""
        found = [entry[0] for entry in (self.best(), self.newest()) if entry is not None]
        return sorted(set(found))

    def weights_of(self, version: Version) -> bytes | None:
        """The verified weights of `version`, whether published, kept or best; None when they are not there."""
        found = (entry for entry in (self.newest(), self.best()) if entry is not None)
        return next((entry[1] for entry in found if entry[0] == version), None)

    def owner(self) -> Lineage | None:
        """The lineage and attempt that wrote here last; None where nothing is recorded.

        Called by the launcher and the learner's host agent before the run starts. A store whose path is enough to keep
        lineages apart need not record it.
        """
        return None

    def set_owner(self, owner: Lineage) -> None:
        """Record that `owner` writes here from now on; it was compared with `owner()` before. StoreError."""
        return

    def put_aside(self, folder: str) -> str | None:
        """Move every checkpoint to `folder` below the place, durable: the run starts again at env step 0.

        Called by the launcher before anything is started.

        Returns:
            Where they are now; None: there were none.

        Raises:
            StoreError: Some may have been moved; `put_back` follows.
        """
        if self.newest() is None and self.newest_full() is None and self.best() is None:
            return None
        raise StoreError(f"cannot move its checkpoints to {folder}", name=f"a store of the kind {type(self).__name__}")

    def put_back(self, folder: str) -> None:
        """The reverse of `put_aside`: the start was refused. StoreError when some stay in `folder`."""
        del folder

    @abstractmethod
    def retire(self) -> None:
        """Delete what retention no longer keeps. Late, cheap.

        Retained: the newest `keep` versions, those of `keep()`, best, the last two FULL, and the last two durable FULL.
        A superseded version stays for about 2 s, since hosts may be reading it; then they read the next one.
        """

    def finish(self) -> None:
        """The learner has finished: apply retention, without waiting, and delete its temporary files.

        The evaluator may be writing still: its temporary files stay. Not called when the learner is killed: `retire`
        of the next one deletes what is left.
        """
        self.retire()


def few(causes: Sequence[str], most: int = MOST_NAMED) -> str:
    """The first causes, and how many more there are: after a power cut every file may be damaged."""
    more = [f"and {len(causes) - most} more"] if len(causes) > most else []
    return "; ".join([*causes[:most], *more])


@contextmanager
def unlogged() -> Iterator[None]:
    """Damaged files are not logged: the caller reports them, or the learner does."""
    logger = logging.getLogger("zmqrl.data_stores.checkpoints")

    def drop(_: logging.LogRecord) -> bool:
        return False

    logger.addFilter(drop)
    try:
        yield
    finally:
        logger.removeFilter(drop)
