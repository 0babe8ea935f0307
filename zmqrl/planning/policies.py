"""Trained policies out of a run directory: for `zmqrl eval`, `watch`, `export` and `zmqrl.load_policy`."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path

from zmqrl.acting.base import Policy
from zmqrl.acting.numpy_policy import make_policy
from zmqrl.algorithms.base import NUMBERS, Algorithm, Progress, schedule_of
from zmqrl.algorithms.start.make import make_algorithm
from zmqrl.algorithms.start.weights import start_shapes
from zmqrl.config.sections import Config
from zmqrl.data_stores import tensors
from zmqrl.data_stores.base import DataStore, few, unlogged
from zmqrl.data_stores.make import open_store
from zmqrl.errors import ConfigError, DamagedCheckpoints, Key, StoreError
from zmqrl.networks.initial import parameter_shapes
from zmqrl.networks.input import OBS_STATISTICS
from zmqrl.planning.checked import checked_env
from zmqrl.run_files.stored_config import stored_in, stored_place
from zmqrl.run_files.trained_env import OF_EPISODES, check_trained_env, read_trained_env
from zmqrl.supervision import check_process
from zmqrl.types import EnvSpec, Version, Weights
from zmqrl.views.problem import counted

_log = logging.getLogger(__name__)

BEST, LAST = "best", "last"
"""Names of checkpoints besides versions."""
_VERSION = re.compile(r"v?(?:(\d+)-)?(\d+)")
MOST_LISTED = 12
SAME_CONFIG = "restore the env, network and algorithm with which the run was trained"


def stored_policy(run_dir: Path, config: Config, env: EnvSpec) -> tuple[Version, Policy]:
    """The best version of a run, else the newest, ready to act. Errors as of `newest_or_best`."""
    version, content = newest_or_best(*stored_checkpoints(run_dir, config))
    return version, policy_of(run_dir, config, env, version, content)


def policy_of(run_dir: Path, config: Config, env: EnvSpec, version: Version, content: bytes) -> Policy:
    """A version of a run, ready to act. ConfigError: its tensors do not fit the configuration."""
    algorithm, weights, metadata = network_of(run_dir, config, env, version, content)
    policy = make_policy(algorithm.acting())
    # Greedy actions do not depend on the schedule, but a head may request its values when it is loaded.
    horizon = config.horizon
    schedule = schedule_of(algorithm, Progress(config.run.seed, horizon, 0, horizon))
    policy.load(weights, schedule)
    policy.numbers = json.loads(metadata[NUMBERS]) if NUMBERS in metadata else None
    return policy


def network_of(
    run_dir: Path, config: Config, env: EnvSpec, version: Version, content: bytes
) -> tuple[Algorithm, Weights, dict[str, str]]:
    """The algorithm of a run, weights and metadata of a checkpoint. ConfigError: they do not fit `config.json`."""
    with stored_in(run_dir):
        algorithm = make_algorithm(config, env)
    weights, metadata = tensors.parse(content)
    check_tensors(weights, algorithm, f"version {version} of {run_dir}", f"{run_dir / 'config.json'}: {SAME_CONFIG}")
    return algorithm, weights, metadata


def check_tensors(found: Weights, algorithm: Algorithm, where: str, fix: str, key: Key = ()) -> None:
    """ConfigError for the first array of `found` that differs from those that a learner of `algorithm` starts from.

    Learner-only tensors and statistics may be absent.
    """
    spec, expected = algorithm.network(), start_shapes(algorithm)
    published = {name for name in parameter_shapes(spec) if not spec.is_learner_only(name)}
    for name, shape in expected.items():
        there = list(found[name].shape) if name in found else "no such tensor"
        if there != list(shape) and (name in found or name in published):
            what = f"tensor {name}: expected shape {list(shape)}, found {there}"
            raise ConfigError(what, key=key, value=where, fix=fix)
    known = {*expected, *OBS_STATISTICS}
    for name, array in found.items():
        if name not in known and "_stats." not in name:
            what = f"tensor {name}: found shape {list(array.shape)}, but the network has no such tensor"
            raise ConfigError(what, key=key, value=where, fix=fix)


def check_resumed_env(run_dir: Path, config: Config, env: EnvSpec) -> None:
    """Raise `ConfigError` where the run cannot continue in `env`; one that stored no env is judged by a checkpoint."""
    kept = OF_EPISODES if config.env.recovery == "state" else OF_EPISODES[:1]  # other resumes may give up the states
    check_trained_env(run_dir, env, kept)
    if read_trained_env(run_dir) is None:
        with contextlib.suppress(StoreError):  # then there is nothing to compare
            network_of(run_dir, config, env, *newest_or_best(*stored_checkpoints(run_dir, config)))


def trained_env(run_dir: Path, config: Config) -> EnvSpec:
    """The env of a run; one that zmqrl 0.2 or earlier has not stored is made, and looked at."""
    stored = read_trained_env(run_dir)
    if stored is not None and stored.id == config.env.id:
        return stored
    with stored_in(run_dir), check_process.none_left():
        return checked_env(config, is_here=False)


def stored_checkpoints(run_dir: Path, config: Config) -> tuple[DataStore, str]:
    """The checkpoints of the run in `run_dir`, and where they are."""
    place = stored_place(run_dir, config)
    return open_store(config.store, place), place


def newest_or_best(store: DataStore, place: str) -> tuple[Version, bytes]:
    """The best version, else the newest, with its verified content.

    Raises:
        DamagedCheckpoints: There are versions, and none of them can be loaded.
        StoreError: There is none.
    """
    with unlogged():
        best = store.best()
        found = best[:2] if best is not None else store.newest()
    damaged = store.damaged()
    causes = few([f"{name}: {cause}" for name, cause in damaged.items()])
    if found is not None:
        if damaged:
            _log.warning("%s: %s cannot be loaded: %s", place, counted(len(damaged), "checkpoint"), causes)
        return found
    if damaged:
        what = f"has {counted(len(damaged), 'checkpoint')}, and none can be loaded"
        raise DamagedCheckpoints(what, tuple(damaged), place=place, cause=causes)
    raise StoreError("has no version of the policy", place=place, fix="train the run until its first checkpoint")


def named_checkpoint(store: DataStore, place: str, name: str) -> tuple[Version, bytes]:
    """The verified content of a checkpoint; `place` names the store in messages.

    `name`: `best` (the newest where none was scored), `last`, or a version such as `0-120`; `120` is that of the last
    learner that published it.

    Raises:
        ConfigError: The name is unknown; the checkpoints that are there are listed.
        StoreError: As of `newest_or_best`.
    """
    if name == BEST:
        return newest_or_best(store, place)
    if name == LAST:
        newest = store.newest()
        return newest if newest is not None else newest_or_best(store, place)
    stated = _VERSION.fullmatch(name)
    versions = store.versions()
    if stated is not None:
        incarnation = None if stated[1] is None else int(stated[1])
        fitting = [v for v in versions if v.n == int(stated[2]) and incarnation in (None, v.incarnation)]
        with unlogged():
            content = store.weights_of(fitting[-1]) if fitting else None
        if content is not None:
            return fitting[-1], content
        if fitting:
            raise _damaged(store, place, name, versions)
    names = "" if stated is not None else f"write {BEST}, {LAST} or a version such as 0-120; "
    raise ConfigError(
        f"not found in {place}", key=("--checkpoint",), value=name, fix=f"{names}{_listed(store, versions)}"
    )


def _damaged(store: DataStore, place: str, name: str, versions: Sequence[Version]) -> ConfigError:
    """The error for a version that is stored and cannot be read; it lists those that can be."""
    cause = few(list(store.damaged().values()))
    with unlogged():
        loadable = [version for version in versions[-MOST_LISTED:] if store.weights_of(version) is not None]
        listed = _listed(store, loadable)
    return ConfigError(
        f"damaged in {place}{f' ({cause})' if cause else ''}", key=("--checkpoint",), value=name, fix=listed
    )


def _listed(store: DataStore, versions: Sequence[Version]) -> str:
    """The stored versions, the newest first."""
    best = store.best()
    shown = [str(version) for version in reversed(versions[-MOST_LISTED:])]
    older = len(versions) - len(shown)
    marks = {name: [LAST] for name in shown[:1]}
    if best is not None:
        name = str(best[0])
        shown += [] if name in shown else [name]
        marks.setdefault(name, []).append(BEST)
    listed = ", ".join(f"{name} ({', '.join(marks[name])})" if name in marks else name for name in shown)
    if not shown:
        return "no checkpoint of the policy is stored there"
    return f"its versions: {listed}{' and older ones' if older else ''}"
