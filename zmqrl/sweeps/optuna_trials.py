"""Trials that Optuna proposes (extra `optuna`). Its study is made from the records each time, and stored nowhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zmqrl.errors import ConfigError
from zmqrl.random_streams import stream
from zmqrl.sweeps.sweep_file import Range, SweepFile, Values
from zmqrl.sweeps.trials import Trial, Verdict

MOST_SEED = 1 << 31


def optuna_of() -> Any:
    """The package. ConfigError: it is not installed."""
    try:
        import optuna
    except ImportError as error:
        fix = "run in the checkout of zmqrl: pip install '.[optuna]'"
        raise ConfigError("requires the package optuna", key=("method",), value="optuna", fix=fix) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def propose(keys: SweepFile, number: int, trials: Sequence[Trial], verdicts: Sequence[Verdict]) -> Mapping[str, Any]:
    """Parameters of a trial: a function of the trials of earlier batches, in their order, and of its number."""
    optuna = optuna_of()
    spaces = {key: _distribution(optuna.distributions, values) for key, values in keys.space.items()}
    seed = int(stream(keys.seed, "sweep", index=number).integers(MOST_SEED))
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    known = list(zip(trials, verdicts, strict=True))[: number - number % keys.batch]
    for before, (trial, verdict) in enumerate(known):
        is_pruned = verdict.status == "pruned"
        try:
            ended = optuna.trial.create_trial(
                state=optuna.trial.TrialState[{"failed": "FAIL"}.get(verdict.status, verdict.status.upper())],
                value=None if verdict.status == "failed" else verdict.value,
                params={key: _as_parameter(values, trial.parameters[key]) for key, values in keys.space.items()},
                distributions=spaces,
                intermediate_values={verdict.stage: verdict.value} if is_pruned else {},
            )
        except (KeyError, ValueError) as error:
            what = f"has a value that the sweep does not try: {error}"
            raise ConfigError.about(f"the record of trial {before}", what, "remove it") from error
        study.add_trial(ended)
    found = study.ask(spaces).params
    return {key: found[key] if isinstance(values, Range) else values[found[key]] for key, values in keys.space.items()}


def _distribution(kinds: Any, values: Values | Range) -> Any:
    """Choices are drawn by their indexes: a list is not a choice of Optuna."""
    if not isinstance(values, Range):
        return kinds.CategoricalDistribution(range(len(values)))
    if values.integer:
        return kinds.IntDistribution(int(values.low), int(values.high), log=values.log)
    return kinds.FloatDistribution(values.low, values.high, log=values.log)


def _as_parameter(values: Values | Range, value: Any) -> Any:
    return value if isinstance(values, Range) else values.index(value)
