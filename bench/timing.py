"""The one timing loop of the benchmarks. Needs only NumPy, so that it also runs beside old ONNX Runtimes."""

import time

import numpy as np


def interleaved(contestants, runs, clock=time.perf_counter, at_least=0.01, percentile=50):
    """Seconds a call of each contestant (callables by name): the percentile over `runs` rounds. All take turns, so that
    noise hits all alike; a turn is as many calls as last `at_least` seconds."""
    calls = {}
    for name, run in contestants.items():
        run()
        start = time.perf_counter()
        run()
        calls[name] = max(1, int(at_least / max(time.perf_counter() - start, 1e-7)))
    times = {name: [] for name in contestants}
    for _ in range(runs):
        for name, run in contestants.items():
            start = clock()
            for _ in range(calls[name]):
                run()
            times[name].append((clock() - start) / calls[name])
    return {name: float(np.percentile(t, percentile)) for name, t in times.items()}
