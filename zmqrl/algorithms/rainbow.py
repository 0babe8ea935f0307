"""Rainbow (Hessel et al. 2018, arXiv 1710.02298): C51 that is noisy, dueling, double, prioritised, with n steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from annotated_types import Gt

from zmqrl.algorithms.base import Algorithm
from zmqrl.algorithms.c51 import C51, C51Config
from zmqrl.algorithms.q_learning.base import EpsilonSection, PrioritisedSection
from zmqrl.algorithms.start.defaults import Sections
from zmqrl.config.points import Points
from zmqrl.config.sections import Fraction, Positive
from zmqrl.learning.schedule import Rate
from zmqrl.types import EnvSpec


@dataclass(frozen=True)
class DivergenceSection(PrioritisedSection):
    """Prioritised replay by the divergence of a row (the integrated agent of the paper)."""

    alpha: Fraction = 0.5


@dataclass(frozen=True)
class FurtherEpsilonSection(EpsilonSection):
    """Share of random actions in addition to the noise of the layers."""

    start: Fraction = 0.0
    end: Fraction = 0.0


@dataclass(frozen=True)
class RainbowConfig(C51Config):
    """The fields other than `kind: rainbow`: those of c51 with the values of table 1 of the paper."""

    learning_rate: Rate = 6.25e-5
    n_step: Positive = 3
    double: bool = True
    dueling: bool = True
    noisy: bool = True
    prioritised: DivergenceSection | None = field(default_factory=DivergenceSection)
    adam_epsilon: Annotated[float, Gt(0)] = 1.5e-4
    epsilon: FurtherEpsilonSection | Points[Fraction] = field(default_factory=FurtherEpsilonSection)


class Rainbow(C51, Algorithm):
    """Discrete actions."""

    Config: ClassVar[type[Any]] = RainbowConfig

    @classmethod
    def defaults(cls, env: EnvSpec) -> Sections:
        """Defaults of C51, with noise as the only exploration."""
        sections = super().defaults(env)
        kept = {key: value for key, value in sections["algorithm"].items() if key != "epsilon"}
        return {**sections, "algorithm": kept}
