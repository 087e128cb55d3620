"""A daemon for supervisor tests: answers /readyz on a Unix socket, ends on SIGTERM. No imports but the bare needed.

Arguments: SOCKET [unready|exit=CODE|deaf|stubborn]...
"""

import os
import signal
import socket
import sys
import time

path, traits = sys.argv[1], set(sys.argv[2:])
codes = [int(trait[5:]) for trait in traits if trait.startswith("exit=")]
if codes:
    sys.stderr.write("fake daemon: I cannot live like this\n")
    sys.exit(codes[0])
# The supervisor's starter has SIGHUP ignored until a daemon handles it; dying of it shows that it came.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if "stubborn" in traits:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
if "deaf" in traits:
    while True:
        time.sleep(60)
if os.path.exists(path):
    os.unlink(path)
server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
server.bind(path)
server.listen(8)
answer = (
    b"HTTP/1.1 503 x\r\nContent-Length: 7\r\n\r\nbecause"
    if "unready" in traits
    else b"HTTP/1.1 200 x\r\nContent-Length: 0\r\n\r\n"
)
while True:
    connection, _ = server.accept()
    connection.recv(4096)
    connection.sendall(answer)
    connection.close()
