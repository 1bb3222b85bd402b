"""What the larger examples share: ways to exchange, checkpoints, progress, and the loop of training."""
import argparse
import contextlib
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import adtopk
import adtopk.torch as adt

EXCHANGES = ("optimizer", "hook", "local", "gloo")


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def above_zero(text):
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be above 0, and finite")
    return value


def policy(text):
    """A policy is checked by the daemon; here only that it is a document."""
    try:
        found = json.loads(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(f"this is no JSON: {problem}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError('a policy is an object of JSON, such as {"density": 0.01}')
    return found


@contextlib.contextmanager
def refusals():
    """What a user can mend ends the program with its sentence, and no traceback."""
    try:
        yield
    except (OSError, adtopk.Error) as problem:
        raise SystemExit(f"{os.path.basename(sys.argv[0])}: {problem}") from None
    except RuntimeError as problem:  # of torch, around an error of the hook, whose name is in front
        line = str(problem).partition("\n")[0]
        kind = getattr(adtopk, line.partition(":")[0], None)
        if not (isinstance(kind, type) and issubclass(kind, adtopk.Error)):
            raise
        raise SystemExit(f"{os.path.basename(sys.argv[0])}: {line}") from None


def parser(description, sizes, steps, batch, rate):
    """The options of every example. sizes: names those of a well-known model."""
    made = argparse.ArgumentParser(description=description, epilog=sizes)
    add = made.add_argument
    add("--exchange", choices=EXCHANGES, default="optimizer",
        help="optimizer: adt.DistributedOptimizer; hook: DistributedDataParallel with adt.adtopk_hook; "
             "local: adt.LocalSteps; gloo: without adtopk")
    add("--policy", type=policy, help="a policy in JSON; default: the daemon's")
    add("--every", type=positive, default=30, help="local steps before an exchange (30)")
    add("--outer-lr", type=above_zero, default=1.0, help="rate of the mean drift (1)")
    add("--outer-momentum", type=float, default=0.0, help="of the mean drift (0)")
    add("--steps", type=positive, default=steps, help=f"({steps})")
    add("--batch", type=positive, default=batch, help=f"examples per rank and backward pass ({batch})")
    add("--accumulate", type=positive, default=1, help="backward passes in a step (1)")
    add("--lr", type=above_zero, default=rate, help=f"highest learning rate ({rate})")
    add("--clip", type=float, default=0, help="largest norm of the gradients; 0: do not clip (0)")
    add("--amp", action="store_true", help="compute in bfloat16 where torch.autocast does")
    add("--checkpoint", help="file to save in, and to go on from; a rank's has its number at the end")
    add("--save-every", type=positive, default=100, help="steps between checkpoints (100)")
    add("--seed", type=int, default=1)
    add("--log", help="file for a line of JSON for each step, written by rank 0")
    return made


def warm(step, steps):
    """The schedule: up in a twentieth of the steps, then down to 0."""
    rise = max(1, steps // 20)
    return (step + 1) / rise if step < rise else (steps - step) / max(1, steps - rise)


class Trainer:
    """A model with its optimiser and its way to exchange. Every rank makes one."""

    def __init__(self, given, model, optimiser):
        self.given, self.model = given, model
        self.optimiser, self.ddp, self.job = optimiser, model, None
        self.step = 0
        self.apart = 0  # local steps since the last exchange
        if given.exchange in ("gloo", "hook"):
            self.ddp = DistributedDataParallel(model)
        if given.exchange == "hook":
            self.job = adt.ADTopkState(self.ddp, policy=given.policy)
            self.ddp.register_comm_hook(self.job, adt.adtopk_hook)
        elif given.exchange == "optimizer":
            self.optimiser = adt.DistributedOptimizer(optimiser, model, given.accumulate, policy=given.policy)
        elif given.exchange == "local":
            self.optimiser = adt.LocalSteps(optimiser, model, every=given.every, outer_lr=given.outer_lr,
                                            outer_momentum=given.outer_momentum, policy=given.policy)
        self.job = getattr(self.optimiser, "job", self.job)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: warm(step, given.steps))

    # ---- a step

    def backward(self, loss_of, batches):
        """Adds up the gradients of some batches; returns the mean loss."""
        total = 0.0
        for at, batch in enumerate(batches):
            last = at == len(batches) - 1
            quiet = contextlib.nullcontext() if last or self.ddp is self.model else self.ddp.no_sync()
            with quiet:
                with torch.autocast("cpu", torch.bfloat16, enabled=self.given.amp):
                    loss = loss_of(self.ddp, batch) / len(batches)
                loss.backward()
            total += loss.item()
        return total

    def advance(self, loss_of, batches):
        """One step on this rank's batches."""
        self.optimiser.zero_grad()
        loss = self.backward(loss_of, batches)
        if self.given.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.given.clip)
        self.optimiser.step()
        self.schedule.step()
        self.step += 1
        if self.given.exchange == "local":
            self.apart = (self.apart + 1) % self.given.every
            if self.step == self.given.steps:
                self.exchange()
        return loss

    def exchange(self):
        """Brings the local steps that were not exchanged yet."""
        self.optimiser.exchange()
        self.apart = 0

    def shared(self):
        """Within it the model has the parameters that all ranks share."""
        return self.optimiser.shared() if hasattr(self.optimiser, "shared") else contextlib.nullcontext()

    # ---- checkpoints

    def asked(self):
        """Whether an operator has asked for one: adtopkctl checkpoint ask. Ranks know it after an exchange."""
        return self.job is not None and not self.apart and self.job.checkpoint_due

    def path(self):
        return f"{self.given.checkpoint}.{dist.get_rank()}"

    def save(self):
        """A file appears whole or not at all."""
        if self.given.exchange == "local":
            self.exchange()
        saved = {"step": self.step, "model": self.model.state_dict(), "exchange": self.given.exchange,
                 "optimiser": self.optimiser.state_dict(), "schedule": self.schedule.state_dict(),
                 "adtopk": self.job.state_dict() if self.job is not None else None}
        torch.save(saved, self.path() + ".new")
        dist.barrier()  # all ranks have written theirs, so all files are of one step
        os.replace(self.path() + ".new", self.path())
        if self.job is not None:
            self.job.checkpoint_saved()  # an operator may be waiting for it

    def resume(self):
        """Goes on from the checkpoint, if there is one on all ranks."""
        found = torch.tensor([float(os.path.exists(self.path()))])
        dist.all_reduce(found, dist.ReduceOp.MIN)
        if not found.item():
            return
        saved = torch.load(self.path())
        steps = [torch.zeros(1, dtype=torch.long) for _ in range(dist.get_world_size())]
        dist.all_gather(steps, torch.tensor([saved["step"]]))
        if any(step != steps[0] for step in steps):
            raise SystemExit(f"{self.path()} is of step {saved['step']}, and those of ranks 0, 1, ... are of"
                             f" {[step.item() for step in steps]}: remove them")
        if saved["exchange"] != self.given.exchange:
            raise SystemExit(f"{self.path()} was saved with --exchange {saved['exchange']}")
        self.model.load_state_dict(saved["model"])
        self.optimiser.load_state_dict(saved["optimiser"])
        self.schedule.load_state_dict(saved["schedule"])
        if self.job is not None:
            self.job.load_state_dict(saved["adtopk"])
        self.step = saved["step"]


class Progress:
    """A bar on a terminal, and lines of JSON in a log. Rank 0 only."""

    def __init__(self, given, step):
        self.steps, self.from_step = given.steps, step
        self.began = time.perf_counter()
        self.first = dist.get_rank() == 0
        self.terminal = self.first and sys.stderr.isatty()
        self.log = open(given.log, "a", encoding="utf-8") if self.first and given.log else None

    def show(self, record):
        if self.log:
            print(json.dumps(record), file=self.log, flush=True)
        if self.terminal:
            done = record["step"] / self.steps
            bar = "#" * int(30 * done)
            rate = (record["step"] - self.from_step) / (time.perf_counter() - self.began)
            sys.stderr.write(f"\r{bar:<30} {100 * done:3.0f}%  loss {record['loss']:.4f}  {rate:.1f} steps/s ")

    def end(self, **results):
        if self.terminal:
            sys.stderr.write("\n")
        if self.first:
            print(json.dumps({"final": True, "world": dist.get_world_size(), **results}), flush=True)
        if self.log:
            print(json.dumps({"final": True, **results}), file=self.log)
            self.log.close()


def meet():
    """Ranks find each other by variables that a launcher sets."""
    try:
        dist.init_process_group("gloo")
    except ValueError as problem:
        raise SystemExit(f"{os.path.basename(sys.argv[0])}: {problem}; a launcher sets that: torchrun"
                         f" --nproc_per_node=2 {sys.argv[0]}") from None


def run(given, build, loss_of, batch_of, test):
    """Trains. build() makes the model and its optimiser, batch_of(generator) a batch, and test(model) the
    results, by name."""
    meet()
    torch.manual_seed(given.seed)
    trainer = Trainer(given, *build())
    if given.checkpoint:
        trainer.resume()
    progress = Progress(given, trainer.step)
    rank, world = dist.get_rank(), dist.get_world_size()
    while trainer.step < given.steps:
        seed = (given.seed * given.steps + trainer.step) * world + rank  # a resumed run draws the same
        generator = torch.Generator().manual_seed(seed)
        loss = trainer.advance(loss_of, [batch_of(generator) for _ in range(given.accumulate)])
        progress.show({"step": trainer.step, "loss": loss})
        if given.checkpoint and (trainer.step % given.save_every == 0 or trainer.step == given.steps
                                 or trainer.asked()):
            trainer.save()
    with trainer.shared(), torch.no_grad():
        trainer.model.eval()
        progress.end(**test(trainer.model), **(trainer.job.stats() if trainer.job is not None else {}))
    if trainer.job is not None:
        trainer.job.close()
    dist.destroy_process_group()
