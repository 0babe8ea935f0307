"""What an orchestrator promises, over real runs whose env and algorithm are fakes. A maker returns `Hosts`."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zmqrl.config.sections import HostSection
from zmqrl.messages.agent import Exited, HostFinished, Started, Warned
from zmqrl.messages.command import Lease, Stop
from zmqrl.messages.orchestrator import AgentExited, Handshake, Reaped
from zmqrl.messages.process import FirstStep, LearnerEnded, Ready
from zmqrl.orchestrators.base import Teardown
from zmqrl.testing.deployed import (
    ENDLESS,
    REAP_GRACE_S,
    SETTINGS,
    START_S,
    Hosts,
    HostsMaker,
    await_gone,
    deployed,
    launched,
    nested,
    output_of,
    settings_of,
)
from zmqrl.testing.expect import assert_within, checks_of, is_frozen_config, until
from zmqrl.wire.runtime_folder import remove_left_folder

DEPLOY_S, COMMAND_S, MONITOR_S = 2.0, 0.5, 1.0
EARLY_GRACE_S = 20.0
"""Grace of an `undeploy` that needs none."""
RUN_S = 300.0


def config_is_a_frozen_dataclass(make: HostsMaker) -> None:
    """The keys of hosts.yaml are validated against `Config`, and no process changes them."""
    with deployed(make) as run:
        is_frozen_config(type(run.orchestrator).Config)


def construction_starts_nothing(make: HostsMaker) -> None:
    """No process exists before `deploy`; `undeploy` then has nothing to end, and may be called twice."""
    with deployed(make) as run:
        run.await_gone()
        assert run.undeploy(0.1) == Teardown(ended=0)
        assert run.undeploy(0.1) == Teardown(ended=0)


def no_call_waits_for_a_host(make: HostsMaker) -> None:
    """`deploy` and `command` return at once, `monitor` after its time-out: one thread of the launcher does all this."""
    with deployed(make) as run:
        begun = time.monotonic()
        run.deploy()
        assert_within(time.monotonic() - begun, DEPLOY_S, "deploy")
        begun = time.monotonic()
        run.orchestrator.command(None, Lease())
        run.orchestrator.command(run.hosts[-1], Lease())
        assert_within(time.monotonic() - begun, COMMAND_S, "command")
        begun = time.monotonic()
        run.orchestrator.monitor(0.05)
        assert_within(time.monotonic() - begun, MONITOR_S, "monitor(0.05)")


def an_early_end_leaves_nothing(make: HostsMaker) -> None:
    """`undeploy` directly after `deploy` ends what is being started, on every host, and gives it no grace."""
    with deployed(make) as run:
        run.deploy()
        begun = time.monotonic()
        teardown = run.undeploy(EARLY_GRACE_S)
        took_s = time.monotonic() - begun
        assert teardown.left == (), teardown
        assert_within(took_s, EARLY_GRACE_S / 2, "undeploy")
        run.await_gone()


def events_come_in_order(make: HostsMaker) -> None:
    """The first event of each host is `Handshake`; the last of the learner's host are `HostFinished`, `AgentExited`."""
    with deployed(make, total_env_steps=256) as run:
        run.deploy()
        ends = run.until(AgentExited, len(run.hosts))
        assert [end.code for end in ends] == [0] * len(run.hosts), str(run)
        for host in run.hosts:
            kinds = [type(event.event) for event in run.events if event.host == host]
            received = [kind for kind in kinds if kind is not Warned]
            assert received[0] is Handshake, f"{host}: {received[:3]}"
            assert received[-1] is AgentExited, f"{host}: {received[-3:]}"
            assert HostFinished in received, f"{host}: no HostFinished"
        assert len(run.of(Started)) >= run.process_count
        assert [ended.env_steps >= 256 for ended in run.of(LearnerEnded)] == [True]
        (ledger,) = (finished.ledger for finished in run.of(HostFinished) if finished.ledger is not None)
        assert ledger.balanced, ledger
        teardown = run.undeploy()
        assert teardown == Teardown(ended=run.process_count), teardown
        run.await_gone()


