"""What a launch needs of each host: what measurements are held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zmqrl.config.hosts import AUTO, LOCAL
from zmqrl.config.load import Loaded
from zmqrl.config.plan import Neighbours, RunPlan
from zmqrl.config.sections import Config
from zmqrl.data_stores.make import shared_directory
from zmqrl.doctor.host_requests import examined_hosts
from zmqrl.errors import ZmqrlError
from zmqrl.launch.run.boots import refuses_others
from zmqrl.launch.start import planned
from zmqrl.orchestrators.handshake import versions
from zmqrl.orchestrators.make import access_of, is_by_ssh
from zmqrl.planning.start_request import StartRequest
from zmqrl.shared_memory.arena import layout_of
from zmqrl.supervision.host_entry import login_here
from zmqrl.types import ModeName

WORKER_MB, ONNX_MB, TORCH_MB = 60.0, 150.0, 400.0
"""Memory of one process, without and with onnxruntime or torch; measured on the presets, rounded up."""
LEARNER_PROCESSES_MB = TORCH_MB + 3 * WORKER_MB
"""learner, broker, evaluator, agent."""


@dataclass(frozen=True)
class HostNeed:
    """Requirements of the run for one host."""

    learner: bool
    workers: int | None
    """None: as many as it has cores, but one."""
    reaches: bool
    """Whether the host connects to the learner's host over the network."""
    tunnel: bool
    python: str
    login: str
    """How it is logged into by hand; empty for this machine, and where that is unknown."""
    by_ssh: bool = True
    """`zmqrl setup` installs there."""
    worker_device: str = "cpu"
    neighbours: Neighbours = "refused"
    """What another user's run there means."""


@dataclass(frozen=True)
class Needs:
    """Requirements of the run for all hosts."""

    hosts: Mapping[str, HostNeed]
    learner: str
    hosts_file: str
    versions: Mapping[str, str | None]
    """Versions of the launcher."""
    started_by: str
    """User and machine of the launcher."""
    curve: bool
    """Something leaves the machine and has to be encrypted."""
    learner_mb: float
    """Memory on the learner's host alongside the workers': arena and processes."""
    arena_mb: float | None
    """None: the run could not be planned, the reason is in `refusal`."""
    worker_mb: float
    store: str | None
    port: int | None
    device: str
    share_gpu: bool
    is_gpu_of_use: bool
    """Whether the device auto looks for a GPU."""
    acts_with_torch: bool
    acts_with_onnx: bool
    mode: ModeName
    refusal: str | None
    """Why a launch would end with exit code 2 on this machine, if so."""


def needs_of(loaded: Loaded, hosts_file: Path) -> Needs:
    """Plan the run as `launch` would; nothing is written."""
    config = loaded.config
    plan, refusal = _planned(loaded)
    arena_mb = layout_of(plan).nbytes / 1e6 if plan is not None else None
    acting = plan.acting["runtime"] if plan is not None else "numpy" if config.network.kind == "mlp" else "torch"
    onnx_acting = "onnx" in (acting, config.network.runtime)
    torch_acting = acting == "torch" and not onnx_acting
    return Needs(
        hosts=_hosts(config),
        learner=config.learner.host,
        hosts_file=str(hosts_file),
        versions=versions(),
        started_by=login_here(),
        curve=any(need.reaches and not need.tunnel for need in _hosts(config).values()),
        learner_mb=LEARNER_PROCESSES_MB + (arena_mb or 0.0),
        arena_mb=arena_mb,
        worker_mb=ONNX_MB if onnx_acting else TORCH_MB if torch_acting else WORKER_MB,
        store=shared_directory(config.store),
        port=config.learner.port if isinstance(config.learner.port, int) else None,
        device=config.learner.device,
        share_gpu=config.learner.share_gpu,
        is_gpu_of_use=config.network.kind != "mlp",
        acts_with_torch=torch_acting and not config.mode.in_process,
        acts_with_onnx=onnx_acting,
        mode=config.run.mode,
        refusal=refusal,
    )


def _hosts(config: Config) -> dict[str, HostNeed]:
    found: dict[str, HostNeed] = {}
    access = access_of(config, config.hosts)
    for name, host in examined_hosts(config).items():
        learner = name == config.learner.host
        user, port = f"{host.user}@" if host.user else "", f"-p {host.port} " if host.port not in (None, 22) else ""
        found[name] = HostNeed(
            learner=learner,
            workers=None if host.workers == AUTO else int(host.workers or 0),
            reaches=not learner and host.workers != 0 and not config.mode.in_process,
            tunnel=host.tunnel,
            python=str(host.python),
            login="" if name == LOCAL or not is_by_ssh(config) else f"ssh {port}{user}{host.ssh or name}",
            by_ssh=is_by_ssh(config),
            worker_device=host.worker_device or "cpu",
            neighbours=access.neighbours() if refuses_others(name, host) else "warned",
        )
    return found


def _planned(loaded: Loaded) -> tuple[RunPlan | None, str | None]:
    try:
        return planned(StartRequest(run_dir=Path("runs") / "doctor"), loaded, connects=False), None
    except ZmqrlError as error:
        return None, str(error)
