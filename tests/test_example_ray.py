"""The orchestrator of examples/ over a real Ray cluster: a head and two nodes on this machine."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contracts.suites import name_of
from tests.support.marks import long
from tests.support.running import ROOT, RUN_S, environment
from zmqrl.testing.deployed import HostsMaker
from zmqrl.testing.orchestrator import ORCHESTRATOR

pytestmark = pytest.mark.whole
EXAMPLE = ROOT / "examples" / "ray_orchestrator.py"
MOST_LINES = 120
CLUSTER = """
import sys
from ray.cluster_utils import Cluster
size = {"num_cpus": 1, "object_store_memory": 80_000_000}
cluster = Cluster(initialize_head=True, head_node_args={**size, "node_name": "n1", "include_dashboard": False})
for name in ("n2", "n3"):
    cluster.add_node(**size, node_name=name)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""
NOT_A_CHILD = 'exec 3<&0; "$@" <&3 3<&- &'
"""Ray keeps the processes of tasks that have ended, which would be leaks of a test."""


@pytest.fixture(scope="module")
def ray() -> Iterator[dict[str, str]]:
    """Environment of processes that use the cluster; the end of its stdin ends it."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs Ray: pip install ray")
    with tempfile.TemporaryDirectory(prefix="r-", dir="/tmp") as folder, Path(folder, "log").open("wb") as log:
        command = ["sh", "-c", NOT_A_CHILD, "sh", sys.executable, "-c", CLUSTER]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
        own = environment({"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0"})
        with subprocess.Popen(command, text=True, env=own, **pipes) as cluster:
            assert cluster.stdin is not None and cluster.stdout is not None
            address = cluster.stdout.readline().strip()
            if not address:  # each part of it has 30 s to start
                pytest.skip(f"Ray: {Path(folder, 'log').read_text()[-300:]}")
            yield environment({"RAY_ADDRESS": address, "PYTHONPATH": f"{EXAMPLE.parent}:{ROOT}"})
            cluster.stdin.close()
            assert cluster.stdout.read() == "", "it has ended"


@pytest.mark.parametrize("check", [long(check) for check in ORCHESTRATOR], ids=name_of)
def test_the_suite(check: Callable[[HostsMaker], None], ray: dict[str, str], tmp_path: Path) -> None:
    """The learner is on this machine, a worker on each of two nodes; each check is a driver of Ray."""
    host = {"workers": 1, "python": sys.executable, "workdir": str(tmp_path / "work")}
    settings = {
        "orchestrator": {"kind": "ray_orchestrator:Ray"},
        "hosts": {"local": {"workers": 0}, "n2": host, "n3": host},
    }
    argv = [sys.executable, "-m", "tests.contracts.one_check", check.__name__, str(tmp_path), json.dumps(settings)]
    done = subprocess.run(argv, env=ray, cwd=ROOT, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= MOST_LINES
