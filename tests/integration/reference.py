"""What the updates must be: error feedback and selection again, in double precision.

Written from the documentation alone, shares no code with the daemon, and is slow and plain.
"""
import math
import struct

MASK = (1 << 64) - 1


def gradient(kind, seed, rank, step, tensor, count, dtype="f32"):
    """The formula of gradients.c."""
    if kind == "zero":
        return [0.0] * count
    stream = mix((seed + 1000003 * rank + 1000000007 * step + 10000000019 * tensor) & MASK)
    out = []
    for element in range(count):
        z = mix((stream + element) & MASK)
        if kind == "integer":
            out.append(float((z >> 33) % 17 - 8))
        elif dtype == "f32":
            out.append((z >> 40) * 2.0 ** -24 - 0.5)
        else:
            out.append((z >> 57) * 2.0 ** -7 - 0.5)
    return out


def mix(z):
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9 & MASK
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb & MASK
    return z ^ (z >> 31)


def bf16(value):
    """Round to nearest, ties to even, with 8 bits of precision."""
    bits, = struct.unpack("<I", struct.pack("<f", value))
    bits += 0x7FFF + (bits >> 16 & 1)
    rounded, = struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))
    return rounded


def share(length, density):
    return min(length, max(1, math.floor(length * density * (1 + 1e-12))))


def fibres(shape, view):
    """The flat indices of each fibre, in the order of the view."""
    if view == "row":
        length = math.prod(shape[1:])
        return [[f * length + j for j in range(length)] for f in range(shape[0])]
    axis = 0 if view == "longest" and shape[0] > shape[1] else 1
    strides = [math.prod(shape[d + 1:]) for d in range(len(shape))]
    others = [d for d in range(len(shape)) if d != axis]
    starts = [0]
    for d in others:
        starts = [start + i * strides[d] for start in starts for i in range(shape[d])]
    return [[start + j * strides[axis] for j in range(shape[axis])] for start in starts]


class Tensor:
    """One tensor on all nodes. homes: node of each rank."""

    def __init__(self, shape, homes, policy, dense):
        self.shape = shape
        self.count = math.prod(shape)
        self.policy = policy
        self.dense = dense
        self.turn = 0
        self.groups = []  # ranks that share a residual, in order, with their node
        for node in sorted(set(homes)):
            ranks = [rank for rank, home in enumerate(homes) if home == node]
            split = policy["scope"] == "rank" and not dense
            self.groups += [(node, [rank]) for rank in ranks] if split else [(node, ranks)]
        self.residuals = [[0.0] * self.count for _ in self.groups]
        self.world = len(homes)

    def chosen(self, values):
        """The indices that top-k takes from these values."""
        policy = self.policy
        if policy["sparsifier"] == "topk" or (policy["interleave"] and self.turn % 2 == 1):
            parts = [range(self.count)]
        else:
            parts = fibres(self.shape, policy["fibres"])
        taken = []
        for part in parts:
            order = sorted(enumerate(part), key=lambda at: (-abs(values[at[1]]), at[0]))
            taken += [index for _, index in order[:share(len(part), policy["density"])]]
        return taken

    def contribution(self, node):
        """What a node sends, {index: value}; takes it out of the residuals."""
        sent = {}
        selected = {}
        for group, (home, _) in enumerate(self.groups):
            if home == node:
                for index in self.chosen(self.residuals[group]):
                    sent[index] = sent.get(index, 0.0) + self.residuals[group][index]
                    selected.setdefault(index, []).append(group)
        for index in sent:
            if self.policy["values"] == "bf16":
                sent[index] = bf16(sent[index])
            left = sum(self.residuals[group][index] for group in selected[index]) - sent[index]
            for group in selected[index]:
                self.residuals[group][index] = 0.0
            self.residuals[selected[index][0]][index] = left
        return sent

    def step(self, gradients):
        """gradients: one list a rank. Returns the update, one value an element."""
        for (_, ranks), residual in zip(self.groups, self.residuals):
            for i in range(self.count):
                residual[i] += sum(gradients[rank][i] for rank in ranks)
        update = [0.0] * self.count
        if self.dense:
            for group, residual in enumerate(self.residuals):
                update = [a + b for a, b in zip(update, residual)]
                self.residuals[group] = [0.0] * self.count
        else:
            for node in sorted({home for home, _ in self.groups}):
                for index, value in self.contribution(node).items():
                    update[index] += value
        self.turn += 1
        scale = 1.0 / self.world if self.policy["reduce"] == "mean" else 1.0
        return [value * scale for value in update]
