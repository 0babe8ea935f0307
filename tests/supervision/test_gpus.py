"""Which GPU a process takes, from recorded output of nvidia-smi."""

from __future__ import annotations

import os

import pytest

from zmqrl.errors import ConfigError
from zmqrl.supervision.gpus import choose, listed, owner_of, parse, visible_gpus
from zmqrl.types import Gpu

FOUR = """\
0, GPU-6f0cbe5a-8ab0-5b40-6e4c-1d2b9c0e7a01, NVIDIA A100-SXM4-80GB, 72911, 81920, Disabled
1, GPU-0b1c9d7e-1111-2222-3333-444455556666, NVIDIA A100-SXM4-80GB, 4, 81920, Disabled
2, GPU-0b1c9d7e-aaaa-bbbb-cccc-ddddeeeeffff, NVIDIA A100-SXM4-80GB, 1203, 81920, Disabled
3, GPU-77777777-8888-9999-aaaa-bbbbccccdddd, NVIDIA A100-SXM4-40GB, 0, 40960, Disabled
"""
PROCESSES = """\
GPU-6f0cbe5a-8ab0-5b40-6e4c-1d2b9c0e7a01, 4121, 72896
GPU-0b1c9d7e-aaaa-bbbb-cccc-ddddeeeeffff, 977, 1190
"""
OWNERS = {4121: ("anna", False), 977: ("me", True)}
LAPTOP = "0, GPU-1a2b3c4d-0000-1111-2222-333344445555, NVIDIA GeForce RTX 3060 Laptop GPU, 311, 6144, [N/A]\n"
DIVIDED = "0, GPU-4c3d0000-aaaa-0000-0000-000000000000, NVIDIA A100-PCIE-40GB, 20, 40960, Enabled\n"
UNIFIED = "0, GPU-90000000-aaaa-0000-0000-000000000000, NVIDIA GB10, [N/A], [N/A], [N/A]\n"
FAILED = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"


def machine(gpus: str = FOUR, processes: str = PROCESSES) -> list[Gpu]:
    return parse(gpus, processes, lambda pid: OWNERS.get(pid, ("", False)))


def chosen(device: str, gpus: list[Gpu], **options: object) -> int | None:
    gpu = choose("learner.device", device, gpus, **options)  # type: ignore[arg-type]
    return None if gpu is None else gpu.index


def refusal(device: str, gpus: list[Gpu]) -> str:
    with pytest.raises(ConfigError) as refused:
        choose("learner.device", device, gpus)
    return str(refused.value)


def test_recorded_output_is_read() -> None:
    used, free, own, _ = machine()
    assert (used.used_mib, used.total_mib, used.mig) == (72911, 81920, False)
    assert [(p.user, p.own, p.used_mib) for p in (*used.processes, *own.processes)] == [
        ("anna", False, 72896),
        ("me", True, 1190),
    ]
    assert free.processes == ()
    (laptop,), (divided,), (unified,) = machine(LAPTOP, ""), machine(DIVIDED, ""), machine(UNIFIED, "")
    assert (laptop.name, laptop.mig, divided.mig) == ("NVIDIA GeForce RTX 3060 Laptop GPU", False, True)
    assert (unified.used_mib, unified.total_mib) == (0, 0)
    assert machine(FAILED, FAILED) == []
    assert "cuda:0 NVIDIA A100-SXM4-80GB, 71.2 of 80.0 GB used, by anna" in listed(machine())


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_the_free_gpu_with_the_most_free_memory_is_taken(device: str) -> None:
    assert chosen(device, machine()) == 1
    first = machine()[1].uuid
    assert chosen(device, machine(), taken={first}) == 3, "another run of this user has it"
    rest = machine()[2:]
    assert chosen(device, rest, taken={gpu.uuid for gpu in rest}) == 3, "with those of this user rather than none"


def test_a_gpu_of_another_user_is_refused_by_name() -> None:
    gpus = machine()
    assert "cuda:0: in use by other users: cuda:0 NVIDIA A100-SXM4-80GB" in refusal("cuda:0", gpus)
    assert "by anna" in refusal("cuda:0", gpus) and "learner.share_gpu: true" in refusal("cuda:0", gpus)
    assert "every GPU is in use by other users" in refusal("auto", gpus[:1])
    assert (chosen("cuda:0", gpus, share=True), chosen("auto", gpus[:1], share=True)) == (0, 0)
    assert chosen("cuda:2", gpus) == 2, "one's own process is no reason"


def test_a_process_that_is_not_visible_counts_as_that_of_another() -> None:
    gpus = parse(FOUR, PROCESSES, lambda pid: ("", False))
    assert "by pid 4121" in refusal("cuda:0", gpus)


def test_an_index_that_does_not_exist_is_answered_with_the_list() -> None:
    message = refusal("cuda:7", machine())
    assert "cuda:7: this GPU does not exist; found: cuda:0 NVIDIA A100" in message and "cuda:3" in message
    assert "found: none" in refusal("cuda:0", []) and "no GPU is visible" in refusal("cuda", [])
    assert chosen("auto", []) is None


def test_a_gpu_that_is_divided_is_not_taken_as_a_whole() -> None:
    gpus = machine(DIVIDED, "")
    assert chosen("auto", gpus) is None
    assert "divided by MIG" in refusal("cuda", gpus) and "MIG-..." in refusal("cuda:0", gpus)


@pytest.mark.parametrize(
    ("variable", "indexes"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2, 0", [2, 0]),
        ("1,-1,2", [1]),
        ("GPU-777", [3]),
        ("GPU-0b1c9d7e-aaaa-bbbb-cccc-ddddeeeeffff", [2]),
        ("MIG-6c9d3d2a-0000-0000-0000-000000000000", None),
        ("9", None),
    ],
)
def test_the_variable_of_an_allocation_counts(variable: str | None, indexes: list[int] | None) -> None:
    found = visible_gpus(machine(), variable)
    uuids = [gpu.uuid for gpu in machine()]
    assert (None if found is None else [uuids.index(gpu.uuid) for gpu in found]) == indexes
    if found:
        assert [gpu.index for gpu in found] == list(range(len(found))), "counted among those that are visible"
        assert choose("learner.device", "cuda:0", found, share=True) == found[0]


def test_the_owner_of_a_process() -> None:
    assert owner_of(os.getpid())[1] and not owner_of((1 << 22) + 1)[0]
