#!/usr/bin/env python3
"""Pre-trains a language model of GPT-2's kind on the bytes of a text.

usage: torchrun --nproc_per_node=2 client/examples/torch/gpt.py [OPTION]...     (--help)

The default sizes are tiny, so that it trains on two cores. --layers 12 --width 768 --heads 12
--context 1024 are those of GPT-2. Every tenth part of the text is held out for the test.
"""
import gzip
import math
import os

import torch
from torch import nn
from torch.nn import functional

import common

TEXT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tests/data/kjv-pentateuch.txt.gz")


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden, mask):
        batch, length, width = hidden.shape
        parts = self.attend(self.norm1(hidden)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = parts[0] @ parts[1].transpose(-2, -1) / math.sqrt(width / self.heads)
        weights = (scores + mask[:length, :length]).softmax(-1)
        mixed = (weights.to(parts.dtype) @ parts[2]).transpose(1, 2).reshape(batch, length, width)
        hidden = hidden + self.project(mixed)
        return hidden + self.narrow(functional.gelu(self.widen(self.norm2(hidden))))


class Model(nn.Module):
    """Learned positions, layers normalised first, and the embedding tied to the output, as in GPT-2."""

    def __init__(self, layers, width, heads, context):
        super().__init__()
        self.embed, self.position = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.full((context, context), -math.inf).triu(1), persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                scale = 0.02 / math.sqrt(2 * layers) if "project" in name or "narrow" in name else 0.02
                nn.init.normal_(parameter, std=scale)

    def forward(self, text):
        hidden = self.embed(text) + self.position.weight[:text.shape[1]]
        for block in self.blocks:
            hidden = block(hidden, self.mask)
        return self.head(self.norm(hidden))


def options():
    parser = common.parser("pre-trains a language model on the bytes of a text", "Sizes of GPT-2: --layers 12 --width 768"
                           " --heads 12 --context 1024.", 300, 8, 3e-3)
    parser.add_argument("--text", default=TEXT, help="any file, or one that gzip compressed")
    parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
    for name, default in (("layers", 2), ("width", 64), ("heads", 4), ("context", 64)):
        parser.add_argument("--" + name, type=common.positive, default=default, help=f"({default})")
    given = parser.parse_args()
    if given.width % given.heads:
        parser.error(f"--width {given.width} is not a multiple of --heads {given.heads}")
    return given


def read(path):
    """The text to train with, and the text to test with."""
    with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
        text = torch.tensor(list(file.read()), dtype=torch.long)
    held = len(text) - len(text) // 10
    return text[:held], text[held:]


def build(given):
    model = Model(given.layers, given.width, given.heads, given.context)
    if given.optimizer == "sgd":
        return model, torch.optim.SGD(model.parameters(), given.lr, momentum=0.9)
    decayed = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    return model, torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1},
                                     {"params": others, "weight_decay": 0.0}], given.lr, betas=(0.9, 0.95))


def loss_of(model, windows):
    return functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1).float(), windows[:, 1:].flatten())


def main():
    given = options()
    training, held = read(given.text)
    if len(held) <= given.context:
        raise SystemExit(f"{given.text} has {len(training) + len(held)} bytes: too few for --context"
                         f" {given.context}")

    def batch_of(generator):
        starts = torch.randint(len(training) - given.context, (given.batch,), generator=generator)
        return torch.stack([training[start:start + given.context + 1] for start in starts])

    def test(model):
        count = min(128, (len(held) - 1) // given.context)
        windows = torch.stack([held[at * given.context:(at + 1) * given.context + 1] for at in range(count)])
        losses = [loss_of(model, part).item() * len(part) for part in windows.split(16)]
        return {"bits_per_byte": sum(losses) / count / math.log(2)}

    common.run(given, lambda: build(given), loss_of, batch_of, test)


if __name__ == "__main__":
    with common.refusals():
        main()
