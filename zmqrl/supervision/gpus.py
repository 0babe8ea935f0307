"""The GPUs of this machine by nvidia-smi, and which of them a process takes. No torch in this process."""

from __future__ import annotations

import contextlib
import csv
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from msgspec import structs

from zmqrl.errors import ConfigError, key_of
from zmqrl.types import Gpu, GpuProcess

NVIDIA_SMI = "nvidia-smi"
_FORMAT = "--format=csv,noheader,nounits"
GPU_COMMAND = (NVIDIA_SMI, "--query-gpu=index,uuid,name,memory.used,memory.total,mig.mode.current", _FORMAT)
PROCESS_COMMAND = (NVIDIA_SMI, "--query-compute-apps=gpu_uuid,pid,used_memory", _FORMAT)
QUERY_S = 10.0
POLL_S = 0.2
"""How often a process that waits for an answer looks whether it is to end."""
KILL_S = 0.1
VISIBLE = "CUDA_VISIBLE_DEVICES"
SHARE = "learner.share_gpu: true"
Owner = tuple[str, bool]
"""Login name of a process, and whether it is that of this user."""
_DIVIDED = "divided by MIG"
_MIG_FIX = f"choose an instance: set {VISIBLE}=MIG-... (nvidia-smi -L) for the host, and cuda"


def query(is_over: Callable[[], bool] = lambda: False) -> list[Gpu]:
    """All GPUs of this machine; none where nvidia-smi is missing, fails or does not answer in time.

    `is_over`: whether this process is to end, and does not wait for the answer.
    """
    found = _output(GPU_COMMAND, is_over)
    return [] if found is None else parse(found, _output(PROCESS_COMMAND, is_over) or "", owner_of)


def parse(gpus: str, processes: str, owner: Callable[[int], Owner]) -> list[Gpu]:
    """GPUs in the output of both queries. `owner` names the user of a pid; invalid lines are left out."""
    by_gpu: dict[str, list[GpuProcess]] = {}
    for uuid, pid, used in _rows(processes, 3):
        if pid.isdecimal():
            by_gpu.setdefault(uuid, []).append(GpuProcess(int(pid), *owner(int(pid)), _mib(used)))
    return [
        Gpu(int(index), uuid, name, _mib(used), _mib(total), mig == "Enabled", tuple(by_gpu.get(uuid, ())))
        for index, uuid, name, used, total, mig in _rows(gpus, 6)
        if index.isdecimal()
    ]


def owner_of(pid: int) -> Owner:
    """Owner of a live process; empty where it cannot be seen."""
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return "", False
    try:
        return pwd.getpwuid(uid).pw_name, uid == os.getuid()
    except KeyError:
        return str(uid), uid == os.getuid()


def visible_gpus(gpus: Sequence[Gpu], variable: str | None) -> list[Gpu] | None:
    """GPUs that `CUDA_VISIBLE_DEVICES` leaves, numbered in its order.

    None where it names others than `gpus`, such as instances of MIG.
    """
    if variable is None:
        return list(gpus)
    found: list[Gpu] = []
    for name in filter(None, (part.strip() for part in variable.split(","))):
        if name == "-1" or name == "NoDevFiles":
            break  # what follows is not visible
        matching = [gpu for gpu in gpus if name in (str(gpu.index), gpu.uuid) or _is_prefix(name, gpu.uuid)]
        if not matching:
            return None
        found.append(structs.replace(matching[0], index=len(found)))
    return found


def choose(key: str, device: str, gpus: Sequence[Gpu], taken: Collection[str] = (), share: bool = False) -> Gpu | None:
    """The GPU that `device` selects.

    auto and cuda: the one with the most free memory among those that no process uses and that no run of this user has
    taken, or else among those that only this user uses. cuda:N: that one.

    Args:
        key: The configuration key of `device`, for messages.
        device: auto, cuda or cuda:N.
        gpus: Those that are visible.
        taken: UUIDs of GPUs that other runs of this user have.
        share: Whether a GPU may be in use by processes of other users.

    Returns:
        None: none was found, and `device` is auto.

    Raises:
        ConfigError: None was found, or it is in use by other users, or divided by MIG.
    """
    kind, _, number = device.partition(":")
    if number:
        return _numbered(key, device, gpus, share)
    whole = [gpu for gpu in gpus if not gpu.mig]
    allowed = [gpu for gpu in whole if share or not others(gpu)]
    if allowed:
        return min(
            allowed, key=lambda gpu: (gpu.uuid in taken, bool(gpu.processes), gpu.used_mib - gpu.total_mib, gpu.index)
        )
    if whole:
        raise _refused(key, device, f"every GPU is in use by other users: {listed(whole)}", _fix(key))
    if gpus and kind == "cuda":
        raise _refused(key, device, f"{_DIVIDED}: {listed(gpus)}", _MIG_FIX)
    if kind == "cuda":
        raise _refused(key, device, "no GPU is visible", "write cpu or auto")
    return None


