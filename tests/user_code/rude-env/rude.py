"""Envs that change their process: working directory, signals, prints, children, memory."""

import os
import signal
import subprocess
import sys
import threading
import time

import gymnasium as gym
import numpy as np


class Rude(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, how="chdir"):
        self.how, self.kept = how.split("+"), []
        if "chdir" in self.how:
            os.chdir("/")
        if "signals" in self.how:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
        if "thread" in self.how:
            threading.Thread(target=time.sleep, args=(100_000,)).start()  # not a daemon: the interpreter waits for it
        if "closefds" in self.how:
            pass
        if "alarm" in self.how:
            signal.signal(signal.SIGALRM, lambda *_: None)
            signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        if "sigchld" in self.how:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        if "umask" in self.how:
            os.umask(0o777)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.t += 1
        info = {}
        if "print" in self.how:
            print("x" * 20_000)
            print("e" * 20_000, file=sys.stderr)
        if "child" in self.how:
            subprocess.Popen(["sleep", "100000"])
            time.sleep(0.02)
        if "leak" in self.how:
            self.kept.append(np.ones(250_000))  # 2 MB a step
        if "info" in self.how:
            info = {str(i): np.zeros(1000) for i in range(100)}
        if "errstate" in self.how:
            np.seterr(all="raise")
        if "warn" in self.how:
            import warnings

            warnings.warn(f"step {time.monotonic()} deprecated", stacklevel=1)
        return np.zeros(3, np.float32), float(action), self.t >= 20, False, info
