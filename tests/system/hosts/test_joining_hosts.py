"""Hosts that the run does not have join it while it runs: by `scale` and by an edited file."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab import Lab, lab_or_skip
from tests.support.runs.ssh_runs import FarRun, sha256_of_the_same_run
from tests.support.runs.system_plans import WAITING_TALLY
from tests.support.waiting import until
from zmqrl.testing.expect import assert_within

pytestmark = [pytest.mark.whole, pytest.mark.timed]
JOIN_S = 10.0


@pytest.fixture
def lab() -> Iterator[Lab]:
    with lab_or_skip(4, isolated=True) as lab:
        yield lab


def config(lab: Lab, mode: str, env_steps: int, hosts: Mapping[str, Any]) -> dict[str, Any]:
    defaults = {key: lab.hosts[1].hosts_yaml()[key] for key in ("python", "workdir")}
    return {
        "run": {"mode": mode, "total_env_steps": env_steps, "stop_at_return": None, "preset": "cartpole-ppo"},
        "env": {"vector_envs": 4, "num_envs": 2, "segment_steps": 16},
        "algorithm": dict(WAITING_TALLY),
        "evaluator": {"episodes": 0},
        "defaults": defaults,
        "hosts": {"local": {"workers": 1}, **hosts},
    }


def await_part(run: FarRun, name: str, state: str = "ready") -> float:
    """Until the host has stored segments, or has the state; how long it took, in seconds."""
    began = time.monotonic()
    steps = lambda: state != "ready" or run.host(name)["env_steps_per_s"] > 0  # noqa: E731
    until(lambda: run.host(name).get("state") == state and steps(), f"{name} {state}: {run.status()}")
    return time.monotonic() - began


def edited(lab: Lab, settings: Mapping[str, Any]) -> str:
    file = lab.folder / "edited.yaml"
    file.write_text(yaml.safe_dump(dict(settings), sort_keys=False))
    return str(file)


def ended(run: FarRun) -> Mapping[str, Any]:
    assert run.command("stop", str(run.run_dir))[0] == 0
    code, _, err = run.end()
    summary: Mapping[str, Any] = run.summary()
    assert code == 0 and summary["ledger"]["balanced"], err
    return summary


def assert_refused(run: FarRun, lab: Lab, settings: Mapping[str, Any]) -> None:
    """Hosts that cannot be reached or are there already, and keys that no live run can change."""
    lab.hosts[3].kill_sshd()
    refusals = {
        ("scale", "h3=1"): ("h3 cannot join the run", "hosts of this run: local, a"),
        ("scale", "h1=1"): ("h1 and a are the same host", "use a"),
        ("scale", "nowhere=1"): ("nowhere cannot join the run", ""),
    }
    for (command, argument), texts in refusals.items():
        code, out, err = run.command(command, str(run.run_dir), argument)
        assert (code, out) == (2, ""), (argument, out, err)
        assert all(text in err for text in texts), err
    lab.hosts[3].start_sshd()
    others = {**settings, "limits": {"grace_s": 7}}
    code, _, err = run.command("apply", edited(lab, others), str(run.run_dir))
    assert code == 2 and "limits.grace_s: 7.0: the live run has 15.0" in err, err


def test_in_sync_what_cannot_join_is_refused_and_hosts_join_with_the_same_bits(lab: Lab, tmp_path: Path) -> None:
    first = {"a": lab.hosts[1].hosts_yaml(workers=1)}
    settings = config(lab, "sync", 1_000_000, first)
    run = FarRun(lab, "join", settings)
    try:
        run.wait_for_steps(200)
        assert_refused(run, lab, settings)
        # h2 is a name of ~/.ssh/config; its Python and its workdir are of `defaults`
        code, out, err = run.command("scale", str(run.run_dir), "h2=1")
        assert (code, out) == (0, "h2: connecting, 1 worker\n"), err
        assert_within(await_part(run, "h2"), JOIN_S)
        hosts = {"local": {"workers": 1}, "h2": {"workers": 1}, "c": lab.hosts[3].hosts_yaml(workers=2)}
        file = edited(lab, {**settings, "hosts": hosts})
        code, out, err = run.command("apply", file, str(run.run_dir), "--dry-run")
        assert (code, out) == (0, "a: drains, 1 worker\nc: joins with 2 workers\n"), err
        assert [row["host"] for row in run.status()["hosts"]] == ["local", "a", "h2"]
        code, out, err = run.command("apply", file, str(run.run_dir))
        assert code == 0 and "c: connecting, 2 workers" in out and "a: workers leave" in out, err
        assert_within(await_part(run, "c"), JOIN_S)
        await_part(run, "a", "drained")
        stored = json.loads((Path(run.run_dir) / "config.json").read_text())["config"]["hosts"]
        assert list(stored) == ["local", "a", "h2", "c"], "`down` finds them there"
        assert run.command("apply", file, str(run.run_dir))[1].endswith("nothing to change\n")
        summary = ended(run)
    finally:
        run.close()
    same = sha256_of_the_same_run(tmp_path / "same", settings, summary["env_steps"])
    assert summary["weights_sha256"] == same


@pytest.mark.long
def test_in_async_a_host_joins(lab: Lab) -> None:
    settings = config(lab, "async", 100_000_000, {"a": lab.hosts[1].hosts_yaml(workers=1)})
    run = FarRun(lab, "async", settings)
    try:
        run.wait_for_steps(2_000)
        code, _, err = run.command("scale", str(run.run_dir), "h2=1")
        assert code == 0, err
        assert_within(await_part(run, "h2"), JOIN_S)
        assert len(run.status()["hosts"]) == 3
        ended(run)
    finally:
        run.close()
