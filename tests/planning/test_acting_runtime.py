"""`network.runtime` before the start: what is refused, and what the workers receive."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from tests.export.modules import Cube
from tests.support.raising import fields, raises
from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.start.make import kind_of
from zmqrl.config.codec import from_json, replace
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import (
    Config,
    DefaultsSection,
    EnvSection,
    HostSection,
    LearnerSection,
    NetworkSection,
    RunSection,
)
from zmqrl.errors import ConfigError
from zmqrl.networks.spec import LayerSpec
from zmqrl.planning import acting_runtime
from zmqrl.planning.acting_runtime import with_chosen_runtime
from zmqrl.planning.checked import checked_plan
from zmqrl.planning.configure import load
from zmqrl.planning.plan_run import plan_run
from zmqrl.run_files.stored_config import stored_config
from zmqrl.testing.algorithm import DISCRETE, PIXELS
from zmqrl.types import EnvSpec, ModeName

pytestmark = pytest.mark.xdist_group("exports")


class Unlike(Cube):
    """An activation that computes something else while it is traced."""

    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return x + float(type(x) is Tensor)


REGISTER = "register large constant tensors with register_buffer(..., persistent=True)"


def planned(folder: Path, mode: ModeName, **values: Any) -> RunPlan:
    flags = [f"{key.replace('__', '.')}={value}" for key, value in {"network__runtime": "onnx", **values}.items()]
    loaded = load("cartpole-ppo", overrides=flags, mode=mode, workers=None if mode == "single" else 2)
    return checked_plan(loaded.config, folder / "run", time.time(), sources=loaded.sources)


def test_workers_receive_the_graph(tmp_path: Path) -> None:
    acting = from_json(ActingSpec, planned(tmp_path, "async").acting)
    assert acting.runtime == "onnx" and acting.graph is not None and acting.head == "categorical"


@pytest.mark.parametrize("mode", ["single", "sync"])
def test_modes_that_promise_bits_refuse_it(tmp_path: Path, mode: ModeName) -> None:
    with raises(
        ConfigError, key=("network", "runtime"), value="'onnx'", fix="write network.runtime: auto, or run.mode: async"
    ):
        planned(tmp_path, mode)


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        (
            {"defaults__worker_device": "cuda"},
            fields("defaults.worker_device", "'cuda'", what="with network.runtime onnx workers act on the processor"),
        ),
        (
            {"hosts__local__worker_device": "cuda:1"},
            fields(
                "hosts.local.worker_device", "'cuda:1'", what="with network.runtime onnx workers act on the processor"
            ),
        ),
        (
            {"network__kind": "tests.export.modules:Sized", "network__kwargs": "{width: 4}"},
            fields("network.runtime", "'onnx'", others=(("network", "kind"),)),
        ),
        (
            {"network__kind": "tests.export.modules:Table"},
            fields("network.runtime", "'onnx'", fix=f"{REGISTER}; write network.runtime: auto, which acts with torch"),
        ),
        (
            {"network__activation": "tests.planning.test_acting_runtime:Unlike"},
            fields(
                "network.runtime",
                "'onnx'",
                what="the exported graph computes other outputs than torch: they differ by 0.0045",
            ),
        ),
    ],
)
@pytest.mark.whole
def test_what_does_not_fit_ends_before_the_start(tmp_path: Path, values: dict[str, str], fault: dict[str, Any]) -> None:
    with raises(ConfigError, **fault):
        planned(tmp_path, "async", **values)


@pytest.mark.parametrize(
    ("package", "kind"), [("onnx", "mlp"), ("onnxruntime", "mlp"), ("onnxscript", "tests.networks.nets:Residual")]
)
def test_a_missing_package_is_named(tmp_path: Path, package: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    what = f"'onnx' needs the package {package}, which is missing"
    fix = "run in the checkout of zmqrl: pip install '.[onnx]'"
    with raises(ConfigError, key=("network", "runtime"), what=what, fix=fix):
        planned(tmp_path, "async", network__kind=kind)


CNN = NetworkSection("cnn", (16,), channels=(4,), kernels=(3,), strides=(2,))
ASYNC = RunSection(mode="async")
HERE, ELSEWHERE = HostSection(workers=2), HostSection(workers=1)


@pytest.mark.parametrize(
    ("config", "chosen"),
    [
        (Config(ASYNC, network=CNN, hosts={"local": HERE}), "onnx"),
        (Config(ASYNC, network=CNN, hosts={"local": HERE, "b": HostSection(workers=0)}), "onnx"),
        (Config(ASYNC, network=CNN, hosts={"local": HERE, "b": ELSEWHERE}), "auto"),
        (Config(ASYNC, network=CNN, hosts={"local": HERE, "b": ELSEWHERE}, learner=LearnerSection(host="b")), "auto"),
        (Config(ASYNC, network=CNN, hosts={"local": HostSection(workers=2, worker_device="cuda")}), "auto"),
        (Config(ASYNC, network=CNN, defaults=DefaultsSection(worker_device="auto")), "auto"),
        (Config(ASYNC, network=replace(CNN, runtime="torch"), hosts={"local": HERE}), "torch"),
        (Config(ASYNC, network=NetworkSection(), hosts={"local": HERE}), "auto"),
        (Config(ASYNC, network=NetworkSection("tests.networks.nets:Convolution"), hosts={"local": HERE}), "auto"),
        (Config(RunSection(mode="sync"), network=CNN, hosts={"local": HERE}), "auto"),
    ],
)
def test_convolutions_act_with_onnx_where_all_workers_of_async_are_here(config: Config, chosen: str) -> None:
    kind = kind_of("dqn")
    acting = kind(kind.Config(), config.network, EnvSpec("toy", PIXELS, DISCRETE), 16, 2).acting()
    assert with_chosen_runtime(config, acting).network.runtime == chosen


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_without_the_extra_they_act_with_torch(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acting_runtime, "installed", lambda name: None if name == package else "1")
    kind, config = kind_of("dqn"), Config(ASYNC, network=CNN, hosts={"local": HERE})
    acting = kind(kind.Config(), config.network, EnvSpec("toy", PIXELS, DISCRETE), 16, 2).acting()
    assert with_chosen_runtime(config, acting) == config


def test_a_plan_has_the_choice_and_a_resume_keeps_what_the_run_had(tmp_path: Path) -> None:
    section = EnvSection("tests.envs.odd_envs:Frames", frame_stack=2, max_episode_steps=9)
    config = Config(ASYNC, section, CNN, {"kind": "dqn"}, hosts={"local": HERE})
    plan = plan_run(config, tmp_path / "run", time.time())
    assert plan.config.network.runtime == plan.acting["runtime"] == "onnx"
    (tmp_path / "run").mkdir(exist_ok=True)
    (tmp_path / "run" / "config.json").write_text(json.dumps(stored_config(config, plan.env)))
    resumed = plan_run(config, tmp_path / "run", time.time(), resume=True)
    assert (resumed.config.network.runtime, resumed.acting["runtime"]) == ("auto", "torch")
