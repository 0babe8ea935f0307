"""`network.runtime` before the start: what is refused, and what the workers receive."""

from __future__ import annotations

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
from zmqrl.config.codec import from_json
from zmqrl.config.plan import RunPlan
from zmqrl.errors import ConfigError
from zmqrl.networks.spec import LayerSpec
from zmqrl.planning.checked import checked_plan
from zmqrl.planning.configure import load
from zmqrl.types import ModeName

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
