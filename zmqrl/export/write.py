"""An export of a run: a directory with the policy, and a model card."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from zmqrl.acting.spec import ActingSpec
from zmqrl.config.codec import to_json
from zmqrl.data_stores import tensors
from zmqrl.errors import ConfigError
from zmqrl.export.card import CardSource, Form, card
from zmqrl.export.packages import check_packages
from zmqrl.export.spec import GreedyPolicy, arrays_of, greedy_policy
from zmqrl.types import Weights

NUMPY_FILE = Path(__file__).with_name("policy.py")
LAYER, ALIAS = re.compile(r"    def _(\w+)\(self, x: Any, layer: Any\)"), re.compile(r"    _(\w+) = ")
"""Begin of the method, or of the line, of a layer kind in it, which a file without such layers does not have."""


def export(folder: Path, form: Form, spec: ActingSpec, weights: Weights, source: CardSource) -> list[Path]:
    """Write the greedy policy of `spec` with `weights`; the files that were written.

    Raises:
        ConfigError: The folder is not empty, a package is missing, or the policy cannot be exported in this form.
    """
    policy = greedy_policy(spec)
    content = FORMS[form](policy, spec, arrays_of(policy, spec, weights), source)
    content["README.md"] = card(form, policy, source).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError.about(folder, "is not empty", "name a new directory for the export")
        for name, data in content.items():
            (folder / name).write_bytes(data)
    except OSError as error:
        raise ConfigError(f"{folder}: the export cannot be written: {error.strerror}") from error
    return [folder / name for name in content]


def _numpy(policy: GreedyPolicy, spec: ActingSpec, arrays: Weights, source: CardSource) -> dict[str, bytes]:
    code = NUMPY_FILE.read_text(encoding="utf-8")
    for layer in spec.layers:
        if f"_{layer.kind}(" not in code and f"_{layer.kind} =" not in code:
            what = f"network.kind {layer.module.path!r}" if layer.module is not None else f"layer kind {layer.kind!r}"
            raise ConfigError(
                f"{what} is code of torch, which the numpy file does not have",
                key=("--to",),
                value="numpy",
                fix="use --to onnx",
            )
    kinds = {layer.kind for layer in spec.layers}
    code = "".join(line for line in code.splitlines(True) if (found := ALIAS.match(line)) is None or found[1] in kinds)
    used = (part for part in code.split("\n\n") if (found := LAYER.match(part)) is None or found[1] in kinds)
    return {
        "policy.py": "\n\n".join(used).encode(),
        "policy.json": json.dumps(to_json(policy), indent=1).encode(),
        "policy.safetensors": tensors.dump(arrays, {}),
    }


def _onnx(policy: GreedyPolicy, spec: ActingSpec, arrays: Weights, source: CardSource) -> dict[str, bytes]:
    check_packages(spec.layers, "--to onnx")
    from zmqrl.export.onnx_policy import onnx_model

    text = f"Greedy policy of {source.env_id}, {source.algorithm}, version {source.version}, by zmqrl"
    model = onnx_model(policy, spec.layers, arrays, version("zmqrl"), text)
    return {"policy.onnx": model.SerializeToString()}


FORMS: dict[Form, Callable[[GreedyPolicy, ActingSpec, Weights, CardSource], dict[str, bytes]]] = {
    "onnx": _onnx,
    "numpy": _numpy,
}
