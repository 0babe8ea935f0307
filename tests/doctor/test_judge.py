"""Judging is pure: a sound measurement, one thing wrong with it at a time, and what is said of it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace as edited

from zmqrl.config.codec import replace
from zmqrl.doctor.fault import HostFault
from zmqrl.doctor.judge import judge, judge_all
from zmqrl.doctor.links import why_it_ended
from zmqrl.doctor.measurement import ClockFacts, Failure, Hello, Measurement, StoreFacts
from zmqrl.doctor.needs import HostNeed, Needs
from zmqrl.doctor.report import grouped, print_report
from zmqrl.messages.doctor import (
    Answer,
    Curve,
    EnvFacts,
    Folder,
    Folders,
    Listening,
    Lock,
    Locks,
    Machine,
    Reached,
)
from zmqrl.types import Gpu, GpuProcess

VERSIONS: Mapping[str, str | None] = {
    "python": "3.11.7",
    "byteorder": "little",
    "protocol": "1",
    "examination": "1",
    "zmqrl": "0.1.0",
    "pyzmq": "27.3.0",
    "msgpack": "1.2.4",
    "msgspec": "0.22.0",
    "numpy": "2.4.6",
    "gymnasium": "1.4.0",
    "psutil": "7.2.2",
    "torch": "2.13.0",
}
ROOMY = Folder("/d/zmqrl", "/d", 50_000_000_000, 1_000_000, None)
PORTS: Mapping[str, str | None] = {"27100": None, "27101": None, "27102": None}
SOUND = Measurement(
    "node07",
    Hello("node07", "rl", "/v/python", VERSIONS),
    ClockFacts(0.002, 0.01),
    Machine(8, 0.1, 16_000_000_000, False, {}, ()),
    Locks(()),
    Folders(ROOMY, None),
    Curve(True, 800.0),
    None,
    Reached((Answer("10.0.0.5", PORTS, 0.2),)),
    StoreFacts(True, 0.01, None),
    EnvFacts("done", None, "float32 [4] -> discrete 2", 1e5, True, None, "d1", ""),
)
LISTENS = Listening((1, 2, 3), ("10.0.0.5",), "server")
LEARNER = replace(SOUND, host="gpu1", reached=None, store=None, listening=LISTENS)
NEEDS = Needs(
    hosts={
        "gpu1": HostNeed(True, 0, False, False, "~/py", "ssh gpu1"),
        "node07": HostNeed(False, 6, True, False, "~/py", "ssh rl@node07"),
    },
    learner="gpu1",
    hosts_file="hosts.yaml",
    versions=VERSIONS,
    started_by="anna@lap",
    curve=True,
    learner_mb=1000.0,
    arena_mb=600.0,
    worker_mb=60.0,
    store="/nfs/rl",
    port=27100,
    device="auto",
    share_gpu=False,
    is_gpu_of_use=False,
    acts_with_torch=False,
    acts_with_onnx=False,
    mode="sync",
    refusal=None,
)


def test_a_run_of_a_shared_account_is_ended_by_who_started_it() -> None:
    def fix(launcher: str) -> str:
        lock = Lock("6a2b", "rl", True, 77, 60.0, 2, launcher)
        return only(judge(replace(SOUND, locks=Locks((lock,))), NEEDS)).fix

    assert fix("anna@lap") == "if it is yours, stop it: `zmqrl down 6a2b`; or wait"
    assert fix("ben@lap") == "ask ben@lap; or wait" and fix("anna@desk") == "ask anna@desk; or wait"


def only(found: list[HostFault]) -> HostFault:
    assert len(found) == 1, found
    return found[0]


def test_a_sound_host_has_nothing() -> None:
    assert judge(SOUND, NEEDS) == [] and judge(LEARNER, NEEDS) == []
    assert judge_all({"gpu1": LEARNER, "node07": SOUND}, NEEDS) == []


def test_a_host_of_another_kind_is_not_set_up_by_ssh() -> None:
    needs = replace(NEEDS, hosts={**NEEDS.hosts, "node07": HostNeed(False, 6, True, False, "/py", "", by_ssh=False)})
    fault = only(judge(replace(SOUND, **hello(zmqrl="0.0.9")), needs))
    assert "a checkout of zmqrl 0.1.0 there, run /py -m pip install" in fault.fix and "setup" not in fault.fix


def hello(**changed: str | None) -> dict[str, Any]:
    return {"hello": Hello("node07", "rl", "/v/python", {**VERSIONS, **changed})}


WORKDIR = "hosts.node07.workdir"
GRAVE: Mapping[str, tuple[dict[str, Any], str, str, str]] = {
    "another version": (
        hello(zmqrl="0.0.9"),
        "versions",
        "zmqrl 0.0.9 there, 0.1.0 here",
        "zmqrl setup hosts.yaml --limit node07",
    ),
    "other requests of the doctor": (hello(examination="9"), "versions", "examination 9 there, 1 here", "zmqrl setup"),
    "another protocol": (hello(protocol="2"), "versions", "protocol 2 there, 1 here", "zmqrl setup"),
    "a processor that may reorder stores": (
        hello(machine="aarch64"),
        "processor",
        "the processor is aarch64, and run.mode sync needs x86-64",
        "hosts.node07.workers: 0",
    ),
    "a package missing": (hello(msgpack=None), "packages", "missing in /v/python: msgpack", "zmqrl setup"),
    "no room": (
        {"folders": Folders(edited(ROOMY, free_bytes=5_000_000), None)},
        "workdir",
        "has 5 MB left",
        WORKDIR,
    ),
    "inodes, no room": ({"folders": Folders(edited(ROOMY, free_inodes=57), None)}, "workdir", "57 inodes", "df -i /d"),
    "read-only": (
        {"folders": Folders(edited(ROOMY, error="/d: Read-only file system"), None)},
        "workdir",
        "Read-only",
        WORKDIR,
    ),
    "little memory": (
        {"machine": Machine(8, 0.1, 200_000_000, False, {}, ())},
        "memory",
        "200 MB are available, 6 workers need about 360 MB",
        "hosts.node07.workers",
    ),
    "no encryption": (
        {"curve": Curve(False, None)},
        "CURVE",
        "built without encryption",
        "pip install --force-reinstall pyzmq",
    ),
    "no loopback": ({"curve": Curve(True, None)}, "CURVE", "no answer", "ip link show lo"),
    "no port answers": (
        {"reached": Reached((Answer("10.0.0.5", dict.fromkeys(PORTS, "connection refused"), None),))},
        "ports",
        "10.0.0.5 ports 27100, 27101, 27102: connection refused",
        "open ports 27100-27102 on gpu1, set learner.address, or set hosts.node07.tunnel: true",
    ),
    "one port of three": (
        {"reached": Reached((Answer("10.0.0.5", {**PORTS, "27101": "filtered"}, 0.2),))},
        "ports",
        "10.0.0.5 port 27101: filtered",
        "open ports",
    ),
    "no address": ({"reached": Reached(())}, "ports", "gpu1 has only loopback addresses", "learner.address"),
    "an env that fails": ({"env": EnvFacts(error="no simulator")}, "env", "no simulator", "code.sync"),
    "another's run": (
        {"locks": Locks((Lock("6a2b", "anna", False, 77, 7200.0, 15, "anna@lap"),))},
        "lock",
        "busy: run 6a2b (pid 77, for 2 h, 15 workers) of user anna",
        "--limit",
    ),
    "no connection": ({"failure": Failure("ssh", "refused", "ask")}, "ssh", "refused", "ask"),
    "silence": ({"failure": Failure("answer", "no answer")}, "answer", "no answer", "ssh rl@node07 'uptime; df"),
}


def test_a_host_without_the_runtime_of_its_workers() -> None:
    measured = replace(SOUND, **hello(onnxruntime=None))
    assert judge(measured, NEEDS) == []
    fault = only(judge(measured, replace(NEEDS, acts_with_onnx=True)))
    assert fault.check == "packages" and "onnxruntime, with which workers act" in fault.cause
    assert fault.fix.endswith("zmqrl setup hosts.yaml --limit node07 --extras onnx")


@pytest.mark.parametrize("name", GRAVE)
def test_a_blocking_condition(name: str) -> None:
    changed, check, cause, fix = GRAVE[name]
    fault = only(judge(replace(SOUND, **changed), NEEDS))
    assert fault.severity == "error" and fault.host == "node07" and fault.check == check
    assert cause in fault.cause and fix in fault.fix


def test_another_users_run_is_a_warning_on_a_host_that_is_shared() -> None:
    shared = replace(NEEDS.hosts["node07"], neighbours="warned")
    needs = replace(NEEDS, hosts={**NEEDS.hosts, "node07": shared})
    fault = only(judge(replace(SOUND, **GRAVE["another's run"][0]), needs))
    assert fault.check == "lock" and fault.severity == "warning"


def test_a_host_of_another_kind_than_ssh_is_not_called_unreachable_over_ssh() -> None:
    needs = replace(NEEDS, hosts={host: replace(need, by_ssh=False) for host, need in NEEDS.hosts.items()})
    assert only(judge(replace(SOUND, failure=Failure("ssh", "down", "wait")), needs)).check == "connection"


MILD: Mapping[str, tuple[dict[str, Any], str, str]] = {
    "another numpy": (hello(numpy="1.26.0"), "versions", "numpy 1.26.0 there, 2.4.6 here"),
    "no torch where only workers are": (hello(torch=None), "versions", "torch none there"),
    "clock ahead": ({"clock": ClockFacts(3600.0, 0.01)}, "clock", "1 h ahead of this machine (+- 5 ms)"),
    "clock behind": ({"clock": ClockFacts(-90.0, 0.01)}, "clock", "1.5 min behind"),
    "own run": (
        {"locks": Locks((Lock("6a2b", "rl", True, 77, 60.0, 2, "anna@lap"),))},
        "lock",
        "run 6a2b (pid 77, for 1 min, 2 workers), started from anna@lap",
    ),
    "busy": ({"machine": Machine(8, 7.5, 16_000_000_000, False, {}, ())}, "load", "load 7.5 on 8 cores"),
    "too many workers": ({"machine": Machine(4, 0.1, 16_000_000_000, False, {}, ())}, "cores", "6 workers for 4 cores"),
    "little room": (
        {"folders": Folders(edited(ROOMY, free_bytes=500_000_000), None)},
        "workdir",
        "500 MB left",
    ),
    "few inodes": ({"folders": Folders(edited(ROOMY, free_inodes=500), None)}, "workdir", "500 inodes left"),
    "another store": ({"store": StoreFacts(False, None, "/nfs: No such file or directory")}, "store", "No such file"),
    "a slow store": ({"store": StoreFacts(True, 2.5, None)}, "store", "after 2.5 s"),
    "slow encryption": ({"curve": Curve(True, 40.0)}, "CURVE", "40 MB/s"),
    "far away": ({"reached": Reached((Answer("10.0.0.5", PORTS, 180.0),))}, "round trip", "180 ms"),
    "an env that drifts": (
        {"env": edited(SOUND.env or EnvFacts(), repeats=False, differing="3 of 8 envs")},
        "env",
        "3 of 8 envs",
    ),
    "an env that hangs": ({"env": EnvFacts("checker, out of time")}, "env", "checker, out of time"),
    "the checker": (
        {"env": edited(SOUND.env or EnvFacts(), checker="no seed in reset")},
        "env checker",
        "no seed",
    ),
}


@pytest.mark.parametrize("name", MILD)
def test_what_is_worth_knowing(name: str) -> None:
    changed, check, cause = MILD[name]
    warning = only(judge(replace(SOUND, **changed), NEEDS))
    assert warning.severity == "warning" and warning.check == check and warning.fix
    assert cause in warning.cause


def test_the_clock_of_the_learners_host_ends_no_run() -> None:
    warning = only(judge(replace(LEARNER, clock=ClockFacts(3600.0, 0.01)), NEEDS))
    assert warning.severity == "warning" and "times in logs and files" in warning.cause


def test_the_learners_host_needs_room_for_the_arena_a_store_its_device_and_torch() -> None:
    changed = replace(
        LEARNER,
        machine=Machine(8, 0.1, 900_000_000, False, {}, ()),
        folders=Folders(ROOMY, Folder("/nfs/rl", "/nfs", 0, None, "/nfs: Permission denied")),
        listening=Listening((), (), "", "port 27100: Address already in use by pid 5 (redis) of anna"),
        **hello(torch=None),
    )
    found = {
        fault.check: fault for fault in judge(changed, replace(NEEDS, device="cuda:0")) if fault.severity == "error"
    }
    assert set(found) == {"memory", "store", "ports", "device", "packages"}
    assert "(arena 600 MB)" in found["memory"].cause and "replay.capacity" in found["memory"].fix
    assert "by pid 5 (redis) of anna" in found["ports"].cause and "learner.port" in found["ports"].fix
    assert found["store"].fix.endswith("store.path") and "torch" in found["packages"].cause


def test_one_address_of_several_is_enough_and_no_curve_is_no_fault_on_one_machine() -> None:
    wrong = Answer("192.168.1.5", dict.fromkeys(PORTS, "no answer"), None)
    assert judge(replace(SOUND, reached=Reached((wrong, Answer("10.0.0.5", PORTS, 0.2)))), NEEDS) == []
    assert judge(replace(SOUND, curve=Curve(False, None)), replace(NEEDS, curve=False)) == []


def test_envs_are_held_against_that_of_the_learners_host() -> None:
    env = SOUND.env or EnvFacts()
    wider = replace(SOUND, env=edited(env, spaces="float32 [5] -> discrete 2"))
    fault = only(judge_all({"gpu1": LEARNER, "node07": wider}, NEEDS))
    assert fault.severity == "error" and "on gpu1 float32 [4]" in fault.cause
    other_bits = replace(SOUND, env=edited(env, digest="d2"))
    assert only(judge_all({"gpu1": LEARNER, "node07": other_bits}, NEEDS)).severity == "warning"
    assert judge_all({"gpu1": LEARNER, "node07": other_bits}, replace(NEEDS, mode="async")) == []


def test_a_gpu_of_another_user_and_one_that_does_not_exist_are_faults() -> None:
    annas = Gpu(0, "GPU-0", "NVIDIA A100", 70000, 81920, False, (GpuProcess(7, "anna", False, 69990),))
    assert LEARNER.machine is not None
    with_gpu = replace(LEARNER, machine=edited(LEARNER.machine, nvidia=True, gpus=(annas,)))
    assert judge(with_gpu, NEEDS) == [], "auto, and a network that is trained on the processor"
    for device, says in (("cuda:0", "in use by other users"), ("cuda:1", "found: cuda:0 NVIDIA A100, 68.4 of 80.0 GB")):
        fault = only(judge(with_gpu, replace(NEEDS, device=device)))
        assert (fault.check, fault.severity) == ("device", "error") and says in fault.cause
        assert "by anna" in fault.cause
    assert "learner.share_gpu: true" in only(judge(with_gpu, replace(NEEDS, is_gpu_of_use=True))).cause
    assert judge(with_gpu, replace(NEEDS, device="cuda:0", share_gpu=True)) == []
    out = io.StringIO()
    print_report({"gpu1": with_gpu}, [], [], out, None)
    assert "A100 68/80 GB anna" in out.getvalue()


def test_hosts_on_which_acting_computes_other_bits_are_one_warning() -> None:
    def acting(measured: Measurement, digest: str) -> Measurement:
        assert measured.machine is not None
        return replace(measured, machine=edited(measured.machine, acting={"numpy": digest}))

    needs = replace(NEEDS, hosts=NEEDS.hosts | {"gpu1": replace(NEEDS.hosts["gpu1"], workers=1)})
    alike = {"gpu1": acting(LEARNER, "d1"), "node07": acting(SOUND, "d1")}
    assert judge_all(alike, needs) == []
    differ = alike | {"node07": acting(SOUND, "d2")}
    assert judge_all(differ, NEEDS) == [], "no worker acts on gpu1"
    fault = only(judge_all(differ, needs))
    assert (fault.host, fault.severity) == ("hosts", "warning")
    assert fault.cause.startswith("node07: acting computes other bits there than on gpu1")
    assert judge_all(differ, replace(needs, mode="async")) == []


def test_what_launch_would_refuse_is_a_fault_and_comes_first() -> None:
    late = replace(SOUND, clock=ClockFacts(90.0, 0.01))
    refused = replace(NEEDS, refusal="replay.capacity: too little")
    first, second = judge_all({"gpu1": LEARNER, "node07": late}, refused)
    assert first.severity == "error" and "replay.capacity" in first.cause and second.severity == "warning"


@pytest.mark.parametrize(
    ("code", "stderr", "check", "says"),
    [
        (127, "sh: 1: exec: /opt/py: not found", "python", "/opt/py: not found"),
        (126, "sh: /opt/py: Permission denied", "python", "Permission denied"),
        (1, "/usr/bin/python3: No module named zmqrl", "zmqrl", "is missing"),
        (
            1,
            "/v/python: Error while finding module specification (ModuleNotFoundError: No module named 'zmqrl.doctor')",
            "zmqrl",
            "another version",
        ),
        (1, "Traceback\nModuleNotFoundError: No module named 'numpy'\n", "packages", "'numpy'"),
        (-1, "", "probe", "no output"),
        (None, "Killed\n\n", "probe", "code unknown): Killed"),
    ],
)
def test_a_remote_program_that_ends_early_reports_why(code: int | None, stderr: str, check: str, says: str) -> None:
    failure = why_it_ended(code, stderr)
    assert failure.check == check and says in failure.cause
    assert only(judge(Measurement("node07", failure=failure), NEEDS)).fix


def test_equal_findings_of_several_hosts_are_one_text() -> None:
    loads = [
        HostFault(f"node{n:02}", "load", f"load {n}.5 on 2 cores", f"ssh node{n:02} top", "warning")
        for n in (1, 2, 3, 7)
    ]
    other = HostFault("node04", "disk", "no space", "free some")
    assert grouped([*loads[:2], other, *loads[2:]]) == [
        "node[01:03], node07: load: load 1.5 on 2 cores (node01; likewise the others)\n   ssh node01 top",
        "node04: disk: no space\n   free some",
    ]
    assert grouped([replace(other, host=host) for host in ("a", "b")]) == ["a, b: disk: no space\n   free some"]
    runs = [
        HostFault(host, "lock", f"run {n} is active", "wait", "warning") for host, n in (("a", 1), ("b", 1), ("a", 2))
    ]
    assert grouped(runs) == ["a, b: lock: run 1 is active\n   wait", "a: lock: run 2 is active\n   wait"]
