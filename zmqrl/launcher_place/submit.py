"""`zmqrl launch --submit`: a batch job of Slurm that launches the run within its allocation.

A job that is preempted or loses a node is started again by Slurm, and continues the run (`--resume auto`).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from zmqrl.config.hosts import LOCAL
from zmqrl.config.kinds import options_of
from zmqrl.config.plan import RunPlan
from zmqrl.data_stores import files
from zmqrl.errors import ConfigError, HostFailed
from zmqrl.orchestrators.slurm_commands import OWN_JOB, slurm
from zmqrl.orchestrators.slurm_steps import OF_A_JOB, SlurmConfig, check_keys, cpus_of, nodes_needed

SCRIPT, OUTPUT = "job.sh", "slurm.out"
FOLLOW = """
launcher=$!
trap 'kill -TERM "$launcher"' TERM
trap 'kill -USR1 "$launcher"' USR1
wait "$launcher"; code=$?
while kill -0 "$launcher" 2>/dev/null; do wait "$launcher"; code=$?; done  # a signal has ended the wait
# Preempted, and ended within the grace time of its partition: Slurm requeues only what it has to end.
if scontrol -o show job "$SLURM_JOB_ID" | grep -q ' PreemptTime=[0-9]'; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$code"
"""
STOP_S = 60
"""How long before its time limit the job receives SIGTERM, and stops with a checkpoint."""


def job_script(plan: RunPlan, hosts_file: Path, arguments: Sequence[str]) -> str:
    """The batch script of a run, which the job plans again. `arguments`: further ones of `zmqrl launch`.

    Raises:
        ConfigError: `orchestrator.kind` is not slurm, or a key does not apply to nodes.
    """
    section = plan.config.orchestrator
    if section.kind != "slurm":
        raise ConfigError(
            "--submit requires `orchestrator: {kind: slurm}`", key=("orchestrator", "kind"), value=repr(section.kind)
        )
    config = options_of(SlurmConfig, "orchestrator", section.options)
    check_keys(plan.config, nodes_needed(plan.config))
    return "\n".join(_lines(plan, config, hosts_file.absolute(), arguments)) + "\n"


def submit(run_dir: Path, script: str, after: Sequence[int] = ()) -> str:
    """Write `script` into the run directory, and nothing else, and submit it; returns the id of the job.

    `after`: jobs that have to end with exit code 0 first. If one ends in another way, Slurm removes the job.

    Raises:
        ConfigError: The directory cannot be written, or Slurm rejects the job.
    """
    is_new, path = not run_dir.exists(), run_dir / SCRIPT
    try:
        files.make_directory(str(run_dir))
        path.touch(0o600)
        path.chmod(0o600)  # also one that was there before
        path.write_bytes(os.fsencode(script))  # paths are in it
    except OSError as error:
        raise ConfigError(f"run directory {run_dir} cannot be written: {error}") from error
    try:
        order = [f"--dependency=afterok:{':'.join(map(str, after))}", "--kill-on-invalid-dep=yes"] if after else []
        return slurm("sbatch", "sbatch", "--parsable", *order, str(path)).strip().partition(";")[0]
    except HostFailed as error:
        with contextlib.suppress(OSError):
            path.unlink()
            if is_new:
                run_dir.rmdir()
        raise ConfigError(f"Slurm rejects the job: {error.cause}\n   {error.fix}", key=("orchestrator",)) from error


def _lines(plan: RunPlan, config: SlurmConfig, hosts_file: Path, arguments: Sequence[str]) -> Iterator[str]:
    """`local` is the node that the launcher runs on, the first."""
    run = plan.config
    hosts = nodes_needed(run)
    here = cpus_of(run, LOCAL) if LOCAL in (run.learner.host, *plan.workers) else 0
    options = {
        "job-name": f"zmqrl-{run.run.name}",
        "nodes": max(1, len(hosts)),
        "ntasks-per-node": 1,
        "cpus-per-task": config.cpus_per_task or here + max((cpus_of(run, host) for host in hosts), default=0),
        "output": f"{plan.run_dir}/{OUTPUT}",
        "open-mode": "append",
        "signal": f"B:TERM@{STOP_S}",
        **{name: getattr(config, name) for name in (*OF_A_JOB, "gres")},
    }
    yield "#!/bin/sh"
    yield f"# The job of the zmqrl run in {plan.run_dir}; the launcher runs on its first node."
    yield from (f"#SBATCH --{name}={shlex.quote(str(value))}" for name, value in options.items() if value is not None)
    yield "#SBATCH --requeue"
    if config.exclusive:
        yield "#SBATCH --exclusive"
    if config.extra_args:
        yield f"#SBATCH {shlex.join(config.extra_args)}"
    command = [sys.executable, "-m", "zmqrl", "launch", str(hosts_file), "--run-dir", plan.run_dir, "--resume", "auto"]
    yield f'export {OWN_JOB}="$SLURM_JOB_ID"'
    yield f"{shlex.join([*command, '--plain', *arguments])} &"
    yield FOLLOW.strip()
