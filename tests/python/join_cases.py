"""One rank of the tests of a job that cannot be joined because of rank 1, which ends or stays away before it
says whether it has joined. What rank 0 has opened must be closed then.

usage: join_cases.py CASE     as ddp_cases.py
"""
import os
import sys

import adtopk._context
import adtopk.torch as adt
from adtopk.torch import _place
from ddp_cases import DENSE, RANK, main, mlp

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def ends(**_options):
    os._exit(0)


def stays_away(**_options):
    sys.stdin.read()


def opens(rank_1, **options):
    """Opens the job of a model, and says what is left of it. rank_1: what that rank does instead."""
    join = _place.Context

    def joined(**given):
        context = join(**given)
        print("joined", flush=True)
        return context
    _place.Context = rank_1 if RANK == 1 else joined
    try:
        adt.ADTopkState(mlp(), policy=DENSE, **options).open()
    finally:
        open_ones = sum(not one.closed for one in adtopk._context._contexts)
        print(f"{open_ones} left open", flush=True)
    return 1.0


@case
def no_daemon():
    """Rank 0 has an error of its own to tell."""
    return opens(ends, address="unix:/nowhere/adtopkd.sock", connect_timeout=0.2)


@case
def rank_ends():
    return opens(ends)


@case
def rank_stays_away():
    """Rank 0 waits until a signal comes."""
    return opens(stays_away)


if __name__ == "__main__":
    main(CASES)
