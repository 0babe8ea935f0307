"""Faults of a single host. Pure."""

from __future__ import annotations

from zmqrl.config.hosts import LOCAL
from zmqrl.doctor.case import Case
from zmqrl.messages.doctor import Lock
from zmqrl.orchestrators import handshake as versions

MB = 1e6
LEAST_FREE_MB, LITTLE_FREE_MB = 100.0, 1000.0
SKEW_WARNED_S, SKEW_REFUSED_S = 1.0, 60.0
UNKNOWN_KEY = "unknown host key"
BUSY = 0.5
"""Load per core from which the host is called busy."""
LITTLE_CURVE_MB_PER_S = 100.0
NEEDED = ("pyzmq", "msgpack", "msgspec", "numpy", "gymnasium", "psutil")


def judge_failure(case: Case) -> None:
    """It could not be examined."""
    failure = case.measured.failure
    if failure is None:
        return
    mends = {
        "python": f"set hosts.{case.host}.python, or create it: {case.install()}",
        "zmqrl": f"install this version there: {case.install()}",
        "packages": f"install what is missing there: {case.install()}",
        "probe": f"see its output: {case.there(f'{case.need.python} -m zmqrl.doctor.probe')}",
        "answer": f"possible causes: file server, memory; check: {case.there('uptime; df; dmesg | tail')}",
    }
    check = "connection" if failure.check == "ssh" and not case.need.by_ssh else failure.check
    fix = failure.fix or mends[failure.check]
    if failure.cause.startswith(UNKNOWN_KEY):
        fix += f"\n   or, after comparing the key: {case.again('doctor')} --accept-new-hosts"
    case.complaints.fault(check, failure.cause, fix)


def judge_versions(case: Case) -> None:
    """Other versions than the launcher's, or none."""
    hello = case.measured.hello
    if hello is None or case.measured.failure is not None:
        return
    here, there = case.needs.versions, hello.versions
    missing = [name for name in (*NEEDED, *(["torch"] if case.need.learner else [])) if there.get(name) is None]
    if missing:
        cause = f"missing in {hello.python}: {', '.join(missing)}"
        case.complaints.fault("packages", cause, f"install them there: {case.install()}")
    refused = versions.refusals(here, there)
    if refused:
        fix = f"install this version there: {case.install()}"
        case.complaints.fault("versions", "; ".join(refused), fix)
    processor = versions.processor_refusal(there.get("machine"), case.needs.mode)
    if processor is not None and (case.need.learner or case.need.workers != 0):
        fix = f"exclude it: set hosts.{case.host}.workers: 0, learner.host to another, or run.mode: single"
        case.complaints.fault("processor", processor, fix)
    differing = [line for line in versions.warnings(here, there) if line.partition(" ")[0] not in missing]
    if differing:
        case.complaints.warning("versions", "; ".join(differing), f"install the same versions: {case.install()}")


def judge_memory(case: Case) -> None:
    """The arena and the processes have to fit."""
    machine = case.measured.machine
    if machine is None:
        return
    workers = max(1, machine.cores - 1) if case.need.workers is None else case.need.workers
    need_mb = workers * case.needs.worker_mb + (case.needs.learner_mb if case.need.learner else 0.0)
    there_mb = machine.available_bytes / MB
    if need_mb > there_mb:
        what = f"{workers} workers" + (" and the learner" if case.need.learner else "")
        arena = f" (arena {case.needs.arena_mb:.0f} MB)" if case.need.learner and case.needs.arena_mb else ""
        fix = f"lower hosts.{case.host}.workers" + (" or replay.capacity" if case.need.learner else "")
        cause = f"{there_mb:.0f} MB are available, {what} need about {need_mb:.0f} MB{arena}"
        case.complaints.fault("memory", cause, fix)


def judge_processors(case: Case) -> None:
    """Fewer cores than workers, another user's load, a device that is not there."""
    machine = case.measured.machine
    if machine is None:
        return
    if case.need.workers is not None and case.need.workers > machine.cores:
        cause = f"{case.need.workers} workers for {machine.cores} cores"
        case.complaints.warning("cores", cause, f"set hosts.{case.host}.workers: auto")
    if _is_busy(case):
        cause = f"load {machine.load:.1f} on {machine.cores} cores: other processes use this host"
        case.complaints.warning("load", cause, f"list them: {case.there('top -b -n 1 | head -15')}")
    if case.need.learner and case.needs.device.startswith("cuda") and not machine.nvidia:
        cause = f"learner.device is {case.needs.device}, and the host has no NVIDIA device"
        case.complaints.fault("device", cause, "set learner.device: auto, or learner.host to a host with one")


