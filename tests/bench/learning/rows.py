"""What is compared: settings (a model, an optimiser, nodes, steps) and the rows of each, which are
policies that send about the same number of bits, beside dense."""
import os
from dataclasses import dataclass, field

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "data")
TEXT = os.path.join(DATA, "kjv-pentateuch.txt.gz")
DIGITS = os.path.join(DATA, "digits.csv.gz")

TORCH = "torch_trainer.py"
BASE = "dense"  # the row that all others are compared with


@dataclass(frozen=True)
class Setting:
    """rate: where the search for a row's learning rate begins. measure: a key of MEASURES."""
    name: str
    program: str
    data: str
    measure: str
    optimiser: str
    rate: float
    nodes: int
    ranks: int  # per node
    steps: int
    options: tuple = ()

    @property
    def by_torch(self):
        """Whether the trainer is one of PyTorch."""
        return self.program == TORCH


@dataclass(frozen=True)
class Row:
    """options: more of the trainer's. start: where the search for a rate begins, by its place in the grid
    around the setting's rate. by_torch: only trainers of PyTorch can do it. optimiser: the only one it goes
    with."""
    name: str
    policy: dict = field(hash=False, compare=False)
    options: tuple = ()
    start: int = 0
    by_torch: bool = False
    optimiser: str = ""

    def fits(self, setting):
        """Whether the setting's trainer can do it."""
        return (setting.by_torch or not self.by_torch) and self.optimiser in ("", setting.optimiser)


# Field of the trainer's log, factor, words, sign of what is better, digits after the point.
MEASURES = {"bits": ("test_loss", 1 / 0.6931471805599453, "bits a character", -1, 4),
            "accuracy": ("test_accuracy", 100, "accuracy %", 1, 2),
            "loss": ("test_loss", 1, "test loss", -1, 4)}


def text(name, optimiser, rate, nodes=4, ranks=1, steps=1200, options=()):
    return Setting(name, "adtopk-text", TEXT, "bits", optimiser, rate, nodes, ranks, steps, options)


def digits(name, optimiser, rate, measure="accuracy", options=()):
    return Setting(name, "adtopk-digits", DIGITS, measure, optimiser, rate, 4, 1, 440, options)


def transformer(name, optimiser, rate, nodes=4, ranks=1, steps=1000):
    return Setting(name, "adtopk-transformer", TEXT, "bits", optimiser, rate, nodes, ranks, steps)


def by_torch(model, optimiser, rate, measure="bits", data=TEXT, steps=600, suffix=""):
    return Setting(f"torch-{model}-{optimiser}{suffix}", TORCH, data, measure, optimiser, rate, 4, 1, steps,
                   ("--model", model))


# The model of characters with 5,124,030 parameters.
LARGE = ("--hidden", "1600", "--context", "24", "--embedding", "64", "--batch", "512")

SETTINGS = (text("sgd", "sgd", 0.4), text("adamw", "adamw", 0.008),
            text("sgd-long", "sgd", 0.4, steps=4800),
            text("adamw-long", "adamw", 0.0113137, steps=4800),
            text("sgd-9600-steps", "sgd", 0.282843, steps=9600),
            text("sgd-large", "sgd", 0.282843, steps=2400, options=LARGE),
            text("adamw-large", "adamw", 0.004, steps=2400, options=LARGE),
            text("adamw-16-nodes", "adamw", 0.0113137, nodes=16),
            text("sgd-2-nodes", "sgd", 0.4, nodes=2), text("sgd-16-nodes", "sgd", 0.4, nodes=16),
            text("sgd-16-nodes-long", "sgd", 0.4, nodes=16, steps=4800),
            text("sgd-4-ranks", "sgd", 0.4, nodes=2, ranks=4),
            text("adamw-4-ranks", "adamw", 0.008, nodes=2, ranks=4),
            digits("digits", "sgd", 0.1),
            digits("batch-norm", "sgd", 0.04, "loss", ("--batch-norm", "1")),
            digits("batch-norm-adamw", "adamw", 0.003, "loss", ("--batch-norm", "1")),
            transformer("transformer", "adamw", 0.00848528),
            transformer("transformer-long", "adamw", 0.00848528, steps=4000),
            by_torch("cnn", "sgd", 0.05, "accuracy", DIGITS, 220),
            by_torch("cnn", "adamw", 0.002, "accuracy", DIGITS, 220),
            by_torch("lstm", "sgd", 0.4), by_torch("lstm", "adamw", 0.008),
            by_torch("transformer", "sgd", 0.1), by_torch("transformer", "adamw", 0.004),
            by_torch("transformer", "sgd", 0.1, steps=2400, suffix="-long"),
            by_torch("transformer", "adamw", 0.002, steps=2400, suffix="-long"))

