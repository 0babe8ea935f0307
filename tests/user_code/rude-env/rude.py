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
        self.how, self.kept = how, []
        if how == "chdir":
            os.chdir("/")
        if how == "signals":
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
        if how == "thread":
            threading.Thread(target=time.sleep, args=(100_000,)).start()  # not a daemon: the interpreter waits for it
        if how == "closefds":
            pass
        if how == "alarm":
            signal.signal(signal.SIGALRM, lambda *_: None)
            signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        if how == "sigchld":
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        if how == "umask":
            os.umask(0o777)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.t += 1
        info = {}
        if self.how == "print":
            print("x" * 20_000)
            print("e" * 20_000, file=sys.stderr)
        if self.how == "child":
            subprocess.Popen(["sleep", "100000"])
            time.sleep(0.02)
        if self.how == "leak":
            self.kept.append(np.ones(250_000))  # 2 MB a step
        if self.how == "info":
            info = {str(i): np.zeros(1000) for i in range(100)}
        if self.how == "errstate":
            np.seterr(all="raise")
        if self.how == "warn":
            import warnings

            warnings.warn(f"step {time.monotonic()} deprecated", stacklevel=1)
        return np.zeros(3, np.float32), float(action), self.t >= 20, False, info
