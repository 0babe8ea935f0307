"""Runs the containers of pods as processes of this machine, each pod in a pid namespace of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from .objects import ENDED, Object, Objects, timestamp

TERMINATION_S = 30.0
IMAGES = ("zmqrl:test",)
"""Images that can be pulled: each is the file system of this machine."""
ABSENT = "absent"
"""Name of a secret that does not exist."""


class Container:
    """The processes of one pod. Made by the main thread, which they do not outlive."""

    def __init__(self, pod: Object, log: Path, environment: Mapping[str, str]) -> None:
        self.spec = pod["spec"]["containers"][0]
        given = {each["name"]: each["value"] for each in self.spec.get("env", ())}
        self.environment = {**environment, **given}
        argv = ["setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [*argv, *self.spec["command"]], stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=self.environment
            )

    @property
    def pid(self) -> int | None:
        """Process 1 of its namespace, by its number here; None before it has one."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        with contextlib.suppress(OSError):
            return next((int(pid) for pid in children.read_text().split()), None)
        return None

    def exec(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        """A further process, as `kubectl exec` starts it."""
        command = ["nsenter", f"--target={self.pid}", "--pid", "--mount", "--", *argv]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=self.environment)

    def signal(self, number: int) -> None:
        """To process 1, with which the others end."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def exit_code(self) -> int | None:
        return self._process.poll()

    def close(self) -> None:
        self.signal(signal.SIGKILL)
        self._process.wait()


class Kubelet:
    """Of every node."""

    def __init__(self, objects: Objects, folder: Path, environment: Mapping[str, str]) -> None:
        self._objects, self._folder, self._environment = objects, folder, environment
        self.containers: dict[str, Container] = {}
        """By the uid of their pod."""
        self._kill_at: dict[str, float] = {}

    def log_of(self, pod: Object) -> Path:
        return self._folder / f"{pod['metadata']['name']}.log"

    def reconcile(self) -> None:
        """Start, end and remove what the objects say."""
        for pod in self._objects.list("pods"):
            if "nodeName" in pod["spec"]:
                self._take(pod, pod["metadata"]["uid"])

    def _take(self, pod: Object, uid: str) -> None:
        container, is_deleted = self.containers.get(uid), "deletionTimestamp" in pod["metadata"]
        if container is None and not is_deleted and pod["status"]["phase"] == "Pending":
            self._start(pod, uid)
        elif container is not None and container.exit_code() is not None:
            self._ended(pod, uid, container.exit_code() or 0)
        elif container is not None and (is_deleted or pod["status"]["phase"] in ENDED):
            self._end(pod, uid, container)
        if is_deleted and uid not in self.containers:
            self._objects.remove("pods", pod)

    def _start(self, pod: Object, uid: str) -> None:
        image = pod["spec"]["containers"][0]["image"]
        absent = [each["name"] for each in pod["spec"].get("volumes", ()) if ABSENT in str(each)]
        if absent or image not in IMAGES:
            waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{image}"'}
            if absent:
                waiting = {"reason": "ContainerCreating"}
                text = f'MountVolume.SetUp failed for volume "{absent[0]}" : secret "{ABSENT}" not found'
                self._objects.warn(pod, "FailedMount", text)
            self._set(pod, containerStatuses=[{"name": "zmqrl", "ready": False, "state": {"waiting": waiting}}])
            return
        self.containers[uid] = Container(pod, self.log_of(pod), self._environment)
        running = {"name": "zmqrl", "ready": True, "state": {"running": {"startedAt": timestamp()}}}
        self._set(pod, phase="Running", containerStatuses=[running])

    def _end(self, pod: Object, uid: str, container: Container) -> None:
        """SIGTERM once, SIGKILL after the grace; an evicted pod has none."""
        if uid not in self._kill_at:
            grace_s = pod["spec"].get("terminationGracePeriodSeconds", TERMINATION_S)
            self._kill_at[uid] = time.monotonic() + (0 if pod["status"].get("reason") == "Evicted" else grace_s)
            container.signal(signal.SIGTERM)
        if time.monotonic() >= self._kill_at[uid]:
            container.signal(signal.SIGKILL)

    def _ended(self, pod: Object, uid: str, code: int) -> None:
        del self.containers[uid]
        self._kill_at.pop(uid, None)
        if pod["status"]["phase"] not in ENDED:
            state = {"terminated": {"exitCode": code}}
            status = {"name": "zmqrl", "ready": False, "state": state}
            self._set(pod, phase="Failed" if code else "Succeeded", containerStatuses=[status])

    def _set(self, pod: Object, **status: object) -> None:
        if pod["status"] | status != pod["status"]:
            pod["status"] |= status
            self._objects.changed(pod)

    def close(self) -> None:
        for container in self.containers.values():
            container.close()
