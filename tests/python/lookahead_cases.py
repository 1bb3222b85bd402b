"""One rank of the tests of looking ahead: runs cases and prints a line of JSON for each.

usage: lookahead_cases.py CASE...     with RANK, WORLD_SIZE, ADTOPK_ADDRESS, MASTER_ADDR and MASTER_PORT
"""
import copy
import warnings

import torch

import adtopk.torch as adt
from ddp_cases import TOPK, batches, difference, loss_of, main, mlp, ranks_differ, sgd
from optimiser_cases import adamw, plain, steps

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def shifts(inner, method, rate=None):
    """The training forward pass sees p - rate * share * pending; what is saved is p."""
    model = mlp()
    optimiser = adt.DistributedOptimizer(inner(model), model, policy=TOPK, method=method,
                                         connect_timeout=30)
    steps(model, optimiser, batches(5))
    here = copy.deepcopy(model)
    model.eval()
    model(batches()[0])
    assert difference(model, here) == 0
    model.train()
    weight, tensor = model[2].weight, optimiser.job.tensor(model[2].weight)
    update = tensor.update()
    pending = torch.from_numpy(update.pending.copy()) * update.pending_scale
    assert pending.abs().max() > 0
    reach = optimiser._reach(weight)
    assert rate is None or abs(reach.rate - rate) < 1e-6 * abs(rate)
    if reach.second_moment is not None:
        pending = (pending / ((reach.second_moment / reach.correction).sqrt() + reach.epsilon)).clamp(-10, 10)
    output = model(batches()[0])
    share = tensor.update().lookahead
    assert 0 < share <= 0.25
    worst = (here[2].weight - reach.rate * share * pending - weight).abs().max().item()
    assert (weight - here[2].weight).abs().max() > 10 * worst
    loss_of(output).backward()
    with optimiser.shared():
        worst += difference(model, here)
    optimiser.step()
    worst += ranks_differ(model)
    optimiser.close()
    return worst


@case
def lookahead_of_sgd():
    return shifts(sgd, "gradient")


@case
def lookahead_of_options():
    """Options of SGD and Adam that change how far, and whither, an update moves a parameter."""
    worst = 0.0
    for rate, options in ((-0.05, {"maximize": True}), (0.1, {"momentum": 0.9, "dampening": 0.8}),
                          (0.05, {"dampening": 0.8})):
        worst += shifts(lambda model: torch.optim.SGD(  # pylint: disable=cell-var-from-loop
            model.parameters(), lr=0.05, **options), "gradient", rate)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", adt.LearningWarning)
        model = mlp()
        adam = torch.optim.Adam(model.parameters(), lr=1e-3, amsgrad=True, betas=(0.9, 0.5))
        optimiser = adt.DistributedOptimizer(adam, model, policy=TOPK)
        steps(model, optimiser, batches(5))
        moment = optimiser._reach(model[2].weight).second_moment
        optimiser.close()
        assert moment is adam.state[model[2].weight]["max_exp_avg_sq"]
        worst += shifts(lambda model: torch.optim.Adam(
            model.parameters(), lr=1e-3, amsgrad=True, maximize=True), "gradient", -1e-3)
        model = mlp()
        inner = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=1.0)
        optimiser = adt.DistributedOptimizer(inner, model, policy=TOPK)
        steps(model, optimiser, batches(5))
        optimiser.close()
    return worst + ranks_differ(model)


@case
def momentum_under_adam():
    """The library shifts no parameters ahead then. Training goes on, as it warned, and so after `policy set`."""
    model = mlp()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", adt.LearningWarning)
        optimiser = adt.DistributedOptimizer(adamw(model), model, policy={**TOPK, "momentum": 0.9})
    steps(model, optimiser, batches(5))
    here = copy.deepcopy(model)
    model(batches()[0])
    worst = difference(model, here)
    optimiser.close()
    return worst + ranks_differ(model)


@case
def written_while_ahead():
    """What is written between a forward pass and the step stays, and what is not goes back."""
    worst = 0.0
    for inner, method in ((sgd, "gradient"), (adamw, "step")):
        model = mlp()
        optimiser = adt.DistributedOptimizer(inner(model), model, policy=TOPK, method=method)
        best = copy.deepcopy(model.state_dict())
        steps(model, optimiser, batches(5))
        optimiser.zero_grad()
        model(batches()[0])
        with torch.no_grad():
            model[2].weight[0] = 7
        with optimiser.shared():  # the rest of the row is on all ranks what it was before
            worst += ranks_differ(model) + float((model[2].weight[0] - 7).abs().max())
        model.load_state_dict(best)
        with optimiser.shared():
            worst += max(float((found - best[name]).abs().max()) for name, found in model.state_dict().items())
        optimiser.close()
        worst += ranks_differ(model)
    return worst


@case
def weights_that_hooks_compute():
    """Such a hook of the module itself works on the shifted parameters."""
    torch.manual_seed(1)
    model = torch.nn.utils.weight_norm(torch.nn.Linear(20, 5))
    optimiser = adt.DistributedOptimizer(sgd(model), model, policy=TOPK)
    steps(model, optimiser, batches(5))
    optimiser.close()
    return ranks_differ(model)


@case
def rate_of_a_loaded_state():
    """A loaded state makes new groups of options, and the shift follows their rate."""
    model = mlp()
    optimiser = adt.DistributedOptimizer(plain(model), model, policy=TOPK)
    saved = optimiser.state_dict()
    saved["param_groups"][0]["lr"] = 0.5
    optimiser.load_state_dict(saved)
    optimiser.close()
    return abs(optimiser._reach(model[0].weight).rate - 0.5)


@case
def lookahead_of_adamw():
    return shifts(adamw, "gradient")


@case
def lookahead_of_steps():
    return shifts(adamw, "step")


if __name__ == "__main__":
    main(CASES)
