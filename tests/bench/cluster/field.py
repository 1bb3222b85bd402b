"""Who competes: the contenders' names, and the teams that make their steps, started and stopped."""
import dataclasses

import listed
import teams
from conductor import Conductor

POLICIES = {
    "dense": {"sparsifier": "dense"},
    "dense-bf16": {"sparsifier": "dense", "dense_values": "bf16"},
    "topk": {"sparsifier": "topk"},
    "rows": {"sparsifier": "adtopk", "fibres": "row", "interleave": False},
    "adtopk": {"sparsifier": "adtopk"},
    "auto": listed.FREE,
}
PEERS = {"mpi-f32": "mpi", "mpi-gather": "mpi",
         "gloo-f32": "gloo", "gloo-f16": "gloo", "gloo-gather": "gloo"}


@dataclasses.dataclass
class Place:
    """Where processes find what they share."""
    scratch: str
    conductor: str


class Field:
    """All teams, started; closes them again."""

    def __init__(self, options, network, place):
        self.options = options
        self.network = network
        self.place = place
        self.conductor = Conductor(place.conductor)
        self.daemons = {}  # by whether they have keys, and by build
        self.teams = {}  # by contender
        self.missing = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for team in dict.fromkeys(self.teams.values()):
            team.stop()
        for daemons in self.daemons.values():
            daemons.stop()
        self.conductor.close()

    def add(self, name, team):
        self.teams[name] = team  # before it is complete: it must be stopped in any case
        self.conductor.gather(team)

    def daemons_with(self, keys, other=False):
        if (keys, other) not in self.daemons:
            self.daemons[keys, other] = teams.Daemons(
                self.options, self.network, self.place.scratch, keys, other)
        return self.daemons[keys, other]

    def start_job(self, name):
        plain = name.removesuffix("+beside")
        policy = self.options.policies[plain.removesuffix("+curve")]
        daemons = self.daemons_with(plain.endswith("+curve"), plain != name)
        self.add(name, teams.Job(name, policy, daemons, self.options, self.place))

    def start_peer(self, name):
        kind = PEERS[name]
        running = next((team for team in self.teams.values() if team.name == kind), None)
        make, missing = {"mpi": (teams.Mpi, teams.mpi_missing),
                         "gloo": (teams.Gloo, teams.gloo_missing)}[kind]
        reason = None if running else missing(self.options)
        if reason:
            self.missing.append({"contender": name, "reason": reason})
        elif running:
            self.teams[name] = running
        else:
            self.add(name, make(self.options, self.place, self.network))
