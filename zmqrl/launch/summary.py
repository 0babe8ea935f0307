"""`summary.json` from what is known of a run, and the summary for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from zmqrl.config.codec import replace, to_json
from zmqrl.config.plan import RunPlan
from zmqrl.data_stores.base import few
from zmqrl.launch.run.bottleneck import find_bottleneck, relieved_workers, slowest_worker
from zmqrl.launch.run.state import RunState
from zmqrl.orchestrators.base import Teardown
from zmqrl.run_files.environment import versions
from zmqrl.summary import Status, Summary
from zmqrl.types import MODES, Ledger
from zmqrl.views.base import reports_of
from zmqrl.views.problem import report_cells

MOST_KILLED_NAMED = 5
OF_LEARNER = (
    "env_steps_per_s", "updates_per_s", "train_return_mean_100", "solved_at_wall_s", "policy_lag", "replay_ratio",
    "weights_sha256", "checkpoint_interval_s",
)  # fmt: skip
"""Figures of the learner that the summary has by the same name."""
COUNTS_OF_LEARNER = ("updates", "episodes", "updates_lost", "solved_at_env_steps")
BOTTLENECKS = {
    "bus": "learner and workers wait for messages; longer segments (env.segment_steps) help",
    "learner": "the workers wait for the learner; more workers do not make the run faster",
    "store": "the learner waits for checkpoints; a larger run.checkpoint_every_s helps",
    "workers": "the learner waits for the workers; more workers make the run faster",
}
"""What each means for the user."""


def summarise(
    plan: RunPlan, state: RunState, status: Status, exit_code: int, error: str | None, wall_s: float
) -> Summary:
    """What is known `wall_s` seconds after the start: the learner's `ended` where it came, else its last metrics."""
    known, ledger = state.figures, None if state.finished is None else state.finished.ledger
    learner: dict[str, Any] = {name: known.get(name) for name in OF_LEARNER}
    learner |= {name: _whole(known.get(name)) for name in COUNTS_OF_LEARNER}
    late = slowest_worker(state)
    return Summary(
        status=status,
        exit_code=exit_code,
        error=error,
        run_id=plan.run_id,
        mode=plan.config.run.mode,
        algorithm=str(plan.config.algorithm.get("kind")),
        env=plan.env.id,
        seed=plan.config.run.seed,
        workers=plan.total_workers,
        env_steps=_env_steps(plan, known, ledger, state),
        wall_s=round(wall_s, 3),
        first_env_step_s=None if state.first_step_s is None else round(state.first_step_s, 3),
        eval_return_mean=None if state.score is None else state.score.return_mean,
        eval_episodes=None if state.score is None else state.score.episodes,
        ledger=None if ledger is None else {**to_json(ledger), "balanced": ledger.balanced},
        restarts=state.restarts,
        peak_pss_mb=state.peak_pss_mb,
        bottleneck=find_bottleneck(state),
        slowest=None if late is None else str(late),
        relieved=relieved_workers(state),
        eval_reports={} if state.score is None else state.score.reports,
        recovery=recovery_of(plan),
        resumed_from=None if state.resumed_from is None else to_json(state.resumed_from),
        last_seen=None if state.last_seen is None else to_json(state.last_seen),
        versions=versions(),
        attempts=plan.lineage.attempt,
        trained_env_steps=_trained(known, ledger, state),
        restart_causes=state.restart_causes,
        train_reports=reports_of(state.metrics),
        **learner,
    )


def recovery_of(plan: RunPlan) -> str | None:
    """Recovery of running episodes after a restart; None in async, which is not bitwise reproducible."""
    return plan.config.env.recovery if plan.config.mode.deterministic else None


def _env_steps(plan: RunPlan, known: Mapping[str, Any], ledger: Ledger | None, state: RunState) -> int | None:
    """Rows stored: those of earlier arenas of a resumed run, and what this one has in its stream record.

    In async the learner may not have used the last of them; in pipelined these do not count, because a resume has them
    stepped again. A learner that reported nothing may have ended before its first update, or in pipelined after one.
    """
    before = known.get("env_steps_before")
    if before is None and not known and (state.resumed_from is not None or not plan.resume):
        before = 0 if state.resumed_from is None else state.resumed_from.env_steps
    if ledger is None or before is None:
        return _whole(known.get("env_steps"))
    if plan.config.mode.rounds_ahead:
        return _whole(known.get("env_steps", None if ledger.stored else before))
    return int(before) + ledger.stored


