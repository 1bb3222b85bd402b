#!/usr/bin/env python3
"""A process that asks as much of a daemon as it can get, and then waits to be killed.

usage: hog.py SOCKET UID ACT [NUMBER]

It becomes that user (-1: stays who it is), does ACT, and says "done" for each line that it reads.

  sessions N  opens a session each in N jobs of its own, and commits nothing
  list N      opens a job with one tensor of N elements in f16, whose updates are lists, and maps it
  dense N     the same with dense updates
  tensors N   opens a job of N small tensors, and maps it
"""
import os
import sys

from rawclient import COMMIT, MAPPED, OPENED, RawClient, open_request, register_request, tensor

READY = 3
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


def mapped(path, tensors, policy="{}"):
    client = RawClient(path, timeout=120)
    client.open(f"hog{os.getpid()}", policy=policy)
    for at in range(0, len(tensors), BATCH):
        client.send(register_request(*tensors[at:at + BATCH]))
    client.send(COMMIT)
    os.close(client.expect(2)[0])
    client.send(MAPPED)
    os.close(client.expect(READY)[0])
    return client


def act(path, what, number):
    if what == "sessions":
        return sessions(path, number)
    if what in ("list", "dense"):
        return mapped(path, [tensor("large", 1, (number,), 1 if what == "list" else 2)])
    if what == "tensors":
        return mapped(path, [tensor(f"layer{i}", 0, (64,), 2) for i in range(number)])
    sys.exit(__doc__)


def main():
    path, uid, what, number = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    if uid >= 0:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    kept = act(path, what, number)
    print("done", flush=True)
    sys.stdin.read()
    del kept


if __name__ == "__main__":
    main()
