"""Envs that do something to their process: in the constructor, in `reset`, in `step` number `at`, or in `close`."""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from tests.envs.odd_envs import Counting

LONG_S = 600


def chdir() -> None:
    os.chdir("/")


def sys_exit() -> None:
    sys.exit(0)


def os_exit() -> None:
    os._exit(0)


def interrupt() -> None:
    raise KeyboardInterrupt


def crash() -> None:
    ctypes.string_at(0)


def hang() -> None:
    time.sleep(LONG_S)


def hang_with_the_lock() -> None:
    """No other thread of Python runs, and no signal handler."""
    ctypes.PyDLL(None).sleep(LONG_S)


def hang_deaf() -> None:
    for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    time.sleep(LONG_S)


def at_exit() -> None:
    atexit.register(time.sleep, LONG_S)


def thread() -> None:
    threading.Thread(target=time.sleep, args=(LONG_S,)).start()


def sigchld() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def timer() -> None:
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)


def limit() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


def close_some() -> None:
    os.closerange(3, 4096)


def close_all() -> None:
    os.closerange(3, 1 << 16)


def prints() -> None:
    for stream in (sys.stdout, sys.stderr):
        print("x" * 300_000, file=stream, flush=True)
    os.write(1, b"native output")


def no_streams() -> None:
    sys.stdout = sys.stderr = None  # type: ignore[assignment]
    os.environ.clear()
    os.umask(0o777)


def daemon() -> None:
    """As game servers start: a session and an environment of its own, and no descriptors."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 1 << 16)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.execve("/bin/sleep", ["sleep", "600.25"], {})
        os._exit(0)
    os.wait()


def nothing() -> None:
    pass


class Rude(Counting):
    def __init__(self, how: str = "nothing", where: str = "init", at: int = 1) -> None:
        super().__init__(1000)
        self._how, self._where, self._at = globals()[how], where, at
        self._do("init")

    def _do(self, where: str, step: int | None = None) -> None:
        if where == self._where and step in (None, self._at):
            self._how()

    def reset(self, **kwargs: Any) -> Any:
        self._do("reset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        found = super().step(action)
        self._do("step", self._t)
        return found

    def close(self) -> None:
        self._do("close")


class Simulator(Counting):
    """Looks before each step whether the process that it has started is alive; so do Unity ML-Agents and CARLA."""

    def __init__(self) -> None:
        super().__init__(20)
        self._simulator = subprocess.Popen(["sleep", "600.5"])

    def step(self, action: Any) -> Any:
        code = self._simulator.poll()
        if code is not None:
            raise RuntimeError(f"the simulator has ended: {code}")
        return super().step(action)


def serve(pipe: Any) -> None:
    while True:
        pipe.send(pipe.recv())


class Child(Counting):
    """The simulation is a `multiprocessing.Process`."""

    def __init__(self) -> None:
        super().__init__(20)
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=serve, args=(there,), daemon=True)
        self._process.start()

    def step(self, action: Any) -> Any:
        assert self._process.is_alive()
        self._here.send(1)
        self._here.recv()
        return super().step(action)


class Threaded(Counting):
    """A thread answers, as in the clients of ROS and of web sockets."""

    def __init__(self) -> None:
        super().__init__(20)
        self._asked: queue.Queue[Any] = queue.Queue()
        self._answers: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            self._answers.put(self._asked.get())

    def step(self, action: Any) -> Any:
        self._asked.put(action)
        self._answers.get(timeout=30.0)
        return super().step(action)


class SamePid(Counting):
    """Refuses to work in a fork of its process, as CUDA and JAX."""

    def __init__(self) -> None:
        super().__init__(20)
        self._pid = os.getpid()

    def step(self, action: Any) -> Any:
        assert os.getpid() == self._pid
        return super().step(action)
