"""`zmqrl runs --lab` and `zmqrl view --on`: the runs of other hosts, over real sshds."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.agent.plans import stand_in_plan
from tests.cli.commands import with_constant
from tests.lab import Lab, lab_or_skip
from tests.support.running import environment
from tests.support.waiting import WAIT_S, until
from tests.viewer.stored import store
from zmqrl.run_files.publication import SILENT_S, Publication

pytestmark = [pytest.mark.whole]
STATUS: dict[str, Any] = {"phase": "running", "env_steps": 640, "metrics": {}}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with lab_or_skip(2, isolated=True) as lab:
        store(lab.hosts[1].tmp / "zmqrl" / "runs" / "a")
        yield lab


def hosts_file(lab: Lab, client: str = "paramiko", **h1: str) -> Path:
    hosts = {"h1": lab.hosts[1].hosts_yaml(**h1), "off": {"ssh": "10.77.0.99"}}
    content = {"hosts": hosts, "ssh": {"client": client, "connect_timeout_s": 5.0}}
    (lab.folder / "lab.yaml").write_text(yaml.safe_dump(content))
    return lab.folder / "lab.yaml"


def start(lab: Lab, *words: object) -> subprocess.Popen[str]:
    command = [*with_constant("zmqrl.orchestrators.on_hosts", "ANSWER_S", WAIT_S), *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return lab.run_here(command, cwd=lab.folder, env=environment({}), **pipes)


def end(lab: Lab, *words: object) -> tuple[int, str, str]:
    with start(lab, *words) as process:
        out, err = process.communicate(timeout=WAIT_S)
    return process.returncode, out, err


def left_out(stderr: str) -> list[str]:
    """Hosts that have given no rows."""
    lines = (line.split(": ") for line in stderr.splitlines())
    return sorted(words[1] for words in lines if words[0] == "not in the list")


def test_the_runs_of_a_lab(lab: Lab, tmp_path: Path) -> None:
    """The launcher is in another pid namespace than the command there: its renewals show that it runs."""
    plan, h1 = stand_in_plan(tmp_path / "run"), lab.hosts[1]
    Publication(plan, h1.tmp / "zmqrl-agents").renew(STATUS)
    (path,) = h1.tmp.glob("zmqrl-agents-*/*.run")
    os.utime(path, (0, time.time() + SILENT_S))  # this machine may be slow
    published = path.read_text()
    path.with_name("liar.run").write_text(published.replace(plan.run_id, "liar").replace('"uid":', '"uid":1'))
    code, out, err = end(lab, "runs", "--lab", hosts_file(lab), "--json")
    assert left_out(err) == ["off"]
    rows = {row["run_id"]: row for row in json.loads(out)}
    assert (code, rows[plan.run_id]["env_steps"], rows[plan.run_id]["state"]) == (0, 640, "running")
    assert "liar" not in rows and "a" not in rows
    code, out, err = end(lab, "runs", "--lab", hosts_file(lab, python="/none/python"), "--env", "none")
    assert (code, out, left_out(err)) == (0, "", ["h1", "off"])


def asked(port: int, path: str, cookie: str = "") -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request("GET", path, headers={"Cookie": cookie})
        response = connection.getresponse()
        return response.status, response.headers.get("Set-Cookie", "").partition(";")[0], response.read()
    finally:
        connection.close()


@pytest.mark.parametrize(("client", "number"), [("paramiko", signal.SIGKILL), ("openssh", signal.SIGINT)])
def test_the_page_of_another_host(lab: Lab, client: str, number: signal.Signals) -> None:
    with start(lab, "view", "--on", "h1", "--hosts", hosts_file(lab, client)) as process:
        assert process.stdout is not None and process.stderr is not None
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]+)\n", process.stdout.readline())
        assert found is not None, process.stderr.read()
        port, served = int(found[1]), lab.hosts[1].processes("--until-eof view")
        assert served
        with lab.here():
            assert asked(port, "/?token=wrong")[0] == asked(port, "/api/runs")[0] == 403
            status, cookie, _ = asked(port, f"/?token={found[2]}")
            assert status == 303
            status, _, content = asked(port, "/api/runs", cookie)
        assert (status, [run["name"] for run in json.loads(content)["runs"]]) == (200, ["a"])
        process.send_signal(number)
        out, err = process.communicate(timeout=WAIT_S)
        until(lambda: not lab.hosts[1].processes("--until-eof view"), "the end of the command there")
        if number == signal.SIGINT:
            assert (process.returncode, err) == (0, "") and out.endswith("ended\n")


@pytest.mark.parametrize(
    ("words", "python", "message"),
    [
        (("missing",), None, "zmqrl: missing is not a folder"),
        ((), "/none/python", "zmqrl does not start on this host"),
        (("--port", "{}"), None, "cannot be used"),
    ],
)
def test_a_page_that_cannot_be_shown_is_one_message(
    lab: Lab, words: tuple[str, ...], python: str | None, message: str
) -> None:
    with lab.here(), socket.create_server(("127.0.0.1", 0)) as server:
        given = [word.format(server.getsockname()[1]) for word in words]
        changes = {} if python is None else {"python": python}
        code, out, err = end(lab, "view", *given, "--on", "h1", "--hosts", hosts_file(lab, **changes))
    assert (code, out, err.count("zmqrl: "), err.count(message)) == (2, "", 1, 1)
    until(lambda: not lab.hosts[1].processes("--until-eof view"), "the end of the command there")
