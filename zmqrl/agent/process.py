"""The host agent as a process: boot line on stdin, events on stdout."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from zmqrl.agent.commands import Commands
from zmqrl.agent.data_plane import DataPlane, NoDataPlane
from zmqrl.agent.devices import Devices, claimed, needs_gpus
from zmqrl.agent.host_agent import HostAgent
from zmqrl.agent.output import AgentOutput
from zmqrl.agent.process_spawner import CommandLine, ProcessSpawner, entry_command, template_of
from zmqrl.agent.remote_data_plane import RemoteDataPlane
from zmqrl.config.codec import replace
from zmqrl.config.plan import Boot, Keys
from zmqrl.config.sections import LimitsSection
from zmqrl.data_stores.make import make_store, place_of
from zmqrl.data_stores.owner import take_over
from zmqrl.entry import PARENT_VARIABLE, STDIN, STDOUT
from zmqrl.errors import ConfigError
from zmqrl.logs.process_log import start_line
from zmqrl.messages.agent import Warned
from zmqrl.orchestrators.handshake import missing_runtime, processor_refusal, versions
from zmqrl.supervision.gpus import query, torch_fault
from zmqrl.supervision.host_lock import Registration, registered
from zmqrl.wire.runtime_folder import IpcFolder, remove_left_folders, run_folder_root

FDS_PER_CHILD = 4
"""Descriptors of an agent for each child: pidfd, stdin, events, wake."""
FDS_PER_WORKER, FDS_PER_AGENT = 3, 2
"""Descriptors of the broker for connections: of each worker, and of each host's agent."""
OTHER_FDS = 64
"""Further descriptors of an agent or the broker: all that does not depend on the number of workers."""


def main(boot: Boot, command: CommandLine = entry_command) -> int:
    """Run this host's part of the run until it ends. `command` starts children; `boot.keys` is the host's pair."""
    _apply_niceness_to_session()
    sys.stdout = sys.stderr  # a stray print is no event
    output, commands = AgentOutput(STDOUT), Commands(STDIN)
    check_host(boot)
    boot = _at_home(by_own_clock(boot))
    print(start_line(boot.plan.config, boot.role, boot.index, os.getpid(), boot.spawn), file=sys.stderr, flush=True)
    with registered(boot, boot.plan.started_by, lambda text: output.send(Warned(text))) as registration:
        devices = _with_devices(boot, registration, output, commands.is_end_requested)
        return _run_part(devices, commands, output, command)


def check_descriptors(boot: Boot) -> None:
    """`boot`: of a host agent, whose limit its children inherit.

    libzmq ends a process that cannot accept a connection over ipc, and polls without pause where it is one over tcp.

    Raises:
        ConfigError: The agent or the broker of this host needs more descriptors than the limit allows.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    workers, plan = len(boot.workers), boot.plan
    needed = {f"the host agent, with {workers} workers": OTHER_FDS + FDS_PER_CHILD * (workers + 3)}
    if boot.host == plan.config.learner.host:
        connections = FDS_PER_WORKER * plan.total_workers + FDS_PER_AGENT * len(plan.workers)
        needed[f"the broker, with {plan.total_workers} workers"] = OTHER_FDS + connections
    role, most = max(needed.items(), key=lambda item: item[1])
    if limit != resource.RLIM_INFINITY and most > limit:
        raise ConfigError(
            f"{role}, needs {most:,} file descriptors, and the limit is {limit:,} (ulimit -Hn)",
            key=(),
            fix="raise it (nofile in /etc/security/limits.conf, LimitNOFILE= of a systemd unit), or set fewer workers",
        )


def check_host(boot: Boot) -> None:
    """Raise `ConfigError` when this host cannot participate: one that joined by a file has made no handshake."""
    processor = processor_refusal(os.uname().machine, boot.plan.config.run.mode)
    if processor is not None:
        raise ConfigError(processor, key=())
    missing = missing_runtime(boot.plan.config, versions())
    if missing is not None:
        raise ConfigError(missing, key=(), fix="run there, in a checkout of zmqrl: pip install '.[onnx]'")
    check_descriptors(boot)


def _with_devices(boot: Boot, registration: Registration, output: AgentOutput, is_over: Callable[[], bool]) -> Devices:
    if not needs_gpus(boot):
        return Devices(boot)
    limit_s, limit = choice_limit(boot.plan.config.limits)
    until = time.monotonic() + limit_s
    return claimed(
        boot,
        registration,
        query(lambda: is_over() or time.monotonic() >= until),
        os.environ,
        note=lambda text: output.send(Warned(text)),
        fault_of=lambda gpu: torch_fault("cuda", until - time.monotonic(), limit, gpu.uuid, is_over),
    )


def choice_limit(limits: LimitsSection) -> tuple[float, str]:
    """How many seconds nvidia-smi and torch have together until the GPUs are chosen, and what this limit is.

    After `start_s` the run has ended without this host. A host may take its lease to choose its devices, and
    `zmqrl.broker.liveness.JOIN_S` more to join.
    """
    limit_s, name = min((limits.start_s / 2, "half of limits.start_s"), (limits.host_lease_s, "limits.host_lease_s"))
    return limit_s, f"{name} ({limit_s:g} s)"


def _apply_niceness_to_session() -> None:
    """A kernel with autogroup gives every session the same share of the cores, whatever its processes' niceness."""
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    if niceness:
        with contextlib.suppress(OSError):  # a kernel without autogroup
            Path("/proc/self/autogroup").write_text(str(niceness), encoding="utf-8")


