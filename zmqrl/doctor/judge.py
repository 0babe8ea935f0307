"""Measurements in, faults out. Pure: faults that prevent a launch, warnings, and the fix of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from zmqrl.config.hosts import LOCAL
from zmqrl.doctor import judge_between
from zmqrl.doctor.fault import Findings, HostCheck, HostFault
from zmqrl.doctor.measurement import Measurement
from zmqrl.doctor.needs import Needs
from zmqrl.envs.repeats import CONSEQUENCE, FIX
from zmqrl.errors import ConfigError
from zmqrl.messages.doctor import Lock
from zmqrl.orchestrators import handshake as versions
from zmqrl.ssh.refusals import UNKNOWN_HOST_KEY
from zmqrl.ssh.shell import HANGS
from zmqrl.supervision.gpus import choose
from zmqrl.supervision.host_lock import neighbour_fix
from zmqrl.supervision.host_mark import NO_RUN
from zmqrl.views.problem import counted

MB = 1e6
LEAST_FREE_MB, LITTLE_FREE_MB = 100.0, 1000.0
LEAST_INODES, LITTLE_INODES = 100, 1000
"""Files that can be created; a run has some tens."""
SKEW_WARNED_S = 1.0
BUSY = 0.5
"""Load per core from which the host is called busy."""
LITTLE_CURVE_MB_PER_S = 100.0
EXAMINED_BY = ("examination",)
"""Another one, or none, and the host has not been host."""
NEEDED = ("pyzmq", "msgpack", "msgspec", "numpy", "gymnasium", "psutil")


def judge_failure(host: HostCheck) -> None:
    """Add the fault of a host that could not be examined."""
    failure = host.measured.failure
    if failure is None:
        return
    mends = {
        "python": f"set hosts.{host.name}.python, or create it: {host.install()}",
        "zmqrl": f"install this version there: {host.install()}",
        "packages": f"install what is missing there: {host.install()}",
        "probe": f"see its output: {host.there(f'{host.need.python} -m zmqrl.entry zmqrl.agent {NO_RUN} 0')}",
        "answer": HANGS.format(there=host.need.login or "sh -c"),
    }
    check = "connection" if failure.check == "ssh" and not host.need.by_ssh else failure.check
    fix = failure.fix or mends[failure.check]
    if failure.cause.startswith(UNKNOWN_HOST_KEY):
        fix += f"\n   or, after comparing the key: {host.again('doctor')} --accept-new-hosts"
    host.findings.fault(check, failure.cause, fix)


def judge_versions(host: HostCheck) -> None:
    """Other versions than the launcher's, or none."""
    hello = host.measured.hello
    if hello is None or host.measured.failure is not None:
        return
    here, there = host.needs.versions, hello.versions
    missing = [name for name in (*NEEDED, *(["torch"] if host.need.learner else [])) if there.get(name, "") is None]
    if missing:
        cause = f"missing in {hello.python}: {', '.join(missing)}"
        host.findings.fault("packages", cause, f"install them there: {host.install()}")
    if host.needs.acts_with_onnx and there.get(versions.ONNX, "") is None:
        extra = "--extras onnx" if host.need.by_ssh else "with '.[onnx]' in place of '.'"
        cause = f"missing in {hello.python}: {versions.ONNX}, with which workers act (network.runtime: onnx)"
        host.findings.fault("packages", cause, f"install it there: {host.install()} {extra}")
    refused = [*versions.refusals(here, there), *versions.differences(here, there, EXAMINED_BY)]
    if refused:
        fix = f"install this version there: {host.install()}"
        host.findings.fault("versions", "; ".join(refused), fix)
    processor = versions.processor_refusal(there.get("machine"), host.needs.mode)
    if processor is not None and (host.need.learner or host.need.workers != 0):
        fix = f"exclude the host: set hosts.{host.name}.workers: 0 or another learner.host; or set run.mode: single"
        host.findings.fault("processor", processor, fix)
    differing = [line for line in versions.warnings(here, there) if line.partition(" ")[0] not in missing]
    if differing:
        host.findings.warning("versions", "; ".join(differing), f"install the same versions: {host.install()}")