def _numbered(key: str, device: str, gpus: Sequence[Gpu], share: bool) -> Gpu:
    number = int(device.partition(":")[2])
    if number >= len(gpus):
        raise _refused(key, device, "this GPU does not exist", f"found: {listed(gpus) or 'none'}")
    gpu = gpus[number]
    if gpu.mig:
        raise _refused(key, device, f"{_DIVIDED}: {shown(gpu)}", _MIG_FIX)
    if others(gpu) and not share:
        raise _refused(key, device, f"in use by other users: {shown(gpu)}", _fix(key))
    return gpu


def _refused(key: str, device: str, what: str, fix: str) -> ConfigError:
    return ConfigError(what, key=key_of(key), value=device, fix=fix)


def _fix(key: str) -> str:
    return f"wait, choose another GPU, set {key}: cpu, or allow it with {SHARE}"


def others(gpu: Gpu) -> list[str]:
    """Users of processes on it, without this user."""
    return sorted({process.user or f"pid {process.pid}" for process in gpu.processes if not process.own})


def listed(gpus: Sequence[Gpu]) -> str:
    """All of them, for people."""
    return "; ".join(map(shown, gpus))


def shown(gpu: Gpu) -> str:
    """`cuda:0 NVIDIA A100, 71.2 of 80.0 GB used, by anna`."""
    users = sorted({process.user or f"pid {process.pid}" for process in gpu.processes})
    used = f"{gpu.used_mib / 1024:.1f} of {gpu.total_mib / 1024:.1f} GB used"
    return f"cuda:{gpu.index} {gpu.name}, {used}{', MIG' * gpu.mig}{f', by {chr(44).join(users)}' if users else ''}"


def brief(gpu: Gpu) -> str:
    """`A100-SXM4-80GB 71/80 GB anna`."""
    users = sorted({process.user or f"pid {process.pid}" for process in gpu.processes})
    used = f"{gpu.used_mib / 1024:.0f}/{gpu.total_mib / 1024:.0f} GB"
    return " ".join([gpu.name.removeprefix("NVIDIA "), used, *(["MIG"] if gpu.mig else []), *users])


def torch_fault(
    device: str, limit_s: float, limit: str, visible: str | None = None, is_over: Callable[[], bool] = lambda: False
) -> str | None:
    """Why torch cannot use `device`; None: it can, or `is_over` came first.

    In a child, because the import of torch takes seconds, from a network file system up to half a minute.

    `limit_s`: for the answer; a later one is a fault. `limit`: what bounds the wait, for the message. `visible`:
    `CUDA_VISIBLE_DEVICES` of the child; None: as this process has it. `is_over`: whether this process is to end.
    """
    environ = {**os.environ, **({} if visible is None else {VISIBLE: visible})}
    command = [sys.executable, "-c", "import sys, torch; torch.empty(1, device=sys.argv[1])", device]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environ
        )
    except OSError as error:
        return f"torch cannot be started: {error}"
    printed = _communicate(process, limit_s, is_over)
    if printed is None:
        late = f"torch did not respond within {limit}; check the GPU with nvidia-smi"
        return None if is_over() else late
    lines = printed[1].decode(errors="replace").strip().splitlines() or ["no output"]
    return None if process.returncode == 0 else lines[-1]


def _is_prefix(name: str, uuid: str) -> bool:
    return name.startswith("GPU-") and uuid.startswith(name)


def _rows(text: str, columns: int) -> Iterator[list[str]]:
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    return ([value.strip() for value in row] for row in rows if len(row) == columns)


def _mib(text: str) -> int:
    """0 for `[N/A]`, `[Not Supported]` and the like."""
    return int(text) if text.isdecimal() else 0


def _output(command: tuple[str, ...], is_over: Callable[[], bool]) -> str | None:
    try:
        process = start_query(command)
    except OSError:
        return None
    printed = _communicate(process, QUERY_S, is_over)
    return printed[0].decode(errors="replace") if printed is not None and process.returncode == 0 else None


def _communicate(
    process: subprocess.Popen[bytes], limit_s: float, is_over: Callable[[], bool]
) -> tuple[bytes, bytes] | None:
    """What it has printed, once it has ended; None after `limit_s`, or if `is_over` before: then it is killed."""
    until = time.monotonic() + limit_s
    try:
        while not is_over() and (left_s := until - time.monotonic()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.communicate(timeout=min(left_s, POLL_S))
        return None
    finally:
        end_query(process)


def start_query(command: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """A query, which `end_query` ends. OSError: it cannot be started."""
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def end_query(query: subprocess.Popen[bytes]) -> None:
    """Kill it if it still runs. One that the driver holds is not waited for: it has ended once the driver answers."""
    if query.poll() is None:
        query.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            query.wait(KILL_S)
    for pipe in (query.stdout, query.stderr):
        if pipe is not None:
            pipe.close()


def has_nvidia_smi() -> bool:
    """Whether the command is on PATH; nothing is started."""
    return any(Path(folder, NVIDIA_SMI).is_file() for folder in os.get_exec_path())
