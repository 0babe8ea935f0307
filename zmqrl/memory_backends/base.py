"""The memory backend seam: what carries experience (segments) from the workers of other hosts to the broker.

It may lose, repeat, reorder and delay messages. A worker keeps each segment until the broker has acknowledged
it over control, and sends it again; the broker accepts each segment once and in order. A message that arrives changed
is refused and counted (`memory_backends/seal.py`). The suite `MEMORY_BACKEND` of
`zmqrl.testing` checks every kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from zmqrl.config.kinds import NoKeys
from zmqrl.config.plan import RunPlan

if TYPE_CHECKING:
    from typing_extensions import Buffer


class MemoryBackend(ABC):
    """A kind of carrier. The launcher makes one to check it; the broker and each worker use their own.

    A message is one segment: some frames, each a bytes-like object. It arrives with the same frames in the same order,
    or not at all. Both methods raise `TransportError` while the carrier is away: the run reports it and tries again.
    `ConfigError` (wrong credentials) ends the process, which is not restarted. Secrets are taken from the environment
    of the host: the configuration is stored with the run.
    """

    Config: ClassVar[type[Any]] = NoKeys
    """Frozen dataclass of the kind's own keys, which stand next to `kind` in the section `memory_backend`."""

    def __init__(self, config: Any, plan: RunPlan) -> None:
        """Opens nothing.

        Args:
            config: An instance of `Config`.
            plan: The run; `run_id` keeps its messages apart from those of other runs.

        Raises:
            ConfigError: In the launcher, before anything is written: exit code 2.
        """
        self.config, self.plan = config, plan

    @abstractmethod
    def send(self, frames: Sequence[Buffer]) -> bool:
        """Hand one message over to the carrier. A worker's main thread calls it; no env is stepped meanwhile.

        The buffers stay as they are after the call. It should return within `limits.heartbeat_s`. A worker may send
        before the first `receive` of the broker: that is False, or the carrier keeps the message, for some seconds;
        `TransportError` comes after that.

        Returns:
            False when the carrier cannot take the message now; it is sent again in any case until it is acknowledged.
        """

    @abstractmethod
    def receive(self, timeout_s: float) -> Sequence[Sequence[Buffer]]:
        """Messages that have arrived. The broker calls it, in a thread that does nothing else.

        Waits up to `timeout_s` for the first one, and then no longer.
        """

    def close(self) -> None:
        """Release the connection. In the broker also remove what the run has left at the carrier.

        Called once; not called when the process is killed: what is left must not harm another run.
        """
        return