def judge_memory(host: HostCheck) -> None:
    """The arena and the processes have to fit."""
    machine = host.measured.machine
    if machine is None:
        return
    workers = max(1, machine.cores - 1) if host.need.workers is None else host.need.workers
    need_mb = workers * host.needs.worker_mb + (host.needs.learner_mb if host.need.learner else 0.0)
    there_mb = machine.available_bytes / MB
    if need_mb > there_mb:
        what = f"{workers} workers" + (" and the learner" if host.need.learner else "")
        arena = f" (arena {host.needs.arena_mb:.0f} MB)" if host.need.learner and host.needs.arena_mb else ""
        fix = f"lower hosts.{host.name}.workers" + (" or replay.capacity" if host.need.learner else "")
        cause = f"{there_mb:.0f} MB are available, {what} need about {need_mb:.0f} MB{arena}"
        host.findings.fault("memory", cause, fix)


def judge_processors(host: HostCheck) -> None:
    """Fewer cores than workers, another user's load, a device that is not there."""
    machine = host.measured.machine
    if machine is None:
        return
    if host.need.workers is not None and host.need.workers > machine.cores:
        cause = f"{host.need.workers} workers for {machine.cores} cores"
        host.findings.warning("cores", cause, f"set hosts.{host.name}.workers: auto")
    if _is_busy(host):
        cause = f"load {machine.load:.1f} on {machine.cores} cores: other processes use this host"
        host.findings.warning("load", cause, f"list them: {host.there('top -b -n 1 | head -15')}")
    for key, device in _devices(host) if machine.gpus else ():
        try:
            choose(key, device, machine.gpus, share=host.needs.share_gpu)
        except ConfigError as error:
            host.findings.fault("device", str(error), f"set {key} to auto, cpu or another GPU")
    if host.need.learner and host.needs.device.startswith("cuda") and not machine.nvidia:
        cause = f"learner.device is {host.needs.device}, and the host has no NVIDIA device"
        host.findings.fault(
            "device", cause, "set learner.device: auto, or learner.host to a host with an NVIDIA device"
        )


def _devices(host: HostCheck) -> Iterator[tuple[str, str]]:
    """Keys and values that ask for a GPU of this host."""
    if host.need.learner and host.needs.device != "cpu" and (host.needs.device != "auto" or host.needs.is_gpu_of_use):
        yield "learner.device", host.needs.device
    if host.need.workers != 0 and host.need.worker_device != "cpu" and host.needs.acts_with_torch:
        yield f"hosts.{host.name}.worker_device", host.need.worker_device


def _is_busy(host: HostCheck) -> bool:
    machine = host.measured.machine
    return machine is not None and machine.load > BUSY * machine.cores


def judge_folders(host: HostCheck) -> None:
    """Directories that cannot be written, or are nearly full."""
    folders = host.measured.folders
    if folders is None:
        return
    workdir_key = "the current directory" if host.name == LOCAL else f"hosts.{host.name}.workdir"
    store_key = "store.path" if host.needs.store is not None else "the run directory"
    named = [("workdir", workdir_key, folders.workdir), ("store", store_key, folders.store)]
    for check, key, folder in named:
        if folder is None or (check == "store" and not host.need.learner):
            continue
        other = f"or set another directory: {key}"
        of_bytes = f"free space ({host.there(f'df -h {folder.there}')}), {other}"
        of_inodes = f"delete files ({host.there(f'df -i {folder.there}')}), {other}"
        inodes = LITTLE_INODES if folder.free_inodes is None else folder.free_inodes
        if folder.error is not None:
            host.findings.fault(
                check, f"{folder.path} cannot be written: {folder.error}", of_bytes if inodes else of_inodes
            )
            continue
        left = [(folder.free_bytes / MB, LEAST_FREE_MB, LITTLE_FREE_MB, "MB", of_bytes)]
        left += [(inodes, LEAST_INODES, LITTLE_INODES, "inodes", of_inodes)]
        for free, least, little, unit, fix in left:
            complain = host.findings.fault if free < least else host.findings.warning
            if free < little:
                complain(check, f"{folder.path} has {free:.0f} {unit} left", fix)


def judge_clock(host: HostCheck) -> None:
    """A clock that is off."""
    clock = host.measured.clock
    if clock is None or abs(clock.skew_s) - clock.round_trip_s / 2 < SKEW_WARNED_S:
        return
    direction = "ahead of" if clock.skew_s > 0 else "behind"
    cause = f"{span(abs(clock.skew_s))} {direction} this machine (+- {clock.round_trip_s * 500:.0f} ms)"
    fix = f"on that host, as root: {host.there('timedatectl set-ntp true')}"
    host.findings.warning("clock", f"{cause}: times in logs and files will not match", fix)


