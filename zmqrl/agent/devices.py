"""Which GPUs the processes of a host get: chosen once by its agent, and written into the register of the machine."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from zmqrl.config.codec import replace
from zmqrl.config.plan import Boot
from zmqrl.config.sections import HostSection
from zmqrl.supervision.gpus import VISIBLE, choose, shown, visible_gpus
from zmqrl.supervision.host_lock import PAUSE_S, Registration
from zmqrl.types import Gpu

AUTO = "auto"
SEEN = "cuda"
"""The device of a process that sees its GPU alone: it fails where torch cannot use it."""
MOST_CHOICES = 5
FaultOf: TypeAlias = Callable[[Gpu], str | None]
"""Why torch cannot use a GPU; None: it can."""


@dataclass(frozen=True)
class Devices:
    """What one host's processes compute on."""

    boot: Boot
    """Boot with `learner.device` and `device` as the processes see them: each sees its own GPU alone."""
    learner: Gpu | None = None
    worker: Gpu | None = None
    """GPUs that were chosen for the learner and the workers: one for all workers."""
    visible: Mapping[str, str | None] = field(default_factory=lambda: {"learner": None})
    """`CUDA_VISIBLE_DEVICES` by role; None: as the agent has it. Roles that are not in it see no GPU."""

    @property
    def uuids(self) -> tuple[str, ...]:
        """UUIDs of the chosen GPUs."""
        return tuple(sorted({gpu.uuid for gpu in (self.learner, self.worker) if gpu is not None}))

    @property
    def acting_gpu(self) -> str:
        """The model of the GPU on which workers act, whose bits are not those of a processor; empty: none."""
        if self.worker is not None:
            return self.worker.name
        return "" if self.boot.device == "cpu" else f"{self.boot.device} of {self.boot.host}"


def needs_gpus(boot: Boot) -> bool:
    """Whether a process of this host may use a GPU."""
    return _learner_device(boot) != "cpu" or _worker_device(boot) != "cpu"


def choose_devices(boot: Boot, found: Sequence[Gpu], environ: Mapping[str, str], taken: Collection[str]) -> Devices:
    """Decide for `boot`.

    Args:
        boot: Of the host agent.
        found: All GPUs of the machine; without any, the processes look for themselves.
        environ: Of the agent: its `CUDA_VISIBLE_DEVICES` is that of an allocation, or the user's choice.
        taken: UUIDs of GPUs that other runs of this user have.

    Raises:
        ConfigError: A configured GPU does not exist or is in use by other users.
    """
    device, worker_device = _learner_device(boot), _worker_device(boot)
    boot = replace(boot, device=worker_device)
    visible: dict[str, str | None] = {"learner": None}
    gpus = visible_gpus(found, environ.get(VISIBLE)) if found else None
    if gpus is None:  # no nvidia-smi, or instances of MIG
        return Devices(boot, visible={**visible, **({"worker": None} if worker_device != "cpu" else {})})
    share, learner, worker = boot.plan.config.learner.share_gpu, None, None
    if device != "cpu":
        learner = choose("learner.device", device, gpus, taken, share)
    if learner is not None:
        boot = _with_learner_device(boot, SEEN)
        taken, visible = {*taken, learner.uuid}, {"learner": learner.uuid}
    if worker_device != "cpu":
        worker = choose(f"hosts.{boot.host}.worker_device", worker_device, gpus, taken, share)
        boot = replace(boot, device="cpu" if worker is None else SEEN)
    if worker is not None:
        visible = {**visible, "worker": worker.uuid}
    return Devices(boot, learner, worker, visible)


def claimed(
    boot: Boot,
    registration: Registration,
    found: Sequence[Gpu],
    environ: Mapping[str, str],
    note: Callable[[str], object],
    fault_of: FaultOf,
) -> Devices:
    """`choose_devices`, registered. Runs that have chosen the same GPU at the same time choose again.

    Where torch cannot use what auto chose, auto is the processor. This is decided here, once for all processes of the
    host: its workers announce one device, whose bits all of them have to compute.

    `found` and `environ` are those of `choose_devices`. `note` receives what is chosen and what it is shared with, and
    why auto is the processor. `fault_of` takes seconds, and is called for what auto chose alone.
    """
    devices, taken = _registered(boot, registration, found, environ)
    by_auto = _chosen_by_auto(boot, devices)
    for gpu in {gpu.uuid: gpu for gpu in by_auto.values()}.values():
        fault = fault_of(gpu)
        if fault is not None:
            note(
                f"torch cannot use {shown(gpu)}: {fault}; with the device auto, {' and '.join(by_auto)} compute on the "
                "processor; install the build of torch for its driver, or write cpu"
            )
            devices, taken = _registered(_with_auto_as_cpu(boot), registration, found, environ)
            break
    for whose, chosen in (("learner", devices.learner), ("workers", devices.worker)):
        if chosen is not None:
            is_shared = chosen.uuid in taken or any(process.own for process in chosen.processes)
            shared = "; other processes of yours are on it" if is_shared else ""
            note(f"GPU of the {whose}: {shown(chosen)}{shared}")
    return devices


def _registered(
    boot: Boot, registration: Registration, found: Sequence[Gpu], environ: Mapping[str, str]
) -> tuple[Devices, Collection[str]]:
    """What is chosen, and what other runs of this user had by then."""
    for _ in range(MOST_CHOICES):
        taken = registration.taken_gpus()
        devices = choose_devices(boot, found, environ, taken)
        registration.hold(devices.uuids)
        if not (registration.taken_gpus() - taken).intersection(devices.uuids):
            break
        time.sleep(random.uniform(*PAUSE_S))
    return devices, taken


def _chosen_by_auto(boot: Boot, devices: Devices) -> dict[str, Gpu]:
    """GPUs that auto has chosen, by the name of the processes that compute on them."""
    chosen = (("learner", devices.learner, _learner_device(boot)), ("workers", devices.worker, _worker_device(boot)))
    return {whose: gpu for whose, gpu, device in chosen if gpu is not None and device == AUTO}


def _learner_device(boot: Boot) -> str:
    config = boot.plan.config
    if boot.host != config.learner.host or (config.learner.device == AUTO and not boot.plan.is_gpu_of_use):
        return "cpu"
    return config.learner.device


def _worker_device(boot: Boot) -> str:
    """Workers that act with numpy use no GPU; in mode single the learner acts."""
    config = boot.plan.config
    if boot.plan.acting.get("runtime") != "torch" or config.mode.in_process:
        return "cpu"
    return config.hosts.get(boot.host, HostSection()).worker_device or config.defaults.worker_device


def _with_auto_as_cpu(boot: Boot) -> Boot:
    config = boot.plan.config
    if _worker_device(boot) == AUTO:
        here = replace(config.hosts.get(boot.host, HostSection()), worker_device="cpu")
        config = replace(config, hosts={**config.hosts, boot.host: here})
    boot = replace(boot, plan=replace(boot.plan, config=config))
    return _with_learner_device(boot, "cpu") if config.learner.device == AUTO else boot


def _with_learner_device(boot: Boot, device: str) -> Boot:
    config = boot.plan.config
    return replace(
        boot, plan=replace(boot.plan, config=replace(config, learner=replace(config.learner, device=device)))
    )
