"""Envs that own a connection: to a server process, and to a pool of processes."""

import concurrent.futures
import multiprocessing
import os
import socket
import subprocess
import sys

import gymnasium as gym
import numpy as np

SERVER = (
    "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])));\nwhile s.recv(1): s.send(b'x')"
)


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


class Socket(Base):
    """The simulator is another program, which connects to the env."""

    def __init__(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.program = subprocess.Popen([sys.executable, "-c", SERVER, str(server.getsockname()[1])])
            server.settimeout(60)
            self.connection, _ = server.accept()

    def step(self, action):
        self.connection.send(b"?")
        if self.connection.recv(1) != b"x":
            raise ConnectionError("the simulator is gone")
        return super().step(action)

    def close(self):
        self.connection.close()
        self.program.wait(10)


class Pool(Base):
    """The dynamics run in a pool of processes."""

    def __init__(self):
        context = multiprocessing.get_context("forkserver")
        self.pool = concurrent.futures.ProcessPoolExecutor(1, mp_context=context)

    def step(self, action):
        assert self.pool.submit(abs, -1).result(60) == 1
        return super().step(action)

    def close(self):
        self.pool.shutdown()


class Detached(Base):
    """The simulator leaves its session, its parent and its environment, and `close` does not end it."""

    def __init__(self, marker=""):
        leave = f"os.setsid(); os.execve('/bin/sleep', ['sleep', '{marker}'], {{}})"
        script = f"import os\nif os.fork() == 0: {leave}"
        subprocess.run([sys.executable, "-c", script], check=True, env={}, start_new_session=True)


class Ends(Base):
    """Ends its process without an exception, in a wrapper or in a later episode."""

    def __init__(self, at="reset"):
        self.at, self.episodes = at, 0

    def reset(self, *, seed=None, options=None):
        self.episodes += 1
        if self.at == "reset" and self.episodes == 12:
            os._exit(0)
        return super().reset(seed=seed)


class Leaves(gym.Wrapper):
    """Raises SystemExit with a text, as `argparse` and `click` do, in the step of a wrapper."""

    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 200:
            raise SystemExit("licence has expired")
        return super().step(action)
