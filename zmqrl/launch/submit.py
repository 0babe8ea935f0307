"""`zmqrl launch --submit`: a batch job of Slurm that launches the run within its allocation.

A job that is preempted or loses a node is started again by Slurm, and continues the run (`--resume auto`).
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from zmqrl.config.hosts import AUTO, LOCAL
from zmqrl.config.kinds import options_of
from zmqrl.config.plan import RunPlan
from zmqrl.data_stores import files
from zmqrl.errors import ConfigError, HostFailed
from zmqrl.orchestrators.slurm import check_keys
from zmqrl.orchestrators.slurm_commands import slurm
from zmqrl.orchestrators.slurm_steps import OF_A_JOB, SlurmConfig, cpus_of, nodes_needed

SCRIPT, OUTPUT = "job.sh", "slurm.out"
STOP_S = 60
"""How long before its time limit the job receives SIGTERM, and stops with a checkpoint."""


def submit(plan: RunPlan, hosts_file: Path, words: Sequence[str]) -> str:
    """Write the script into the run directory and submit it; returns the id of the job.

    Args:
        plan: Of the run, which the job plans again: nothing else is written.
        hosts_file: hosts.yaml.
        words: Further arguments of `zmqrl launch`.

    Raises:
        ConfigError: `orchestrator.kind` is not slurm, the directory cannot be written, or Slurm rejects the job.
    """
    section = plan.config.orchestrator
    if section.kind != "slurm":
        raise ConfigError(f"orchestrator.kind: {section.kind!r}: --submit needs slurm")
    config = options_of(SlurmConfig, "orchestrator", section.options)
    hosts = nodes_needed(plan)
    check_keys(plan, hosts)
    unknown = next((name for name in hosts if plan.config.hosts[name].workers == AUTO), None)
    if unknown is not None:
        raise ConfigError(f"hosts.{unknown}.workers: 'auto': set a number, or orchestrator.cpus_per_task")
    run_dir = Path(plan.run_dir)
    is_new, path = not run_dir.exists(), run_dir / SCRIPT
    try:
        files.make_directory(str(run_dir))
        path.write_text("\n".join(script(plan, config, hosts_file.absolute(), words)) + "\n")
    except OSError as error:
        raise ConfigError(f"run directory {run_dir} cannot be written: {error}") from error
    try:
        return slurm("sbatch", "sbatch", "--parsable", str(path)).strip().partition(";")[0]
    except HostFailed as error:
        with contextlib.suppress(OSError):
            path.unlink()
            if is_new:
                run_dir.rmdir()
        raise ConfigError(f"orchestrator: Slurm rejects the job: {error.cause}\n   {error.mend}") from error


def script(plan: RunPlan, config: SlurmConfig, hosts_file: Path, words: Sequence[str]) -> Iterator[str]:
    """Lines of the batch script. `local` is the node that the launcher runs on, the first."""
    hosts = nodes_needed(plan)
    here = cpus_of(plan, LOCAL) if LOCAL in (plan.config.learner.host, *plan.workers) else 0
    options = {
        "job-name": f"zmqrl-{plan.config.run.name}",
        "nodes": max(1, len(hosts)),
        "ntasks-per-node": 1,
        "cpus-per-task": config.cpus_per_task or here + max((cpus_of(plan, host) for host in hosts), default=0),
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
    yield from (f"#SBATCH {argument}" for argument in config.extra_args)
    run = [sys.executable, "-m", "zmqrl", "launch", str(hosts_file), "--run-dir", plan.run_dir, "--resume", "auto"]
    yield f"exec {shlex.join([*run, '--plain', *words])}"
