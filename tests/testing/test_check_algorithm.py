"""`check_algorithm` passes over sound algorithms and names what is wrong with the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.support.raising import compare, fields, raises
from tests.testing import defective_algorithms as defective
from tests.testing import sound_algorithms as sound
from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import Algorithm
from zmqrl.algorithms.bc import BC
from zmqrl.algorithms.dqn import DQN, DQNConfig
from zmqrl.algorithms.ppo import PPO, PPOConfig
from zmqrl.algorithms.ppo_gru import PPOGRU, PPOGRUConfig
from zmqrl.config.codec import replace
from zmqrl.config.sections import NetworkSection
from zmqrl.errors import ConfigError
from zmqrl.learning import ReplayLearner
from zmqrl.replay.spec import Relabel
from zmqrl.testing import check as checks
from zmqrl.testing import check_algorithm, training
from zmqrl.testing.algorithm import DISCRETE, VECTOR
from zmqrl.testing.check import SMALL
from zmqrl.testing.devices import updates_run_on_one_device
from zmqrl.testing.probes import Identity, InfiniteHorizon, MaskedBandit, Memory
from zmqrl.testing.training import TRAINING
from zmqrl.types import EnvSpec

pytestmark = pytest.mark.whole
FAST = PPOConfig(learning_rate=1e-3)
PROBES = tuple(env.__name__ for env in (Identity, InfiniteHorizon, Memory, MaskedBandit))
ON_POLICY = [
    (defective.Terminating, "a_truncation_bootstraps"),
    (defective.TrainsResets, "rows_that_reset_are_not_trained"),
    (defective.OtherLogProbs, "stored_log_probs_are_those_of_the_acting_version"),
    (defective.SlowFrozenSchedule, "recorded_updates_are_the_eager_ones"),
]
OFF_POLICY = [
    (defective.Copying, "a_target_network_lags"),
    (defective.Unread, "a_target_network_is_read"),
    (defective.CopyingOld, "a_target_network_lags"),
    (defective.UnreadOld, "a_target_network_is_read"),
    (defective.Forgetful, "a_restored_learner_continues_bit_for_bit"),
    (defective.GlobalRandom, "training_is_deterministic"),
    (defective.NeverAnnealed, "schedules_are_followed"),
    (defective.FrozenSchedule, "recorded_updates_are_the_eager_ones"),
    (defective.OtherDevice, "updates_run_on_one_device"),
    (defective.ReadsFromDevice, "updates_run_on_one_device"),
    (defective.Uncut, "a_termination_has_no_value_after_it"),
]
PLANTED: list[tuple[type[Algorithm], Any, str]] = [
    *((defective.ppo_with(learner), PPOConfig(), check) for learner, check in ON_POLICY),
    *((defective.with_learner(learner), None, check) for learner, check in OFF_POLICY),
]


def others(name: str) -> list[str]:
    """All checks of training but one: a defect may fail several."""
    return [check.__name__ for check in TRAINING if check.__name__ != name]


@pytest.mark.parametrize(("kind", "config", "check"), PLANTED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_defect_is_named(kind: type[Algorithm], config: Any, check: str) -> None:
    with pytest.raises(AssertionError, match=f"^{check}, discrete actions: "):
        check_algorithm(kind, config, skip=(*PROBES, *others(check)))


def test_a_shape_that_depends_on_values_is_named_with_the_line() -> None:
    named = r"^updates_run_on_one_device, .*\(\S*defective_algorithms.py:\d+, in drawn\): .*in numpy"
    kind = defective.with_learner(defective.ShapedByValue)
    with pytest.raises(AssertionError, match=named):
        check_algorithm(kind, skip=(*PROBES, *others("updates_run_on_one_device")))


def made(kind: type[Algorithm]) -> Callable[[], Algorithm]:
    return lambda: kind(kind.Config(), SMALL, EnvSpec("toy", VECTOR, DISCRETE), 16, 2)


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (sound.C51, training.a_termination_has_no_value_after_it),
        (sound.C51, training.recorded_updates_are_the_eager_ones),
        (sound.LogitsPPO, training.rows_that_reset_are_not_trained),
        (defective.with_learner(sound.MaskingLearner), updates_run_on_one_device),
    ],
)
def test_what_is_no_defect_passes(kind: type[Algorithm], check: Callable[[Any], None]) -> None:
    check(made(kind))


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (sound.UncutC51, training.a_termination_has_no_value_after_it),
        (sound.TerminatedLogitsPPO, training.rows_that_reset_are_not_trained),
    ],
)
def test_the_same_with_the_defect_is_found(kind: type[Algorithm], check: Callable[[Any], None]) -> None:
    with pytest.raises(AssertionError):
        check(made(kind))


def test_a_wrong_shape_of_priorities_is_reported_by_the_first_check_that_trains(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(AssertionError) as caught:
        check_algorithm(defective.with_learner(defective.WrongPriorities), skip=(*PROBES, *others("")))
    assert capfd.readouterr().err.splitlines()[-1] == (
        "passed   the_learner_publishes_what_it_was_given, discrete actions"
    )
    compare(caught.value.__cause__, **fields("PRIORITY", "[1]"))


@pytest.mark.parametrize("reached", [None, "tests.replay.goals:near"])
def test_hindsight_is_checked_over_observations_with_goals(reached: str | None) -> None:
    goals = spaces.Dict(
        {name: spaces.Box(-1, 1, (4,), np.float32) for name in ("achieved_goal", "desired_goal", "observation")}
    )
    config = DQNConfig(batch_size=64, relabel=Relabel("tests.replay.goals:distance", terminated=reached))
    report = check_algorithm(DQN, config, observation=goals, skip=[name for name in PROBES if name != "Identity"])
    assert report.skipped["Identity, discrete actions"] == "no goals to relabel"
    checked = {name.partition(",")[0] for name in report.passed}
    assert {"replay_fits_a_segment", "a_termination_has_no_value_after_it", "an_update_runs"} <= checked
    with pytest.raises(AssertionError) as caught:
        check_algorithm(DQN, config, skip=(*PROBES, *others("")))
    compare(caught.value.__cause__, **fields("Relabel.goals", "('achieved_goal', 'desired_goal')"))


def test_values_after_a_termination_may_be_declared(capfd: pytest.CaptureFixture[str]) -> None:
    report = check_algorithm(sound.IntrinsicC51, skip=(*PROBES, *others("a_termination_has_no_value_after_it")))
    assert report.skipped["a_termination_has_no_value_after_it"] == "termination_cuts_value is False"
    assert capfd.readouterr().err.splitlines() == [f"passed   {name}" for name in report.passed]


def test_behaviour_cloning_has_no_values_and_no_env_steps_of_its_own() -> None:
    """A truncation that rewards cannot show is not compared, and nothing is learned in a probe."""
    report = check_algorithm(BC, BC.Config(batch_size=32))
    assert sum("a_truncation_bootstraps" in name for name in report.passed) == 2
    assert {*PROBES} <= report.skipped.keys() and not any("learned within" in name for name in report.passed)


def test_the_state_of_a_head_is_no_memory_of_observations() -> None:
    skip = (*(name for name in PROBES if name != "Memory"), *others(""))
    report = check_algorithm(sound.WithNoiseProcess, skip=skip)
    assert report.skipped["Memory, discrete actions"] == "no layer with recurrent state"


def test_a_module_that_checks_itself_is_imported_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "IMPORT_CPU_S", 1)
    kind = type("Endless", (sound.C51,), {"__module__": "tests.testing.endless_module"})
    assert checks.imports_torch(kind) is None


def test_the_probe_of_truncation_fails_alone() -> None:
    probes = [name for name in PROBES if name != InfiniteHorizon.__name__]
    checks = [check.__name__ for check in TRAINING]
    with pytest.raises(AssertionError, match=r"InfiniteHorizon, discrete actions: -\d+% of the way"):
        check_algorithm(defective.ppo_with(defective.Terminating), FAST, env_steps=1_000, skip=(*checks, *probes))


def test_a_sound_algorithm_passes() -> None:
    report = check_algorithm(defective.with_learner(defective.SoundLearner))
    assert report.imports_torch and not any("continuous" in name for name in report.passed)
    learned = [name.partition(",")[0] for name in report.passed if "learned within" in name]
    assert learned == ["Identity", "InfiniteHorizon"]
    assert "no layer with recurrent state" in report.skipped["Memory, discrete actions"]
    assert str(report).startswith("SoundLearner: ") and "the launcher loads it too" in str(report)
    assert "passed   " not in str(report), "each is printed when it has passed"


def test_workers_that_cannot_compute_a_module_are_found() -> None:
    class ActsWithNumpy(defective.with_learner(defective.SoundLearner)):  # type: ignore[misc]
        def acting(self) -> ActingSpec:
            return replace(super().acting(), runtime="numpy")

    name = "workers_act_with_version_0, discrete actions, a module as network: "
    with pytest.raises(AssertionError, match=f"^{name}.*needs runtime torch"):
        check_algorithm(ActsWithNumpy, skip=(*PROBES, *others("")))


@pytest.mark.long
def test_ppo_passes() -> None:
    report = check_algorithm(PPO, FAST, skip=["Memory"])
    assert report.imports_torch is False and len([name for name in report.passed if "learned" in name]) == 5


def test_memory_is_learned_with_recurrent_state_alone() -> None:
    config = PPOGRUConfig(learning_rate=1e-3, sequence=4)
    checks = [check.__name__ for check in TRAINING]
    report = check_algorithm(PPOGRU, config, skip=(*checks, *(name for name in PROBES if name != "Memory")))
    assert len([name for name in report.passed if name.startswith("Memory")]) == 2


def test_what_is_skipped_is_listed_and_has_to_exist() -> None:
    kind = defective.with_learner(defective.SoundLearner)
    report = check_algorithm(kind, skip=(*PROBES, *others("updates_run_on_one_device")))
    assert report.skipped["a_termination_has_no_value_after_it"] == "by its name"
    with raises(ConfigError, **fields("skip", "a_terminaton", what="no such check")):
        check_algorithm(kind, skip=["a_terminaton"])


def test_a_configuration_of_another_class_is_refused() -> None:
    with raises(ConfigError, **fields("config", "{'epochs': 1}", what="must be an instance of PPO.Config")):
        check_algorithm(PPO, {"epochs": 1})


def test_an_algorithm_that_accepts_nothing_is_named() -> None:
    with pytest.raises(AssertionError, match="SoundLearner accepts no actions"):
        check_algorithm(defective.with_learner(defective.SoundLearner), network=NetworkSection("no-such-kind"))


def test_the_sound_learner_is_one() -> None:
    assert issubclass(defective.SoundLearner, ReplayLearner)
