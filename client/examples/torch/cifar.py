#!/usr/bin/env python3
"""Trains a residual network on CIFAR-100 in its binary format, or on images that are made up.

usage: torchrun --nproc_per_node=2 client/examples/torch/cifar.py --data cifar-100-binary
       torchrun --nproc_per_node=2 client/examples/torch/cifar.py --synthetic     (--help)

--data is the folder with train.bin and test.bin. The default sizes are tiny; --width 64 --blocks 2 2 2 2
are those of ResNet-18 for images of 32 x 32.
"""
import os

import torch
from torch import nn
from torch.nn import functional

import common

RECORD = 2 + 3 * 32 * 32  # a coarse label, a fine label, and the image
CLASSES = 100


class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])
        self.around = nn.Identity() if before == after and stride == 1 else nn.Sequential(
            nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, images):
        hidden = functional.relu(self.norms[0](self.first(images)))
        return functional.relu(self.norms[1](self.second(hidden)) + self.around(images))


def network(width, blocks):
    layers = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    before = width
    for stage, count in enumerate(blocks):
        after = width << stage
        for at in range(count):
            layers.append(Block(before, after, 2 if stage and not at else 1))
            before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, CLASSES))


def read(path):
    """The images of a file in CIFAR-100's binary format, and their fine labels."""
    with open(path, "rb") as file:
        content = file.read()
    if not content or len(content) % RECORD:
        raise SystemExit(f"{path} has {len(content)} bytes, not a multiple of {RECORD}: this is not"
                         " CIFAR-100's binary format")
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, RECORD)
    labels = records[:, 1].long()
    if labels.max() >= CLASSES:
        raise SystemExit(f"{path} has the label {labels.max()}: this is not CIFAR-100's binary format")
    return records[:, 2:].reshape(-1, 3, 32, 32), labels


def made_up(count, seed):
    """Images of noise over a pattern of their class, so that there is something to learn."""
    patterns = torch.rand(CLASSES, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    noise = torch.rand(count, 3, 32, 32, generator=generator)
    return ((0.5 * patterns[labels] + 0.5 * noise) * 255).to(torch.uint8), labels


def images_of(pixels):
    return (pixels.float() - 120) / 65


def options():
    parser = common.parser("trains a residual network on CIFAR-100", "Sizes of ResNet-18 for images of 32 x 32:"
                           " --width 64 --blocks 2 2 2 2.", 200, 16, 0.1)
    parser.add_argument("--data", help="folder with train.bin and test.bin")
    parser.add_argument("--synthetic", action="store_true", help="made-up images instead")
    parser.add_argument("--width", type=common.positive, default=8, help="channels of the first stage (8)")
    parser.add_argument("--blocks", type=common.positive, nargs="+", default=[1, 1, 1],
                        help="of each stage (1 1 1)")
    given = parser.parse_args()
    if bool(given.data) == given.synthetic:
        parser.error("give either --data or --synthetic")
    return given


def main():
    given = options()
    if given.synthetic:
        (pixels, labels), (tested, wanted) = made_up(2000, 1), made_up(500, 2)
    else:
        (pixels, labels), (tested, wanted) = [read(os.path.join(given.data, name))
                                              for name in ("train.bin", "test.bin")]

    def build():
        model = network(given.width, given.blocks)
        return model, torch.optim.SGD(model.parameters(), given.lr, momentum=0.9, weight_decay=5e-4)

    def batch_of(generator):
        chosen = torch.randint(len(pixels), (given.batch,), generator=generator)
        images = images_of(pixels[chosen])
        turned = torch.rand(given.batch, generator=generator) < 0.5
        images[turned] = images[turned].flip(-1)
        return images, labels[chosen]

    def loss_of(model, batch):
        return functional.cross_entropy(model(batch[0]).float(), batch[1])

    def test(model):
        right = sum((model(images_of(part)).argmax(1) == answer).sum().item()
                    for part, answer in zip(tested.split(100), wanted.split(100)))
        return {"test_accuracy": right / len(wanted)}

    common.run(given, build, loss_of, batch_of, test)


if __name__ == "__main__":
    with common.refusals():
        main()