def _run_part(devices: Devices, commands: Commands, output: AgentOutput, command: CommandLine) -> int:
    boot = devices.boot
    keys = None if boot.plan.config.security.curve == "off" else boot.keys
    boot = replace(boot, keys=None)  # of this process: a child receives what it needs from the data plane
    devices = replace(devices, boot=boot)
    if boot.host == boot.plan.config.learner.host and boot.plan.lineage.id:
        take_over(make_store(boot.plan), boot.plan.store_path, boot.plan.lineage)
    if boot.plan.config.mode.in_process:
        return _run_agent(devices, NoDataPlane(), commands, output, command)
    if boot.host != boot.plan.config.learner.host:
        try:
            return _run_agent(devices, RemoteDataPlane(boot.plan, boot.host, keys), commands, output, command)
        finally:
            _remove_run_folder(boot)
    return _run_with_broker(devices, keys, commands, output, command)


def _run_with_broker(
    devices: Devices, keys: Keys | None, commands: Commands, output: AgentOutput, command: CommandLine
) -> int:
    from zmqrl.agent.data_plane import SharedDataPlane

    boot = devices.boot
    folder = IpcFolder(run_folder_root(), boot.plan.run_id)
    try:
        data_plane = SharedDataPlane(boot.plan, folder.endpoints(), keys, boot.listen is not None)
        return _run_agent(devices, data_plane, commands, output, command)
    finally:
        folder.close()


def _run_agent(
    devices: Devices, data_plane: DataPlane, commands: Commands, output: AgentOutput, command: CommandLine
) -> int:
    try:
        logs = Path(devices.boot.plan.run_dir) / "logs"
        spawner = ProcessSpawner(logs, PARENT_VARIABLE, command, devices.visible, template_of(devices.boot))
        return HostAgent(devices.boot, spawner, data_plane, commands, output, devices.acting_gpu).run()
    finally:
        data_plane.close()
        remove_left_folders()  # of a learner that was killed


def by_own_clock(boot: Boot) -> Boot:
    """The start of the command on the monotonic clock of this host; that of the launcher's host has another zero."""
    return replace(boot, plan=replace(boot.plan, began=time.monotonic() - boot.age_s))


def _at_home(boot: Boot) -> Boot:
    """On a host that does not share the launcher's files, the run directory is relative to the work directory."""
    if Path(boot.plan.run_dir).is_absolute():
        return boot
    run_dir = Path(boot.plan.run_dir).absolute()
    place = place_of(boot.plan.config.store, run_dir, boot.plan.lineage.id)
    return replace(boot, plan=replace(boot.plan, run_dir=str(run_dir), store_path=place))


def _remove_run_folder(boot: Boot) -> None:
    """Everything of worth was sent to the launcher."""
    if boot.streams_logs:
        shutil.rmtree(boot.plan.run_dir, ignore_errors=True)
        with contextlib.suppress(OSError):  # another host's is still in it
            Path(boot.plan.run_dir).parent.rmdir()
