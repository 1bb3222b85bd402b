"""Which method fits which optimiser, and which combinations are known to lose (deploy/learning.md)."""
import json
import re
import sys
from typing import AbstractSet, Any, Dict, Iterable, List, NamedTuple, Optional

import torch

from .._context import policy_text
from .._warn import guess, warn
from ..errors import ArgumentError, PolicyError

GRADIENT = "gradient"  # ranks exchange gradients, and apply their mean
STEP = "step"          # each rank pushes the step of its own optimiser
SHIFTED = ("SGD", "Adam", "AdamW")  # reach() knows them, and they were measured
ADAMS = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax")
REFUSED = {"LBFGS": "it takes several gradients in a step", "SparseAdam": "it takes sparse gradients",
           "ZeroRedundancyOptimizer": "it cuts the optimiser's state over ranks"}

# As `adtopkctl policy keys` has them. The daemon judges their values.
KEYS = frozenset("""
    sparsifier density budget warmup_epochs epoch_turns fibres interleave fibre_turns global_turns
    adaptive total_turns estimate estimate_period sample fit threshold beta gamma momentum nesterov
    momentum_masking clip scope residual lookahead engine reduce non_finite values dense_values
    indices sparse_collective dense_collective priority weight bucket_bytes tune_density plan replan
    on_peer_loss on_rank_loss tie_breaker grow join_timeout push_timeout round_timeout wait_limit
    shrink_after rules
""".split())


# Options of groups: parameters, which the daemon compares, and how torch computes a step.
NOT_COMPARED = frozenset(("params", "param_names", "foreach", "fused", "capturable", "differentiable"))


class LearningWarning(UserWarning):
    """This combination of optimiser and policy is known to learn worse than another one."""


class Reach(NamedTuple):
    """How far one unit of an update moves a parameter in the long run (adtopk_lookahead()). The rate is
    below 0 where the optimiser adds updates."""
    rate: float
    second_moment: Optional[torch.Tensor] = None
    correction: float = 1.0
    epsilon: float = 0.0


def kind_of(optimiser: torch.optim.Optimizer) -> str:
    """The name of the optimiser's class, or of the class of torch that it extends."""
    for base in type(optimiser).__mro__:
        if base is torch.optim.Optimizer:
            break  # one that torch does not have
        if base.__module__.startswith("torch.optim") or base.__name__ in (*ADAMS, *REFUSED, "SGD"):
            return base.__name__
    return type(optimiser).__name__


def _keys(policy: Any) -> Dict[str, Any]:
    """The policy's keys; none where it is the daemon's. Refuses what is no document, and unknown keys: the
    daemon judges values when the job opens."""
    if policy is None:
        return {}
    text = policy_text(policy)
    try:
        keys = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise PolicyError(
            f"the policy is no JSON: {problem}; give the document itself, not a file's name"
        ) from None
    if not isinstance(keys, dict):
        raise PolicyError(f"the policy is {policy!r}, and must be a dict or a JSON object, such as"
                          " {'density': 0.01}")
    _check_names(keys, KEYS)
    rules = keys.get("rules")
    for rule in rules if isinstance(rules, list) else []:
        if isinstance(rule, dict):
            _check_names(rule, KEYS | {"match"})
    return keys


def _check_names(keys: Dict[str, Any], known: AbstractSet[str]) -> None:
    """Refuses a key that is not among the known ones."""
    for key in keys:
        if key not in known:
            raise PolicyError(f'the policy has an unknown key "{key}"{guess(key, known)}')


def checked_policy(policy: Any) -> Any:
    """A policy that is a document."""
    _keys(policy)
    return policy


def is_dense(policy: Any) -> bool:
    """Whether the policy sends all tensors dense."""
    keys = _keys(policy)
    return keys.get("sparsifier") == "dense" and not keys.get("rules")


def propagates(policy: Any) -> bool:
    """Whether the policy says that no step is withdrawn."""
    return _keys(policy).get("non_finite") == "propagate"


def takes_means(policy: Any) -> bool:
    """Whether updates are means over the ranks, as by default, and not sums."""
    return _keys(policy).get("reduce") != "sum"


def unmatched(policy: Any, names: Iterable[str]) -> List[str]:
    """The patterns of the policy's rules that match no name. * is any text, ? one character."""
    rules, names = _keys(policy).get("rules"), list(names)
    if not isinstance(rules, list):
        return []
    patterns = [match for match in (rule.get("match") for rule in rules if isinstance(rule, dict))
                if isinstance(match, str)]
    wild = {"*": ".*", "?": "."}
    return [one for one in patterns if not any(
        re.fullmatch("".join(wild.get(letter) or re.escape(letter) for letter in one), name, re.DOTALL)
        for name in names)]


