"""Kubernetes: each host is a pod that a Job owns, and its host agent runs in the pod by `kubectl exec`.

Process 1 of a pod waits. The pod ends when its Job is deleted, and on its own when nothing else has run in it for a
while: of a run whose launcher's machine was lost, only pods remain that have not started.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from zmqrl.config.codec import replace
from zmqrl.config.hosts import LOCAL
from zmqrl.config.plan import Boot, RunPlan
from zmqrl.config.sections import FORBID_UNKNOWN, DefaultsSection, HostSection
from zmqrl.config.sections import Config as RunConfig
from zmqrl.data_stores.checkpoints import COPIED
from zmqrl.data_stores.make import is_shared
from zmqrl.errors import HostFailed
from zmqrl.orchestrators.access import HostAccess
from zmqrl.orchestrators.agent import Agent
from zmqrl.orchestrators.base import Teardown
from zmqrl.orchestrators.host_commands import REMOTE_RUNS
from zmqrl.orchestrators.on_hosts import end_jobs
from zmqrl.orchestrators.pods.agent import PodAgent, PodShell
from zmqrl.orchestrators.pods.kubectl import ANSWER_S, CONTAINER, HOST, RUN, Pods, Wait, label, output_of
from zmqrl.orchestrators.remote_checkpoints import LearnerFiles, bring, run_folder
from zmqrl.orchestrators.shell_orchestrator import ShellOrchestrator
from zmqrl.ssh.shell import HostShell

WATCH_EVERY_S = 5.0
PROBE_S = 60.0
"""How long `zmqrl doctor` and `workers: auto` wait for a pod."""
PROBE_ENDS_S = 3600
"""After which Kubernetes ends such a pod, also one that waits: a command that is killed deletes nothing."""
ENDED_FOR_S = 60
"""How long Kubernetes keeps a Job that has ended."""
HOLD = (
    "trap 'exit 143' TERM; most=$1; set -- /proc/[0-9]*; own=$#; idle=0; while [ $idle -lt $most ]; do "
    "sleep 5 & wait $!; "
    "set -- /proc/[0-9]*; if [ $# -gt $own ]; then idle=0; else idle=$((idle + 1)); fi; done"
)
"""Process 1 of a pod: ends it when no other process has been there for so many times 5 s."""
IDLE_S, KEPT_S = 60.0, 3600.0
"""How long it waits. The second is for a learner whose checkpoints are in its pod: the launcher copies them once all
other hosts have ended, and the user may have to.
"""
DELETE_AFTER = 'read _ || exec "$@"'
"""A shell that outlives the launcher: it deletes unless it is given a line."""


@dataclass(frozen=True)
class KubernetesConfig:
    """Each host is a pod of its own, which a Job owns. `kubectl` of this machine reaches the cluster."""

    __pydantic_config__ = FORBID_UNKNOWN

    image: str
    """Image with the zmqrl of this machine (docs/containers.md)."""
    namespace: str | None = None
    """Namespace of the pods; null: that of the context."""
    context: str | None = None
    """Context of kubectl's configuration; null: the current one."""
    resources: Mapping[str, str] = field(default_factory=dict)
    """Requests and limits of each pod, such as `{cpu: "2", memory: 2Gi}`."""
    learner_resources: Mapping[str, str] | None = None
    """Resources of the learner's pod, such as `{cpu: "4", memory: 8Gi, nvidia.com/gpu: "1"}`; null: `resources`."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels that the nodes have."""
    pod: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the `spec` of the pods, such as `volumes`, `imagePullSecrets`, `tolerations`."""
    container: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of their container, such as `volumeMounts`, `envFrom`, `imagePullPolicy`."""


