"""`--init-from`: the weights of another run or of a file, checked against the network of the run that starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from zmqrl.algorithms.base import Algorithm
from zmqrl.algorithms.start.weights import start_shapes, start_weights
from zmqrl.data_stores import tensors
from zmqrl.data_stores.no_full import starting_full
from zmqrl.errors import ConfigError, DamagedCheckpoints, StoreError, key_of
from zmqrl.networks.initial import parameter_shapes
from zmqrl.planning.policies import check_tensors, newest_or_best, stored_checkpoints
from zmqrl.run_files.run_info import is_run
from zmqrl.run_files.stored_config import read_config
from zmqrl.run_files.trained_env import changes
from zmqrl.types import Array

KEY = "run.init_from"
SAME_NETWORK = "use the env, network and algorithm.kind with which the checkpoint was trained"
EXPECTED = "set a run directory with a checkpoint, or a checkpoint file"


class InitialWeights(NamedTuple):
    """What a run starts from, and what the user should know of it."""

    weights: dict[str, Array]
    warnings: tuple[str, ...] = ()


def initial_weights_of(source: str, algorithm: Algorithm) -> InitialWeights:
    """Every published tensor of the network of `algorithm`; learner-only ones and statistics where `source` has them.

    `source`: a run directory (its best version, else its newest), or a checkpoint file of any kind.

    Raises:
        ConfigError: It cannot be read, or names or shapes differ; the message names the first difference.
    """
    content, where = _content(Path(source))
    try:
        tensors.verify(content)
        found, metadata = tensors.parse(content)
    except StoreError as error:
        run, fix = Path(source).parent, "set a run directory or a checkpoint of zmqrl"
        if Path(source).is_file() and is_run(run):
            fix = f"its run: --init-from {run}"
        raise ConfigError(str(error), key=key_of(KEY), value=where, fix=fix) from error
    start = start_weights(found, metadata, algorithm)
    check_tensors(start.weights, algorithm, where, SAME_NETWORK, key_of(KEY))
    chosen = {name: start.weights[name] for name in start_shapes(algorithm) if name in start.weights}
    network = {
        name: chosen[name].astype(np.float32) for name in parameter_shapes(algorithm.network()) if name in chosen
    }
    changed = [f"{KEY}: {source}: {text}" for text in changes(Path(source), algorithm.env)]
    return InitialWeights(chosen | network, (*changed, *_warnings(where, start.missing, "full" in metadata)))


def _warnings(where: str, missing: Sequence[str], is_full: bool) -> Iterator[str]:
    if missing:
        fix = "" if is_full else "; a full checkpoint (full-*) of a run with the same settings has them"
        yield f"{KEY}: {where} lacks {', '.join(missing)}, which start from scratch, like the optimiser{fix}"


def _content(source: Path) -> tuple[bytes, str]:
    try:
        if not source.is_dir():
            return source.read_bytes(), str(source)
        store, place = stored_checkpoints(source, read_config(source))
        version, content = newest_or_best(store, place)
        return content, f"version {version} of {source}"
    except DamagedCheckpoints as error:
        raise ConfigError(str(error), key=key_of(KEY), fix=_instead(place)) from error
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        raise ConfigError(what, key=key_of(KEY), value=str(source), is_subject=True, fix=EXPECTED) from error
    except StoreError as error:
        raise ConfigError(str(error), key=key_of(KEY), fix=EXPECTED) from error
    except ConfigError as error:
        raise error.of(key_of(KEY), fix=EXPECTED) from error.__cause__


def _instead(place: str) -> str:
    """A full checkpoint holds weights too."""
    whole = starting_full(place)
    return "set another run or a checkpoint file" if whole is None else f"a loadable checkpoint: --init-from {whole}"