def losses(optimiser: torch.optim.Optimizer, policy: Any, method: str, ahead: bool) -> List[str]:
    """Sentences that say which parts of a combination are known to lose, or were never measured."""
    kind, keys = kind_of(optimiser), _keys(policy)
    found = []
    if method == GRADIENT and not is_dense(policy) and kind not in SHIFTED:
        found.append(f"{kind} was never measured with compressed gradients: SGD and AdamW were")
    if keys.get("momentum") and (kind in ADAMS or method == STEP):
        found.append(f"the policy's `momentum` with {kind} learns next to nothing: leave it out")
    elif keys.get("momentum") and any(group.get("momentum") for group in optimiser.param_groups):
        found.append("both the policy and the optimiser have momentum: leave the policy's out")
    if ahead and method == GRADIENT and not is_dense(policy) and (kind not in SHIFTED or any(
            group.get("momentum", 0) >= 1 for group in optimiser.param_groups)):
        found.append(f"how far {kind} moves parameters in the long run is not known"
                     f"{' with a momentum of 1' if kind in SHIFTED else ''}, so they are not shifted ahead")
    return found


def check_optimiser(optimiser: Any) -> None:
    """Refuses what no optimiser is."""
    if not isinstance(optimiser, torch.optim.Optimizer):
        raise ArgumentError(f"the first argument is {type(optimiser).__name__}, and must be an optimiser of"
                            " torch")


def check_method(method: Any) -> None:
    """Refuses what no method is."""
    if method not in (GRADIENT, STEP):
        raise ArgumentError(f'method is {method!r}, and must be "{GRADIENT}" or "{STEP}"')


def check(optimiser: torch.optim.Optimizer, policy: Any, method: str, ahead: bool) -> None:
    """Refuses what cannot work, and warns once of what is known to lose."""
    check_optimiser(optimiser)
    kind = kind_of(optimiser)
    if kind in REFUSED:
        raise ArgumentError(f"{kind} cannot be distributed: {REFUSED[kind]}; use SGD or AdamW")
    found = losses(optimiser, policy, method, ahead)
    if found:
        warn("; ".join(found) + " (deploy/learning.md)", LearningWarning)


def options(optimiser: torch.optim.Optimizer) -> Dict[str, Any]:
    """What decides how the optimiser applies a gradient, to be compared. Numbers have six digits: a
    schedule may end in another last bit on another machine."""
    found: Dict[str, Any] = {"optimiser": kind_of(optimiser), "groups": len(optimiser.param_groups)}
    for number, group in enumerate(optimiser.param_groups):
        for name, value in group.items():
            if name not in NOT_COMPARED:
                found[f"param_groups[{number}]['{name}']"] = _rounded(value)
    return found


def _rounded(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(map(_rounded, value))
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, float):
        text = f"{value:.6g}"
        return text if text == "nan" else float(text)  # NaN is not equal to itself
    return value if isinstance(value, (bool, int, str)) else None


def reach(optimiser: torch.optim.Optimizer, group: Dict[str, Any],
          parameter: torch.Tensor) -> Optional[Reach]:
    """How far the optimiser moves this parameter; None where that is not known, or not yet."""
    kind, rate = kind_of(optimiser), float(group["lr"])
    if group.get("maximize"):
        rate = -rate
    if kind == "SGD":
        momentum = float(group.get("momentum", 0))
        if momentum >= 1:
            return None
        kept = 1 - float(group.get("dampening", 0)) if momentum else 1.0  # of each gradient, by the momentum
        return Reach(rate * kept / (1 - momentum))
    state = optimiser.state.get(parameter, {})
    moment = "max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq"
    if kind in ("Adam", "AdamW") and moment in state:
        if not 0 <= float(group["eps"]) <= 1:
            return None
        steps = float(state["step"])
        return Reach(rate, state[moment], 1 - float(group["betas"][1]) ** steps, float(group["eps"]))
    return None


def plain_rate(optimiser: torch.optim.Optimizer, group: Dict[str, Any]) -> Optional[float]:
    """The rate of plain SGD, whose step changes no parameter with a gradient of 0. None: any other
    optimiser, or one whose step() somebody watches."""
    everywhere = sys.modules[torch.optim.Optimizer.__module__]  # with hooks of all optimisers, in torch 2
    hooks = [getattr(place, f"_{name}_{when}_hooks", None) for when in ("pre", "post")
             for place, name in ((optimiser, "optimizer_step"), (everywhere, "global_optimizer"))]
    if type(optimiser) is not torch.optim.SGD or "step" in vars(optimiser) or any(hooks):
        return None
    if group["momentum"] or group["weight_decay"]:
        return None
    return -float(group["lr"]) if group["maximize"] else float(group["lr"])
