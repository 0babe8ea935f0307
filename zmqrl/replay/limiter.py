"""The learner's side of the rate limiter: how many updates are due."""

from __future__ import annotations

NO_LIMIT = 1 << 62
"""Value of `most` for all that is due."""


def updates_due(env_steps: int, updates: int, *, learning_starts: int, ratio: float, most: int) -> int:
    """floor(ratio * (env_steps - learning_starts)) - updates, within [0, `most`].

    In sync `most` is not to bind: every round does all that is due, or single and sync would differ.
    """
    # A ratio like 0.1 is a last bit below or above its decimal; the nudge keeps 0.1 * 30 at 3.
    allowed = int(ratio * max(0, env_steps - learning_starts) + 1e-9)
    return min(max(0, allowed - updates), most)
