"""Tells ranks when to make a step, and takes the time: see turns.h for the conversation.

A step lasts from the first rank's beginning to the last rank's end: with fewer cores than ranks some
begin when others have done their part. Failures: TeamError where a process
ended, failed or was silent for too long, with what it said.
"""
import os
import select
import socket
import statistics
import time

SILENCE = 300  # seconds that a rank may take to get ready or to make a step
SLOW = 3  # times as long as computing: makes one step a turn
SETTLE = 0.005  # seconds after a step until what it left in sockets has been sent


class TeamError(Exception):
    """A contender failed; the text says how."""


class Link:
    """The conductor's end of the conversation with one rank."""

    def __init__(self, connection):
        self.connection = connection
        self.buffer = b""

    def tell(self, line):
        try:
            self.connection.sendall(line.encode() + b"\n")
        except OSError:
            raise TeamError("a rank has hung up") from None

    def hear(self, team):
        """The next line; team.check() finds out whether somebody has ended meanwhile."""
        deadline = time.monotonic() + SILENCE
        while b"\n" not in self.buffer:
            if select.select([self.connection], [], [], 0.2)[0]:
                self.buffer += self.receive(team)
            else:
                team.check()
                if time.monotonic() > deadline:
                    raise TeamError(f"{team.name}: silent for {SILENCE} s\n{team.said()}")
        line, self.buffer = self.buffer.split(b"\n", 1)
        return line.decode()

    def receive(self, team):
        received = self.connection.recv(4096)
        if not received:
            team.wait_for_end()
            raise TeamError(f"{team.name}: a rank has hung up\n{team.said()}")
        return received


class Conductor:
    """Listens for the ranks of all teams."""

    def __init__(self, path):
        self.path = path
        self.door = socket.socket(socket.AF_UNIX)
        self.door.bind(path)
        self.door.listen(4096)

    def gather(self, team):
        """Waits until all ranks of a team are ready; fills team.links, by rank, and team.pids."""
        team.links = [None] * team.size
        deadline = time.monotonic() + SILENCE
        while None in team.links:
            if not select.select([self.door], [], [], 0.2)[0]:
                team.check()
                if time.monotonic() > deadline:
                    raise TeamError(f"{team.name}: not all ranks came\n{team.said()}")
                continue
            link = Link(self.door.accept()[0])
            name, rank, pid = link.hear(team).split()
            if name != team.name:
                raise TeamError(f"{name} came where {team.name} was expected")
            team.links[int(rank)] = link
            team.pids.append(int(pid))

    def close(self):
        self.door.close()
        os.unlink(self.path)


def cpu_seconds(pids):
    """What these processes have used of all cores; one that is gone counts nothing."""
    total = 0
    for pid in pids:
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
                    total += int(file.read().split()[0])
        except FileNotFoundError:
            pass
    return total * 1e-9


def make_step(team, what, box):
    """One turn of a contender. Returns its sample: `ms` of the turn and `each_ms` of its steps, `cpu_ms`
    of all its processes together, `received` and `sent`, lists by node of what the kernel counted."""
    for link in team.links:
        link.tell(f"prepare {what}")
    for link in team.links:
        link.hear(team)
    time.sleep(SETTLE)
    cpu, before = cpu_seconds(team.pids), box.counters()
    for link in team.links:
        link.tell(f"step {what}")
    times = [list(map(int, link.hear(team).split())) for link in team.links]
    time.sleep(SETTLE)
    after = box.counters()
    begin = min(begin for begin, *_ in times)
    ends = [max(column) for column in list(zip(*times))[1:]]
    return {"ms": (ends[-1] - begin) * 1e-6,
            "each_ms": [(end - start) * 1e-6 for start, end in zip([begin, *ends], ends)],
            "cpu_ms": (cpu_seconds(team.pids) - cpu) * 1e3,
            "received": [new[0] - old[0] for new, old in zip(after, before)],
            "sent": [new[1] - old[1] for new, old in zip(after, before)]}


def steps_in_turn(samples, name, alone, steps):
    """How many steps a contender makes in its next turn: one where it was slow beside computing."""
    last = {of: quartiles(samples[of][-1]["each_ms"])[1] for of in (name, alone) if of in samples}
    return 1 if len(last) == 2 and last[name] > SLOW * last[alone] else steps


def quartiles(values):
    """Percentiles 25, 50 and 75, linear between the two nearest samples."""
    if len(values) == 1:
        return (values[0],) * 3
    return tuple(statistics.quantiles(values, n=4, method="inclusive"))
