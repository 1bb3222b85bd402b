#!/usr/bin/env python3
"""A process that asks as much of a daemon as it can get, and then waits to be killed.

usage: hog.py SOCKET UID ACT [NUMBER] (its control socket ends in .control instead of .sock)

It becomes that user (-1: stays who it is), does ACT, and says "done", or why it was refused.

  greedy N    opens sessions in jobs of its own until it is refused or has N; says how many, and why
  sessions N  opens a session each in N jobs of its own, and commits nothing
  list N      opens a job with N elements in f16, whose updates are lists, and maps it
  dense N     the same with dense updates
  tensors N   opens a job of N small tensors, and maps it
  tickets N   asks for a change of the policy of N idle jobs of its own, and hangs up each time;
              says how many, and why not more
  refusals N  asks N times for what it may not do
"""
import contextlib
import os
import socket
import sys

from rawclient import (ARENA, COMMIT, ERROR, MAPPED, OPENED, READY, RawClient, decode, field,
                       open_request, register_request, tensor)

LARGEST = 1 << 30  # elements of one tensor
BATCH = 500  # tensors in one message


def sessions(path, count):
    clients = []
    for number in range(count):
        client = RawClient(path, timeout=60)
        clients.append(client)
        client.send(open_request(f"idle{number}"))
        for descriptor in client.expect(OPENED):
            os.close(descriptor)
    return clients


def said(received):
    """The sentence of a refusal."""
    kind, fields, _ = received
    return fields[2].decode() if kind == ERROR else f"reply {kind}"


def greedy(path, count):
    clients = []
    while len(clients) < count:
        client = RawClient(path, timeout=60)
        try:
            client.send(open_request(f"idle{len(clients)}"))
        except BrokenPipeError:
            pass  # refused before it spoke; the sentence is there to be read
        received = client.receive()
        if received is None or received[0] != OPENED:
            return clients, f"{len(clients)} {said(received) if received else 'hung up'}"
        for descriptor in received[2]:
            os.close(descriptor)
        clients.append(client)
    return clients, f"{count}"


def mapped(path, tensors, policy="{}"):
    client = RawClient(path, timeout=120)
    client.open(f"hog{os.getpid()}", policy=policy)
    for at in range(0, len(tensors), BATCH):
        client.send(register_request(*tensors[at:at + BATCH]))
    for request, wanted in ((COMMIT, ARENA), (MAPPED, READY)):
        client.send(request)
        received = client.receive()
        if received is None or received[0] != wanted:
            return client, said(received) if received else "hung up"
        os.close(received[2][0])
    return client, "done"


def ask(path, *fields):
    """Asks at the control socket, and leaves it to the caller to wait for the answer."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.connect(path.removesuffix(".sock") + ".control")
    client.send(field(1, 1) + b"".join(fields))
    return client


def tickets(path, count):
    jobs = []
    for number in range(count):
        client = RawClient(path, timeout=60)
        jobs.append(client)
        client.open(f"idle{number}")
        client.send(register_request(tensor()), COMMIT)
        os.close(client.expect(ARENA)[0])
        client.send(MAPPED)
        os.close(client.expect(READY)[0])
        change = field(1, f"{os.getuid()}:idle{number}") + field(2, '{"density":0.5}') + field(6, 600000)
        with ask(path, field(8, change)) as asked:
            for _ in range(2):  # an answer to a refused one comes before these
                with ask(path, field(2, b"")) as other:
                    other.recv(1 << 20)
            asked.setblocking(False)
            with contextlib.suppress(BlockingIOError):  # it is pending
                return jobs, f"{number} {decode(asked.recv(4096))[2].decode()}"
    return jobs, f"{count}"


def refusals(path, count):
    for _ in range(count):
        with contextlib.suppress(ConnectionError), ask(path, field(11, b"")) as asked:  # drain
            asked.recv(4096)
    return [], "done"


def act(path, what, number):
    if what == "tickets":
        return tickets(path, number)
    if what == "refusals":
        return refusals(path, number)
    if what == "greedy":
        return greedy(path, number)
    if what == "sessions":
        return sessions(path, number), "done"
    if what in ("list", "dense"):
        form, sizes = 1 if what == "list" else 2, [LARGEST] * (number // LARGEST)
        sizes += [number % LARGEST] if number % LARGEST else []
        return mapped(path, [tensor(f"large{i}", 1, (n,), form) for i, n in enumerate(sizes)])
    if what == "tensors":
        return mapped(path, [tensor(f"layer{i}", 0, (64,), 2) for i in range(number)])
    sys.exit(__doc__)


def main():
    path, uid, what, number = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    if uid >= 0:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    kept, outcome = act(path, what, number)
    print(outcome, flush=True)
    sys.stdin.read()
    del kept


if __name__ == "__main__":
    main()
