"""Intrinsic rewards: a bonus for what is new, from a network of its own, which is added to the rewards of the env."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from annotated_types import Ge, Gt

from zmqrl.config.sections import FORBID_UNKNOWN, NetworkSection, Positive
from zmqrl.errors import ConfigError
from zmqrl.loading import Tensor
from zmqrl.networks.initial import parameter_shapes
from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.plugins import described, load
from zmqrl.types import EnvSpec

if TYPE_CHECKING:  # the launcher makes the classes, without torch
    from zmqrl.learning.executor import Batch
    from zmqrl.learning.net import Net

PACKAGE = "zmqrl.learning.intrinsic"
ENV_REWARD = "env_reward"
"""Column of a batch with intrinsic rewards: the rewards of the env alone, which workers act on."""


@dataclass(frozen=True)
class IntrinsicSection:
    """An intrinsic reward: it is divided by its deviation over the run so far, and added to the reward of the env."""

    __pydantic_config__ = FORBID_UNKNOWN

    kind: str = "rnd"
    """`rnd`, `icm`, or a dotted path `a.b:Class` of a `zmqrl.learning.Intrinsic`."""
    weight: Annotated[float, Ge(0)] = 0.1
    """Factor of the intrinsic reward."""
    learning_rate: Annotated[float, Gt(0)] = 1e-3
    """Adam's step size."""
    batch_size: Positive = 128
    """On-policy: rows per update, at most; an update of its network for each part of a batch. Off-policy algorithms
    train it on the rows that they sample."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the class, such as `{features: 64}`."""


class Intrinsic(ABC):
    """Rewards of single steps. The network is the learner's alone, apart from that of the algorithm.

    `rows` have `obs` and `next_obs`, the network's inputs `[B, ...]`, and `action [B, ...]` as stored. Floats of
    observations are (x - mean) / deviation over the run so far, within -5 and 5. After a step that ends an episode
    `next_obs` is the true last observation.
    """

    fixed: ClassVar[frozenset[str]] = frozenset()
    """Towers that are never trained."""

    def __init__(self, network: NetworkSection, env: EnvSpec) -> None:
        """A subclass may have further arguments: `algorithm.intrinsic.kwargs`."""
        self.network_section, self.env = network, env

    @abstractmethod
    def towers(self) -> Mapping[str, tuple[LayerSpec, ...]]:
        """Layers by name of the tower, which is also the first part of their names."""

    @abstractmethod
    def rewards(self, net: Net, rows: Batch) -> Tensor:
        """Intrinsic rewards `[B]`, before they are scaled."""

    @abstractmethod
    def losses(self, net: Net, rows: Batch) -> Tensor:
        """What the trained towers minimise, `[B]`. As in `train` of a learner, only `rows` differ between updates."""

    def network(self) -> NetworkSpec:
        """The network as plain data."""
        return NetworkSpec(tuple(self.towers().items()))


def make_intrinsic(section: Any, network: NetworkSection, env: EnvSpec) -> Intrinsic | None:
    """The intrinsic reward of the field `intrinsic` of a `Config`. None: it has none.

    Raises:
        ConfigError: The kind is unknown, or refuses `kwargs` or the spaces.
    """
    if not isinstance(section, IntrinsicSection):
        return None
    try:
        found: Intrinsic = load(section.kind, PACKAGE, Intrinsic)(network, env, **section.kwargs)
        parameter_shapes(found.network())
    except ConfigError as error:
        raise error.of(("algorithm", "intrinsic", "kind"), repr(section.kind)) from error
    except Exception as error:  # a class of the user's may raise anything
        key, what = ("algorithm", "intrinsic", "kwargs"), f"{section.kind} refuses them: {described(error)}"
        raise ConfigError(what, key=key, value=str(dict(section.kwargs))) from error
    return found
