"""The module waits for a server that does not answer, while it is imported."""

import socket

waiting = socket.socket()
waiting.bind(("127.0.0.1", 0))
waiting.listen()
waiting.accept()