def a_stop_command_ends_the_run(make: HostsMaker) -> None:
    """`command(None, Stop())` reaches every agent: the learner ends at a version boundary, each agent with code 0."""
    with deployed(make, step_s=0.005) as run:
        run.deploy()
        run.until(Ready, run.process_count)
        run.orchestrator.command(None, Stop())
        ends = run.until(AgentExited, len(run.hosts))
        assert [end.code for end in ends] == [0] * len(run.hosts), str(run)
        assert run.undeploy().left == ()
        run.await_gone()


def undeploy_ends_a_running_run(make: HostsMaker) -> None:
    """SIGTERM first: every process ends on its own, and is counted."""
    with deployed(make, step_s=0.005) as run:
        run.deploy()
        run.until(Ready, run.process_count)
        teardown = run.undeploy()
        assert teardown == Teardown(ended=run.process_count), teardown
        run.await_gone()


def undeploy_names_what_it_had_to_kill(make: HostsMaker) -> None:
    """A worker that hangs and ignores SIGTERM is killed after the grace, and named `host/worker-index (pid n)`."""
    with deployed(make, fault="hang") as run:
        run.deploy()
        run.until(FirstStep, run.plan.total_workers)
        run.await_child_processes()
        teardown = run.undeploy(0.3)
        assert any("worker-0 (pid" in killed for killed in teardown.killed), teardown
        assert teardown.left == (), teardown
        run.await_gone()


def undeploy_verifies_after_an_agent_was_killed(make: HostsMaker) -> None:
    """When the agent is gone, the orchestrator itself ends what is left, also a process that an env has started."""
    with deployed(make, fault="orphan", step_s=0.001) as run:
        run.deploy()
        run.until(FirstStep, run.plan.total_workers)
        run.await_child_processes()
        run.machines.kill_agents(run.plan.run_id)
        for end in run.until(AgentExited, len(run.hosts)):
            assert end.introduced
            assert end.code != 0
        teardown = run.undeploy(1.0)
        assert teardown.left == (), teardown
        run.await_gone()


def a_killed_worker_is_started_again(make: HostsMaker) -> None:
    """The agent restarts a worker; the orchestrator forwards its events, with the process that they are about."""
    with deployed(make, fault="die") as run:
        run.deploy()
        died = run.until(Exited)[0]
        assert (died.cause, died.expected) == ("signal SIGKILL", False)
        who = next(event.process for event in run.events if isinstance(event.event, Exited))
        assert who[0] == "worker"

        def spawns() -> list[int]:
            run.take()
            events = [event for event in run.events if event.process == who]
            return [event.event.spawn for event in events if isinstance(event.event, Started)]

        until(lambda: 1 in spawns(), f"another start of {who}", START_S)
        assert run.undeploy(1.0).left == ()
        run.await_gone()


def a_lost_host_is_deployed_again(make: HostsMaker) -> None:
    """`deploy` with the boot of one host starts another agent there while the run continues, and its workers step."""
    with deployed(make, step_s=0.005) as run:
        run.deploy()
        run.until(FirstStep, run.plan.total_workers)
        for host in run.others:
            if host == run.plan.config.learner.host:
                continue  # the run ends with it
            run.end_host(host)
            run.until_of(host, Handshake, 2)
            run.until_of(host, FirstStep, 2 * run.plan.workers[host])
        assert run.undeploy().left == ()
        run.await_gone()


def a_refusal_is_a_sentence(make: HostsMaker) -> None:
    """`refusal` of a host that the plan does not have is None, or states why; it starts nothing."""
    with deployed(make) as run:
        begun = time.monotonic()
        why = run.orchestrator.refusal("a-new-host", HostSection(workers=1))
        assert_within(time.monotonic() - begun, COMMAND_S, "refusal")
        assert why is None or (isinstance(why, str) and why.strip()), repr(why)
        run.await_gone()


