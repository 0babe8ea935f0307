"""A ProxyCommand: carries stdin and stdout to an address."""

import socket
import sys
import threading

far = socket.create_connection((sys.argv[1], int(sys.argv[2])))


def outward() -> None:
    while data := sys.stdin.buffer.read1(65536):
        far.sendall(data)
    far.shutdown(socket.SHUT_WR)


threading.Thread(target=outward, daemon=True).start()
while data := far.recv(65536):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