class KubernetesOrchestrator(ShellOrchestrator):
    """A pod per host; the host `local`, where it participates, is this machine."""

    Config = KubernetesConfig
    returns_checkpoints = True

    def __init__(self, config: KubernetesConfig, plan: RunPlan) -> None:
        """HostFailed when the API server would refuse the Job of a host."""
        super().__init__(config, plan)
        self._access = self.access(config, plan.config)
        self._pods, self._files = self._access.pods(plan.run_id), LearnerFiles(plan, self.warn)
        self._deleter: subprocess.Popen[bytes] | None = None
        self._begun: set[str] = set()
        """Hosts for which Jobs were made."""
        hosts = dict.fromkeys([plan.config.learner.host, *(host for host, count in plan.workers.items() if count)])
        for host in [host for host in hosts if host != LOCAL][:2]:
            self._pods.create(host, self._access.job(plan.run_id, host), "--dry-run=server")

    @classmethod
    def shell(cls, config: KubernetesConfig, run: RunConfig, host: str) -> PodShell:
        return cls.access(config, run).probe(host)

    @classmethod
    def access(cls, config: KubernetesConfig, run: RunConfig) -> KubernetesAccess:
        return KubernetesAccess(config, run)

    def shells(self, boots: Mapping[str, Boot]) -> Iterator[tuple[str, HostShell]]:
        for host in boots:
            wait = Wait(float("inf"), self.is_ending, partial(self._report, host))
            yield host, self._access.shell(host, self.plan.run_id, wait)

    def _report(self, host: str, reason: str) -> None:
        self.warn(host, f"the pod is pending ({reason}); the host joins when it runs")

    def deploy(self, boots: Mapping[str, Boot]) -> None:
        if self._deleter is None:
            argv = ["sh", "-c", DELETE_AFTER, "sh", *self._pods.deleting(self._pods.selector)]
            null = subprocess.DEVNULL
            self._deleter = subprocess.Popen(argv, stdin=-1, stdout=null, stderr=null, start_new_session=True)
            threading.Thread(target=self._watch, name="pods", daemon=True).start()
        self._begun |= boots.keys() - {LOCAL}
        super().deploy(boots)

    def agent(self, boot: Boot, shell: HostShell) -> Agent | None:
        assert isinstance(shell, PodShell)
        access = KubernetesAccess(self.config, boot.plan.config, self._access.known)
        folder = run_folder(boot, access.section(boot.host))
        if boot.host in self.agents:
            self.agents[boot.host].release()  # its pod holds what another one needs
        try:
            shell.check_answer()  # the time of the agent begins with that of its pod
            if self.is_ending.is_set():
                return None
            self._files.send(shell, folder)
            agent = PodAgent(boot, self.warn, shell, access, self.log_of(boot.host))
        except HostFailed:
            if self.is_ending.is_set():
                return None
            raise
        self._files.mirror(shell, folder)
        return agent

    def _watch(self) -> None:
        """A thread: `kubectl exec` does not always end with its pod."""
        while not self.is_ending.wait(WATCH_EVERY_S):
            for agent in list(self.agents.values()):
                if isinstance(agent, PodAgent) and agent.wait(0.0) is None and agent.shell.lost() is not None:
                    agent.kill()

    def read_to_the_end(self, agent: Agent) -> None:
        if not isinstance(agent, PodAgent) or not agent.is_booted:
            return
        folder = run_folder(agent.boot, agent.section)
        if not self._files.collect(agent.shell, folder) and agent.shell.lost() is None:
            agent.keep_pod(f"{folder}/checkpoints", self.plan.store_path)

    def undeploy(self, grace_s: float) -> Teardown:
        self._files.close()
        self.end_starts()
        agents = self.agents
        teardown = super().undeploy(grace_s)
        kept = [host for host, agent in agents.items() if isinstance(agent, PodAgent) and agent.kept is not None]
        left = (*teardown.left, *self._end_rest(agents.keys(), kept))
        if self._deleter is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._deleter.communicate(b"\n", ANSWER_S)
            self._deleter = None
        return replace(teardown, left=left)

    def _end_rest(self, verified: Set[str], kept: Sequence[str]) -> Iterator[str]:
        """Delete the Jobs that are left. Yields what remains of hosts without an agent: their pods never ran.

        `verified`: hosts with an agent; `kept`: those whose pods remain.
        """
        run_id, cause = self.plan.run_id, ""
        try:
            others = "".join(f",{HOST}!={label(host)}" for host in kept)
            output_of(LOCAL, self._pods.deleting(f"{self._pods.selector}{others}"))
        except HostFailed as error:
            cause = error.cause
        for host, found in end_jobs(self._access, sorted(self._begun - verified), run_id, self._access.records_end_s):
            if isinstance(found, HostFailed):
                yield f"{host}/? (unreachable: {found.cause})"
            elif cause and not (found.left or found.killed):  # a Job without a pod
                yield f"{host}/? (its Job was not deleted: {cause})"
            else:
                yield from (f"{host}/{name}" for name in found.left)


