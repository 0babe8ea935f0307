"""Pods and Jobs of a Kubernetes API, and what its controllers and its scheduler make of them. No I/O."""

from __future__ import annotations

import itertools
import secrets
import string
import time
from collections.abc import Mapping
from typing import Any, TypeAlias

Object: TypeAlias = dict[str, Any]
SUFFIX = string.ascii_lowercase + string.digits
ENDED = ("Succeeded", "Failed")


class Refused(Exception):
    """A request that the API refuses: HTTP code, reason, message."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message


class Objects:
    """Everything that the API server stores, by resource, namespace and name."""

    def __init__(self, nodes: Mapping[str, float]) -> None:
        """`nodes`: names with their cores."""
        self.nodes = dict(nodes)
        self.refuses_pods = ""
        """Why admission refuses pods; empty: it does not."""
        self._serial = itertools.count(1)
        self._held: dict[tuple[str, str, str], Object] = {}

    def create(self, resource: str, namespace: str, body: Object) -> Object:
        meta = body.setdefault("metadata", {})
        made = "".join(secrets.choice(SUFFIX) for _ in range(5))
        name = meta.get("name") or f"{meta['generateName']}{made}"
        if (resource, namespace, name) in self._held:
            raise Refused(409, "AlreadyExists", f'{resource} "{name}" already exists')
        meta |= {"name": name, "namespace": namespace, "uid": secrets.token_hex(8), "creationTimestamp": timestamp()}
        body["status"] = {"phase": "Pending"} if resource == "pods" else {}
        self._held[resource, namespace, name] = body
        return self.changed(body)

    def changed(self, body: Object) -> Object:
        body["metadata"]["resourceVersion"] = str(next(self._serial))
        return body

    def get(self, resource: str, namespace: str, name: str) -> Object:
        try:
            return self._held[resource, namespace, name]
        except KeyError:
            raise Refused(404, "NotFound", f'{resource} "{name}" not found') from None

    def list(self, resource: str, namespace: str | None = None, selector: str = "") -> list[Object]:
        parts = [part.replace("==", "=").split("=") for part in selector.split(",") if part]
        wanted = {key: value for key, value in parts if not key.endswith("!")}
        unwanted = {(key[:-1], value) for key, value in parts if key.endswith("!")}
        return [
            body
            for (kind, where, _), body in self._held.items()
            if kind == resource
            and namespace in (None, where)
            and wanted.items() <= labels(body).items()
            and not unwanted & labels(body).items()
        ]

    def delete(self, resource: str, namespace: str, name: str) -> Object:
        """A pod that has processes is removed by its kubelet."""
        body = self.get(resource, namespace, name)
        if resource == "pods" and "nodeName" in body["spec"] and body["status"]["phase"] not in ENDED:
            body["metadata"].setdefault("deletionTimestamp", timestamp())
            return self.changed(body)
        return self.remove(resource, body)

    def remove(self, resource: str, body: Object) -> Object:
        return self._held.pop((resource, body["metadata"]["namespace"], body["metadata"]["name"]))

    def reconcile(self) -> None:
        """One turn of the controllers: Jobs, their time to live, garbage, the scheduler."""
        for job in self.list("jobs"):
            self._run_job(job)
        owners = {job["metadata"]["uid"] for job in self.list("jobs")}
        for pod in self.list("pods"):
            owned = pod["metadata"].get("ownerReferences", ())
            if owned and owned[0]["uid"] not in owners and "deletionTimestamp" not in pod["metadata"]:
                self.delete("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
            elif "nodeName" not in pod["spec"] and pod["status"]["phase"] == "Pending":
                self._schedule(pod)

    def _run_job(self, job: Object) -> None:
        meta, spec, status = job["metadata"], job["spec"], job["status"]
        owned = [pod for pod in self.list("pods") if is_owned(pod, meta["uid"])]
        if "conditions" in status:
            ttl_s = spec.get("ttlSecondsAfterFinished")
            if ttl_s is not None and time.time() - status["ended"] >= ttl_s:
                self.remove("jobs", job)
            return
        phases = [pod["status"]["phase"] for pod in owned]
        status |= {"active": sum(phase not in ENDED for phase in phases)}
        if "Succeeded" in phases or phases.count("Failed") > spec.get("backoffLimit", 6):
            kind = "Complete" if "Succeeded" in phases else "Failed"
            reason = {} if kind == "Complete" else {"reason": "BackoffLimitExceeded"}
            status |= {"ended": time.time(), "conditions": [{"type": kind, "status": "True", **reason}]}
            self.changed(job)
        elif not status["active"]:
            self._create_pod(job)

    def _create_pod(self, job: Object) -> None:
        meta, template = job["metadata"], job["spec"]["template"]
        if self.refuses_pods:
            self.warn(job, "FailedCreate", f'Error creating: pods "{meta["name"]}-x" is forbidden: {self.refuses_pods}')
            return
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"], "controller": True}
        given = {**template.get("metadata", {}).get("labels", {}), "batch.kubernetes.io/job-name": meta["name"]}
        pod_meta = {"generateName": f"{meta['name']}-", "labels": given, "ownerReferences": [owner]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": pod_meta, "spec": dict(template["spec"])}
        self.create("pods", meta["namespace"], body)

    def warn(self, about: Object, reason: str, message: str) -> None:
        """An event, once."""
        meta = about["metadata"]
        name = f"{meta['name']}.{reason.lower()}"
        if ("events", meta["namespace"], name) not in self._held:
            event = {"type": "Warning", "reason": reason, "message": message, "lastTimestamp": timestamp()}
            self.create("events", meta["namespace"], {**event, "metadata": {"name": name}, "involvedObject": meta})

    def _schedule(self, pod: Object) -> None:
        wanted = pod["spec"].get("nodeSelector", {}).get("kubernetes.io/hostname")
        nodes = [node for node in self.nodes if wanted in (None, node)]
        roomy = [node for node in nodes if self._free(node) >= cores_of(pod)]
        if roomy:
            pod["spec"]["nodeName"] = roomy[0]
            pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
        else:
            why = f"{len(nodes)} Insufficient cpu" if nodes else f"{len(self.nodes)} node(s) didn't match"
            text = f"0/{len(self.nodes)} nodes are available: {why}."
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": text}
            if pod["status"].get("conditions") == [condition]:
                return
            pod["status"]["conditions"] = [condition]
        self.changed(pod)

    def _free(self, node: str) -> float:
        pods = [pod for pod in self.list("pods") if pod["spec"].get("nodeName") == node]
        return self.nodes[node] - sum(cores_of(pod) for pod in pods if pod["status"]["phase"] not in ENDED)


def labels(body: Object) -> Mapping[str, str]:
    found: Mapping[str, str] = body["metadata"].get("labels", {})
    return found


def is_owned(pod: Object, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences", ()))


def cores_of(pod: Object) -> float:
    """Cores that a pod requests; a limit alone is a request too."""
    resources = pod["spec"]["containers"][0].get("resources", {})
    text = str(resources.get("requests", resources.get("limits", {})).get("cpu", 0))
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)


def timestamp() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
