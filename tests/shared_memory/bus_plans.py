"""Plans of small buses: 2 columns beside the fixed ones, T = 4, N = 2."""

from __future__ import annotations

import time
from pathlib import Path

from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import Config, EnvSection, LimitsSection, RunSection
from zmqrl.types import ColumnSpec, EnvSpec, ModeName, SpaceSpec

STEPS, ENVS = 4, 2
ROWS = STEPS * ENVS
COLUMNS = (
    ColumnSpec("obs", "float32", (STEPS + 1, ENVS, 3)),
    ColumnSpec("action", "int64", (STEPS, ENVS)),
    ColumnSpec("reward", "float32", (STEPS, ENVS)),
    *(ColumnSpec(name, "bool", (STEPS, ENVS)) for name in ("terminated", "truncated", "valid")),
)
HEARTBEAT_S = 0.05


def bus_plan(
    mode: ModeName = "sync",
    workers: int = 2,
    vector_envs: int = 2,
    leases: int = 2,
    slots: int = 8,
    run_dir: Path = Path(),
) -> RunPlan:
    """An on-policy run: no limiter."""
    space = SpaceSpec("discrete", (), "int64", 2)
    config = Config(
        run=RunSection(mode=mode),
        env=EnvSection(num_envs=ENVS, vector_envs=vector_envs, segment_steps=STEPS),
        limits=LimitsSection(leases_per_worker=leases, heartbeat_s=HEARTBEAT_S),
    )
    return RunPlan(
        run_id=f"test-{time.monotonic_ns()}",
        run_dir=str(run_dir),
        started_at=time.time(),
        config=config,
        env=EnvSpec("none", space, space),
        acting={},
        columns=COLUMNS,
        on_policy=True,
        slots=slots,
        streams=vector_envs,
        workers={"local": 0 if mode == "single" else workers},
        batch_segments=vector_envs,
        store_path=str(run_dir),
    )


def with_slots(plan: RunPlan, slots: int) -> RunPlan:
    return replace(plan, slots=slots)
