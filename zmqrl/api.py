"""zmqrl from Python: `zmqrl.train` and `zmqrl.load_policy`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from zmqrl.acting.base import Policy
from zmqrl.envs.make import probe
from zmqrl.envs.packing import packed_batch
from zmqrl.errors import TrainingFailed
from zmqrl.launch.checks import check_new_directory
from zmqrl.launch.configure import load
from zmqrl.launch.launcher import Launcher
from zmqrl.launch.own_code import with_paths
from zmqrl.launch.plan_run import plan_run
from zmqrl.launch.policies import stored_policy
from zmqrl.launch.run_directory import read_config
from zmqrl.launch.summary import Summary
from zmqrl.orchestrators.make import make_orchestrator
from zmqrl.spaces import forbids_all, view
from zmqrl.types import Array, EnvSpec, ModeName, SpaceSpec


def train(
    preset: str,
    *,
    run_dir: str | Path | None = None,
    mode: ModeName | None = None,
    workers: int | None = None,
    seed: int | None = None,
    init_from: str | Path | None = None,
    **overrides: Any,
) -> Summary:
    """Train on this machine and return the content of `summary.json`. Call it from the main thread.

    Args:
        preset: A name of `zmqrl presets`, or a path of a YAML file.
        run_dir: Run directory; default `runs/<name>-<time>`.
        mode: single, sync or async.
        workers: Rollout workers.
        seed: Seed of all random streams.
        init_from: Run directory or checkpoint file with the initial weights; None: random weights.
        overrides: As for `--set`: `run__total_env_steps=10_000` for `run.total_env_steps`, a section as a mapping,
            `run={"total_env_steps": 10_000}`, or a dotted key by `**{"run.total_env_steps": 10_000}`. None resets.

    Raises:
        ConfigError: The run cannot be started with these arguments; nothing was written.
        TrainingFailed: The run ended before it started.
    """
    started_at = time.time()
    dotted = with_paths({name.replace("__", "."): value for name, value in overrides.items()})
    source = None if init_from is None else str(Path(init_from).expanduser().absolute())
    loaded = load(preset, None, dotted, mode, workers, seed, init_from=source)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    directory = Path(run_dir) if run_dir is not None else Path("runs") / f"{loaded.config.run.name}-{stamp}"
    check_new_directory(directory)
    plan = plan_run(loaded.config, directory, started_at, False, loaded.sources)
    launcher = Launcher(plan, make_orchestrator(plan), plain=True)
    code = launcher.run()
    if launcher.summary is None:
        raise TrainingFailed(f"the run in {directory} ended with exit code {code} before it started")
    return launcher.summary


class LoadedPolicy:
    """The greedy policy of a run: `policy(obs) -> action`, for one observation or a batch. From `load_policy`.

    A recurrent policy remembers what it has seen of the envs of its batch. Call `reset` where an episode begins; for
    other policies it has no effect.
    """

    def __init__(self, policy: Policy, env: EnvSpec) -> None:
        self._policy, self._env = policy, env
        self._state: dict[str, Array] = {}
        self._rows = 0

    def __call__(self, obs: Any) -> Array:
        """The action for one observation, or the actions for a batch.

        A batch of a Dict or Tuple has its structure, with a leading axis in each part.

        Raises:
            ValueError: `obs` is of another space, or its `action_mask` forbids every action. A recurrent policy acted
                for another number of envs before, and was not reset.
        """
        space, action = self._env.observation, self._env.action
        batch, single = _batch(space, obs)
        if space.action_mask is not None and forbids_all(view(batch, space, space.action_mask), action.choices).any():
            raise ValueError("the action_mask of the observation forbids every action")
        if not self._rows:
            self._state, self._rows = self._policy.zero_state(len(batch)), len(batch)
        if self._state and len(batch) != self._rows:
            raise ValueError(f"{len(batch)} observations after {self._rows}: call reset() before other envs begin")
        actions = np.array(action.for_env(self._policy.act_greedily(batch, self._state)))
        first: Array = actions[0]
        return first if single else actions

    def reset(self, ended: Any = None) -> None:
        """An episode begins in all envs, or in those of the batch where `ended [N]` is true."""
        if ended is None:
            self._rows = 0
            return
        for array in self._state.values():
            array[np.asarray(ended, dtype=bool)] = 0.0


def load_policy(run_dir: str | Path) -> LoadedPolicy:
    """The trained policy of a run, greedy: `load_policy(run_dir)(obs) -> action`, for one observation or a batch.

    Raises:
        FolderOfRuns: `run_dir` is the folder of several runs, which the message names.
        ConfigError: `run_dir` has no configuration of a run.
        StoreError: It has no checkpoint.
    """
    directory = Path(run_dir)
    config = read_config(directory, lambda run: f"zmqrl.load_policy({run!r})")
    env = probe(config.env)
    _, policy = stored_policy(directory, config, env)
    return LoadedPolicy(policy, env)


def _batch(space: SpaceSpec, obs: Any) -> tuple[Array, bool]:
    """As a batch of rows, and whether `obs` is a single observation."""
    if space.kind != "box":
        return packed_batch(space, obs)
    rows = np.asarray(obs, dtype=space.dtype)
    single = rows.shape == space.shape
    return (rows[None] if single else rows), single
