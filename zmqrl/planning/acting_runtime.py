"""Layers of the plan, and `network.runtime`, what the workers act with: checks before the start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from zmqrl.acting.numpy_policy import ForwardPolicy, make_layers, make_policy
from zmqrl.acting.spec import ActingSpec
from zmqrl.acting.state import noise_of
from zmqrl.config.codec import replace
from zmqrl.config.hosts import LOCAL
from zmqrl.config.sections import Config
from zmqrl.errors import ConfigError, Key
from zmqrl.export.packages import check_packages, is_traced
from zmqrl.installed import installed
from zmqrl.loading import lazy
from zmqrl.networks.initial import initial_weights
from zmqrl.networks.input import network_input
from zmqrl.networks.kinds.base import check_layer
from zmqrl.networks.kinds.module import check_gradients
from zmqrl.networks.spec import NetworkSpec
from zmqrl.random_streams import stream
from zmqrl.types import Array

if TYPE_CHECKING:
    from zmqrl.export import acting_graph
else:
    acting_graph = lazy("zmqrl.export.acting_graph")

KEY, VALUE, FIX = ("network", "runtime"), "'onnx'", "write network.runtime: auto"
PACKAGES = ("onnx", "onnxruntime")
SEED, ROWS = 1, 5
TOLERANCE = 1e-4
"""Tolerance between outputs of ONNX Runtime and torch, relative to the largest."""


def with_chosen_runtime(config: Config, spec: ActingSpec) -> Config:
    """The configuration of a new run on this machine, `network.runtime: auto` replaced by `onnx` where that is better.

    These are runs in async whose workers would act with torch, if all of them are here and so are the packages. A
    layer of the user's acts with torch: its export may fail.
    """
    hosts = {config.learner.host, *(name for name, host in config.hosts.items() if host.workers != 0)}
    devices = {config.defaults.worker_device, *(host.worker_device or "cpu" for host in config.hosts.values())}
    is_better = (
        config.network.runtime == "auto"
        and not config.mode.deterministic
        and (spec.runtime, hosts, devices) == ("torch", {LOCAL}, {"cpu"})
        and not any(map(is_traced, spec.layers))
        and all(map(installed, PACKAGES))
    )
    return replace(config, network=replace(config.network, runtime="onnx")) if is_better else config


def with_runtime(config: Config, spec: ActingSpec) -> ActingSpec:
    """`spec` with the runtime that the configuration selects.

    Raises:
        ConfigError: The runtime does not fit mode or devices, a package is missing here, or a layer of the user's
            cannot be exported, or computes something else then.
    """
    if config.network.runtime != "onnx":
        return spec
    if config.mode.deterministic:
        raise ConfigError(
            f"mode {config.run.mode} guarantees bit-identical weights, and onnx rounds differently from the default "
            "runtime",
            key=KEY,
            value=VALUE,
            fix=f"{FIX}, or run.mode: async",
            others=(("run", "mode"),),
        )
    devices: dict[Key, str] = {("defaults",): config.defaults.worker_device}
    devices |= {("hosts", name): host.worker_device or "" for name, host in config.hosts.items()}
    for where, device in devices.items():
        if device.startswith("cuda"):
            raise ConfigError(
                "with network.runtime onnx workers act on the processor",
                key=(*where, "worker_device"),
                value=repr(device),
                fix="write cpu, or network.runtime: auto",
                others=(("network", "runtime"),),
            )
    check_packages(spec.layers, f"{'.'.join(KEY)}: {VALUE}", "onnxruntime")
    try:
        found = acting_graph.with_graph(spec)
        if any(map(is_traced, spec.layers)):  # this process has torch by now
            _compare(found)
    except ConfigError as error:
        raise error.of(KEY, VALUE, fix=f"{FIX}, which acts with torch") from error.__cause__
    return found


def _compare(spec: ActingSpec) -> None:
    """Raise `ConfigError` when the graph of a spec does not compute what torch does."""
    torch, onnx = (_outputs(replace(spec, runtime=runtime)) for runtime in ("torch", "onnx"))
    for one, other in zip(torch, onnx, strict=True):
        if not np.abs(one - other).max() <= TOLERANCE * max(1.0, float(np.abs(one).max())):
            raise ConfigError(
                f"the exported graph computes other outputs than torch: they differ by {np.abs(one - other).max():.2g}"
            )


def _outputs(spec: ActingSpec) -> list[Array]:
    """Outputs of the layers of version 0 for a batch at random, and the next states."""
    policy, described = make_policy(spec), spec.input or network_input(spec.observation)
    assert isinstance(policy, ForwardPolicy), f"runtime {spec.runtime}"
    policy.load_network(initial_weights(NetworkSpec((("acting", spec.layers),)), SEED))
    drawn = stream(SEED, "acting runtime")
    x = drawn.standard_normal((ROWS, described.size)).astype(np.float32)
    state = {
        name: drawn.standard_normal(zero.shape).astype(np.float32) for name, zero in policy.zero_state(ROWS).items()
    }
    noise = {one.name: drawn.standard_normal((ROWS, one.size)) for one in noise_of(spec.layers)}
    return [policy.forward(x, state, noise), *state.values()]


def check_layers(network: NetworkSpec, acting: ActingSpec) -> None:
    """Raise `ConfigError` when a layer cannot be made, in the learner or in the runtime of the workers, or trained."""
    for layers in (*(layers for _, layers in network.towers), acting.layers):
        for layer in layers:
            check_layer(layer)
            if layer.module is not None:
                check_gradients(layer.module)
    if acting.runtime == "numpy":
        make_layers(acting.layers, 1)
