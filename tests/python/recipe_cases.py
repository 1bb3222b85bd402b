"""One rank of the tests of guide.md's recipes for other libraries, as they stand there: see ddp_cases.py.

usage: recipe_cases.py CASE...
"""
import importlib
import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import adtopk.torch as adt
from ddp_cases import RANK, ROOT, Skipped, main, mlp, ranks_differ

CASES = {}
BATCHES = 3  # of a rank


def case(function):
    CASES[function.__name__] = function
    return function


def inputs():
    """Other ones on each rank, in the number of two ranks, as the libraries deal them out."""
    generator = torch.Generator().manual_seed(5 + RANK)
    return (torch.randn(2 * 4 * BATCHES, 20, generator=generator),
            torch.randn(2 * 4 * BATCHES, 5, generator=generator))


def recipe(package, heading, **names):
    """Runs the lines of a section; returns their names, after as many steps as there are batches."""
    try:
        names[package] = importlib.import_module(package)
    except ImportError:
        raise Skipped(f"{package} is not installed") from None
    os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", TORCHELASTIC_RUN_ID="recipe")
    with open(os.path.join(ROOT, "client/python/guide.md"), encoding="utf-8") as document:
        lines = document.read().split(f"### {heading}\n")[1].split("```python\n")[1].split("```")[0]
    names.update(torch=torch, adt=adt)
    exec(lines, names)  # pylint: disable=exec-used
    assert names["stats"]["steps"] == BATCHES, names["stats"]
    return names


def moved(model):
    """How far the ranks are apart; the model must have learned something."""
    apart = max((one - other).abs().max().item() for one, other in zip(model.parameters(), mlp().parameters()))
    assert apart > 0
    return ranks_differ(model)


@case
def lightning():
    try:
        from lightning import LightningModule  # pylint: disable=import-outside-toplevel
    except ImportError:
        raise Skipped("lightning is not installed") from None

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.model = mlp()

        def training_step(self, batch, _):
            return nn.functional.mse_loss(self.model(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Module()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # Lightning writes its logs there
        recipe("lightning", "Lightning", module=module,
               loader=DataLoader(TensorDataset(*inputs()), batch_size=4))
        os.chdir("/")
    return moved(module.model)


@case
def accelerate():
    model = mlp()
    recipe("accelerate", "Accelerate", model=model, optimiser=torch.optim.SGD(model.parameters(), lr=0.1),
           loader=DataLoader(TensorDataset(*inputs()), batch_size=4))
    return moved(model)


@case
def transformers():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = mlp()

        def forward(self, batch, labels):
            output = self.model(batch)
            return {"loss": nn.functional.mse_loss(output, labels), "logits": output}

    model = Model()
    data = [{"batch": batch, "labels": labels} for batch, labels in zip(*inputs())]
    with tempfile.TemporaryDirectory() as folder:
        recipe("transformers", "Trainer of transformers", model=model, data=data, output_dir=folder)
    return moved(model.model)


if __name__ == "__main__":
    main(CASES)
