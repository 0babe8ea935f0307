"""Trains for `algorithm.train_s`, or until SIGTERM. `algorithm.learner`: `raise` fails, `silent` is never ready,
`returns` ends with exit code 0 and does not report it."""

from __future__ import annotations

import signal

from zmqrl.config.plan import Boot
from zmqrl.logs.events import EventPipe
from zmqrl.messages.process import LearnerEnded, Metrics, NewVersion, Ready
from zmqrl.types import Ledger, Notice, Version


def main(boot: Boot) -> int:
    algorithm = boot.plan.config.algorithm
    events = EventPipe(boot.fds["events"])
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if algorithm.get("learner") == "silent":
        signal.sigwait({signal.SIGTERM})
        return 0
    notice = Notice(Version(0, 1), "v1", 8, "00", 64)
    events.send(Ready())
    events.send(NewVersion(notice))
    values = {
        "env_steps": 64,
        "updates": 2,
        "train_return_mean_100": 21.0,
        "wait_fraction": 0.6,
        "env_steps_per_s": 900.0,
    }
    events.send(Metrics(values))
    if algorithm.get("learner") == "raise":
        raise ValueError("the loss is NaN")
    if algorithm.get("learner") == "returns":
        return 0
    signal.sigtimedwait({signal.SIGTERM}, float(algorithm.get("train_s", 60.0)))
    ended = LearnerEnded(
        reason="total_env_steps",
        env_steps=128,
        env_steps_before=0,
        updates=4,
        updates_lost=0,
        episodes=6,
        train_return_mean_100=22.5,
        solved_at_env_steps=None,
        solved_at_wall_s=None,
        policy_lag={"mean": 0.0, "p50": 0, "p99": 0, "max": 0},
        replay_ratio=0.0,
        weights_sha256="ab" * 32,
        env_steps_per_s=950.0,
        updates_per_s=30.0,
        wait_fraction=0.6,
        store_wait_fraction=0.0,
        checkpoint_interval_s=30.0,
        notice=notice,
        ledger=Ledger(128, 128, 0, {}, 0),
    )
    events.send(ended)
    return 0
