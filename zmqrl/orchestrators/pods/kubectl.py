"""Jobs and pods of Kubernetes by the command `kubectl`, which knows the user's clusters, logins and proxies."""

from __future__ import annotations

import json
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from zmqrl.errors import HostFailed
from zmqrl.orchestrators.piped import SHOWN, finished

CONTAINER = "zmqrl"
RUN, HOST = "zmqrl.run", "zmqrl.host"
"""Labels of Jobs and pods."""
ANSWER_S = 30.0
LIST_EVERY_S = 0.5
"""Interval at which the pods are listed while one starts."""
LISTS_PER_WARNING = 10
"""Number of lists without a reason, after which the warnings are requested."""
NORMAL = ("ContainerCreating", "PodInitializing")
"""Reasons for which every pod waits."""


@dataclass(frozen=True)
class Pod:
    """A pod, as the API server knows it."""

    name: str
    host: str
    """Value of its label `HOST`."""
    job: str
    state: Literal["waiting", "running", "ending", "ended"]
    reason: str
    """Why it waits, or what has ended it; empty where Kubernetes does not state it."""


class Wait(NamedTuple):
    """How a pod that does not run yet is waited for."""

    limit_s: float
    is_ending: threading.Event
    """Set when the pod is not waited for any longer."""
    report: Callable[[str], None]
    """Called with each reason, once."""


class Pods:
    """Jobs and pods of a run. Any thread."""

    def __init__(self, context: str | None, namespace: str | None, run_id: str) -> None:
        """None: the current one of kubectl's configuration."""
        given = {"context": context, "namespace": namespace}
        self._options = [f"--{name}={value}" for name, value in given.items() if value is not None]
        self.selector = f"--selector={RUN}={label(run_id)}"
        self._lock = threading.Lock()
        self._listed: Sequence[Pod] | HostFailed = ()
        self._at = float("-inf")

    def argv(self, *words: str) -> list[str]:
        """A command of kubectl."""
        return ["kubectl", *self._options, *words]

    def in_pod(self, name: str) -> list[str]:
        """The command that runs its further arguments in a pod, with its stdin and stdout."""
        return self.argv("exec", "-i", name, f"--container={CONTAINER}", "--")

    def deleting(self, *jobs: str) -> list[str]:
        """The command that deletes Jobs, by names or `selector`; their pods end after it."""
        return self.argv("delete", "jobs", "--wait=false", "--ignore-not-found", *jobs)

    def create(self, host: str, job: Mapping[str, Any], *options: str) -> None:
        """Create a Job. HostFailed; after a time limit the Job may be there nevertheless."""
        output_of(host, self.argv("create", "--filename=-", "--output=name", *options), json.dumps(job).encode())

    def listed(self, host: str) -> Sequence[Pod]:
        """The pods, as they were a moment ago. HostFailed, to all who have waited for the same answer."""
        with self._lock:
            if time.monotonic() - self._at > LIST_EVERY_S / 2:
                try:
                    listed = output_of(host, self.argv("get", "pods", self.selector, "--output=json"))
                    self._listed = [pod_of(item) for item in json.loads(listed)["items"]]
                except HostFailed as error:
                    self._listed = error
                self._at = time.monotonic()
            if isinstance(self._listed, HostFailed):
                raise HostFailed(host, self._listed.cause, self._listed.fix)
            return self._listed

    def start(self, host: str, job: Mapping[str, Any], wait: Wait) -> Pod:
        """Create a Job, and wait until its pod runs; the Job of one that does not is deleted.

        HostFailed: Kubernetes refuses the Job, its pod ended, or was not waited for any longer.
        """
        name, lists, reported = job["metadata"]["name"], 0, [""]
        try:
            self.create(host, job)
            until = time.monotonic() + wait.limit_s
            while True:
                lists += 1
                pod, reason = self._found(host, name)
                if pod is not None and pod.state == "running":
                    return pod
                if not reason and lists % LISTS_PER_WARNING == 0:
                    reason = self._warning(host, name)
                if reason not in reported:
                    reported.append(reason)
                    wait.report(reason)
                is_late = wait.is_ending.wait(LIST_EVERY_S) or time.monotonic() > until
                if is_late or (pod is not None and pod.state != "waiting"):
                    cause = f"its pod did not run: {reason or reported[-1] or 'no reason is known yet'}"
                    raise HostFailed(host, cause, "see `kubectl get events`")
        except BaseException:
            with suppress(HostFailed):
                output_of(host, self.deleting(name))
            raise

    def _found(self, host: str, job: str) -> tuple[Pod | None, str]:
        """The pod of a Job, and why it does not run: its reason, or why the API server does not answer."""
        try:
            pod = next((pod for pod in self.listed(host) if pod.job == job), None)
        except HostFailed as error:
            return None, error.cause
        return pod, "" if pod is None else pod.reason

    def _warning(self, host: str, job: str) -> str:
        """The last warning about a Job or its pod: a volume, Pod Security, a quota. Their status does not state it."""
        try:
            listed = output_of(host, self.argv("get", "events", "--field-selector=type=Warning", "--output=json"))
        except HostFailed:  # no right
            return ""
        events = [event for event in json.loads(listed)["items"] if is_about(event, job)]
        last = max(events, key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "", default=None)
        return "" if last is None else f"{last['reason']}: {last['message']}"


def output_of(host: str, argv: Sequence[str], input: bytes = b"", timeout_s: float = ANSWER_S) -> bytes:
    """Output of a command of kubectl. HostFailed with its message."""
    done = finished(host, argv, timeout_s, input=input)
    if done.code:
        raise failure(host, argv, done.code, done.stderr.decode(errors="replace"))
    return done.stdout


def failure(host: str, argv: Sequence[str], code: int, stderr: str) -> HostFailed:
    """A command of kubectl that failed, with its message."""
    return HostFailed(host, f"kubectl: {stderr.strip() or f'exit code {code}'}", f"try: {shlex.join(argv)[:SHOWN]}")


def is_about(event: Mapping[str, Any], job: str) -> bool:
    """Whether an event is about a Job or a pod of it."""
    name = event["involvedObject"].get("name", "")
    return bool(name == job or name.startswith(f"{job}-"))


def label(text: str) -> str:
    """Value of a label for an id or the name of a host: at most 63 characters."""
    return text[-60:].strip("._-")


def pod_of(item: Mapping[str, Any]) -> Pod:
    """A pod of an answer of the API server."""
    meta, status = item["metadata"], item.get("status", {})
    conditions = {each["type"]: each for each in status.get("conditions", ())}
    containers = {each["name"]: each["state"] for each in status.get("containerStatuses", ())}
    container, scheduled = containers.get(CONTAINER, {}), conditions.get("PodScheduled", {})
    state: Literal["waiting", "running", "ending", "ended"]
    why: Mapping[str, Any] = {}
    if (has_ended := status.get("phase") in ("Succeeded", "Failed")) or "deletionTimestamp" in meta:
        state = "ended" if has_ended else "ending"
        why = conditions.get("DisruptionTarget") or (status if "reason" in status else container.get("terminated", {}))
    elif "running" in container:
        state = "running"
    else:
        state, why = "waiting", scheduled if scheduled.get("status") == "False" else container.get("waiting", {})
    stated = [why[key] for key in ("reason", "message") if why.get(key)]
    reason = "" if why.get("reason") in NORMAL else ": ".join(stated)
    job = next((owner["name"] for owner in meta.get("ownerReferences", ())), "")
    return Pod(meta["name"], meta["labels"].get(HOST, ""), job, state, reason)
