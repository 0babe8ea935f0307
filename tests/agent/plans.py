"""Plans for tests of processes: what stand-ins need and nothing more."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from tests.support.waiting import WAIT_S
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import Config, EvaluatorSection, LimitsSection, RestartSection, RunSection
from zmqrl.types import EnvSpec, ModeName, SpaceSpec

SPACE = SpaceSpec("discrete", (), "int64", 2)
DEAF = re.compile("deaf|simulates")
"""What does not end by itself, and is killed after its grace; the others have the time that they need."""
START = str(Path(__file__).parent / "stand_ins" / "start.py")


def stand_in_plan(run_dir: Path, mode: ModeName = "sync", workers: int = 2, **behaviour: Any) -> RunPlan:
    """A run whose `algorithm` section says how the stand-ins behave."""
    config = Config(
        run=RunSection(mode=mode, total_env_steps=128),
        algorithm={"kind": "ppo", **behaviour},
        limits=LimitsSection(
            start_s=float(behaviour.get("start_s", WAIT_S)),
            grace_s=float(behaviour.get("grace_s", 1.0 if DEAF.search(repr(behaviour)) else WAIT_S)),
        ),
        restart=RestartSection(max=int(behaviour.get("restarts", 1)), backoff_s=0.05),
        evaluator=EvaluatorSection(final_limit_s=1.0),
        on_end=behaviour.get("on_end"),
    )
    return RunPlan(
        run_id=f"test-{time.monotonic_ns()}",
        run_dir=str(run_dir),
        started_at=time.time(),
        config=config,
        env=EnvSpec("CartPole-v1", SPACE, SPACE, 475.0),
        acting={},
        columns=(),
        on_policy=True,
        slots=4,
        streams=4,
        workers={"local": 0 if mode == "single" else workers},
        batch_segments=4,
        store_path=str(run_dir / "checkpoints"),
    )
