"""A slow link: passes connections on, delays each byte, and keeps to a rate in each direction. netem needs a module that few kernels have.

usage: link.py PORT TARGET_PORT BYTES_A_SECOND SECONDS_OF_DELAY
"""
import queue
import socket
import sys
import threading
import time

PORT, TARGET = int(sys.argv[1]), int(sys.argv[2])
RATE, DELAY = float(sys.argv[3]), float(sys.argv[4])


class Direction:
    """When the link has passed a piece: the pieces of all connections one after the other."""

    def __init__(self):
        self.lock, self.free = threading.Lock(), 0.0

    def pass_on(self, size):
        with self.lock:
            self.free = max(time.monotonic(), self.free) + size / RATE
            return self.free + DELAY


def pump(source, target, direction):
    """Two threads for one direction of a connection: what is on its way is bounded by the queue."""
    pieces = queue.Queue(64)

    def write():
        while (piece := pieces.get())[1]:
            time.sleep(max(0.0, piece[0] - time.monotonic()))
            try:
                target.sendall(piece[1])
            except OSError:
                break
        try:
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    data = b"-"
    while data and writer.is_alive():
        try:
            data = source.recv(1 << 16)
        except OSError:
            data = b""
        pieces.put((direction.pass_on(len(data)), data))


def main():
    there, back = Direction(), Direction()
    listener = socket.create_server(("127.0.0.1", PORT), backlog=64)
    while True:
        client, _ = listener.accept()
        server = socket.create_connection(("127.0.0.1", TARGET))
        for end in client, server:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=pump, args=(client, server, there), daemon=True).start()
        threading.Thread(target=pump, args=(server, client, back), daemon=True).start()


main()
