"""`zmqrl launch --submit`: a batch job of Slurm that launches the run within its allocation.

A job that is preempted or loses a node is started again by Slurm, and continues the run (`--resume auto`).
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from zmqrl.config.hosts import LOCAL
from zmqrl.config.kinds import options_of
from zmqrl.config.plan import RunPlan
from zmqrl.data_stores import files
from zmqrl.errors import ConfigError
from zmqrl.orchestrators.slurm import SlurmConfig, slurm

SCRIPT, OUTPUT = "job.sh", "slurm.out"
STOP_S = 60
"""How long before its time limit the job receives SIGTERM, and stops with a checkpoint."""
LEARNER_CPUS = 4
"""Of launcher, agent, broker and learner."""


def submit(plan: RunPlan, hosts_file: Path, words: Sequence[str]) -> str:
    """Write the script into the run directory and submit it; returns the id of the job.

    Args:
        plan: Of the run, which the job makes again: nothing else is written.
        hosts_file: hosts.yaml.
        words: Further arguments of `zmqrl launch`.

    Raises:
        ConfigError: `orchestrator.kind` is not slurm, or the directory cannot be written.
        HostFailed: Slurm does not take the job.
    """
    section = plan.config.orchestrator
    if section.kind != "slurm":
        raise ConfigError(f"orchestrator.kind: {section.kind!r}: --submit needs slurm")
    config = options_of(SlurmConfig, "orchestrator", section.options)
    run_dir = Path(plan.run_dir)
    path = run_dir / SCRIPT
    try:
        files.make_directory(str(run_dir))
        path.write_text("\n".join(script(plan, config, hosts_file.absolute(), words)) + "\n")
    except OSError as error:
        raise ConfigError(f"run directory {run_dir} cannot be written: {error}") from error
    return slurm("sbatch", "sbatch", "--parsable", str(path)).strip().partition(";")[0]


def script(plan: RunPlan, config: SlurmConfig, hosts_file: Path, words: Sequence[str]) -> Iterator[str]:
    """Lines of the batch script."""
    nodes = [host for host, workers in plan.workers.items() if workers or host == plan.config.learner.host]
    others = [host for host in nodes if host != LOCAL]
    most = max((workers + LEARNER_CPUS * (host == plan.config.learner.host) for host, workers in plan.workers.items()))
    options = {
        "job-name": f"zmqrl-{plan.config.run.name}",
        "nodes": max(1, len(others)),
        "ntasks-per-node": 1,
        "cpus-per-task": config.cpus_per_task or most,
        "output": f"{plan.run_dir}/{OUTPUT}",
        "open-mode": "append",
        "signal": f"B:TERM@{STOP_S}",
        **{name: getattr(config, name) for name in ("partition", "account", "qos", "time", "constraint", "gres")},
    }
    yield "#!/bin/sh"
    yield f"# The allocation of zmqrl run directory {plan.run_dir}; the launcher runs on its first node."
    yield from (f"#SBATCH --{name}={value}" for name, value in options.items() if value is not None)
    yield "#SBATCH --requeue"
    if config.exclusive:
        yield "#SBATCH --exclusive"
    yield from (f"#SBATCH {argument}" for argument in config.extra_args)
    run = [sys.executable, "-m", "zmqrl", "launch", str(hosts_file), "--run-dir", plan.run_dir, "--resume", "auto"]
    yield f"exec {shlex.join([*run, '--plain', *words])}"
