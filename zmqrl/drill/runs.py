"""The two runs of a drill: the preset as it is, and alongside it the witness run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zmqrl.config.codec import replace, to_json
from zmqrl.config.plan import RunPlan
from zmqrl.drill.faults import Kind, Minimum
from zmqrl.drill.run_under_test import RunUnderTest
from zmqrl.drill.scenarios import Scenario
from zmqrl.drill.witness import EPISODE_LIMIT
from zmqrl.launch.start import configured, planned
from zmqrl.planning.checked import call
from zmqrl.planning.start_request import StartRequest
from zmqrl.supervision.served_call import Subject
from zmqrl.types import MODES

ENDLESS = 1_000_000_000
"""Env steps: the drill ends its runs."""
WALL_SLACK_S = 600.0
"""A run whose drill was killed reaches its limit this much later than twice the drill."""
RESTART: Mapping[str, Any] = {"max": 1000, "window_s": 5.0}
"""A drill kills more often than `restart.max` of any honest run allows; the window keeps the backoff short."""
LIMITS: Mapping[str, Any] = {"lost_after_s": 6.0, "stalled_after_s": 8.0, "start_s": 30.0}
"""So that a hanging worker is found within seconds."""
LEARNING, WITNESS = "learning", "witness"
STEP_S = 0.001
"""What a step of the witness env takes: it leaves the processor to the other run."""
FULL_AFTER = 4
"""Segments of each vector env that the witness's replay holds: it is full at once, and evicts."""
OWN_RATIO = 0.05
"""Replay ratio of a witness whose preset has none."""
MOST_ENVS, MOST_STEPS = 4, 32
"""The witness's vector envs are not larger: the drill tests the path of a segment, not its size."""


@dataclass(frozen=True)
class DrillRequest:
    """What the command was given."""

    scenario: Scenario
    seed: int
    """Seed of the faults. The runs have the preset's own: what is drilled is how one that learns bears faults."""
    for_s: float
    folder: Path
    faults: int
    only: frozenset[Kind] = frozenset()
    """Kinds of faults; none: all."""
    at_least: tuple[Minimum, ...] = ()
    plant: str | None = None
    """The defect (`planted.DEFECTS`) that the witness run has."""
    small_disk: bool = False
    """Whether the witness run's directory lies on a separate small disk."""


def learning_run(request: DrillRequest) -> tuple[RunUnderTest, int]:
    """The preset under faults, and the env steps that it has for its threshold. ConfigError as `train` raises it."""
    scenario = request.scenario
    mode, workers, changes = scenario.mode, scenario.workers, scenario.overrides
    asked = StartRequest(preset=scenario.preset, mode=mode, workers=workers, overrides=changes)
    run = configured(asked).config.run
    settings = {
        "run.name": LEARNING,
        "run.stop_at_return": None,
        "run.total_env_steps": ENDLESS,
        "run.schedule_env_steps": run.schedule_env_steps or run.total_env_steps,
        "run.max_wall_s": _max_wall_s(request.for_s),
        **{f"restart.{key}": value for key, value in RESTART.items()},
        **{f"limits.{key}": value for key, value in LIMITS.items()},
    }
    overrides = [*(f"{key}={json.dumps(value)}" for key, value in settings.items()), *changes]
    asked = replace(asked, overrides=overrides, run_dir=request.folder / LEARNING)
    return _under_test(LEARNING, asked), run.total_env_steps


def witness_run(request: DrillRequest, learning: RunPlan) -> RunUnderTest:
    """A run of the same mode, workers and vector envs whose rows name themselves. Writes its preset."""
    preset = request.folder / f"{WITNESS}.yaml"
    preset.write_text(json.dumps(witness_config(request, learning), indent=2) + "\n", encoding="utf-8")
    workers, run_dir = request.scenario.workers, request.folder / WITNESS
    return _under_test(WITNESS, StartRequest(preset=str(preset), workers=workers, run_dir=run_dir), is_witness=True)


def witness_config(request: DrillRequest, learning: RunPlan) -> dict[str, Any]:
    """Its preset, as JSON data."""
    env, mode, replay = learning.config.env, learning.config.run.mode, learning.config.replay
    off_policy = not MODES[mode].deterministic or not learning.on_policy
    arguments = to_json(learning.config), to_json(learning.env)
    prioritised: bool = call("is_prioritised", *arguments, subject=Subject(f"the replay of {learning.run_id}"))
    record = str(record_folder(request.folder))
    num_envs, steps = min(env.num_envs, MOST_ENVS), min(env.segment_steps, MOST_STEPS)
    return {
        "run": {
            "name": WITNESS,
            "mode": mode,
            "total_env_steps": ENDLESS,
            "max_wall_s": _max_wall_s(request.for_s),
            "checkpoint_every_s": 3.0,
        },
        "env": {
            "id": "zmqrl.drill.witness:WitnessEnv",
            "kwargs": {"record": record, "step_s": STEP_S},
            "max_episode_steps": EPISODE_LIMIT,
            "num_envs": num_envs,
            "vector_envs": env.vector_envs,
            "segment_steps": steps,
        },
        "network": {"hidden": [8]},
        "algorithm": {
            "kind": f"zmqrl.drill.witness_algorithm:{'WitnessOffPolicy' if off_policy else 'WitnessOnPolicy'}",
            "record": record,
            "prioritised": prioritised,
            "plant": request.plant,
        },
        "replay": {
            "capacity": FULL_AFTER * num_envs * steps * max(env.vector_envs, request.scenario.workers),
            "learning_starts": 0,
            "ratio": OWN_RATIO if learning.on_policy else replay.ratio,
        },
        "evaluator": {"episodes": 0},
        "restart": dict(RESTART),
        "limits": dict(LIMITS),
    }


def record_folder(folder: Path) -> Path:
    """Where the witness env and algorithm write."""
    return folder / "record"


def _max_wall_s(for_s: float) -> float:
    return 2 * for_s + WALL_SLACK_S


def _under_test(name: str, request: StartRequest, is_witness: bool = False) -> RunUnderTest:
    """The run that the command starts; the plan is made here too."""
    plan = planned(request, configured(request), connects=False)
    return RunUnderTest(name, plan, [str(request.preset), *request.flags()], is_witness)
