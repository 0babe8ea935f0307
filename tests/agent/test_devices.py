"""Which GPUs the processes of a host see, and that a second run of one's own takes another one."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.agent.plans import stand_in_plan
from zmqrl.agent.devices import Devices, choose_devices, claimed, needs_gpus
from zmqrl.agent.host_lock import HostLock, registered
from zmqrl.config.codec import replace
from zmqrl.config.plan import Boot
from zmqrl.config.sections import DefaultsSection, HostSection, LearnerSection, NetworkSection
from zmqrl.errors import ConfigError
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


def test_who_needs_none_is_given_none(tmp_path: Path) -> None:
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
    with pytest.raises(ConfigError, match=r"hosts.local.worker_device: cuda: no GPU is visible"):
        decided(boot(tmp_path, "cpu", "cuda"), environ={"CUDA_VISIBLE_DEVICES": ""})


def test_a_second_run_of_ones_own_takes_another_gpu(tmp_path: Path) -> None:
    folder, told, seen = tmp_path / "agents", list[str](), []
    with ExitStack() as stack:
        for number in range(4):
            own = boot(tmp_path, run_id=f"run-{number}")
            registration = stack.enter_context(registered(own, "", print, folder))
            seen.append(claimed(own, registration, GPUS, {}, told.append).visible["learner"])
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
        assert claimed(one, first, GPUS, {}, print).visible == {"learner": "GPU-1"}
