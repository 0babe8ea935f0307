"""What `zmqrl export` exports of a run directory."""

from __future__ import annotations

import shlex
from pathlib import Path

from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.make import make_algorithm
from zmqrl.data_stores import tensors
from zmqrl.envs.make import probe
from zmqrl.export.card import Source
from zmqrl.launch.policies import named_checkpoint, stored_checkpoints
from zmqrl.launch.run_directory import read_config, read_info
from zmqrl.types import Weights


def exported_of(run_dir: Path, checkpoint: str) -> tuple[ActingSpec, Weights, Source]:
    """The acting spec and the weights of a checkpoint, and what is known of it.

    Raises:
        ConfigError: `run_dir` is not a run directory, or has no checkpoint of this name.
        StoreError: It has no version.
    """
    config = read_config(run_dir, lambda run: f"zmqrl export {shlex.quote(run)}")
    acting = make_algorithm(config, probe(config.env)).acting()
    store, place = stored_checkpoints(run_dir, config)
    version, content = named_checkpoint(store, place, checkpoint)
    weights, metadata = tensors.parse(content)
    best = store.best()
    info = read_info(run_dir)
    source = Source(
        config.env.id,
        str(config.algorithm["kind"]),
        config.run.seed,
        run_dir.absolute().name if info is None else info.run_id,
        version,
        best[2] if best is not None and best[0] == version else None,
        int(metadata["env_steps"]) if "env_steps" in metadata else None,
        config.env.frame_stack,
    )
    return acting, weights, source
