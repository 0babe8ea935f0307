"""Stand-in of a cluster: API server, controllers, scheduler and kubelets in one process; kubectl is a real one.

usage: python -m tests.support.kubernetes.server FOLDER NODES     NODES: {"n1": cores, ...}
Prints its port. Ends, with every process of every pod, when its stdin ends. `POST /stand-in/ACTION/NAME` does what
happens to a cluster: evict and preempt (a pod), cut (every exec), freeze (execs do not report their end), forbid (a
verb), cores (NODE=NUMBER).
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from .kubelet import Kubelet
from .objects import ENDED, Object, Objects, Refused
from .websocket import PROTOCOL, WebSocket, accept_of, serve

TURN_S = 0.05
VERBS = ["create", "delete", "get", "list"]
KINDS = {"jobs": ("batch/v1", "Job"), "pods": ("v1", "Pod"), "events": ("v1", "Event")}
POD_FIELDS = {"restartPolicy", "automountServiceAccountToken", "enableServiceLinks", "nodeSelector", "containers"}
POD_FIELDS |= {"volumes", "imagePullSecrets", "tolerations", "priorityClassName", "terminationGracePeriodSeconds"}
NAMED = re.compile(
    r"/(?:api/v1|apis/batch/v1)/namespaces/(?P<namespace>[^/]+)/(?P<resource>pods|jobs|events)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<part>exec|log))?"
)


class Cluster:
    """State of the stand-in. `lock` is held for every access."""

    def __init__(self, folder: Path, nodes: dict[str, float]) -> None:
        self.lock = threading.Lock()
        self.objects = Objects(nodes)
        self.kubelet = Kubelet(self.objects, folder, dict(os.environ))
        self.execs: set[socket.socket] = set()
        self.is_frozen = False
        self.forbidden: set[str] = set()

    def turn(self) -> None:
        with self.lock:
            self.objects.reconcile()
            self.kubelet.reconcile()

    def act(self, action: str, name: str) -> None:
        """What happens to a cluster."""
        if action == "cut":
            for connection in self.execs:
                connection.shutdown(socket.SHUT_RDWR)
        elif action == "freeze":
            self.is_frozen = name == "on"
        elif action == "forbid":
            self.forbidden = {name} - {"nothing"}
        elif action == "refuse":
            self.objects.refuses_pods = unquote(name).removeprefix("nothing")
        elif action == "cores":
            node, _, cores = name.partition("=")
            self.objects.nodes[node] = float(cores)
        else:
            pod = next(pod for pod in self.objects.list("pods") if pod["metadata"]["name"] == name)
            self._end(action, pod)

    def _end(self, action: str, pod: Object) -> None:
        if action == "evict":
            text = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 12Mi."
            pod["status"] |= {"phase": "Failed", "reason": "Evicted", "message": text}
        else:
            text = "default-scheduler: preempting to accommodate a higher priority pod"
            condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
            pod["status"]["conditions"].append({**condition, "message": text})
            self.objects.delete("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    cluster: Cluster

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        found = NAMED.fullmatch(url.path)
        if found is not None and found["part"] == "exec":
            self._exec(found["namespace"], found["name"], parse_qs(url.query)["command"])
        elif found is not None:
            self._answer(lambda: self._read(found, parse_qs(url.query)))
        else:
            self._answer(lambda: discovery(url.path))

    def do_POST(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        found = NAMED.fullmatch(url.path)
        if url.path.startswith("/stand-in/"):
            _, _, action, name = url.path.split("/")
            self._answer(lambda: self.cluster.act(action, name))
        elif found is not None and found["part"] == "exec":  # what an upgrade to SPDY asks for
            self._answer(
                lambda: _refuse(403, "Forbidden", "the stand-in has WebSockets alone: use kubectl 1.30 or newer")
            )
        elif found is None:
            self._answer(lambda: _refuse(404, "NotFound", url.path))
        else:
            is_dry = "dryRun" in parse_qs(url.query)
            self._answer(lambda: self._create(found, json.loads(body), is_dry), 201)

    def do_DELETE(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        found = NAMED.fullmatch(urlsplit(self.path).path)
        assert found is not None
        self._answer(lambda: self._allowed("delete").delete(found["resource"], found["namespace"], found["name"]))

    def _allowed(self, verb: str) -> Objects:
        if verb in self.cluster.forbidden:
            what = 'jobs.batch is forbidden: User "researcher" cannot {} resource "jobs" in API group "batch"'
            raise Refused(403, "Forbidden", f'{what.format(verb)} in the namespace "default"')
        return self.cluster.objects

    def _create(self, found: re.Match[str], body: Object, is_dry: bool) -> Object:
        objects = self._allowed("create")
        unknown = set(body["spec"]["template"]["spec"]) - POD_FIELDS
        if unknown:
            text = f'unknown field "spec.template.spec.{min(unknown)}"'
            raise Refused(400, "BadRequest", f'Job in version "v1" cannot be handled as a Job: {text}')
        made = objects.create(found["resource"], found["namespace"], body)
        return objects.delete(found["resource"], found["namespace"], made["metadata"]["name"]) if is_dry else made

    def _read(self, found: re.Match[str], query: dict[str, list[str]]) -> Object | bytes:
        objects = self._allowed("get")
        if found["name"] is None:
            items = objects.list(found["resource"], found["namespace"], query.get("labelSelector", [""])[0])
            version, kind = KINDS[found["resource"]]
            return {"kind": f"{kind}List", "apiVersion": version, "metadata": {"resourceVersion": "1"}, "items": items}
        body = objects.get(found["resource"], found["namespace"], found["name"])
        return self.cluster.kubelet.log_of(body).read_bytes() if found["part"] == "log" else body

    def _answer(self, request: Callable[[], Any], code: int = 200) -> None:
        try:
            with self.cluster.lock:
                made = request()
                content = made if isinstance(made, bytes) else json.dumps(made).encode()
        except Refused as refused:
            code = refused.code
            failure = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code}
            content = json.dumps({**failure, "reason": refused.reason, "message": refused.message}).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _exec(self, namespace: str, name: str, command: list[str]) -> None:
        """Without a process where the pod does not run."""
        process = None
        with self.cluster.lock:
            pods = {pod["metadata"]["name"]: pod for pod in self.cluster.objects.list("pods", namespace)}
            pod = pods.get(name)
            if pod is not None and pod["status"]["phase"] not in ENDED:
                container = self.cluster.kubelet.containers.get(pod["metadata"]["uid"])
                process = None if container is None or container.pid is None else container.exec(command)
        if process is None:
            self._answer(lambda: _refuse(500, "InternalError", f"container not found in pod {name}_{namespace}"))
            return
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", accept_of(self.headers["Sec-WebSocket-Key"]))
        self.send_header("Sec-WebSocket-Protocol", PROTOCOL)
        self.end_headers()
        self.close_connection = True
        self.cluster.execs.add(self.connection)
        try:
            serve(WebSocket(self.rfile, self.wfile.write), process, lambda: self.cluster.is_frozen)
        finally:
            self.cluster.execs.discard(self.connection)


def discovery(path: str) -> Object:
    """What kubectl asks an API server about itself."""
    if path == "/version":
        return {"major": "1", "minor": "32", "gitVersion": "v1.32.4"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        version = {"groupVersion": "batch/v1", "version": "v1"}
        batch = {"name": "batch", "versions": [version], "preferredVersion": version}
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [batch]}
    if path == "/openapi/v3":
        return {"paths": {"apis/batch/v1": {"serverRelativeURL": "/openapi/v3/apis/batch/v1"}}}
    if path == "/openapi/v3/apis/batch/v1":  # the server validates fields
        kind_of = {"x-kubernetes-group-version-kind": {"group": "batch", "version": "v1", "kind": "Job"}}
        patch = {"parameters": [{"name": "fieldValidation", "in": "query"}], "responses": {}, **kind_of}
        paths = {"/apis/batch/v1/namespaces/{namespace}/jobs/{name}": {"patch": patch}}
        return {"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1.32.4"}, "paths": paths}
    version = path.partition("/api/")[2] or path.partition("/apis/")[2]
    resources = [
        {"name": resource, "singularName": kind.lower(), "namespaced": True, "kind": kind, "verbs": VERBS}
        for resource, (has, kind) in KINDS.items()
        if has == version
    ]
    if resources:
        return {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
    return _refuse(404, "NotFound", "the server could not find the requested resource")


def _refuse(code: int, reason: str, message: str) -> Any:
    raise Refused(code, reason, message)


def main(folder: str, nodes: str) -> None:
    cluster = Cluster(Path(folder), json.loads(nodes))
    handler = type("ClusterHandler", (Handler,), {"cluster": cluster})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    print(server.server_address[1], flush=True)
    while not ended.wait(TURN_S):
        cluster.turn()
    cluster.kubelet.close()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
