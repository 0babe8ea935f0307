"""An algorithm is made from JSON data, whatever types the user's own `Config` has."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any, ClassVar, Literal

import pytest

from tests.algorithms.driver import env_spec
from tests.support.raising import raises
from zmqrl.algorithms.ppo import PPO
from zmqrl.algorithms.start.make import check_towers, completed, make_algorithm
from zmqrl.config.codec import replace, to_json
from zmqrl.config.sections import FORBID_UNKNOWN, Config, NetworkSection
from zmqrl.errors import ConfigError
from zmqrl.testing.algorithm import CONTINUOUS, DISCRETE, VECTOR
from zmqrl.types import EnvSpec, SpaceSpec


@dataclass(frozen=True)
class Constant:
    value: float
    shape: Literal["constant"] = "constant"


@dataclass(frozen=True)
class Ramp:
    first: float
    last: float
    shape: Literal["ramp"] = "ramp"


@dataclass(frozen=True)
class OddConfig:
    """Types that msgspec does not build."""

    __pydantic_config__ = FORBID_UNKNOWN

    rate: Constant | Ramp
    horizon: int | str | Literal["auto"] = "auto"
    widths: tuple[int, ...] = (8,)


@dataclass(frozen=True)
class Prepared:
    __pydantic_config__ = FORBID_UNKNOWN

    width: int = 8
    factor: InitVar[int] = 2
    doubled: int = field(init=False, default=0)

    def __post_init__(self, factor: int) -> None:
        object.__setattr__(self, "doubled", self.width * factor)


@dataclass(init=False, eq=False)
class OwnInit:
    __pydantic_config__ = FORBID_UNKNOWN

    width: int

    def __init__(self, width: int) -> None:
        self.width, self.squared = width, width**2


class _Odd(PPO):
    def __init__(self, config: Any, *rest: Any) -> None:
        super().__init__(PPO.Config(), *rest)
        self.own = config


class Odd(_Odd):
    Config: ClassVar[type[Any]] = OddConfig


class WithPrepared(_Odd):
    Config: ClassVar[type[Any]] = Prepared


class WithOwnInit(_Odd):
    Config: ClassVar[type[Any]] = OwnInit


def made(name: str, **options: Any) -> Any:
    """As the learner makes it: from what JSON has left of the options."""
    kind = name if name == "ppo" else f"{__name__}:{name}"
    config = Config(algorithm=json.loads(json.dumps({"kind": kind, **options})))
    return make_algorithm(config, env_spec())


@pytest.mark.parametrize(
    "config",
    [OddConfig(Constant(0.5)), OddConfig(Ramp(1.0, 0.0), 7, (4, 4)), OddConfig(Ramp(1.0, 0.0), "week")],
    ids=str,
)
def test_a_config_with_unions_is_built_as_the_launcher_checks_it(config: OddConfig) -> None:
    assert made("Odd", **to_json(config)).own == config


def test_what_a_config_computes_from_its_fields_is_there() -> None:
    assert made("WithPrepared", width=5).own.doubled == 10
    own = made("WithOwnInit", width=3).own
    assert (own.width, own.squared) == (3, 9)


@pytest.mark.parametrize(
    ("name", "options"),
    [("Odd", {"rate": 3}), ("Odd", {}), ("Odd", {"rate": {"value": 1.0}, "more": 1}), ("ppo", {"no_such": 1})],
    ids=str,
)
def test_other_data_is_a_config_error(name: str, options: dict[str, Any]) -> None:
    with raises(ConfigError, key=("algorithm",)):
        made(name, **options)


@pytest.mark.parametrize("section", [{}, {"kind": 3}, {"kind": None}, {"kind": "pppo"}], ids=str)
def test_a_stored_section_without_a_known_kind_is_a_config_error(section: dict[str, Any]) -> None:
    with raises(ConfigError, key=("algorithm", "kind")):
        completed(section)
    with raises(ConfigError, key=("algorithm", "kind")):
        make_algorithm(Config(algorithm=section), env_spec())


class OfOneSize(PPO):
    """Reads its section in the constructor."""

    def __init__(self, config: Any, network: NetworkSection, *rest: Any) -> None:
        super().__init__(config, replace(network, hidden=(4,), hidden_by_tower={}), *rest)


def network_of(kind: str, hidden: Mapping[str, tuple[int, ...]], network: str = "mlp", **options: Any) -> Config:
    return Config(
        algorithm={"kind": kind, **options}, network=NetworkSection(network, (8,), "relu", hidden_by_tower=hidden)
    )


@pytest.mark.parametrize(
    ("kind", "space", "hidden", "widths"),
    [
        ("ppo", DISCRETE, {"critic": (32, 16)}, {"actor": [8], "critic": [32, 16]}),
        ("ppo", DISCRETE, {"critic": (8,), "actor": ()}, {"actor": [], "critic": [8]}),
        ("sac", CONTINUOUS, {"q1": (6,), "q2": (6,)}, {"actor": [8], "q1": [6], "q2": [6]}),
        ("td3", CONTINUOUS, {"actor": (5, 4)}, {"actor": [5, 4], "q1": [8], "q2": [8]}),
        ("dqn", DISCRETE, {"q": (3,)}, {"q": [3]}),
        ("ppo_gru", DISCRETE, {"torso": (3,)}, {"torso": [3]}),
    ],
)
def test_towers_have_widths_of_their_own(
    kind: str, space: SpaceSpec, hidden: Mapping[str, tuple[int, ...]], widths: dict[str, list[int]]
) -> None:
    config, env = network_of(kind, hidden), EnvSpec("toy", VECTOR, space)
    check_towers(config, env)
    towers = make_algorithm(config, env).network().towers
    activations = {name: [i for i, layer in enumerate(layers) if layer.kind == "relu"] for name, layers in towers}
    found = {
        name: [dict(towers)[name][i - 1].outputs for i in at] for name, at in activations.items() if name in widths
    }
    assert found == widths


@pytest.mark.parametrize(
    ("config", "name", "fix"),
    [
        (network_of("ppo", {"critics": (8,)}), "critics", "towers with such layers: actor, critic"),
        (network_of("ppo", {"torso": (8,), "critic": (8,)}, shared=True), "critic", "towers with such layers: torso"),
        (network_of("dqn", {"actor": (8,)}), "actor", "towers with such layers: q"),
        (network_of(f"{__name__}:OfOneSize", {"critic": (8,)}), "critic", "remove the key"),
        (network_of("ppo", {"critic": (8,)}, "tests.networks.nets:Residual"), "critic", "remove the key"),
    ],
)
def test_widths_of_no_hidden_layers_are_refused(config: Config, name: str, fix: str) -> None:
    key = ("network", "hidden_by_tower")
    with raises(
        ConfigError, key=key, value=repr(name), what=f"tower {name!r} has no hidden layers of section network", fix=fix
    ):
        check_towers(config, EnvSpec("toy", VECTOR, DISCRETE))


def test_an_algorithm_of_the_package_is_made_without_pydantic() -> None:
    code = (
        "import sys\nfrom tests.algorithms.driver import env_spec\n"
        "from zmqrl.algorithms.start.make import make_algorithm\nfrom zmqrl.config.sections import Config\n"
        "make_algorithm(Config(algorithm={'kind': 'ppo'}), env_spec())\nsys.exit('pydantic' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