def _trained(known: Mapping[str, Any], ledger: Ledger | None, state: RunState) -> int | None:
    """Rows stored in this attempt; without the ledger, and in pipelined, by the learner's counter."""
    if ledger is not None and not state.plan.config.mode.rounds_ahead:
        return ledger.stored
    env_steps, before = _whole(known.get("env_steps")), state.resumed_from
    return None if env_steps is None else max(0, env_steps - (0 if before is None else before.env_steps))


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def line_of_seeds(summaries: Sequence[Mapping[str, Any]]) -> str | None:
    """The returns in several `summary.json` for people; None where fewer than two have one."""
    for key, what in (("eval_return_mean", "evaluated"), ("train_return_mean_100", "return")):
        values = [found for each in summaries if (found := each.get(key)) is not None]
        if len(values) > 1:
            shown = ", ".join(f"{value:.1f}" for value in values)
            return f"{len(values)} seeds: {what} {mean(values):.1f}, standard deviation {stdev(values):.1f} ({shown})"
    return None


def final_lines(summary: Summary) -> str:
    """The summary for people."""
    counted = ((summary.env_steps, "env steps"), (summary.updates, "updates"))
    counts = [f", {number:,} {what}" for number, what in counted if number is not None]
    lines = [f"run {summary.run_id}: {summary.status}{''.join(counts)} in {summary.wall_s:.1f} s"]
    if summary.resumed_from is not None and summary.trained_env_steps is not None:
        trained = f"{summary.trained_env_steps:,} env steps were" if summary.trained_env_steps else "nothing was"
        lines.append(f"  {trained} trained since the resume")
    if summary.train_return_mean_100 is not None:
        solved = f", solved at {summary.solved_at_env_steps:,} env steps" if summary.solved_at_env_steps else ""
        found = _measured("return", summary.train_return_mean_100, summary.train_reports)
        lines.append(f"  {found} (mean of the last 100 episodes){solved}")
    if summary.eval_return_mean is not None:
        found = _measured("evaluated", summary.eval_return_mean, summary.eval_reports)
        lines.append(f"  {found} (mean of {summary.eval_episodes} greedy episodes)")
    if summary.ledger is not None:
        ledger = summary.ledger
        dropped, unknown = sum(ledger["dropped"].values()), ledger["dropped"].get("unknown", 0)
        wrong = f"DOES NOT BALANCE ({unknown:,} rows unknown, {ledger['overbooked']:,} counted more than once)"
        lines.append(
            f"  ledger {'balanced' if ledger['balanced'] else wrong}: produced {ledger['produced']:,} = "
            f"stored {ledger['stored']:,} + in flight {ledger['in_flight']:,} + dropped {dropped:,}"
        )
    if summary.restarts:
        lines.append(f"  restarts {summary.restarts}")
        lines += [f"    {cause.count} of {cause.role}: {cause.cause}" for cause in summary.restart_causes]
    if summary.recovery == "restart_episode":
        lines.append(
            "  a restart or a resume leads to other weights (env.recovery: restart_episode); to get the same, set "
            "env.max_episode_steps=N and env.recovery=exact"
        )
    if summary.bottleneck and summary.status != "failed":  # its cause comes first
        is_in_one = any(mode.in_process for name, mode in MODES.items() if name == summary.mode)
        in_one = "one process does both" if is_in_one else None
        lines.append(
            f"  bottleneck {summary.bottleneck}: {summary.slowest or in_one or BOTTLENECKS[summary.bottleneck]}"
        )
    lines += [f"  slower worker: {relieved}" for relieved in summary.relieved]
    return "\n".join(lines)


def _measured(name: str, mean: float, reports: Mapping[str, float]) -> str:
    return ", ".join([f"{name} {mean:.1f}", *report_cells(reports)])


def end_lines(summary: Summary, state: RunState, teardown: Teardown, run_dir: Path) -> str:
    """The summary and the teardown for people."""
    lines = [final_lines(summary)]
    if state.finished is not None and state.finished.final_stopped:
        teardown = replace(teardown, killed=tuple(who for who in teardown.killed if "/evaluator-" not in who))
        limit_s = state.plan.config.evaluator.final_limit_s
        cause = f"the final evaluation was stopped at its time limit (evaluator.final_limit_s: {limit_s:g} s)"
        lines.append(f"  {cause}; the checkpoints are complete" if summary.error is None else f"  {cause}")
    lines.append(f"  {_teardown_line(teardown)}; results in {run_dir}")
    return "\n".join(lines)


def _teardown_line(teardown: Teardown) -> str:
    parts = [f"{teardown.ended} process{'' if teardown.ended == 1 else 'es'} ended"]
    if teardown.killed:
        parts.append(f"killed {few(sorted(teardown.killed), MOST_KILLED_NAMED)}")
    parts.append(f"LEFT {', '.join(sorted(teardown.left))}" if teardown.left else "0 left")
    return ", ".join(parts)
