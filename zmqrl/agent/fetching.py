"""Which version to request from the broker, and when. Pure."""

from __future__ import annotations

from zmqrl.types import Version

AGAIN_S, AGAIN_MAX_S = 2.0, 30.0


class Fetching:
    """One request at a time: each reply is a whole policy, and behind a thin wire they would pile up.

    A request without an answer is repeated with backoff, since the answer may be in transit; at once
    when another broker is there, which knows nothing of it.
    """

    def __init__(self) -> None:
        self._wanted: Version | None = None
        self._asked: Version | None = None
        self._asked_at = 0.0
        self._again_s = AGAIN_S
        self._broker: int | None = None

    def want(self, version: Version) -> None:
        """This version, or a newer one."""
        if self._wanted is None or self._wanted < version:
            self._wanted = version

    def came(self, version: Version) -> None:
        """It is here."""
        if self._asked is not None and self._asked <= version:
            self._asked, self._again_s = None, AGAIN_S
        if self._wanted is not None and self._wanted <= version:
            self._wanted = None

    def due(self, broker: int | None, now: float) -> Version | None:
        """The version to request now, which then counts as requested.

        Args:
            broker: incarnation of the broker that reported last; None: unknown.
            now: monotonic seconds.
        """
        is_new = self._broker is not None and broker != self._broker
        self._broker = broker
        if self._wanted is None:
            return None
        if self._asked is not None:
            is_late = now - self._asked_at >= self._again_s
            if not is_late and not is_new:
                return None
            self._again_s = AGAIN_S if is_new else min(AGAIN_MAX_S, 2 * self._again_s)
        self._asked, self._asked_at = self._wanted, now
        return self._asked
