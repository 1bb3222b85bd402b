"""Clients below the library: they say to a daemon what the library never would.

RawClient speaks proto/local.proto by hand and maps the ring of proto/local.h; zmtp() and packet()
speak to the port for peers.
"""
import mmap
import os
import socket
import struct

from cluster import PATIENCE

OPENED, ARENA, READY, ERROR, BYE = range(1, 6)  # kinds of LocalReply
PUSH, STEP_END, WAIT, OPERATION = range(1, 5)   # types of ring entries
RING_ENTRIES = 1024
ENTRY = struct.Struct("<IIQIIQ")
ENTRIES_AT = 128
TAIL_AT = 0
HEAD_AT = 64  # in the page


# ---- protocol buffers, as much as is needed ----

def varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number, value):
    """A number, a text or bytes as one field."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, str):
        value = value.encode()
    return varint(number << 3 | 2) + varint(len(value)) + value


def decode(data):
    """{number: last value} of a message that the daemon wrote."""
    fields, at = {}, 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = number()
        if tag & 7 == 0:
            fields[tag >> 3] = number()
        elif tag & 7 == 1:
            fields[tag >> 3] = int.from_bytes(data[at:at + 8], "little")
            at += 8
        else:
            size = number()
            fields[tag >> 3] = data[at:at + size]
            at += size
    return fields


LOCAL_VERSION = 2


def open_request(job, rank=0, world=1, policy="", version=LOCAL_VERSION, run="0", abilities=0,
                 back=None):
    return field(1, field(1, version) + field(2, job) + field(3, run) + field(4, rank) +
                 field(5, world) + field(6, policy) + field(11, abilities) +
                 (field(8, 1) + field(9, back) if back is not None else b""))


def tensor(name="t", dtype=0, shape=(4, 4), forms=2, more=b""):
    packed = b"".join(map(varint, shape))
    return field(1, field(1, name) + field(2, dtype) + field(3, packed) + field(4, forms) + more)


def register_request(*tensors):
    return field(2, b"".join(tensors))


COMMIT, MAPPED, LEAVE = field(3, b""), field(4, b""), field(5, b"")


class RawClient:
    """A session of one process; many of them may live in this one."""

    def __init__(self, path, timeout=PATIENCE):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(timeout)
        self.socket.connect(path)
        self.ring = self.page = None

    def __enter__(self):
        return self

    def __exit__(self, *ignored):
        self.close()

    def close(self):
        self.socket.close()
        if self.ring is not None:
            self.ring.close()
            self.page.close()
            self.ring = self.page = None

    def send(self, *messages):
        for message in messages:
            self.socket.send(message)

    def receive(self):
        """The next message but wake-ups: (kind, fields, descriptors), or None at the end."""
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self.socket, 60000, 4)
            except ConnectionResetError:
                continue  # told once, if the daemon left something unread; its last words follow
            if not data:
                return None
            if len(data) > 1:
                (kind, inner), = decode(data).items()
                return kind, decode(inner), descriptors

    def expect(self, kind):
        """The next message, which must be of that kind; its descriptors."""
        received = self.receive()
        if received is None or received[0] != kind:
            raise AssertionError(f"received {received}, not a reply of kind {kind}")
        return received[2]

    def refusal(self):
        """The daemon's error, which must come next: (status, sentence, whether it is final)."""
        received = self.receive()
        if received is None or received[0] != ERROR:
            raise AssertionError(f"received {received}, not an error")
        _, fields, _ = received
        return fields.get(1, 0), fields.get(2, b"").decode(), fields.get(3, 0) == 1

    def open(self, job, **options):
        self.send(open_request(job, **options))
        ring, page = self.expect(OPENED)
        self.ring = mmap.mmap(ring, ENTRIES_AT + RING_ENTRIES * ENTRY.size)
        self.page = mmap.mmap(page, 4096, prot=mmap.PROT_READ)
        os.close(ring)
        os.close(page)

    def commit(self, *tensors):
        """Up to the arena."""
        self.send(register_request(*tensors), COMMIT)
        os.close(self.expect(ARENA)[0])

    def join(self, job, *tensors, **options):
        """Up to the first step; the job must have no other ranks."""
        self.open(job, **options)
        self.commit(*(tensors or (tensor(),)))
        self.send(MAPPED)
        os.close(self.expect(READY)[0])

    def set_tail(self, tail):
        self.ring[TAIL_AT:TAIL_AT + 8] = struct.pack("<Q", tail)

    def submit(self, *entries):
        """Puts (type, tensor, number[, root, size]) into the ring, and wakes the daemon."""
        tail, = struct.unpack("<Q", self.ring[TAIL_AT:TAIL_AT + 8])
        for entry in entries:
            at = ENTRIES_AT + tail % RING_ENTRIES * ENTRY.size
            self.ring[at:at + ENTRY.size] = ENTRY.pack(*(entry + (0,) * (6 - len(entry))))
            tail += 1
        self.set_tail(tail)
        self.wake()

    def taken(self):
        """Entries that the daemon has taken so far."""
        return struct.unpack("<Q", self.page[HEAD_AT:HEAD_AT + 8])[0]

    def wake(self):
        self.send(b"\x57")


# ---- the port for peers ----

def zmtp(port, kind=b"PUSH"):
    """A TCP connection that has done ZeroMQ's handshake without security."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    try:
        greet(connection, kind)
    except OSError:
        connection.close()
        raise
    return connection


def greet(connection, kind):
    connection.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
    ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
    connection.sendall(bytes((4, len(ready))) + ready)
    received = b""
    while len(received) < 66 or len(received) < 66 + received[65]:
        part = connection.recv(4096)
        if not part:
            raise ConnectionError("the daemon hung up during the handshake")
        received += part


def frame(body, more=False):
    """One frame of ZMTP."""
    return struct.pack(">BQ", 2 | more, len(body)) + body


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def packet(kind, lane=0, source=1, destination=0, incarnations=(1, 0), position=0, acknowledged=0,
           credit=0, size=0, offset=0, body=b"", version=2):
    """A packet of daemon/link/packet.h with a right checksum."""
    head = struct.pack("<4sBBBBHHIQQQQQQQQ", b"ADPK", version, kind, lane, 0, source, destination,
                       len(body), *incarnations, position, acknowledged, acknowledged, credit,
                       size, offset)
    return head + struct.pack("<I", crc32c(head + body)) + body
