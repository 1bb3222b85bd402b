"""A relay between two nodes: it flips bits, cuts, holds, swallows and replays what goes through it.

    with Relay() as relay:
        relay.target = 7400         # where connections lead; may be set later
        ... a node connects to 127.0.0.1:relay.port ...
        relay.flip()                # one bit of the next bytes, in the direction of the target
        relay.flip(back=True)       # the same in the other direction
        relay.cut()                 # ends all connections
        relay.deaden()              # they stay open and take everything, but nothing arrives
        relay.deaden(back=True)     # the same on the way back only
        relay.replay()              # the recorded bytes of old connections, on new ones

Each half of a connection has a thread, which copies until its connection ends.
"""
import random
import socket
import threading
import time

PIECE = 65536
RECORD = 4 << 20  # bytes of a connection that are kept for replay()


class Connection:
    """One connection: from a node to the relay, and on to the target."""

    def __init__(self, relay, source, target):
        self.relay = relay
        self.sockets = (source, target)
        self.dead = self.mute = False
        self.record = bytearray()  # what the node said
        self.threads = [threading.Thread(target=self.copy, args=way, daemon=True)
                        for way in ((source, target, True), (target, source, False))]
        for thread in self.threads:
            thread.start()

    def copy(self, source, target, towards):
        try:
            while piece := source.recv(PIECE):
                if towards and len(self.record) < RECORD:
                    self.record += piece
                if self.relay.delay > 0:
                    time.sleep(self.relay.delay)
                self.relay.open.wait()
                if not self.dead and (towards or not self.mute):
                    target.sendall(self.relay.spoil(piece, not towards))
        except OSError:
            pass  # the other half has ended, or cut() was called
        self.cut()

    def cut(self):
        for one in self.sockets:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has ended already

    def close(self):
        """After cut()."""
        for thread in self.threads:
            thread.join(5)
        for one in self.sockets:
            one.close()


class Relay:
    """Listens on a port of loopback. delay: seconds that each piece waits. seed: of the flips."""

    def __init__(self, target=None, seed=1):
        self.target = target
        self.delay = 0
        self.flips = 0  # that were asked for and not made yet,
        self.back = False  # on the way back from the target
        self.flipped = 0
        self.flipped_at = 0.0  # time.monotonic() of the last one
        self.open = threading.Event()
        self.open.set()
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.connections = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.close()

    def accept(self):
        while True:
            try:
                source = self.listener.accept()[0]
            except OSError:
                return  # closed
            try:
                target = socket.create_connection(("127.0.0.1", self.target), timeout=5)
            except OSError:
                source.close()
                continue
            target.settimeout(None)
            for one in (source, target):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections.append(Connection(self, source, target))

    def spoil(self, piece, back):
        """The piece, with one bit flipped if that was asked for."""
        with self.lock:
            if self.flips == 0 or back != self.back:
                return piece
            self.flips -= 1
            self.flipped += 1
            self.flipped_at = time.monotonic()
            bit = self.random.randrange(8 * len(piece))
        spoilt = bytearray(piece)
        spoilt[bit // 8] ^= 1 << bit % 8
        return bytes(spoilt)

    def flip(self, count=1, back=False):
        with self.lock:
            self.flips += count
            self.back = back

    def hold(self):
        """Nothing goes on until release()."""
        self.open.clear()

    def release(self):
        self.open.set()

    def cut(self):
        for connection in self.connections:
            connection.cut()

    def forget(self):
        """The same, and nothing of them is kept for replay()."""
        connections, self.connections = self.connections, []
        for connection in connections:
            connection.cut()
            connection.close()

    def deaden(self, back=False):
        """Connections of now take everything and deliver nothing; new ones work. back: what the target
        says."""
        for connection in self.connections:
            connection.dead = not back
            connection.mute = True

    def replay(self):
        """Says what nodes have said before on new connections; returns how many these were."""
        records = [bytes(connection.record) for connection in self.connections if connection.record]
        for record in records:
            with socket.create_connection(("127.0.0.1", self.target), timeout=5) as again:
                try:
                    again.sendall(record)
                    again.settimeout(0.2)
                    while again.recv(PIECE):
                        pass
                except OSError:
                    pass  # the target has hung up, or has nothing to say
        return len(records)

    def close(self):
        if self.listener.fileno() >= 0:
            self.listener.shutdown(socket.SHUT_RDWR)
            self.listener.close()
        self.release()
        self.cut()
        for connection in self.connections:
            connection.close()
