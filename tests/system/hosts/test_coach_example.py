"""Coach's own example: CartPole with clipped PPO, Redis, S3, Kubernetes and three workers, as the page has it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.memory_backends.redis_server import PASSWORD, redis_server
from tests.support.kubernetes.cluster import IMAGE, kubernetes_or_skip
from tests.support.running import ROOT
from tests.support.runs.command_runs import summary, zmqrl
from tests.support.runs.pod_runs import PodRun
from tests.support.s3_server import BUCKET, S3Server

PAGE = (ROOT / "docs" / "coach-kubernetes.md").read_text()
STEPS = 3_072


def hosts_yaml() -> dict[str, Any]:
    (text,) = re.findall(r"^```yaml\n# hosts.yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


@pytest.mark.whole
def test_the_page_is_coachs_example(tmp_path: Path) -> None:
    config = hosts_yaml()
    assert (config["orchestrator"]["kind"], config["memory_backend"]["kind"]) == ("kubernetes", "redis")
    assert config["store"]["mirror"].startswith("s3://")
    assert config["hosts"] == {"trainer": {"workers": 0}, "worker[1:3]": {"workers": 1}}
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump(config))
    shown = zmqrl("launch", "hosts.yaml", "--dry-run", "--set=store.mirror=null", at=tmp_path)
    assert all(f"processes on worker{number}: worker-" in shown for number in (1, 2, 3))


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    server = S3Server(tmp_path / "s3.log")
    server.start()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    yield server
    server.kill()


@pytest.mark.long
@pytest.mark.whole
@pytest.mark.usefixtures("s3")
def test_it_trains_on_redis_s3_and_pods(tmp_path: Path) -> None:
    config = hosts_yaml()
    config["run"] |= {"total_env_steps": STEPS, "stop_at_return": None}
    config["evaluator"] = {"episodes": 0}
    config["store"]["mirror"] = f"s3://{BUCKET}/runs"
    config["defaults"] = {"python": sys.executable, "workdir": str(tmp_path / "pods")}
    config["orchestrator"]["image"] = IMAGE
    with redis_server(tmp_path, tls=True) as redis, kubernetes_or_skip({"n1": 8}) as cluster:
        config["memory_backend"] |= {"url": redis.config.url, "ca": redis.config.ca}
        config["orchestrator"]["container"]["env"] = [{"name": "REDISCLI_AUTH", "value": PASSWORD}]
        run = PodRun(cluster, tmp_path / "run", config)
        try:
            done = run.done()
        finally:
            run.close()
        assert "cmdstat_xadd" in redis.command("info", "commandstats"), "segments went over Redis"
    words = [f"run.total_env_steps={STEPS}", "run.stop_at_return=null", "evaluator.episodes=0"]
    settings = [word for setting in words for word in ("--set", setting)]
    zmqrl("train", "cartpole-ppo", "--mode=single", "--plain", *settings, "--run-dir", tmp_path / "alone", at=tmp_path)
    assert done["weights_sha256"] == summary(tmp_path / "alone")["weights_sha256"]
    lineage = json.loads((run.run_dir / "run.json").read_text())["lineage"]
    assert "return" in zmqrl("eval", f"s3://{BUCKET}/runs/{lineage}", "--episodes=1", at=tmp_path)
