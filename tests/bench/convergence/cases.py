"""What is compared: tasks, sparsifiers with their parameters, and the policy of each case."""
import json
import os
import re
import subprocess
from dataclasses import dataclass, field

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "..", "..", "data")


@dataclass(frozen=True)
class Task:
    """A model to train. steps: of the whole study and of --quick."""
    name: str
    program: str
    data: str
    steps: int
    quick_steps: int
    measure: str  # what is reported: a key of results.MEASURES
    arguments: tuple = ()  # of the program, beside those of the study


DIGITS = os.path.join(DATA, "digits.csv.gz")
TEXT = os.path.join(DATA, "kjv-pentateuch.txt.gz")

TASKS = (Task("digits", "convergence-digits", DIGITS, 300, 40, "accuracy"),
         Task("text", "convergence-text", TEXT, 600, 40, "bits"),
         Task("batch-norm", "convergence-digits", DIGITS, 300, 40, "accuracy",
              ("--batch-norm", "1")),
         Task("transformer", "convergence-transformer", TEXT, 1000, 40, "bits",
              ("--optimiser", "adamw")))
USUAL_TASKS = ("digits", "text")  # of a study for which none are named

DENSITIES = (0.1, 0.01, 0.001)

# Other ways to run a sparsifier than by its defaults: name in the tables, keys of the policy.
VARIANTS = {"adtopk": (("adtopk", {}), ("adtopk-alldim", {"interleave": False}))}

# What `threshold` lets through besides its density, which is the most it sends: magnitudes of a
# node's residual, two ranks' gradients added up, that gave somewhat less than the density, by trial.
THRESHOLDS = {("digits", 0.1): 0.003, ("digits", 0.01): 0.03, ("digits", 0.001): 0.2,
              ("text", 0.1): 0.02, ("text", 0.01): 0.06, ("text", 0.001): 0.2,
              ("batch-norm", 0.1): 0.003, ("batch-norm", 0.01): 0.03, ("batch-norm", 0.001): 0.2,
              ("transformer", 0.1): 0.004, ("transformer", 0.01): 0.02,
              ("transformer", 0.001): 0.1}


@dataclass(frozen=True)
class Case:
    """One policy. density is None for dense."""
    name: str
    density: float
    policy: dict = field(hash=False, compare=False)


def policy_keys(build):
    """Returns the keys that the policy has in this build, by name."""
    done = subprocess.run([os.path.join(build, "client", "adtopkctl", "adtopkctl"), "--json",
                           "policy", "keys"], stdout=subprocess.PIPE, check=True, text=True)
    return {key["name"]: key for key in json.loads(done.stdout)["keys"]}


def sparsifiers(build):
    """Returns the names of all sparsifiers that this build has, dense first."""
    names = re.findall(r'"([^"]+)"', policy_keys(build)["sparsifier"]["values"])
    return sorted(names, key=lambda name: name != "dense")


def make_cases(task, names, densities):
    """Returns the cases of a task: dense, then by density and sparsifier."""
    cases = [Case("dense", None, {"sparsifier": "dense"})] if "dense" in names else []
    for density in densities:
        for name in names:
            if name == "dense":
                continue
            for label, keys in VARIANTS.get(name, ((name, {}),)):
                # Sparsifiers alone are compared: no gradient is taken ahead.
                policy = {"sparsifier": name, "density": density, "lookahead": 0, **keys}
                if name == "threshold":
                    policy["threshold"] = THRESHOLDS.get((task.name, density), 0)
                cases.append(Case(label, density, policy))
    return cases