def cores_answer_for_every_host(make: HostsMaker) -> None:
    """`cores` knows every host without a run (`workers: auto`), and leaves nothing there."""
    with deployed(make) as run:
        found = run.access.cores(run.others)
        assert found.keys() == set(run.others), f"cores of {sorted(found)}, not of {sorted(run.others)}"
        assert all(type(count) is int and count >= 1 for count in found.values()), found
        run.await_gone()


def doctor_examines_every_host(make: HostsMaker) -> None:
    """`shells` leads to every host: an examiner starts there and answers."""
    hosts = make()
    file = hosts.folder / f"doctor-{secrets.token_hex(4)}.yaml"
    file.write_text(json.dumps(nested(settings_of(hosts, ENDLESS))), encoding="utf-8")
    command = [sys.executable, "-m", "zmqrl", "doctor", str(file), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.stdout, done.stderr
    for host, found in json.loads(done.stdout)["hosts"].items():
        assert found["failure"] is None and found["machine"] is not None, f"{host}: {found['failure']}"


def down_ends_a_run_and_reports_it(make: HostsMaker) -> None:
    """`reap` without the launcher ends every process of a run on each host, also one of an env, and names them."""
    with deployed(make, fault="orphan", step_s=0.005) as run:
        run.deploy()
        run.until(FirstStep, run.plan.total_workers)
        run.await_child_processes()
        found = run.reap()
        assert found.keys() == set(run.others), f"{sorted(found)}, not {sorted(run.others)}"
        for host, reaped in found.items():
            assert isinstance(reaped, Reaped) and not reaped.left, f"{host}: {reaped}"
            assert reaped.ended or reaped.killed, f"{host}: no process of a running run was found: {reaped}"
        assert run.undeploy(REAP_GRACE_S).left == ()
        run.await_gone()


def the_bits_are_those_of_one_machine(make: HostsMaker) -> None:
    """`zmqrl launch` over the hosts gives the sha256 of mode single, with exit code 0 and a balanced ledger."""
    hosts = make()
    over_hosts = _summary(hosts, settings_of(hosts, 1024), "hosts")
    alone = _summary(hosts, {**SETTINGS, "run.total_env_steps": 1024, "run.mode": "single"}, "alone")
    assert over_hosts["exit_code"] == alone["exit_code"] == 0, over_hosts
    assert over_hosts["ledger"]["balanced"], over_hosts["ledger"]
    assert over_hosts["weights_sha256"] == alone["weights_sha256"]


def nothing_outlives_a_killed_launcher(make: HostsMaker) -> None:
    """SIGKILL of `zmqrl launch`: within 5 s no process is left on any host, without any help."""
    hosts = make()
    with launched(hosts, settings_of(hosts, ENDLESS, {"step_s": 0.005}), "killed") as (process, run_dir):
        until(lambda: _env_steps(run_dir) or process.poll() is not None, "env steps", START_S)
        assert process.poll() is None, output_of(run_dir)
        run_id = str(json.loads((run_dir / "run.json").read_text(encoding="utf-8"))["run_id"])
        assert hosts.machines.processes((run_id,)), "Hosts.machines finds no process of a running run"
        process.kill()
        process.wait(START_S)
        await_gone(hosts.machines, run_id)
        remove_left_folder(run_id)


def _summary(hosts: Hosts, settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    with launched(hosts, settings, name) as (process, run_dir):
        code = process.wait(RUN_S)
        assert code == 0, f"exit code {code}:\n{output_of(run_dir)}"
        found: dict[str, Any] = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
        return found


def _env_steps(run_dir: Path) -> int:
    try:
        return int(json.loads((run_dir / "status.json").read_text(encoding="utf-8")).get("env_steps", 0))
    except (OSError, ValueError):
        return 0


ORCHESTRATOR = checks_of(__name__)
