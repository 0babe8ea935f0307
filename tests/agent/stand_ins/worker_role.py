"""Steps until SIGTERM. `algorithm.worker`: `raise`, `barren` (raises without a segment), `deaf`,
`litter` (leaves a child), `simulates` (leaves three, see `start_simulators`), `silent` (never ready).

`algorithm.says`: the same for one index, and there `leaves`, `quits` (exit code 7), `returns` (exit code 0), `fails`
before its first step.
"""

from __future__ import annotations

import signal
import subprocess

from zmqrl.config.plan import Boot
from zmqrl.errors import EnvFault
from zmqrl.logs.events import EventPipe
from zmqrl.messages.process import FirstStep, Left, Ready, WorkerRates


def start_simulators() -> None:
    """A child, one that is deaf in a session of its own, and a daemon as game servers start it: no environment,
    descriptors or parent, and a session of its own."""
    subprocess.Popen(["sleep", "600"])
    deaf = ["sh", "-c", "trap '' TERM; echo; exec sleep 600"]
    trapped = subprocess.Popen(deaf, stdout=subprocess.PIPE, start_new_session=True)
    assert trapped.stdout is not None and trapped.stdout.readline()
    subprocess.run(["sh", "-c", "sleep 600 <&- >&- 2>&- &"], env={}, start_new_session=True, check=True)


def main(boot: Boot) -> int:
    algorithm = boot.plan.config.algorithm
    says = algorithm.get("says", {})
    manner = says.get(str(boot.index), algorithm.get("worker"))
    events = EventPipe(boot.fds["events"])
    if manner == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if manner == "simulates":  # before the mask, which they would inherit
        start_simulators()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if manner == "silent":
        signal.sigwait({signal.SIGTERM})
        return 0
    events.send(Ready())
    if manner == "fails":
        raise KeyError("robot offline")
    events.send(FirstStep())
    events.send(WorkerRates(0 if manner == "barren" else 64, 1000.0, 0.1, 3))
    if manner in ("raise", "barren"):
        error = EnvFault("step returned NaN")
        error.detail = {"env": "Broken-v0", "seed": 7, "step": 12}  # type: ignore[attr-defined]
        raise error
    if manner == "litter":
        subprocess.Popen(["sleep", "600"])
    if manner == "deaf":
        signal.pause()
    if manner == "quits":
        return 7
    if manner == "returns":
        return 0
    if manner == "leaves":
        events.send(Left())
        return 0
    signal.sigwait({signal.SIGTERM})
    return 0