def judge_locks(host: HostCheck) -> None:
    """Runs that are here already."""
    locks = host.measured.locks
    for lock in locks.held if locks is not None else ():
        origin = f", started from {lock.launcher}"
        if lock.own:
            fix = f"{neighbour_fix(lock.run_id, lock.launcher, host.needs.started_by)}; or wait"
            host.findings.warning(
                "lock", f"another run of this account is active on this host: {_run(lock)}{origin}", fix
            )
        else:
            fix = "exclude the host with --limit, or ask its user; zmqrl does not stop it"
            complain = host.findings.fault if host.need.neighbours == "refused" else host.findings.warning
            complain("lock", f"busy: {_run(lock)} of user {lock.user}{origin}", fix)


def _run(lock: Lock) -> str:
    return f"run {lock.run_id} (pid {lock.pid}, for {span(lock.age_s)}, {counted(lock.workers, 'worker')})"


def judge_curve(host: HostCheck) -> None:
    """No encryption, or a slow one."""
    curve = host.measured.curve
    if curve is None or not host.needs.curve:
        return
    fix = f"install a pyzmq wheel there: {host.there(f'{host.need.python} -m pip install --force-reinstall pyzmq')}"
    if not curve.has:
        host.findings.fault("CURVE", "the host's libzmq was built without encryption", fix)
    elif curve.mb_per_s is None:
        host.findings.fault("CURVE", "no answer in the self test over 127.0.0.1", "check it: ip link show lo")
    elif curve.mb_per_s < LITTLE_CURVE_MB_PER_S and not _is_busy(host):
        host.findings.warning("CURVE", f"{curve.mb_per_s:.0f} MB/s, less than 1 Gbit/s Ethernet", fix)


def judge_env(host: HostCheck) -> None:
    """An env that cannot be used, or does not do what is promised of it."""
    env = host.measured.env
    if env is None:
        return
    if env.error is not None:
        fix = f"fix it on the host ({host.install()}), or send your own modules with code.sync: [./my_envs]"
        host.findings.fault("env", env.error, fix)
        return
    if env.stage != "done":
        fix = "no action required for a slow env; otherwise check whether the env hangs on the host"
        host.findings.warning("env", f"check not completed: {env.stage}", fix)
    if env.repeats is False:
        cause = f"{env.differing} gave other results with the same seed and actions: restarts are not bitwise identical"
        host.findings.warning("env", f"{cause}, and if state outlives an episode, {CONSEQUENCE}", FIX)
    if env.checker:
        fix = "see gymnasium.utils.env_checker.check_env(env)"
        host.findings.warning("env checker", env.checker, fix)


def span(seconds: float) -> str:
    """A time in the unit that fits."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 0.99 * size:  # a clock that is an hour off was measured, not counted
            return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.1f} s"


CHECKS: tuple[Callable[[HostCheck], None], ...] = (
    judge_failure,
    judge_locks,
    judge_versions,
    judge_folders,
    judge_memory,
    judge_processors,
    judge_between.judge_ports,
    judge_between.judge_store,
    judge_curve,
    judge_env,
    judge_clock,
)


def judge(measured: Measurement, needs: Needs) -> list[HostFault]:
    """Everything that is wrong with one host."""
    host = HostCheck(measured, needs.hosts[measured.host], needs, Findings(measured.host))
    for check in CHECKS:
        check(host)
    return host.findings.found


def judge_all(measurements: Mapping[str, Measurement], needs: Needs) -> list[HostFault]:
    """Faults of all hosts; those that prevent a launch first, else in the order of the hosts."""
    found = [fault for measured in measurements.values() for fault in judge(measured, needs)]
    found += judge_between.judge_envs(measurements, needs)
    found += judge_between.judge_acting(measurements, needs)
    if needs.refusal is not None:
        fix = "`zmqrl launch` reports the same error; fix it on this machine"
        found.append(HostFault("launcher", "configuration", needs.refusal, fix))
    return sorted(found, key=lambda fault: fault.severity == "warning")