def _is_busy(case: Case) -> bool:
    machine = case.measured.machine
    return machine is not None and machine.load > BUSY * machine.cores


def judge_folders(case: Case) -> None:
    """Directories that cannot be written, or are nearly full."""
    folders = case.measured.folders
    if folders is None:
        return
    workdir_key = "the current directory" if case.host == LOCAL else f"hosts.{case.host}.workdir"
    store_key = "store.path" if case.needs.store is not None else "the run directory"
    named = [("workdir", workdir_key, folders.workdir), ("store", store_key, folders.store)]
    for check, key, folder in named:
        if folder is None or (check == "store" and not case.need.learner):
            continue
        free_mb = folder.free_bytes / MB
        fix = f"free space ({case.there(f'df -h {folder.there}')}), or set another directory: {key}"
        if folder.error is not None:
            case.complaints.fault(check, f"{folder.path} cannot be written: {folder.error}", fix)
        elif free_mb < LEAST_FREE_MB:
            case.complaints.fault(check, f"{folder.path} has {free_mb:.0f} MB left", fix)
        elif free_mb < LITTLE_FREE_MB:
            case.complaints.warning(check, f"{folder.path} has {free_mb:.0f} MB left", fix)


def judge_clock(case: Case) -> None:
    """A clock that is off."""
    clock = case.measured.clock
    if clock is None or abs(clock.skew_s) - clock.round_trip_s / 2 < SKEW_WARNED_S:
        return
    direction = "ahead of" if clock.skew_s > 0 else "behind"
    cause = f"{span(abs(clock.skew_s))} {direction} this machine (+- {clock.round_trip_s * 500:.0f} ms)"
    fix = f"on that host, as root: {case.there('timedatectl set-ntp true')}"
    if case.need.learner and abs(clock.skew_s) > SKEW_REFUSED_S:
        case.complaints.fault("clock", f"{cause}: run.max_wall_s uses the learner's clock", fix)
    else:
        case.complaints.warning("clock", f"{cause}: times in logs and files will not match", fix)


def judge_locks(case: Case) -> None:
    """Runs that are here already."""
    locks = case.measured.locks
    for lock in locks.held if locks is not None else ():
        if lock.own:
            fix = f"stop it: zmqrl down {lock.run_id}; or wait"
            case.complaints.warning("lock", f"another run of yours is active on this host: {_run(lock)}", fix)
        else:
            fix = "exclude the host with --limit, or ask its user; zmqrl does not stop it"
            complain = case.complaints.fault if case.need.neighbours == "refused" else case.complaints.warning
            complain("lock", f"busy: {_run(lock)} of user {lock.user}", fix)


def _run(lock: Lock) -> str:
    return f"run {lock.run_id} (pid {lock.pid}, since {span(lock.age_s)}, {lock.workers} workers)"


def judge_curve(case: Case) -> None:
    """No encryption, or a slow one."""
    curve = case.measured.curve
    if curve is None or not case.needs.curve:
        return
    fix = f"install a pyzmq wheel there: {case.there(f'{case.need.python} -m pip install --force-reinstall pyzmq')}"
    if not curve.has:
        case.complaints.fault("CURVE", "the host's libzmq was built without encryption", fix)
    elif curve.mb_per_s is None:
        case.complaints.fault("CURVE", "no answer in the self test over 127.0.0.1", "check it: ip link show lo")
    elif curve.mb_per_s < LITTLE_CURVE_MB_PER_S and not _is_busy(case):
        case.complaints.warning("CURVE", f"{curve.mb_per_s:.0f} MB/s, less than 1 Gbit/s Ethernet", fix)


def judge_env(case: Case) -> None:
    """An env that cannot be used, or does not do what is promised of it."""
    env = case.measured.env
    if env is None:
        return
    if env.error is not None:
        fix = f"fix it there ({case.install()}), or send your own modules with code.sync: [./my_envs]"
        case.complaints.fault("env", env.error, fix)
        return
    if env.stage != "done":
        fix = "no action required for a slow env; otherwise check whether it hangs there"
        case.complaints.warning("env", f"check not completed: {env.stage}", fix)
    if env.repeats is False:
        cause = f"{env.differing} gave other results with the same seed and actions: restarts are not bitwise identical"
        case.complaints.warning("env", cause, "let reset(seed=...) restore all state of the env")
    if env.checker:
        fix = "see gymnasium.utils.env_checker.check_env(env)"
        case.complaints.warning("env checker", env.checker, fix)


def span(seconds: float) -> str:
    """A time in the unit that fits."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 0.99 * size:  # a clock that is an hour off was measured, not counted
            return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.1f} s"
