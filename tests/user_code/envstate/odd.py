"""An env whose module or methods change the state of the process, as simulators do."""

import os
import signal
import sys

import gymnasium as gym
import numpy as np


class Odd(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, what="", at=0):
        self.what, self.at, self.n = what, at, 0
        if at == 0:
            self.do()

    def do(self):
        for what in self.what.split("+"):
            getattr(self, "do_" + what, lambda: None)()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.uniform(-1, 1, 4).astype(np.float32), {}

    def step(self, a):
        self.t += 1
        self.n += 1
        if self.n == self.at:
            self.do()
        return self.np_random.uniform(-1, 1, 4).astype(np.float32), 1.0, self.t >= 20, False, {}

    # --- kinds
    def do_seterr(self):
        np.seterr(all="raise")

    def do_chdir(self):
        os.chdir("/")

    def do_closerange(self):
        os.closerange(3, 4096)

    def do_sigchld(self):
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    def do_sigterm(self):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def do_exit0(self):
        sys.exit(0)

    def do__exit0(self):
        os._exit(0)

    def do_kbd(self):
        raise KeyboardInterrupt

    def do_umask(self):
        os.umask(0o777)

    def do_dtype(self):
        import torch

        torch.set_default_dtype(torch.float64)

    def do_nograd(self):
        import torch

        torch.set_grad_enabled(False)

    def do_timeout(self):
        import socket

        socket.setdefaulttimeout(0.001)

    def do_warn(self):
        import warnings

        warnings.simplefilter("error")

    def do_seed(self):
        np.random.seed(0)

    def do_stdout(self):
        sys.stdout = None
        sys.stderr = None

    def do_close012(self):
        for fd in (0, 1, 2):
            os.close(fd)

    def do_spawn(self):
        import multiprocessing as mp

        c = mp.get_context("spawn")
        q = c.Queue()
        p = c.Process(target=child, args=(q,))
        p.start()
        assert q.get(timeout=20) == 7
        p.join()

    def do_forkserver(self):
        import multiprocessing as mp

        c = mp.get_context("forkserver")
        q = c.Queue()
        p = c.Process(target=child, args=(q,))
        p.start()
        assert q.get(timeout=20) == 7
        p.join()

    def do_fork(self):
        import multiprocessing as mp

        c = mp.get_context("fork")
        q = c.Queue()
        p = c.Process(target=child, args=(q,))
        p.start()
        assert q.get(timeout=20) == 7
        p.join()

    def do_setstart(self):
        import multiprocessing as mp

        mp.set_start_method("spawn", force=True)
        p = mp.Process(target=child, args=(mp.Queue(),))
        p.start()
        p.join()

    def do_daemon(self):  # a daemon as game servers start it: new session, no environment, no descriptors
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.closerange(0, 4096)
                os.execve("/bin/sleep", ["sleep", "4321"], {})
            os._exit(0)
        os.wait()

    def do_environ(self):
        os.environ.clear()

    def do_locale(self):
        import locale

        locale.setlocale(locale.LC_ALL, "")

    def do_rlimit(self):
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    def do_flood(self):
        self.step0 = None
        import threading

        def f():
            while True:
                os.write(1, b"x" * 65536)

        threading.Thread(target=f, daemon=True).start()

    def do_newlineless(self):
        os.write(1, b"y" * 30_000_000)

    def do_log(self):
        import logging

        logging.basicConfig(force=True, level=logging.DEBUG)
        logging.disable(logging.CRITICAL)

    def do_gc(self):
        import gc

        gc.disable()
        gc.set_threshold(1)

    def do_thread(self):
        import threading

        threading.Thread(target=lambda: __import__("time").sleep(1e6)).start()  # not a daemon thread

    def do_atexit(self):
        import atexit
        import time

        atexit.register(lambda: time.sleep(1e6))

    def do_alarm(self):
        signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError("alarm")))
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)


def child(q):
    q.put(7)
