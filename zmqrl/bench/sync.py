"""`zmqrl bench sync`: one round of sync mode, whole, with nothing to learn and nothing to simulate.

2 workers, 4 vector envs, N = 1, T = 1, a 2x64 network. A round is: two workers act and seal two segments each, the
broker accepts them, the learner gathers four, writes FULL, saves the version, sends the notice, the host agent fetches
and verifies it, the workers wake.
The yardstick of the same run is a bare round of two processes over pipes with the same bytes written to two files.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from zmqrl.bench.report import BenchResult, Figure, run_preset

PRESET = Path(__file__).with_name("sync_round.yaml")
VERSION_BYTES, FULL_BYTES = 40_000, 120_000
ROUNDS = 2000


def run(repeats: int = 3) -> BenchResult:
    """Rounds of the real system and bare ones, in turn."""
    ours: list[float] = []
    bare: list[float] = []
    for _ in range(repeats):
        summary = run_preset(str(PRESET), {"run.total_env_steps": 4 * ROUNDS})
        ours.append(4e3 / summary["env_steps_per_s"])
        bare.append(_bare_round_ms(ROUNDS))
    return BenchResult(
        "sync",
        [Figure("round", "ms", tuple(ours)), Figure("yardstick: two pipes and two files", "ms", tuple(bare))],
        {"workers": 2, "vector_envs": 4, "num_envs": 1, "segment_steps": 1, "rounds": ROUNDS, "target_ms": 1.5},
        [Figure("round / yardstick", "", tuple(a / b for a, b in zip(ours, bare, strict=True)))],
    )


def _bare_round_ms(rounds: int) -> float:
    """Mean time of: request to two processes, wait for both, write and rename two files."""
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(2)]
    children = [context.Process(target=_answer, args=(there,), daemon=True) for _, there in pairs]
    for child in children:
        child.start()
    ends = [here for here, _ in pairs]
    with tempfile.TemporaryDirectory() as folder:
        _bare_round(ends, folder)
        begun = time.perf_counter()
        for _ in range(rounds):
            _bare_round(ends, folder)
        elapsed_s = time.perf_counter() - begun
    for here in ends:
        here.send_bytes(b"")
    for child in children:
        child.join(10)
    return elapsed_s / rounds * 1e3


def _bare_round(ends: list[Connection], folder: str) -> None:
    for here in ends:
        here.send_bytes(b"go")
    for here in ends:
        here.recv_bytes()
    for size in (VERSION_BYTES, FULL_BYTES):
        path = os.path.join(folder, "version")
        with open(path + ".tmp", "wb") as file:
            file.write(bytes(size))
        os.rename(path + ".tmp", path)


def _answer(there: Connection) -> None:
    while there.recv_bytes():
        there.send_bytes(b"done")
