"""Whole sentences of errors whose tests compare key and value alone, at least one of each area."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.algorithms.driver import CONTINUOUS, env_spec
from zmqrl.algorithms.dqn import DQN, DQNConfig
from zmqrl.algorithms.start.make import make_algorithm
from zmqrl.config.hosts import names_of_range
from zmqrl.config.on_host import on_local
from zmqrl.config.sections import Config, NetworkSection, ReplaySection
from zmqrl.data_stores.base import Full
from zmqrl.data_stores.files import check_file, check_writable
from zmqrl.data_stores.objects import check_url
from zmqrl.drill.faults import minimums_named
from zmqrl.errors import ConfigError
from zmqrl.evaluator.rendering import check_video
from zmqrl.learner.full_content import check_executor
from zmqrl.metrics.groups import group_of
from zmqrl.networks.build import check_section, tower
from zmqrl.replay.spec import Prioritised
from zmqrl.supervision.gpus import choose
from zmqrl.types import SpaceSpec, Version

BOX, IMAGE = SpaceSpec("box", (5,), "float32"), SpaceSpec("box", (1, 6, 6), "uint8")
CNN = NetworkSection("cnn")


def raise_it(error: ConfigError) -> None:
    raise error


def dqn(action: SpaceSpec | None = None) -> DQN:
    return DQN(DQNConfig(), NetworkSection(), env_spec() if action is None else env_spec(action), 16, 2)


CASES: dict[str, Callable[[], Any]] = {
    "algorithm.kind: missing: must be a name such as ppo, or module:Name": (
        lambda: make_algorithm(Config(algorithm={}), env_spec())
    ),
    "algorithm.kind: dqn needs discrete actions, toy has continuous actions": lambda: dqn(CONTINUOUS),
    "algorithm.batch_size: 128 is larger than replay.capacity 9; raise replay.capacity or lower algorithm.batch_size": (
        lambda: dqn().check("sync", 4, ReplaySection(capacity=9))
    ),
    "n[3-1]: 3 is greater than 1; write the smaller number first": lambda: names_of_range("n[3-1]"),
    "n[: write a range as node[01:16], or as Slurm does: node[01-16,20]": lambda: names_of_range("n["),
    "--on local: local is this machine; omit --on, or name another host": lambda: raise_it(on_local()),
    "store.url: 's3://bucket/a' has credentials or a query; a URL is stored with the run and shown in messages: set "
    "credentials in the environment or in ~/.aws of the host": lambda: check_url("store.url", "s3://k:s@bucket/a"),
    "store.url: 'bucket/a': write a URL such as s3://bucket/runs (s3, gs, az, abfs, abfss, azure, http, https, file)": (
        lambda: check_url("store.url", "bucket/a")
    ),
    "--out no/a.png: cannot be written: {here}/no does not exist": lambda: check_file("--out", Path("no/a.png")),
    "store.path: '/dev/null/a' cannot be created: /dev/null is not a directory": (
        lambda: check_writable("store.path", Path("/dev/null/a"))
    ),
    "--at-least worker=3: write ROLE:FAULT=N, for example worker:kill=6": lambda: minimums_named(["worker=3"]),
    "a.avi: the file name of a video must end in .mp4 or .gif": lambda: check_video(Path("a.avi")),
    "learner.executor: 'manual': full checkpoint 0-7 was made with 'eager', and a resumed run must keep it: set "
    "learner.executor: eager": (
        lambda: check_executor(Full(Version(0, 7), {}, {"counters": {}, "made_with": {"executor": "eager"}}), "manual")
    ),
    "a=: LABEL is missing; write RUN=LABEL": lambda: group_of("a="),
    "a: no run directory has this name, and none has a name that begins with it": lambda: group_of("a"),
    "network.kind: cnn needs observations that are one image, [channels, height, width] or [height, width, channels], "
    "got shape [5]; write mlp": lambda: tower("q", CNN, BOX, 2, output_gain=1.0),
    "network.kernels: 8 is larger than the remaining image, 6x6": lambda: tower("q", CNN, IMAGE, 2, output_gain=1.0),
    "network.kind: 'rnn': mlp and cnn are known, or `module:Name` of a torch.nn.Module": (
        lambda: check_section(NetworkSection("rnn"))
    ),
    "Prioritised.alpha: 1.1: must be between 0 and 1": lambda: Prioritised(alpha=1.1),
    "learner.device: cuda: no GPU is visible; write cpu or auto": lambda: choose("learner.device", "cuda", []),
}


@pytest.mark.parametrize("sentence", CASES)
def test_a_sentence_is_complete(sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        CASES[sentence]()
    assert str(caught.value) == sentence.replace("{here}", str(tmp_path))
