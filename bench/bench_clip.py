"""Times my_clip on small and large tensors, as a node of ONNX Runtime, against its Clip and torch's clamp.

  python bench/bench_clip.py [--threads 1] [--runs 15] [--json FILE]

torch writes into a tensor that is there already; ONNX Runtime keeps its memory, too. A thousand elements measure the
call, which from Python is another thing in torch: there only the two nodes are compared.
"""

import numpy as np
import opbridge
import torch
from contest import OURS, run, session
from onnx import helper
from opbridge.paths import library_path

LIBRARY = opbridge.load(library_path("my_custom_ops"), torch=False)
BOUNDS = dict(lo=np.array(-0.5, np.float32), hi=np.array(0.5, np.float32))


def clip(n):
    def case():
        x = np.random.default_rng(0).uniform(-1, 1, n).astype(np.float32)
        t = torch.from_numpy(x)
        out = torch.empty_like(t)
        node = helper.make_node("my_clip", ["x", "lo", "hi"], ["y"], domain=LIBRARY.domain)
        contestants = {
            OURS: session([node], dict(x=x, **BOUNDS), library=LIBRARY),
            "ORT Clip": session([helper.make_node("Clip", ["x", "lo", "hi"], ["y"])], dict(x=x, **BOUNDS)),
        }
        if n > 1000:
            contestants["torch clamp, out="] = lambda: torch.clamp(t, -0.5, 0.5, out=out).numpy()
        return contestants, lambda name, r: np.array_equal(r, np.clip(x, -0.5, 0.5))

    return case


CASES = {  # name: (case, goal)
    "clip 1e3": (clip(10**3), 1.0),
    "clip 1e6": (clip(10**6), 1.1),
    "clip 1e8": (clip(10**8), 1.3),
}

run(CASES, [])
