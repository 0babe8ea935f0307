"""Which GPUs the processes of a host see, and that a second run of one's own takes another one."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.agent.plans import stand_in_plan
from tests.support.raising import raises
from zmqrl.agent.devices import Devices, choose_devices, claimed, needs_gpus
from zmqrl.agent.process_spawner import ProcessSpawner
from zmqrl.config.codec import replace
from zmqrl.config.plan import Boot
from zmqrl.config.sections import DefaultsSection, HostSection, LearnerSection, NetworkSection
from zmqrl.entry import PARENT_VARIABLE
from zmqrl.errors import ConfigError
from zmqrl.supervision.host_lock import HostLock, registered
from zmqrl.supervision.restarts import ProcessSlot
from zmqrl.types import Gpu, ModeName

GPUS = [Gpu(index, f"GPU-{index}", "NVIDIA L4", 10 * index, 23034, False) for index in range(3)]


def boot(
    tmp_path: Path,
    device: str = "auto",
    worker_device: str | None = "cpu",
    host: str = "local",
    network: str = "cnn",
    mode: ModeName = "sync",
    run_id: str = "one",
) -> Boot:
    plan = stand_in_plan(tmp_path / "run", mode)
    config = replace(
        plan.config,
        learner=LearnerSection(device=device),
        network=NetworkSection(kind=network),
        hosts={host: HostSection(workers=1, worker_device=worker_device)},
    )
    acting = {"runtime": "numpy" if network == "mlp" else "torch"}
    return Boot("agent", 0, 0, host, replace(plan, config=config, acting=acting, run_id=run_id), workers=(0,))


def usable(gpu: Gpu) -> None:
    """What torch says of a GPU that it can use."""


def too_old(gpu: Gpu) -> str:
    return f"the driver of {gpu.uuid} is too old"


def decided(of: Boot, gpus: list[Gpu] = GPUS, environ: dict[str, str] | None = None, taken: Any = ()) -> Devices:
    return choose_devices(of, gpus, environ or {}, taken)


def test_each_process_sees_its_gpu_alone(tmp_path: Path) -> None:
    found = decided(boot(tmp_path))
    assert (found.visible, found.boot.device) == ({"learner": "GPU-0"}, "cpu"), "workers see none"
    both = decided(boot(tmp_path, "cuda:1", "cuda"))
    assert both.visible == {"learner": "GPU-1", "worker": "GPU-0"}
    assert (both.boot.plan.config.learner.device, both.boot.device, both.acting_gpu) == ("cuda", "cuda", "NVIDIA L4")
    alone = decided(boot(tmp_path, "auto", "cuda"), GPUS[:1])
    assert alone.visible == {"learner": "GPU-0", "worker": "GPU-0"}, "rather than none"


def test_workers_have_the_device_of_the_defaults_where_their_host_has_none(tmp_path: Path) -> None:
    for of_host, of_all, expected in ((None, "auto", "GPU-1"), ("cpu", "auto", None), ("cuda:2", "cpu", "GPU-2")):
        one = boot(tmp_path, worker_device=of_host)
        config = replace(one.plan.config, defaults=DefaultsSection(worker_device=of_all))
        found = decided(replace(one, plan=replace(one.plan, config=config)))
        assert found.visible.get("worker") == expected, (of_host, of_all)


def test_a_role_without_need_gets_no_gpu(tmp_path: Path) -> None:
    assert not needs_gpus(boot(tmp_path, network="mlp")) and needs_gpus(boot(tmp_path, "cuda", network="mlp"))
    assert not needs_gpus(boot(tmp_path, "cpu")) and needs_gpus(boot(tmp_path, "cpu", "auto"))
    assert not needs_gpus(boot(tmp_path, "cpu", "cuda", network="mlp")), "its workers act with numpy"
    assert not needs_gpus(boot(tmp_path, "cpu", "cuda", mode="single")), "the learner acts"
    assert not needs_gpus(boot(tmp_path, "cuda", host="node02")), "the learner is on another host"


@pytest.mark.parametrize(("gpus", "environ"), [([], {}), (GPUS, {"CUDA_VISIBLE_DEVICES": "MIG-1"})])
def test_without_nvidia_smi_and_with_mig_the_processes_look_for_themselves(
    tmp_path: Path, gpus: list[Gpu], environ: dict[str, str]
) -> None:
    found = decided(boot(tmp_path, "cuda:0", "auto"), gpus, environ)
    assert found.visible == {"learner": None, "worker": None}
    assert (found.boot.plan.config.learner.device, found.boot.device) == ("cuda:0", "auto")
    assert decided(boot(tmp_path, "cuda:0"), gpus, environ).visible == {"learner": None}


def test_the_gpus_of_an_allocation_count(tmp_path: Path) -> None:
    assert decided(boot(tmp_path), environ={"CUDA_VISIBLE_DEVICES": "2"}).visible == {"learner": "GPU-2"}
    none = decided(boot(tmp_path, "auto", "auto"), environ={"CUDA_VISIBLE_DEVICES": ""})
    assert (none.visible, none.boot.device, none.acting_gpu) == ({"learner": None}, "cpu", "")
    with raises(ConfigError, key=("hosts", "local", "worker_device"), value="cuda"):
        decided(boot(tmp_path, "cpu", "cuda"), environ={"CUDA_VISIBLE_DEVICES": ""})


def test_a_second_run_of_ones_own_takes_another_gpu(tmp_path: Path) -> None:
    folder, told, seen = tmp_path / "agents", list[str](), []
    with ExitStack() as stack:
        for number in range(4):
            own = boot(tmp_path, run_id=f"run-{number}")
            registration = stack.enter_context(registered(own, "", print, folder))
            seen.append(claimed(own, registration, GPUS, {}, told.append, usable).visible["learner"])
        assert seen == ["GPU-0", "GPU-1", "GPU-2", "GPU-0"]
        assert "GPU of the learner: cuda:2 NVIDIA L4" in told[2] and "yours" not in told[2]
        assert "other processes of yours are on it" in told[3]
        assert sorted(entry.gpus for entry in HostLock(folder).entries()) == ["GPU-0", "GPU-0", "GPU-1", "GPU-2"]
    assert not HostLock(folder).entries()


def test_two_runs_that_choose_at_once_do_not_keep_the_same_gpu(tmp_path: Path) -> None:
    folder = tmp_path / "agents"
    one, other = boot(tmp_path, run_id="one"), boot(tmp_path, run_id="other")
    with registered(one, "", print, folder) as first, registered(other, "", print, folder) as second:
        hold = first.hold

        def at_once(gpus: tuple[str, ...]) -> None:
            second.hold(["GPU-0"])  # after this one has looked, before it has written
            hold(gpus)

        vars(first)["hold"] = at_once
        assert claimed(one, first, GPUS, {}, print, usable).visible == {"learner": "GPU-1"}


def test_what_auto_chose_is_required_of_the_processes(tmp_path: Path) -> None:
    """A worker that acted on the processor in its place would compute other bits than its host has announced."""
    found = decided(boot(tmp_path, "auto", "auto"))
    assert (found.boot.plan.config.learner.device, found.boot.device, found.acting_gpu) == ("cuda", "cuda", "NVIDIA L4")


@pytest.mark.parametrize("of_defaults", [False, True])
def test_a_gpu_that_torch_cannot_use_is_reported_and_not_taken_by_auto(tmp_path: Path, of_defaults: bool) -> None:
    told, own = list[str](), boot(tmp_path, "auto", None if of_defaults else "auto")
    if of_defaults:
        config = replace(own.plan.config, defaults=DefaultsSection(worker_device="auto"))
        own = replace(own, plan=replace(own.plan, config=config))
    with registered(own, "", print, tmp_path / "agents") as registration:
        found = claimed(own, registration, GPUS, {}, told.append, too_old)
        assert [entry.gpus for entry in HostLock(tmp_path / "agents").entries()] == [""], "it is left to others"
    assert (found.boot.plan.config.learner.device, found.boot.device) == ("cpu", "cpu")
    assert (found.uuids, found.acting_gpu) == ((), ""), "the digest of the host is that of its processor"
    assert len(told) == 1 and "GPU of the learner" not in told[0]
    assert "cuda:0 NVIDIA L4" in told[0] and "the driver of GPU-0 is too old" in told[0]
    assert "learner and workers" in told[0]


def test_torch_is_asked_of_what_auto_chose_alone(tmp_path: Path) -> None:
    """What is configured by name is required: the process that cannot use it fails with the cause."""
    asked, told = list[str](), list[str]()

    def fault(gpu: Gpu) -> str:
        asked.append(gpu.uuid)
        return too_old(gpu)

    own = boot(tmp_path, "cuda:1", "auto")
    with registered(own, "", print, tmp_path / "agents") as registration:
        found = claimed(own, registration, GPUS, {}, told.append, fault)
    assert asked == ["GPU-0"] and found.visible == {"learner": "GPU-1"}
    assert (found.boot.plan.config.learner.device, found.boot.device) == ("cuda", "cpu")
    assert "workers" in told[0] and told[1].startswith("GPU of the learner: cuda:1")


def test_the_variable_of_each_process_is_that_of_its_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    code = ("sh", "-c", 'read boot; echo "sees ($CUDA_VISIBLE_DEVICES)"')
    spawner = ProcessSpawner(tmp_path, PARENT_VARIABLE, lambda *_: code, {"learner": "GPU-1", "evaluator": None})
    for role, seen in (("learner", "GPU-1"), ("evaluator", "1,2"), ("worker", "")):
        child = spawner.start(boot(tmp_path), ProcessSlot(role, 0), 0, {})  # type: ignore[arg-type]
        child.process.wait()
        child.close()
        assert child.log_tail() == (f"sees ({seen})",)
