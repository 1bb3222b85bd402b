"""Optimisers of others that compress what ranks exchange, as their papers have them. They exchange in f32
over torch.distributed, and count the bits that their messages would have."""
import math

import torch
import torch.distributed as dist

SIDE = 64  # of a chunk
VALUE = 16  # bits of a coefficient, beside those of its position in the chunk


def mean(values):
    dist.all_reduce(values)
    return values.div_(dist.get_world_size())


class Peer(torch.optim.Optimizer):
    """An optimiser that exchanges. All ranks begin with the parameters of the first one."""

    def __init__(self, parameters, options):
        super().__init__(parameters, options)
        self.sent = 0.0  # bits
        self.steps = 0
        for parameter in self._parameters():
            dist.broadcast(parameter.data, 0)

    def _parameters(self):
        return [one for group in self.param_groups for one in group["params"]]

    def bits(self):
        """Per element and step."""
        return self.sent / self.steps / sum(one.numel() for one in self._parameters())

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                self.update(group, parameter, self.state[parameter])
        self.steps += 1

    def update(self, group, parameter, state):
        """Exchanges what the method does of this parameter, and moves it."""
        raise NotImplementedError


def signs(values):
    """One bit an element, and the factor with which the norm stays."""
    return torch.where(values < 0, -1.0, 1.0) * (values.norm() / math.sqrt(values.numel()))


class OneBitAdam(Peer):
    """Adam for `freeze` steps; then the second moment stays, and signs of the momentum are exchanged, with
    error feedback in ranks and in the server (Tang et al. 2021, arXiv 2102.02888).

    A parameter whose second moment is 0 by then stays, too, as with the mask of DeepSpeed.
    """

    def __init__(self, parameters, lr, freeze, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.freeze = freeze

    def update(self, group, parameter, state):
        first, second = group["betas"]
        if not state:
            state.update({what: torch.zeros_like(parameter)
                          for what in ("momentum", "square", "own", "server")})
        momentum, square = state["momentum"], state["square"]
        if self.steps < self.freeze:
            gradient = mean(parameter.grad.clone())
            momentum.lerp_(gradient, 1 - first)
            square.lerp_(gradient * gradient, 1 - second)
            self.sent += 32 * parameter.numel()
        else:
            momentum.lerp_(parameter.grad, 1 - first).add_(state["own"])
            state["own"] = momentum - signs(momentum)
            summed = mean(signs(momentum)) + state["server"]
            momentum.copy_(signs(summed))
            state["server"] = summed - momentum
            self.sent += parameter.numel() + 32
        bound = (square / (1 - second ** min(self.steps + 1, self.freeze))).sqrt_().add_(group["eps"])
        moved = momentum / (1 - first ** (self.steps + 1)) / bound
        parameter.sub_(torch.where(square > 0, moved, torch.zeros(())), alpha=group["lr"])


def cosines(size):
    """The orthonormal cosine transform of rows of this size."""
    at = torch.arange(size, dtype=torch.float64)
    matrix = torch.cos(math.pi / size * (at + 0.5) * at[:, None]) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix.float()


def side(size):
    """Of a chunk: the largest divisor of a dimension that is at most SIDE."""
    return next(one for one in range(min(size, SIDE), 0, -1) if size % one == 0)


class Chunks:
    """A tensor as chunks of coefficients: matrices by the transform of both sides, rows by that of one."""

    def __init__(self, shape):
        self.shape = shape
        height, width = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))
        self.sides = side(height), side(width)
        self.grid = height // self.sides[0], width // self.sides[1]
        self.down, self.along = map(cosines, self.sides)

    def coefficients(self, values):
        chunks = values.reshape(self.grid[0], self.sides[0], self.grid[1], self.sides[1]).transpose(1, 2)
        return (self.down @ chunks @ self.along.T).flatten(2)

    def values(self, coefficients):
        chunks = self.down.T @ coefficients.unflatten(2, self.sides) @ self.along
        return chunks.transpose(1, 2).reshape(self.shape)


class Signum(Peer):
    """Ranks move by the signs of the momentum of their mean gradient, which is dense (Bernstein et al. 2018,
    arXiv 1802.04434): a dense neighbour of DeMo, which takes signs, too."""

    def __init__(self, parameters, lr, decay=0.9, weight_decay=0.01):
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})
        self.decay = decay

    def update(self, group, parameter, state):
        momentum = state.setdefault("momentum", torch.zeros_like(parameter))
        momentum.lerp_(mean(parameter.grad.clone()), 1 - self.decay)
        self.sent += 32 * parameter.numel()
        parameter.sub_(momentum.sign(), alpha=group["lr"])


class DeMo(Peer):
    """Each rank's momentum gives its largest coefficients away, and ranks move by the sign of their mean
    (Peng et al. 2024, arXiv 2411.19870). share: of the coefficients of a chunk, at least one."""

    def __init__(self, parameters, lr, share, decay=0.999, weight_decay=0.01):
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})
        self.share = share
        self.decay = decay

    def update(self, group, parameter, state):
        if not state:
            state.update(momentum=torch.zeros_like(parameter), chunks=Chunks(parameter.shape))
        momentum, chunks = state["momentum"], state["chunks"]
        momentum.mul_(self.decay).add_(parameter.grad, alpha=group["lr"])
        all_of_them = chunks.coefficients(momentum)
        count = max(1, round(self.share * all_of_them.shape[2]))
        chosen = all_of_them.abs().topk(count, dim=2).indices
        given = torch.zeros_like(all_of_them).scatter_(2, chosen, all_of_them.gather(2, chosen))
        momentum.sub_(chunks.values(given))
        self.sent += chosen.numel() * (VALUE + math.log2(all_of_them.shape[2]))
        parameter.sub_(chunks.values(mean(given)).sign_(), alpha=group["lr"])


PEERS = {"onebit": lambda parameters, lr, steps: OneBitAdam(parameters, lr, max(1, steps * 15 // 100)),
         "demo": lambda parameters, lr, steps: DeMo(parameters, lr, 0.0205),
         "signum": lambda parameters, lr, steps: Signum(parameters, lr)}
