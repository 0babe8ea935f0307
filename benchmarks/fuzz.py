"""Hostile bytes against the broker of a run that goes on: `python benchmarks/fuzz.py --messages 1000000`.

Starts a CartPole run, finds its sockets, and sends noise, half messages, wrong values and replayed ids by turns.
Prints rate, memory and what was refused, as JSON. Exit code 1 when the broker died, grew, or lost anything.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import zmq

from zmqrl.messages import bus
from zmqrl.messages.frames import PROTOCOL, pack, pack_descriptors, unpack
from zmqrl.types import SlotRef
from zmqrl.wire.runtime_folder import private_folder
from zmqrl.wire.sockets import connect

SOCKETS = ("segments", "descriptors", "notices", "control")
ANSWER_S = 30.0
PACE = 1000
"""Messages between two questions to the broker: what is on its way stays bounded."""
MOST_GROWTH_MB = 64.0
QUARTERS = 4
BIG_BYTES = 1 << 20
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
"""ZMTP 3.0, mechanism NULL, no server."""


def frame(message: dict[str, Any]) -> bytes:
    """A control message that no type vouches for."""
    return bytes(msgpack.packb([PROTOCOL, message]))


class BrokerDied(Exception):
    """It no longer answers."""


class Fuzzer:
    """Everything is drawn from `seed`. One thread."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._dice = folder, random.Random(seed)
        self._context: zmq.Context[Any] = zmq.Context()
        self._control = connect(self._context, zmq.DEALER, f"ipc://{folder}/control")
        self._segments = connect(self._context, zmq.PUSH, f"ipc://{folder}/segments")
        self._asking = connect(self._context, zmq.DEALER, f"ipc://{folder}/control")
        self.sent: Counter[str] = Counter()
        self.slowest_answer_s = 0.0
        self._attacks: dict[str, tuple[int, Callable[[], None]]] = {
            "noise": (30, lambda: self._say(self._noise())),
            "noise to segments": (30, lambda: self._push(self._noise())),
            "wrong version": (8, lambda: self._say(msgpack.packb([self._number(), self._heartbeat()]))),
            "unknown kind": (8, lambda: self._say(frame({**self._heartbeat(), "kind": self._word()}))),
            "mutated": (30, lambda: self._say(self._mutated(frame(self._heartbeat())))),
            "wrong values": (20, lambda: self._say(frame({**self._heartbeat(), "role": self._any()}))),
            "unknown process": (8, lambda: self._say(frame(self._heartbeat()))),
            "unknown worker": (8, lambda: self._say(self._unknown_worker())),
            "claimed lengths": (8, lambda: self._say(self._claimed_length())),
            "deep": (2, lambda: self._say(b"\x91" * self._dice.randrange(1, 5000))),
            "many frames": (8, lambda: self._say(*(self._noise(50) for _ in range(self._dice.randrange(2, 20))))),
            "descriptors": (20, lambda: self._push(self._descriptors())),
            "replayed": (8, lambda: self._push(self._replayed())),
            "segments": (20, lambda: self._push(*self._segment())),
            "big": (1, lambda: self._push(bytes(self._dice.randrange(BIG_BYTES)))),
            "raw noise": (1, self._raw_noise),
            "half messages": (1, self._half_message),
        }

    def run(self, count: int) -> None:
        """Send `count` messages. BrokerDied when it stops answering."""
        names = list(self._attacks)
        weights = [weight for weight, _ in self._attacks.values()]
        for at in range(0, count, PACE):
            for name in self._dice.choices(names, weights, k=min(PACE, count - at)):
                self._attacks[name][1]()
                self.sent[name] += 1
            self.ask()

    def connects(self, count: int) -> None:
        """Connect to one socket after the other and leave again, some with a word."""
        for number in range(count):
            self._raw(SOCKETS[number % len(SOCKETS)], b"" if number % 3 else self._noise(64))
            self.sent["connects"] += 1
            if number % PACE == PACE - 1:
                self.ask()

    def ask(self) -> None:
        """A question that is always answered, by one welcome: until then nothing more is sent."""
        begun = time.monotonic()
        self._asking.send(pack(bus.HostReport("fuzz", {}, [], [], [], "")))
        answer = None
        while not isinstance(answer, bus.Welcome):  # notices come with it
            if not self._asking.poll(int(ANSWER_S * 1000)):
                raise BrokerDied(f"no answer within {ANSWER_S:g} s")
            answer = unpack(self._asking.recv_multipart()[0])
        self.slowest_answer_s = max(self.slowest_answer_s, time.monotonic() - begun)

    def close(self) -> None:
        """Drop what is unsent."""
        self._context.destroy(linger=0)

    # what is sent

    def _noise(self, most: int = 1000) -> bytes:
        return self._dice.randbytes(self._dice.randrange(most))

    def _number(self) -> int:
        return self._dice.choice((0, 1, -1, 255, 1 << 40, (1 << 63) - 1))

    def _word(self) -> str:
        return self._dice.choice(
            ("", "labourer", "segment", "broker_status", "assignments", "weights", "\0", "x" * 3000)
        )

    def _any(self) -> Any:
        return self._dice.choice((None, True, -1, 1.5, "", "x" * 999, b"\xff", [], {}, [[[]]], {"a": 1}, 1 << 63))

    def _heartbeat(self) -> dict[str, Any]:
        role = self._dice.choice(("", "boss", "evaluator", "worker"))
        return {
            "kind": "heartbeat",
            "role": role,
            "index": self._dice.choice((1 << 17, 1 << 61)),
            "spawn": 1,
            "progress": 1,
        }

    def _mutated(self, frame: bytes) -> bytes:
        changed = bytearray(frame)
        for _ in range(self._dice.randrange(1, 4)):
            changed[self._dice.randrange(len(changed))] = self._dice.randrange(256)
        return bytes(changed[: self._dice.randrange(1, len(changed) + 1)])

    def _unknown_worker(self) -> bytes:
        fields = {"index": 1 << 30, "spawn": self._dice.randrange(9), "broker": 1, "serial": -1, "remote": False}
        return pack(
            bus.WorkerReport(
                **fields,
                leases=[SlotRef(0, 1)],
                streams=[bus.StreamAt(0, 0)],
                stopped=[],
                open=[],
                segments=0,
                busy_us=0,
            )
        )

    def _claimed_length(self) -> bytes:
        head = self._dice.choice((b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9"))
        return b"\x93\x01" + head + b"\xff\xff\xff\xff" + self._noise(20)

    def _descriptors(self) -> bytes:
        far = (-1, 1 << 40, -(1 << 62), 0)
        refs = [SlotRef(self._dice.choice(far), self._dice.choice(far)) for _ in range(self._dice.randrange(40))]
        descriptors = pack_descriptors(self._dice.choice((1 << 20, -1, 1 << 50)), 0, refs)
        return descriptors[: self._dice.randrange(len(descriptors) + 1)]

    def _replayed(self) -> bytes:
        """Ids that a worker has sent, or will send."""
        refs = [SlotRef(slot, self._dice.randrange(1, 9)) for slot in range(self._dice.randrange(1, 9))]
        return pack_descriptors(self._dice.randrange(2), 0, refs)

    def _segment(self) -> list[bytes]:
        """A whole segment of another host, and everything about it is wrong."""
        words = bus.SegmentHeader(self._dice.randrange(99), 0, 0, 0, 0, 8)
        index = self._dice.choice((0, 1, 1 << 30))
        header = pack(bus.Segment(self._dice.randrange(1 << 55), index, 0, SlotRef(0, 1), words))
        return [header, *(self._noise(300) for _ in range(self._dice.randrange(1, 12)))]

    # how it is sent

    def _say(self, *frames: bytes) -> None:
        self._send(self._control, frames)

    def _push(self, *frames: bytes) -> None:
        self._send(self._segments, frames)

    def _send(self, to: zmq.Socket[Any], frames: tuple[bytes, ...]) -> None:
        if not to.poll(int(ANSWER_S * 1000), zmq.POLLOUT):
            raise BrokerDied(f"no room within {ANSWER_S:g} s")
        to.send_multipart(frames)

    def _raw_noise(self) -> None:
        self._raw(self._dice.choice(SOCKETS), self._noise(2000))

    def _half_message(self) -> None:
        """A handshake, then a frame that says that more will come, or that is shorter than it says."""
        ready = b"\x05READY" + b"\x0bSocket-Type" + len(b"DEALER").to_bytes(4, "big") + b"DEALER"
        half = self._dice.choice((b"\x01\x05hello", b"\x00\xffshort", b"\x02" + b"\xff" * 8, b"\x03" + bytes(8)))
        self._raw(self._dice.choice(("control", "segments")), GREETING + b"\x04" + bytes([len(ready)]) + ready + half)

    def _raw(self, name: str, content: bytes) -> None:
        with socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(ANSWER_S)
            self._knock(raw, str(self._folder / name))
            try:
                raw.sendall(content)
            except (BrokenPipeError, ConnectionResetError):
                return  # it did not want to hear the rest

    @staticmethod
    def _knock(raw: socket.socket, path: str) -> None:
        until = time.monotonic() + ANSWER_S
        while True:
            try:
                raw.connect(path)
                return
            except BlockingIOError as error:  # as many as may wait are waiting to be let in
                if time.monotonic() >= until:
                    raise BrokerDied(f"nobody lets us in within {ANSWER_S:g} s") from error
            time.sleep(0.001)


def rss_mb(pid: int) -> float:
    """Resident memory of a process, 10^6 bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def refusals(logs: Path) -> dict[str, int]:
    """What the broker wrote when it ended."""
    found: Counter[str] = Counter()
    for text in re.findall(r"messages rejected: (\{.*\})", (logs / "local-broker-0.log").read_text()):
        found.update(ast.literal_eval(text))
    return dict(found)


def child_of(launcher: int, role: str) -> int | None:
    """Pid of a process of that role below the launcher."""
    todo = [launcher]
    while todo:
        pid = todo.pop()
        try:
            todo += [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
            if f"zmqrl.{role}" in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
                return pid
        except OSError:
            continue
    return None


def folder_of(run_id: str) -> Path:
    """Where a run of this user has its sockets."""
    return private_folder(run_id)


def _await(found: Callable[[], Any], what: str, limit_s: float = 60.0) -> Any:
    until = time.monotonic() + limit_s
    while not (value := found()):
        if time.monotonic() >= until:
            raise SystemExit(f"{what}: not within {limit_s:g} s")
        time.sleep(0.05)
    return value


def main() -> int:
    """The whole benchmark; its result on stdout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--connects", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mode", default="sync")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [sys.executable, "-m", "zmqrl", "train", "cartpole-ppo", "--mode", given.mode, "--workers", "2"]
        settings = ("run.total_env_steps=1000000000", "run.stop_at_return=null")
        command += [*(word for text in settings for word in ("--set", text)), "--run-dir", str(run_dir), "--plain"]
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            result, sound = _fuzz(run, run_dir, given)
        finally:
            if run.poll() is None:
                run.send_signal(signal.SIGTERM)
                run.wait(60)
    print(json.dumps(result, indent=2))
    return 0 if sound else 1


def _fuzz(run: subprocess.Popen[bytes], run_dir: Path, given: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    def env_steps() -> int:
        path = run_dir / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return int(json.loads(lines[-1]).get("env_steps", 0)) if lines else 0

    _await(env_steps, "the run's first env steps")
    broker = child_of(run.pid, "broker")
    assert broker is not None
    (ipc,) = [p for p in folder_of("x").parent.iterdir() if child_of(run.pid, "agent") and _is_of(run.pid, p.name)]
    fuzzer = Fuzzer(ipc, given.seed)
    fuzzer.run(10 * PACE)  # so that buffers have grown to what they need
    before_mb, steps, begun = rss_mb(broker), env_steps(), time.monotonic()
    died, quarters_mb = None, []
    try:
        for quarter in range(QUARTERS):
            fuzzer.run(given.messages * (quarter + 1) // QUARTERS - given.messages * quarter // QUARTERS)
            quarters_mb.append(round(rss_mb(broker), 1))
        fuzzing_s = time.monotonic() - begun
        fuzzer.connects(given.connects)
        fuzzer.ask()
    except (BrokerDied, OSError) as error:
        died, fuzzing_s = str(error), time.monotonic() - begun
    alive = child_of(run.pid, "broker") == broker
    after_mb = rss_mb(broker) if alive else float("nan")
    fuzzer.close()
    steps_meanwhile = env_steps() - steps
    run.send_signal(signal.SIGTERM)
    run.wait(60)
    summary = json.loads((run_dir / "summary.json").read_text())
    result = {
        "messages": given.messages,
        "messages_per_s": round(given.messages / fuzzing_s),
        "connects": given.connects,
        "broker_rss_mb": {
            "before": round(before_mb, 1),
            "by_quarter": quarters_mb,
            "after_connects": round(after_mb, 1),
        },
        "slowest_answer_s": round(fuzzer.slowest_answer_s, 3),
        "env_steps_meanwhile": steps_meanwhile,
        "sent": dict(fuzzer.sent),
        "refused": refusals(run_dir / "logs"),
        "ledger": summary["ledger"],
        "restarts": summary["restarts"],
        "died": died,
    }
    grew = not after_mb - before_mb < MOST_GROWTH_MB
    sound = not died and alive and not grew and summary["ledger"]["balanced"] and steps_meanwhile > 0
    return result, bool(sound and summary["restarts"] == 0)


def _is_of(launcher: int, run_id: str) -> bool:
    agent = child_of(launcher, "agent")
    return agent is not None and run_id in Path(f"/proc/{agent}/cmdline").read_text().split("\0")


if __name__ == "__main__":
    sys.exit(main())
