"""What a network promises. A maker returns its plain data, and the space of its observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from zmqrl.acting.base import ActingContext
from zmqrl.acting.heads import Head
from zmqrl.acting.numpy_policy import make_policy
from zmqrl.acting.spec import ActingSpec
from zmqrl.loading import Tensor
from zmqrl.networks.initial import initial_weights, parameter_shapes
from zmqrl.networks.input import InputSpec, network_input
from zmqrl.networks.kinds.base import layer_kind, runtime_of
from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.random_streams import stream
from zmqrl.testing.expect import are_first_values, checks_of, difference
from zmqrl.testing.observations import observations
from zmqrl.types import Array, SpaceSpec

SEED, ROWS = 1, 6
TOLERANCE = 1e-4
"""Between runtimes, relative: their sums have different orders."""


class OutputsHead(Head):
    """Actions are the outputs of the network."""

    masks = True

    def act(self, outputs: Array, t: int, context: ActingContext) -> Array:
        return outputs

    def act_greedily(self, outputs: Array) -> Array:
        return outputs


class Network(NamedTuple):
    """A network, and what goes in."""

    spec: NetworkSpec
    observation: SpaceSpec
    input: InputSpec | None = None
    """What `ActingSpec.input` has; None: `network_input(observation)`."""


NetworkMaker: TypeAlias = Callable[[], Network]


def names_are_unique(make: NetworkMaker) -> None:
    """Each tower, tensor and free parameter has a name of its own: checkpoints hold tensors by name."""
    spec = make().spec
    towers = [name for name, _ in spec.towers]
    assert len(set(towers)) == len(towers), f"towers: {towers}"
    layers = {id(layer): layer for _, tower in spec.towers for layer in tower if layer.name}.values()
    by_name: dict[str, LayerSpec] = {}
    for layer in layers:
        assert by_name.setdefault(layer.name, layer) == layer, f"two layers are named {layer.name!r}"
    free = [name for name, _, _ in spec.parameters]
    assert len(set(free)) == len(free), f"parameters: {free}"
    tensors = parameter_shapes(NetworkSpec(spec.towers))
    assert not set(free) & set(tensors), f"names of tensors: {sorted(set(free) & set(tensors))}"


def every_tower_has_a_tensor(make: NetworkMaker) -> None:
    """A layer with weights has a name; a tower without one cannot be trained."""
    for name, layers in make().spec.towers:
        unnamed = [layer.kind for layer in layers if not layer.name and layer_kind(layer.kind).shapes(layer)]
        assert not unnamed, f"tower {name!r}: layers without a name: {unnamed}"
        assert any(layer.name for layer in layers), f"tower {name!r} has no weights"


def version_0_is_a_function_of_the_seed(make: NetworkMaker) -> None:
    """The first weights are float32, finite, C-contiguous, and the same bits for a seed in every process."""
    spec = make().spec
    are_first_values(initial_weights(spec, SEED), initial_weights(make().spec, SEED), parameter_shapes(spec))


def layers_fit_each_other(make: NetworkMaker) -> None:
    """Each tower maps a batch of observations to `[rows, outputs]`, finite."""
    network = make()
    for name, layers in network.spec.towers:
        out = _joined_outputs(layers, network) if _is_joined(layers) else _outputs(layers, network, "torch")
        width = [layer.outputs for layer in layers if layer.name][-1]
        assert out.shape == (ROWS, width), f"tower {name!r}: {out.shape}, its last layer has {width} outputs"
        assert np.isfinite(out).all(), f"tower {name!r} is not finite"


def both_runtimes_agree(make: NetworkMaker) -> None:
    """Workers that act with numpy compute what torch computes, up to rounding. Some kinds, as conv, need torch."""
    network = make()
    for name, layers in network.spec.towers:
        if _is_joined(layers) or runtime_of(layers) == "torch":
            continue
        one, other = _outputs(layers, network, "numpy"), _outputs(layers, network, "torch")
        assert difference(one, other) <= TOLERANCE, f"tower {name!r}: numpy and torch differ"


def the_learner_computes_what_workers_act_with(make: NetworkMaker) -> None:
    """`forward`, with which learners train, has the outputs of acting; every tensor receives a gradient."""
    import torch

    from zmqrl.networks.forward import forward

    network = make()
    weights = initial_weights(network.spec, SEED)
    tensors = {name: torch.from_numpy(array).requires_grad_() for name, array in weights.items()}
    obs = _inputs(network)
    for name, layers in network.spec.towers:
        if _is_joined(layers):
            continue
        out = forward(layers, tensors, obs)
        is_near = difference(out.detach().numpy(), _outputs(layers, network, "torch")) <= TOLERANCE
        assert is_near, f"tower {name!r}: learner and acting differ"
        own = [tensor for layer in layers for tensor in layer_kind(layer.kind).shapes(layer)]
        moved = set()
        for noise in _noise(layers):
            trained = forward(layers, {**tensors, **noise}, obs)
            slope = torch.rand(trained.shape, generator=torch.Generator().manual_seed(SEED))
            grads = torch.autograd.grad(trained, [tensors[tensor] for tensor in own], slope, allow_unused=True)
            moved |= {tensor for tensor, grad in zip(own, grads, strict=True) if grad is not None and grad.any()}
        still = [tensor for tensor in own if tensor not in moved]
        assert not still, f"tower {name!r}: no gradient: {still}"


def _noise(layers: tuple[LayerSpec, ...]) -> list[dict[str, Tensor]]:
    """Noise of one layer at a time: that of a layer after it is for as many rows as it makes of a row."""
    import torch

    drawn = torch.Generator().manual_seed(SEED)
    sizes = {layer.name: layer_kind(layer.kind).noise_size(layer) for layer in layers}
    found = [{f"{name}.noise": torch.randn(ROWS, size, generator=drawn)} for name, size in sizes.items() if size]
    return found or [{}]


def _is_joined(layers: tuple[LayerSpec, ...]) -> bool:
    """Whether the tower has a second input, such as an action: a critic, which never acts."""
    return any(layer_kind(layer.kind).takes_input for layer in layers)


def _joined_outputs(layers: tuple[LayerSpec, ...], network: Network) -> Array:
    import torch

    from zmqrl.networks.forward import forward

    tensors = {name: torch.from_numpy(array) for name, array in initial_weights(network.spec, SEED).items()}
    sizes = [layer.outputs - layer.inputs for layer in layers if layer_kind(layer.kind).takes_input]
    more = [torch.rand(ROWS, size, generator=torch.Generator().manual_seed(SEED)) for size in sizes]
    found: Array = forward(layers, tensors, _inputs(network), *more).numpy()
    return found


def _inputs(network: Network) -> Tensor:
    """What the learner's network sees."""
    import torch

    from zmqrl.networks.torch_input import TorchInput

    described = network.input or network_input(network.observation)
    return TorchInput(described, network.observation)(torch.from_numpy(_observations(network.observation)))


def _observations(space: SpaceSpec) -> Array:
    if space.kind != "box":
        return observations(space, stream(SEED, "testing network"), (ROWS,))
    drawn = stream(SEED, "testing network").normal(size=(ROWS, *space.shape))
    return (drawn * 40 + 100).clip(0, 255).astype(space.dtype) if space.dtype == "uint8" else drawn.astype(space.dtype)


def _outputs(layers: tuple[LayerSpec, ...], network: Network, runtime: Literal["numpy", "torch"]) -> Array:
    """What the head of a policy with these layers receives."""
    head = f"{__name__}:{OutputsHead.__name__}"
    action = SpaceSpec("box", (1,), "float32")
    spec = ActingSpec(layers, head, action, network.observation, runtime=runtime, input=network.input)
    policy = make_policy(spec)
    policy.load(initial_weights(network.spec, SEED), {})
    return np.array(policy.act_greedily(_observations(network.observation)))


NETWORK = checks_of(__name__)
