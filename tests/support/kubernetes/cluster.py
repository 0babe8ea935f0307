"""A Kubernetes cluster for tests: a real kubectl over a stand-in of everything that it talks to (`server.py`)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.running import environment
from tests.support.waiting import WAIT_S, until

IMAGE = "zmqrl:test"
"""The file system of this machine, as an image."""
FIRST_WITH_WEBSOCKETS = 30
"""Minor version of kubectl 1 from which its exec does not need SPDY."""


class Kubernetes:
    """A cluster of some nodes, whose pods share the files and addresses of this machine."""

    def __init__(self, nodes: Mapping[str, float]) -> None:
        """`nodes`: names with their cores."""
        self.folder = Path(tempfile.mkdtemp(prefix="zmqrl-kubernetes-", dir="/var/tmp"))
        command = [sys.executable, "-m", "tests.support.kubernetes.server", str(self.folder), json.dumps(nodes)]
        with (self.folder / "server.log").open("wb") as log:
            self._server = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment(), text=True
            )
        assert self._server.stdout is not None
        self._port = int(self._server.stdout.readline())
        name = {"name": "stand-in"}
        cluster = {"server": f"http://127.0.0.1:{self._port}"}
        context = {"cluster": "stand-in", "user": "stand-in", "namespace": "lab"}
        configuration = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{**name, "cluster": cluster}],
            "users": [{**name, "user": {}}],
            "contexts": [{**name, "context": context}],
            "current-context": "stand-in",
        }
        (self.folder / "config").write_text(json.dumps(configuration))

    @property
    def environment(self) -> Mapping[str, str]:
        """Of processes whose kubectl uses this cluster."""
        return {"KUBECONFIG": str(self.folder / "config"), "KUBECACHEDIR": str(self.folder), "NO_PROXY": "127.0.0.1"}

    def kubectl(self, *arguments: str, input: bytes | None = None) -> bytes:
        """Output of a kubectl that ends well."""
        command = ["kubectl", *arguments]
        env = {**os.environ, **self.environment}
        done = subprocess.run(command, env=env, input=input, capture_output=True, timeout=WAIT_S, check=False)
        assert done.returncode == 0, (command, done)
        return done.stdout

    def list(self, resource: str) -> list[dict[str, Any]]:
        """Jobs or pods."""
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", resource, "-o", "json"))["items"]
        return found

    def act(self, action: str, name: str = "all") -> None:
        """What happens to a cluster, such as `evict` with the name of a pod."""
        url = f"http://127.0.0.1:{self._port}/stand-in/{action}/{name}"
        with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=WAIT_S) as answer:
            answer.read()

    def await_empty(self) -> None:
        """Until no Job and no pod is left."""
        until(lambda: not self.list("jobs") and not self.list("pods"), lambda: self.list("jobs"), every_s=0.2)

    def close(self) -> None:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.stdout.close()
        self._server.wait(WAIT_S)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def kubernetes_or_skip(nodes: Mapping[str, float]) -> Iterator[Kubernetes]:
    """A cluster until the end of `with`; skips the test with the reason where there can be none."""
    reason = missing()
    if reason is not None:
        pytest.skip(f"no Kubernetes: {reason}")
    cluster = Kubernetes(nodes)
    try:
        yield cluster
    finally:
        cluster.close()


def missing() -> str | None:
    """What the stand-in needs and this machine lacks."""
    if shutil.which("kubectl") is None:
        return "kubectl missing: apt-get install kubernetes-client (bin/lab-setup)"
    if os.geteuid() != 0:
        return "pid namespaces of pods need root"
    version = subprocess.run(["kubectl", "version", "--client", "-o", "json"], capture_output=True, check=True).stdout
    minor = int(json.loads(version)["clientVersion"]["minor"].rstrip("+"))
    return None if minor >= FIRST_WITH_WEBSOCKETS else f"kubectl 1.{minor} has SPDY alone"
