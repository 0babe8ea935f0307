"""The vector env of a run's mode."""

from __future__ import annotations

from functools import partial

from zmqrl.config.sections import EnvSection
from zmqrl.envs.base import VectorEnv
from zmqrl.envs.make import make_native, make_single
from zmqrl.envs.native import NativeVectorEnv
from zmqrl.envs.seeded import SeededVectorEnv
from zmqrl.types import EnvSpec, Mode


def make_vector_env(
    section: EnvSection, spec: EnvSpec, mode: Mode, seed: int, vector_env: int, incarnation: int = 0
) -> VectorEnv:
    """Native in async where there is a native form; else env by env, with seeds by incarnation only in async.

    In single and sync a successor repeats its predecessor's episodes, so `incarnation` plays no part there.
    """
    if mode == "async" and spec.native_vector:
        native = make_native(section, section.num_envs)
        if native is not None:
            return NativeVectorEnv(spec, native, section.num_envs, seed, vector_env, incarnation)
    keyed = incarnation if mode == "async" else 0
    return SeededVectorEnv(spec, partial(make_single, section), section.num_envs, seed, vector_env, keyed)
