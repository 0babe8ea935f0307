from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.agent.plans import stand_in_plan
from tests.support.descriptor_limit import descriptor_limit
from tests.support.waiting import WAIT_S
from zmqrl.config.codec import to_json
from zmqrl.config.plan import Boot
from zmqrl.entry import MOST_DESCRIPTORS, PARENT_VARIABLE, raise_descriptor_limit, read_line, report_fault
from zmqrl.errors import ENDED_BY_USER_CODE, EnvFault
from zmqrl.messages.lines import child_event
from zmqrl.messages.process import ProcessFault

START = """
import sys
from zmqrl import entry
sys.path.insert(0, {folder!r})
sys.exit(entry.run(sys.argv[1], {{"zmqrl.worker": "role_under_test", "zmqrl.learner": "role_under_test"}}))
"""


def start(folder: Path, body: str, boot: Mapping[str, Any], parent: int | None = None) -> subprocess.Popen[str]:
    (folder / "role_under_test.py").write_text(body)
    environment = {**os.environ, PARENT_VARIABLE: str(parent or os.getpid())}
    command = [sys.executable, "-c", START.format(folder=str(folder)), "zmqrl.worker", "RUN", "0"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(boot) + "\nwhat follows\n")
    process.stdin.flush()
    return process


def boot_of() -> dict[str, Any]:
    data: dict[str, Any] = to_json(Boot("worker", 0, 0, "local", stand_in_plan(Path("/nowhere"))))
    return data


def test_the_role_gets_its_boot_and_the_rest_of_stdin(tmp_path: Path) -> None:
    told = "print(boot.role, os.environ['OMP_NUM_THREADS'], sys.stdin.readline())"
    body = f"import sys, os\ndef main(boot):\n    {told}\n    return 7\n"
    process = start(tmp_path, body, boot_of())
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out.split()) == (7, ["worker", "1", "what", "follows"]), err


def test_threads_are_set_before_numpy_loads(tmp_path: Path) -> None:
    body = "def main(boot):\n    return 0\n"
    process = start(tmp_path, "import sys\nassert 'torch' not in sys.modules\n" + body, boot_of())
    assert process.communicate(timeout=WAIT_S) == ("", "")


def test_the_limit_of_descriptors_is_raised(tmp_path: Path) -> None:
    body = "import resource\ndef main(boot):\n    print(*resource.getrlimit(resource.RLIMIT_NOFILE))\n    return 0\n"
    with descriptor_limit(256):
        process = start(tmp_path, body, boot_of())
    soft, hard = map(int, process.communicate(timeout=WAIT_S)[0].split())
    assert soft == min(hard, MOST_DESCRIPTORS) > 256


@pytest.mark.parametrize(
    ("limits", "raised"),
    [
        ((1024, 4096), (4096, 4096)),
        ((1024, 1 << 30), (MOST_DESCRIPTORS, 1 << 30)),
        ((1024, resource.RLIM_INFINITY), (MOST_DESCRIPTORS, resource.RLIM_INFINITY)),
        ((1024, 1024), None),
        ((1 << 20, 1 << 20), None),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None),
    ],
)
def test_the_limit_of_descriptors_has_a_bound_and_is_never_lowered(
    limits: tuple[int, int], raised: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: found.append(new))
    raise_descriptor_limit()
    assert found == ([] if raised is None else [raised])


def ended(folder: Path, body: str) -> tuple[int, str, str]:
    """Exit code, stderr and events of a role of this code."""
    read_fd, write_fd = os.pipe()
    boot = {**boot_of(), "fds": {"events": write_fd}}
    (folder / "role_under_test.py").write_text(body)
    command = [sys.executable, "-c", START.format(folder=str(folder)), "zmqrl.worker", "RUN", "0"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, pass_fds=(write_fd,)
    ) as process:
        _, err = process.communicate(json.dumps(boot) + "\n", timeout=WAIT_S)
    os.close(write_fd)
    with os.fdopen(read_fd) as events:
        return process.returncode, err, events.read()


@pytest.mark.parametrize(("raised", "code"), [("ValueError('x')", 1), ("ConfigError('x')", 2)])
def test_a_fault_is_reported_with_its_lines_and_exit_code(tmp_path: Path, raised: str, code: int) -> None:
    returned, err, events = ended(
        tmp_path, f"from zmqrl.errors import ConfigError\ndef main(boot):\n    raise {raised}\n"
    )
    event = json.loads(events)
    assert returned == code
    assert (event["event"], event["error"]) == ("fault", raised.replace("('x')", ": x"))
    assert ("Traceback" in err) == (code == 1), "a fault of the configuration is one line"
    assert raised.split("(")[0] in event["lines"][-1]


