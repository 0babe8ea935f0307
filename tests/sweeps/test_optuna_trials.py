"""Trials of Optuna: a function of the records, in batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from tests.support.raising import raises
from zmqrl.errors import ConfigError
from zmqrl.sweeps.optuna_trials import propose
from zmqrl.sweeps.sweep_file import Range, SweepFile
from zmqrl.sweeps.trials import Trial, Verdict

pytest.importorskip("optuna")
SPACE = {"a": ([64, 64], [32]), "b": Range(1e-4, 1.0, log=True), "c": Range(1, 5, integer=True), "d": Range(-1, 1)}
KEYS = SweepFile("p", SPACE, "optuna", trials=15, batch=3)


def proposed(count: int) -> list[Trial]:
    """Trials one after the other, each told as its record has it."""
    trials, verdicts = list[Trial](), list[Verdict]()
    for number in range(count):
        parameters = msgspec.json.decode(msgspec.json.encode(propose(KEYS, number, trials, verdicts)))
        value = -abs(parameters["d"] - 0.5) - parameters["c"]
        trials.append(Trial(parameters))
        of_number = {4: Verdict("failed", 0), 5: Verdict("pruned", 0, value)}
        verdicts.append(of_number.get(number, Verdict("complete", 1, value)))
    return trials


def test_trials_follow_from_those_of_earlier_batches() -> None:
    trials = proposed(15)
    assert trials == proposed(15)
    for trial in trials:
        own = trial.parameters
        assert own["a"] in SPACE["a"] and 1e-4 <= own["b"] <= 1 and own["c"] in range(1, 6) and -1 <= own["d"] <= 1
    of_batch = [Verdict("complete", 1, 0.0)] * 12
    same = [propose(KEYS, 13, trials[:count], (of_batch * 2)[:count]) for count in (12, 13, 15)]
    assert same[0] == same[1] == same[2]
    assert propose(KEYS, 12, trials[:12], of_batch) != same[0]


@pytest.mark.parametrize("parameters", [{}, {"a": 3, "b": 0.5, "c": 1, "d": 0}, {"a": [32], "b": 9, "c": 1, "d": 0}])
def test_a_record_of_other_parameters_is_named(parameters: Mapping[str, Any]) -> None:
    with raises(ConfigError, value="the record of trial 0", fix="remove it"):
        propose(KEYS, 3, [Trial(parameters)] * 3, [Verdict("complete", 1, 0.0)] * 3)


def test_results_lead_to_better_trials() -> None:
    later = [trial.parameters["c"] for trial in proposed(30)[20:]]
    assert sum(later) / len(later) < 2.5
