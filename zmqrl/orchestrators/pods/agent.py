"""Shell of a pod, and the host agent over it."""

from __future__ import annotations

import contextlib
import os
import posixpath
import shlex
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from zmqrl.errors import HostFailed
from zmqrl.orchestrators.agent import HostEnd
from zmqrl.orchestrators.host_commands import quoted
from zmqrl.orchestrators.piped import PipedProcess, PipedShell
from zmqrl.orchestrators.pods.kubectl import LIST_EVERY_S, Pod, Pods, Wait, output_of
from zmqrl.orchestrators.pods.streams import stream
from zmqrl.orchestrators.shell_orchestrator import ShellAgent
from zmqrl.ssh.shell import FileShell, Finished

REMOVE_S = 60.0
STATE_S = 5.0
"""How long after the end of its processes the API server may still state that a pod runs."""
EXEC_ENDED = "command terminated with exit code"
"""Begins the last line of `kubectl exec`."""


class PodShell(FileShell):
    """Commands in a pod, which the first one starts."""

    def __init__(self, host: str, pods: Pods, job: Mapping[str, Any], wait: Wait, pod: Pod | None = None) -> None:
        """`job`: manifest for a pod that is not there yet; `pod`: one that runs."""
        self.host, self._pods, self._job, self._wait = host, pods, job, wait
        self._pod, self._start_lock = pod, threading.Lock()
        self._is_closed = False

    def started(self) -> Pod:
        """The pod, which runs. HostFailed."""
        with self._start_lock:
            if self._pod is None:
                self._pod = self._pods.start(self.host, self._job, self._wait)
            return self._pod

    def lost(self) -> str | None:
        """What has ended the pod; None while it runs, and while the API server does not answer."""
        try:
            pod = next((pod for pod in self._pods.listed(self.host) if pod.name == self.started().name), None)
        except HostFailed:
            return None
        if pod is not None and pod.state == "running":
            return None
        return "it was deleted" if pod is None else pod.reason or f"it is {pod.state}"

    def check_answer(self) -> None:
        """Wait until the pod runs. HostFailed."""
        self.started()

    def in_pod(self) -> list[str]:
        """The command that runs its further arguments in the pod. HostFailed."""
        return self._pods.in_pod(self.started().name)

    def run(self, command: str, timeout_s: float) -> Finished:
        return PipedShell(self.host, self.in_pod()).run(command, timeout_s)

    def start(self, command: str, stderr: Path) -> PipedProcess:
        return PipedShell(self.host, self.in_pod()).start(command, stderr)

    def put(self, content: bytes | Path, path: str) -> None:
        """Write a file in the pod, at once; its folders are made. HostFailed, also where a part of it was lost."""
        folder, part = quoted(posixpath.dirname(path)), quoted(f"{path}.part")
        with contextlib.ExitStack() as files:
            if isinstance(content, Path):
                source: IO[bytes] = files.enter_context(content.open("rb"))
            else:
                source = files.enter_context(tempfile.TemporaryFile())
                source.write(content)
                source.seek(0)
            written = (
                f"mkdir -p {folder} && cat > {part} && [ $(wc -c < {part}) = {os.fstat(source.fileno()).st_size} ]"
            )
            output = files.enter_context(open(os.devnull, "wb"))
            self._stream(f"{written} && mv {part} {quoted(path)}", source, output)

    def get(self, path: str, target: Path) -> None:
        """Copy a file of the pod to here. HostFailed, also where a part of it was lost."""
        try:
            with target.open("wb") as file, open(os.devnull, "rb") as nothing:
                lines = self._stream(f"wc -c < {quoted(path)} >&2; cat {quoted(path)}", nothing, file)
                arrived = os.fstat(file.fileno()).st_size
            stated = next((line.strip() for line in lines if line.strip().isdecimal()), "?")
            if stated != str(arrived):
                raise HostFailed(self.host, f"{arrived} of {stated} bytes of {path} arrived", "copy it again")
        except BaseException:
            target.unlink(missing_ok=True)
            raise

    def remove_tree(self, path: str) -> None:
        """Remove a folder of the pod, which may be in a volume. HostFailed."""
        output_of(self.host, [*self.in_pod(), "sh", "-c", f"rm -rf {quoted(path)}"], timeout_s=REMOVE_S)

    def close(self) -> None:
        """Delete the Job of the pod."""
        if self._pod is not None and not self._is_closed:
            self._is_closed = True
            with contextlib.suppress(HostFailed):
                output_of(self.host, self._pods.deleting(self._pod.job))

    def _stream(self, script: str, source: IO[bytes], target: IO[bytes]) -> list[str]:
        return stream(self.host, [*self.in_pod(), "sh", "-c", script], source, target)


class PodAgent(ShellAgent):
    """A host agent in a pod."""

    shell: PodShell
    kept: str | None = None
    """Name of a pod that is not deleted, and why."""

    def cut_off(self) -> HostFailed | None:
        """Why the pod has ended, if it did: its state may follow the end of its processes within `STATE_S`."""
        why, until = None, time.monotonic() + STATE_S
        while self.progress.finished is None and (why := self.shell.lost()) is None and time.monotonic() < until:
            time.sleep(LIST_EVERY_S)
        is_learner = self.host == self.boot.plan.config.learner.host
        fix = "resume the run" if is_learner else f"for another pod: zmqrl scale {self.host}={len(self.boot.workers)}"
        return (
            None
            if why is None
            else HostFailed(self.host, f"Kubernetes ended pod {self.shell.started().name}: {why}", fix)
        )

    def stderr(self) -> str:
        lines = super().stderr().splitlines()
        return "\n".join(line for line in lines if not line.startswith(EXEC_ENDED))

    def terminate(self) -> None:
        """End it and its pod, without waiting: the main thread may call it for many hosts."""
        self.pipe.terminate()
        threading.Thread(target=self.shell.close, name=f"end of {self.host}", daemon=True).start()

    def end(self) -> HostEnd:
        if self.kept is not None:
            self.pipe.close()
            return HostEnd(left=(self.kept,))
        self.shell.close()  # else its pod would wait for a minute
        return super().end()

    def keep_pod(self, folder: str, to: str) -> None:
        """Leave the pod at the end: files in its `folder` have no copy in the folder `to` of this machine."""
        script = f"tar -cC {quoted(folder)} ."
        command = f"{shlex.join([*self.shell.in_pod(), 'sh', '-c', script])} | tar -xC {shlex.quote(to)}"
        name = self.shell.started().name
        self.kept = f"{self.host}/pod {name} (it has checkpoints without a copy; to copy them: {command})"
