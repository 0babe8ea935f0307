"""`inherit.py KIND,... ARGV`: ARGV with an inherited state, as cron, CI runners, supervisors and shells leave it."""

from __future__ import annotations

import os
import signal
import sys

kinds, *argv = sys.argv[1:]
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_DFL)  # this test may run under nohup
for kind in kinds.split(","):
    if kind == "sigchld":
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if kind == "blockterm":
        signal.pthread_sigmask(
            signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP, signal.SIGCHLD]
        )
    if kind == "block":
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    if kind == "ignore":
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
    if kind == "umask":
        os.umask(0o777)
    if kind == "gone":
        os.mkdir("gone")
        os.chdir("gone")
        os.rmdir("../gone")
    if kind == "moved":  # the directory that is there now is another one
        os.mkdir("moved")
        os.chdir("moved")
        os.rmdir("../moved")
        os.mkdir("../moved")
    if kind == "close012":
        for descriptor in (0, 1, 2):
            os.close(descriptor)
os.execvp(argv[0], argv)
