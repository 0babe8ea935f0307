"""`env.check: false`: an env that this machine does not have is made on the first host with workers."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.raising import raises
from zmqrl.config.load import Loaded
from zmqrl.errors import ConfigError
from zmqrl.planning.checked import checked_plan
from zmqrl.planning.configure import load
from zmqrl.supervision import check_process

MODULE = """
from tests.envs.rude_envs import Rude

class Far(Rude):
    pass
"""


def loaded(folder: Path, **values: Any) -> Loaded:
    """A run with workers on host `b`, which is this machine with another PYTHONPATH."""
    (folder / "far_lab.py").write_text(MODULE)
    root = Path(__file__).parents[2]
    b = {"workers": 1, "workdir": str(folder), "env": {"PYTHONPATH": f"{folder}:{root}"}}
    hosts = {"local": {"workers": 0}, "b": b}
    env = {"id": "far_lab:Far", "max_episode_steps": 9, "check": False}
    overrides = {"hosts": hosts, "env": env, "orchestrator": {"kind": "local"}, "evaluator": {"episodes": 0}}
    return load("cartpole-ppo", overrides={**overrides, **values})


def planned(found: Loaded, folder: Path) -> Any:
    return checked_plan(found.config, folder / "run", time.time(), sources=found.sources)


def test_the_properties_are_those_of_the_host(tmp_path: Path) -> None:
    plan = planned(loaded(tmp_path), tmp_path)
    assert (plan.env.action.n, plan.env.max_episode_steps) == (4, 9)


def test_without_the_key_the_env_is_made_here(tmp_path: Path) -> None:
    with raises(ConfigError, key=("env", "id"), value="'far_lab:Far'", what="module 'far_lab' was not found"):
        planned(loaded(tmp_path, **{"env.check": True}), tmp_path)


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("sys_exit", "construction: sys.exit was called: SystemExit: 0"),
        ("hang", "construction: not finished within limits.start_s (3 s)"),
    ],
)
def test_what_is_wrong_there_is_named(tmp_path: Path, how: str, what: str) -> None:
    with raises(ConfigError, key=("env", "id"), value="'far_lab:Far' on host b") as caught:
        planned(
            loaded(tmp_path, **{"env.kwargs": {"how": how}, "limits.start_s": 3.0, "limits.heartbeat_s": 0.1}), tmp_path
        )
    assert re.fullmatch(rf"{re.escape(what)} \(\S*rude_envs\.py:\d+, in {how}\)", caught.value.what)


def test_a_hang_there_is_named_before_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_process, "WAITING_S", 1.0)
    with raises(ConfigError, key=("env", "id"), value="'far_lab:Far' on host b"):
        planned(
            loaded(tmp_path, **{"env.kwargs": {"how": "hang"}, "limits.start_s": 3.0, "limits.heartbeat_s": 0.1}),
            tmp_path,
        )
    noted = [line for line in capfd.readouterr().err.splitlines() if line.startswith("still waiting for")]
    assert len(noted) == 1 and "'far_lab:Far' on host b: construction (" in noted[0] and noted[0].endswith("in hang)")


def test_modules_of_code_sync_are_sent(tmp_path: Path) -> None:
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent" / "sent_lab.py").write_text(MODULE)
    values = {"env.id": "sent_lab:Far", "code.sync": [str(tmp_path / "sent" / "sent_lab.py")]}
    assert planned(loaded(tmp_path, **values), tmp_path).env.action.n == 4


def test_a_run_of_this_machine_alone_cannot_do_without(tmp_path: Path) -> None:
    with raises(ConfigError, key=("env", "check"), value="False", what="no other host with workers could make the env"):
        planned(loaded(tmp_path, hosts={"local": {"workers": 1}}), tmp_path)
