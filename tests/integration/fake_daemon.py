"""A daemon that is none, at a control socket. It answers every third question, of which the exporter's
status is the first, with one job whose name has a given size, and the others with nothing.
"""
import os
import socket
import threading
import time

PIECE = 50000


def varint(number):
    """The number as protobuf writes it."""
    low, high = number & 127, number >> 7
    return bytes([low | 128]) + varint(high) if high else bytes([low])


def piece(text, more):
    """A ControlReply."""
    return b"\x12" + varint(len(text)) + text + (b"\x18\x01" if more else b"")


class FakeDaemon(threading.Thread):
    """late_s: how long each answer takes."""

    def __init__(self, directory, size=0, late_s=0):
        super().__init__(daemon=True)
        self.path = os.path.join(directory, "fake.sock")
        self.text = b'{"jobs":[{"owner":0,"name":"' + size * b"x" + b'","run_id":0,"state":"active"}]}'
        self.late_s = late_s
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen(8)
        self.start()

    def run(self):
        question = 0
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:  # close() was called
                return
            with client:
                self.answer(client, self.text if question % 3 == 0 else b'{"jobs":[]}')
            question += 1

    def answer(self, client, text):
        time.sleep(self.late_s)
        try:
            client.recv(PIECE)
            for at in range(0, len(text), PIECE):
                client.send(piece(text[at:at + PIECE], at + PIECE < len(text)))
        except OSError:  # the exporter waits no longer
            pass

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.join()
        os.unlink(self.path)
