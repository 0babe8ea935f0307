"""What an ONNX graph is made with: the extra `onnx`."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from zmqrl.errors import ConfigError
from zmqrl.networks.spec import LayerSpec

INSTALL = "run in the checkout of zmqrl: pip install '.[onnx]'"


def is_traced(layer: LayerSpec) -> bool:
    """Whether torch exports the layer: it is code of the user's."""
    return layer.module is not None or ":" in layer.kind


def check_packages(layers: Iterable[LayerSpec], what: str, *further: str) -> None:
    """Raise `ConfigError`, which names `what`, when a package is missing on this machine."""
    for package in ("onnx", *(["onnxscript"] if any(map(is_traced, layers)) else []), *further):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ConfigError(f"{what} needs the package {package}, which is missing", fix=INSTALL) from error
