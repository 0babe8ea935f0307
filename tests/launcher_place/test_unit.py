"""The systemd unit of a run: what systemd reads is what was meant."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.raising import raises
from tests.support.waiting import WAIT_S
from zmqrl.config.codec import replace
from zmqrl.config.sections import CodeSection, Config, LimitsSection, StoreSection
from zmqrl.errors import ConfigError
from zmqrl.launch.run.end_policy import TEARDOWN_SLACK_S
from zmqrl.launcher_place.unit import RunUnit, check_name, environment_of, stop_s_of

UNIT = RunUnit("pole", Path("/runs/pole"), Path("/lab"), ["/venv/bin/python", "-m", "zmqrl"], {"PATH": "/bin"}, 400)
ODD = ["/bin/echo", "a b", "100%", "$HOME", 'say "x"', "back\\slash", "*", "'"]


def verified(folder: Path, unit: RunUnit) -> str:
    """What `systemd-analyze verify` reports of the unit; nothing is right."""
    client = shutil.which("systemd-analyze")
    if client is None:
        pytest.skip("systemd-analyze is not installed")
    path = unit.install(folder)
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    done = subprocess.run(
        [client, "verify", "--user", str(path)], capture_output=True, text=True, env=environment, timeout=WAIT_S
    )
    return done.stdout + done.stderr + ("" if done.returncode == 0 else f"exit code {done.returncode}")


def test_the_unit_is_valid_and_a_wrong_one_is_found(tmp_path: Path) -> None:
    assert verified(tmp_path, replace(UNIT, command=ODD, folder=Path("/tmp"), environment={"A": 'x % "y" $z'})) == ""
    assert "Failed to parse time value" in verified(tmp_path, replace(UNIT, command=["/bin/true"], stop_s="soon"))  # type: ignore[arg-type]


def test_a_fault_of_the_configuration_is_not_retried_and_a_stop_is_not_a_failure() -> None:
    lines = UNIT.text().splitlines()
    assert {"Restart=on-failure", "RestartPreventExitStatus=2", "SuccessExitStatus=130"} <= set(lines)
    assert {"KillMode=mixed", "TimeoutStopSec=400", "StartLimitBurst=10", "WantedBy=default.target"} <= set(lines)


def test_words_are_quoted_for_systemd() -> None:
    (start,) = [line for line in replace(UNIT, command=ODD).text().splitlines() if line.startswith("ExecStart=")]
    assert start == (r'ExecStart="/bin/echo" "a b" "100%%" "$$HOME" "say \"x\"" "back\\slash" "*" "' + "'" + '"')


def test_a_unit_of_another_is_not_replaced(tmp_path: Path) -> None:
    path = UNIT.install(tmp_path)
    assert UNIT.install(tmp_path) == path and os.listdir(tmp_path) == [path.name]
    path.write_text("[Unit]\n")
    with raises(ConfigError, value=str(path), what="exists, and zmqrl did not write it"):
        UNIT.install(tmp_path)


def test_a_stop_has_time_for_the_checkpoint_the_copy_and_both_notices() -> None:
    config = Config(limits=LimitsSection(grace_s=10.0, on_end_s=600.0))
    most_s = 3 * 10.0 + config.evaluator.final_limit_s + config.store.wait_s + 2 * 600.0
    assert stop_s_of(config) >= most_s + TEARDOWN_SLACK_S
    mirror = StoreSection(options={"mirror": "s3://bucket/runs"})
    for store in (mirror, StoreSection(kind="object", options={"url": "s3://bucket/runs"})):
        assert stop_s_of(replace(config, store=store)) == stop_s_of(config) + config.store.wait_s


def test_names_and_modules() -> None:
    with raises(ConfigError, key=("--name",), value="'a/b'", what="may contain only letters, digits, '.', '_' and '-'"):
        check_name("a/b")
    config = Config(code=CodeSection(sync=("/srv/code/abc/my_envs", "/srv/code/abc/tools.py")))
    assert environment_of(config, {"PATH": "/bin"}) == {"PATH": "/bin", "ZMQRL_PATH": "/srv/code/abc"}
    assert environment_of(Config(), {"PYTHONPATH": "/lab"}) == {"PATH": os.defpath, "PYTHONPATH": "/lab"}