class KubernetesAccess(HostAccess):
    """Reaches hosts by pods that are made for it, and finds those of a run by their labels."""

    config: KubernetesConfig
    lists_jobs = True
    records_end_s = 20.0

    def __init__(self, config: KubernetesConfig, run: RunConfig, known: dict[str, Pods] | None = None) -> None:
        """`known`: pods by id of their run, which several objects may share."""
        super().__init__(config, run)
        self.known = {} if known is None else known
        self._is_abandoned = threading.Event()

    def section(self, host: str) -> HostSection:
        """Section of a host, with the Python of the image unless another is set."""
        section = super().section(host)
        return replace(section, python="python3") if section.python == DefaultsSection().python else section

    def pods(self, run_id: str) -> Pods:
        """The pods of a run."""
        return self.known.setdefault(run_id, Pods(self.config.context, self.config.namespace, run_id))

    def shell(self, host: str, run_id: str, wait: Wait) -> PodShell:
        """Shell in a pod of a run, which the first command starts."""
        return PodShell(host, self.pods(run_id), self.job(run_id, host), wait)

    def shells(self, hosts: Sequence[str]) -> Iterator[tuple[str, PodShell]]:
        yield from ((host, self.probe(host)) for host in hosts)

    def probe(self, host: str) -> PodShell:
        """Shell in a pod that belongs to no run."""
        run_id = f"probe-{secrets.token_hex(4)}"
        job = self.job(run_id, host)
        job["spec"]["activeDeadlineSeconds"] = PROBE_ENDS_S
        return PodShell(host, self.pods(run_id), job, Wait(PROBE_S, self._is_abandoned, lambda reason: None))

    def abandon(self) -> None:
        self._is_abandoned.set()

    def remaining(self, host: str, run_id: str) -> Sequence[str]:
        pods = self.pods(run_id).listed(host)
        return [pod.job for pod in pods if pod.host == label(host) and pod.state != "ended"]

    def cancel(self, names: Sequence[str]) -> None:
        output_of(LOCAL, self.pods("").deleting(*names))

    def bring_left(self, host: str, run_id: str, checkpoints: Path) -> None:
        """Copies what is in a pod that was left because of it, and deletes the Job."""
        folder = f"{self.section(host).workdir}/{REMOTE_RUNS}/{run_id}/{host}/checkpoints"
        for pod in self.pods(run_id).listed(host):
            if pod.host != label(host) or pod.state != "running":
                continue
            shell = PodShell(host, self.pods(run_id), {}, Wait(0.0, threading.Event(), lambda reason: None), pod)
            try:
                if bring(shell, folder, checkpoints, COPIED, check_here=True):
                    shell.close()
            except HostFailed:
                if shell.lost() is None:
                    raise

    def job(self, run_id: str, host: str) -> dict[str, Any]:
        """Manifest of the Job of a host."""
        config, labels = self.config, {RUN: label(run_id), HOST: label(host)}
        is_learners = host == self.run.learner.host
        has_own = is_learners and config.learner_resources is not None
        resources = config.learner_resources if has_own else config.resources
        has_files = is_learners and not is_shared(self.run.store)
        idle_s = KEPT_S + self.run.limits.grace_s if has_files else IDLE_S
        container = {
            "name": CONTAINER,
            "image": config.image,
            "command": ["sh", "-c", HOLD, "sh", str(round(idle_s / 5))],
            "resources": {"requests": resources, "limits": resources},
            **config.container,
        }
        spec = {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,  # else a Service `redis` sets REDIS_PORT in each process
            "nodeSelector": config.node_selector,
            "containers": [container],
            **config.pod,
        }
        template = {"metadata": {"labels": labels}, "spec": spec}
        name = re.sub(r"[^a-z0-9]+", "-", host.lower())[:40].strip("-")
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": f"zmqrl-{name}-{secrets.token_hex(3)}", "labels": labels},
            "spec": {"backoffLimit": 0, "ttlSecondsAfterFinished": ENDED_FOR_S, "template": template},
        }
