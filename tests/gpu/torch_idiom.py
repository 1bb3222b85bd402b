#!/usr/bin/env python3
"""How users of PyTorch do the pass on a GPU: add_, topk of the magnitudes, gather, scatter_ of zeros.
Prints one JSON line per size and density, with the median of the microseconds, and beside it that of
add_ alone on the same memory, in turns with it: the floor. Ends with 77 without PyTorch or without a
GPU.

usage: torch_idiom.py [--brief]
"""
import json
import statistics
import sys

try:
    import torch
except ImportError:
    print("there is no PyTorch")
    sys.exit(77)

ELEMENTS = (25_000_000, 100_000_000)
DENSITIES = (0.001, 0.01)
TURNS, WARMUP = 31, 5


def time_of(work):
    """Microseconds on the device."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3


def idiom(residual, gradient, k):
    def work():
        residual.add_(gradient)
        _, index = torch.topk(residual.abs(), k, sorted=False)
        residual.gather(0, index)
        residual.scatter_(0, index, 0)
    return work


def measure(elements, density, turns):
    residual = torch.zeros(elements, device="cuda")
    gradient = torch.randn(elements, device="cuda")
    work = idiom(residual, gradient, max(1, round(elements * density)))
    taken = [(time_of(lambda: residual.add_(gradient)), time_of(work))
             for _ in range(WARMUP + turns)][WARMUP:]
    floors, times = zip(*taken)
    low, _, high = statistics.quantiles(times, n=4)
    floor, median = statistics.median(floors), statistics.median(times)
    return {"elements": elements, "density": density, "median_us": round(median, 1),
            "floor_us": round(floor, 1), "ratio": round(median / floor, 3),
            "spread": round((high - low) / median, 4), "samples": len(times)}


def main():
    if not torch.cuda.is_available():
        print("PyTorch finds no GPU")
        sys.exit(77)
    brief = sys.argv[1:] == ["--brief"]
    print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__}))
    for elements in (65_536,) if brief else ELEMENTS:
        for density in DENSITIES:
            print(json.dumps(measure(elements, density, 3 if brief else TURNS)), flush=True)


main()
