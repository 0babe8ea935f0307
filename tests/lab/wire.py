"""A slow wire between two TAP devices: delays and drops Ethernet frames. Runs in the switch's network.

usage: wire.py NEAR FAR DELAY_MS LOSS     delay each way; loss as a fraction of the frames. Ends with its stdin.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
LONGEST_FRAME = 65536
MOST_FRAMES = 4000
AT_ONCE = 64


def open_tap(name: str) -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TAP | IFF_NO_PI))
    return fd


class Direction:
    """Frames under way from one device to the other."""

    def __init__(self, source: int, sink: int, delay_s: float, loss: float) -> None:
        self.source, self.sink, self.delay_s, self.loss = source, sink, delay_s, loss
        self.under_way: deque[tuple[float, bytes]] = deque()

    def take(self) -> None:
        for _ in range(AT_ONCE):
            try:
                frame = os.read(self.source, LONGEST_FRAME)
            except (BlockingIOError, OSError):
                return  # nothing more, or the device is not up yet
            if len(self.under_way) < MOST_FRAMES and random.random() >= self.loss:
                self.under_way.append((time.monotonic() + self.delay_s, frame))

    def give(self, now: float) -> None:
        while self.under_way and self.under_way[0][0] <= now:
            try:
                os.write(self.sink, self.under_way.popleft()[1])
            except OSError:
                pass  # as a full port of a switch: the frame is lost


def main() -> None:
    near, far = open_tap(sys.argv[1]), open_tap(sys.argv[2])
    delay_s, loss = float(sys.argv[3]) / 1e3, float(sys.argv[4])
    both = (Direction(near, far, delay_s, loss), Direction(far, near, delay_s, loss))
    print("ready", flush=True)
    poll = select.poll()
    for fd in (near, far, 0):
        poll.register(fd, select.POLLIN)
    while True:
        due = [direction.under_way[0][0] for direction in both if direction.under_way]
        wait_ms = max(0.0, (min(due) - time.monotonic()) * 1e3) if due else None
        ready = poll.poll(wait_ms)
        if any(fd == 0 for fd, _ in ready):
            return
        for direction in both:
            direction.take()
            direction.give(time.monotonic())


main()