BF16 = {"density": 0.01, "values": "bf16"}
TWO = {"density": 0.0265, "values": "two"}
OFF, ON = {"lookahead": 0}, {"lookahead": 0.25}
STEP = ("--local-steps", "1")

ROWS = (Row("dense", {"sparsifier": "dense"}),
        Row("topk", {"sparsifier": "topk", **BF16, **OFF}),
        Row("adtopk", {"sparsifier": "adtopk", **BF16, **OFF}),
        Row("topk-ahead", {"sparsifier": "topk", **BF16, **ON}),
        Row("adtopk-ahead", {"sparsifier": "adtopk", **BF16, **ON}),
        Row("topk-two", {"sparsifier": "topk", **TWO, **OFF}),
        Row("adtopk-two", {"sparsifier": "adtopk", **TWO, **OFF}),
        Row("topk-two-ahead", {"sparsifier": "topk", **TWO, **ON}),
        Row("adtopk-two-ahead", {"sparsifier": "adtopk", **TWO, **ON}),
        Row("default", {}),
        Row("default-ahead-0.0625", {"lookahead": 0.0625}),
        Row("default-ahead-0.5", {"lookahead": 0.5}),
        Row("default-ahead-0.75", {"lookahead": 0.75}),
        # About 1/1,200 and 1/10,000 of the bytes of f32, where tensors are large.
        Row("topk-1200th", {"sparsifier": "topk", "density": 0.001, "values": "bf16", **OFF}),
        Row("adtopk-1200th", {"sparsifier": "adtopk", "density": 0.001, "values": "bf16", **OFF}),
        Row("default-1200th", {"budget": "as 0.1% bf16"}),
        Row("default-ahead-0.5-1200th", {"budget": "as 0.1% bf16", "lookahead": 0.5}),
        Row("topk-10000th", {"sparsifier": "topk", "density": 0.0001, "values": "bf16", **OFF}),
        Row("default-10000th", {"budget": "as 0.01% bf16"}),
        Row("adtopk-two-ahead-1200th", {"sparsifier": "adtopk", "budget": "as 0.1% bf16"}),
        # Each rank pushes the step of its own optimiser, made with moments of its own.
        Row("default-step", {}, STEP, 3), Row("default-step-ahead-0.5", {"lookahead": 0.5}, STEP, 3),
        Row("default-step-1200th", {"budget": "as 0.1% bf16"}, STEP, 3),
        Row("topk-two-step", {"sparsifier": "topk", **TWO, **OFF}, STEP, 3),
        # Other values in the default policy's bytes.
        Row("default-sign", {"values": "sign"}), Row("default-int4", {"values": "int4"}),
        # What others do. dgc: momentum correction with masking, without warm-up and clipping.
        Row("dgc", {"sparsifier": "dgc", **BF16, **OFF, "momentum": 0.9}, ("--corrected",)),
        Row("sign", {"sparsifier": "topk", "density": 1, "values": "sign", **OFF}),
        Row("diloco", {"sparsifier": "dense"},
            ("--local-steps", "30", "--outer-lr", "0.7", "--outer-momentum", "0.9")),
        Row("sparseloco", {"sparsifier": "adtopk", "fibres": "chunk", "interleave": False,
                           "density": 0.03, "values": "two", "beta": 0.95, **OFF},
            ("--local-steps", "30")),
        Row("dense-bf16", {"sparsifier": "dense", "dense_values": "bf16"}),
        Row("auto", {"sparsifier": "auto"}),
        # Hooks of DistributedDataParallel over gloo; the policy is not used.
        Row("fp16", {}, ("--exchange", "fp16"), 0, True),
        Row("powersgd", {}, ("--exchange", "powersgd"), 0, True),
        # Optimisers of others, in place of AdamW.
        Row("onebit", {}, ("--exchange", "onebit"), 0, True, "adamw"),
        Row("demo", {}, ("--exchange", "demo"), 0, True, "adamw"),
        Row("signum", {}, ("--exchange", "signum"), 0, True, "adamw"))


def find(known, name):
    """The one of this name, or None."""
    return next((one for one in known if one.name == name), None)
