"""Run directories with a checkpoint of first weights, without a run: for tests of what is made of a run."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from zmqrl.algorithms.start.make import make_algorithm
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import Config
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.envs.make import probe
from zmqrl.networks.initial import initial_weights
from zmqrl.planning.configure import load_config
from zmqrl.run_files.run_directory import RunDirectory
from zmqrl.run_files.stored_config import stored_config
from zmqrl.summary import Summary
from zmqrl.types import EnvSpec, Version, Weights


def store_run(preset: str, run_dir: Path, *numbers: int, **overrides: Any) -> tuple[Config, EnvSpec, Weights]:
    """A directory with `config.json` and the versions `0-<number>`, all with the first weights.

    `overrides` as for `--set`, with `__` for the dot.
    """
    config = load_config(preset, overrides={key.replace("__", "."): value for key, value in overrides.items()})
    env = probe(config.env)
    algorithm = make_algorithm(config, env)
    weights = {**initial_weights(algorithm.network(), config.run.seed), **algorithm.statistics()}
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "config.json").write_text(json.dumps(stored_config(config, env)))
    store = DirectoryStore(str(run_dir / "checkpoints"), 8)
    for number in numbers or (4,):
        store.save(Version(0, number), weights, {"env_steps": str(100 * number)})
    return config, env, weights


def summary_data(**changes: Any) -> dict[str, Any]:
    """The content of the `summary.json` of a run that was done, with `changes`; None in all else that may be None."""
    known = {
        "status": "done",
        "exit_code": 0,
        "run_id": "run-1",
        "mode": "sync",
        "algorithm": "ppo",
        "env": "CartPole-v1",
        "seed": 1,
        "workers": 1,
        "wall_s": 1.0,
        "restarts": 0,
        "peak_pss_mb": {},
    }
    required = [f.name for f in fields(Summary) if f.default is MISSING and f.default_factory is MISSING]
    return {**dict.fromkeys(required), **known, **changes}


def begun(plan: RunPlan) -> RunDirectory:
    """The run directory as an attempt begins with it, owned until `release`."""
    directory = RunDirectory.own(plan)
    directory.begin(plan)
    return directory