@pytest.mark.parametrize(("statement", "shown"), [
    ("sys.exit()", "SystemExit"),
    ("sys.exit(0)", "SystemExit: 0"),
    ("sys.exit('no display')", "SystemExit: no display"),
    ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ("raise asyncio.CancelledError", "CancelledError"),
])  # fmt: skip
def test_a_raise_of_a_non_exception_is_a_fault_with_its_line(tmp_path: Path, statement: str, shown: str) -> None:
    body = f"import asyncio, sys\ndef end():\n    {statement}\ndef main(boot):\n    end()\n"
    code, err, events = ended(tmp_path, body)
    where = f"{tmp_path / 'role_under_test.py'}:3, in end"
    assert code == ENDED_BY_USER_CODE
    assert json.loads(events)["error"].startswith(f"{shown} ({where}): user code may not end a process of a run"), err


def test_a_signal_whose_handler_raises_keyboard_interrupt_ends_the_process_as_it_does(tmp_path: Path) -> None:
    body = (
        "import os, signal\ndef main(boot):\n    signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n    signal.pause()\n"
    )
    code, _, events = ended(tmp_path, body)
    assert (code, events) == (-signal.SIGINT, "")


def fault_of(error: Exception) -> ProcessFault:
    """As the agent receives it."""
    read_fd, write_fd = os.pipe()
    report_fault("zmqrl.worker", {"fds": {"events": write_fd}}, error)
    event = child_event(os.read(read_fd, 65536))
    os.close(read_fd)
    os.close(write_fd)
    assert isinstance(event, ProcessFault)
    return event


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("value", "arrives"),
    [
        (3, 3),
        (True, True),
        (None, None),
        (0.5, 0.5),
        ("text", "text"),
        (float("nan"), "nan"),
        (-float("inf"), "-inf"),
        (1e301, "1e+301"),
        (1 << 62, str(1 << 62)),
        (-(1 << 70), str(-(1 << 70))),
        (np.float32("nan"), "nan"),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.array(7), 7),
        (np.arange(3), "[0 1 2]"),
        ("caf\u00e9 \udce4", "caf\u00e9 ?"),
        ([1, (2.0, {3})], [1, [2.0, [3]]]),
        (
            {(0, 1): float("inf"), None: [float("nan")], 7: 1 << 64},
            {"(0, 1)": "inf", "None": ["nan"], "7": str(1 << 64)},
        ),
        (Path("x"), "x"),
        (Unprintable(), "<Unprintable: str() raised RuntimeError>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_detail_of_a_fault_arrives(value: Any, arrives: Any) -> None:
    fault = fault_of(EnvFault("e", {"value": value, "seed": 3}))
    assert (fault.error, fault.detail) == ("EnvFault: e", {"value": arrives, "seed": 3})


def test_keys_of_the_detail_are_text_and_a_detail_within_itself_ends() -> None:
    endless: list[Any] = []
    endless.append(endless)
    detail: dict[Any, Any] = {(1, 2): 3, None: 4, "endless": endless}
    fault = fault_of(EnvFault("e", detail))
    assert fault.detail.keys() == {"(1, 2)", "None", "endless"}


def test_a_fault_whose_text_is_long_or_raises_is_reported() -> None:
    assert fault_of(ValueError("x" * (2 << 20))).error == "ValueError: " + "x" * 10_000
    assert fault_of(ValueError(Unprintable())).error == "ValueError: <ValueError: str() raised RuntimeError>"


def test_a_child_of_a_parent_that_is_gone_does_not_run(tmp_path: Path) -> None:
    process = start(tmp_path, "def main(boot):\n    print('ran')\n    return 0\n", boot_of(), parent=1)
    assert process.communicate(timeout=WAIT_S)[0] == ""
    assert process.returncode == 1


def test_sigint_is_ignored_and_sigusr2_dumps_the_stacks(tmp_path: Path) -> None:
    body = """
import signal
def main(boot):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    print("up", flush=True)
    return signal.sigtimedwait([signal.SIGALRM], 600) and 0
"""
    process = start(tmp_path, body, boot_of())
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGUSR2)
    time.sleep(0.1)
    process.send_signal(signal.SIGALRM)
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert "in main" in err


def test_read_line_leaves_what_follows() -> None:
    read_fd, write_fd = os.pipe()
    os.write(write_fd, b"one\ntwo")
    assert read_line(read_fd) == b"one\n"
    assert os.read(read_fd, 10) == b"two"
    os.close(write_fd)
    assert read_line(read_fd) == b""
    os.close(read_fd)


def test_a_thread_of_the_user_does_not_hold_the_end_of_a_process() -> None:
    code = (
        "import sys, threading, time; from zmqrl.entry import end_within; "
        "threading.Thread(target=time.sleep, args=(600,)).start(); end_within(0.1, 7); sys.exit(7)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stderr) == (7, "a thread or an exit handler has not ended within 0.1 s\n")
