"""Envs that own something a forked copy does not have. Each works in one process."""

import multiprocessing
import os
import queue
import subprocess
import threading

import gymnasium as gym
import numpy as np


class Base(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(3, np.float32), float(action), self.t >= 20, False, {}


class Simulator(Base):
    """As Unity ML-Agents, Godot, CARLA: starts a simulator and checks before each step that it is alive."""

    def __init__(self):
        self.sim = subprocess.Popen(["sleep", "100000"])

    def step(self, action):
        code = self.sim.poll()
        if code is not None:
            raise RuntimeError(f"Environment shut down with return code {code}")
        return super().step(action)

    def close(self):
        self.sim.kill()
        self.sim.wait()


def serve(pipe):
    while True:
        pipe.send(pipe.recv() + 1)


class Child(Base):
    """The simulation is a multiprocessing.Process."""

    def __init__(self):
        self.here, there = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("spawn").Process(target=serve, args=(there,), daemon=True)
        self.process.start()

    def step(self, action):
        if not self.process.is_alive():
            raise RuntimeError("the simulation is dead")
        self.here.send(1)
        self.here.recv()
        return super().step(action)

    def close(self):
        self.process.terminate()


class Thread(Base):
    """As ROS and websocket clients: a thread receives, step waits for it with a time limit."""

    def __init__(self):
        self.asked, self.answers = queue.Queue(), queue.Queue()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            self.answers.put(self.asked.get())

    def step(self, action):
        self.asked.put(action)
        self.answers.get(timeout=1.0)
        return super().step(action)


class SamePid(Base):
    """As JAX, CUDA and some licence managers: refuses to work in a forked copy of its process."""

    def __init__(self):
        self.pid = os.getpid()

    def step(self, action):
        if os.getpid() != self.pid:
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
        return super().step(action)
