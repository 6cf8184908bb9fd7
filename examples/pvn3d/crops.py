"""Training data: regions around objects, a little larger than a crop, in shards of .npy files.

A shard SEED-NUMBER has a file for each field, (crops, ...), and an empty .done when it is complete:
  colour u8, depth u16 [mm], normals i8 [1/127], labels u8 (class, 0 background): (REGION, REGION[, 3]);
  u, v i16 (REGION): the cells' source pixels;  pose f32 (M, 3, 4): [R | t] of each object, zeros where it is absent;
  target i64: the class that the region is around, 0 none;  visible f32: the share of it that is.
"""

from pathlib import Path

import numpy as np
from frames import CROP, back_project, choose_cells, measured_depth

CAMERA = {"fx": 570.0, "fy": 570.0, "cx": 320.0, "cy": 239.0}  # the renderer's
REGION = 112  # cells of a stored region's side
MARGIN = 1.6  # a stored region's side, in sides of the box around the visible pixels
FIELDS = "colour", "depth", "normals", "labels", "u", "v", "pose", "target", "visible"
POINTS = 1024  # of a crop
FOREGROUND, ANYWHERE = 144, 112  # points of a crop that the loss sees: of objects, and of everything


class Crops:
    """The shards of a folder, as one list of regions around objects."""

    def __init__(self, folder):
        self.folder, self.names, self.shards, self.starts = Path(folder), set(), [], [0]
        self.refresh()

    def refresh(self):
        """Takes in shards that are new."""
        for done in sorted(set(self.folder.glob("*.done")) - self.names):
            self.names.add(done)
            stem = str(done.with_suffix(""))
            self.shards.append({f: np.load(f"{stem}-{f}.npy", mmap_mode="r") for f in FIELDS})
            self.starts.append(self.starts[-1] + len(self.shards[-1]["target"]))

    def __len__(self):
        return self.starts[-1]

    def __getitem__(self, i):
        shard = np.searchsorted(self.starts, i, side="right") - 1
        return {f: self.shards[shard][f][i - self.starts[shard]] for f in FIELDS}


def sample(region, random, points=POINTS):
    """A crop of a region as the network takes it, and its truth: at random in training, and with random None the plain
    choice in the middle."""
    scale, shift, gain, offset = 1.25, np.zeros(2), np.ones(3), 0.0
    if random is not None:
        scale, shift = random.uniform(1.1, 1.4), random.uniform(-0.08, 0.08, 2)
        gain, offset = random.uniform(0.75, 1.25) * random.uniform(0.92, 1.08, 3), random.uniform(-0.06, 0.06)
    side = scale / MARGIN * REGION
    middle = REGION / 2 + shift / MARGIN * REGION
    at = [
        np.clip((m - side / 2 + (np.arange(n) + 0.5) * side / n).astype(int), 0, REGION - 1)
        for m, n in zip(middle, CROP, strict=True)
    ]
    grid = np.ix_(*at)
    v, u = region["v"][at[0]], region["u"][at[1]]
    z = measured_depth(region["depth"][grid])
    rgb = region["colour"][grid].astype(np.float32) / 255
    if random is not None:
        noise = random.standard_normal(rgb.shape, np.float32) * random.uniform(0, 0.03)
        rgb = np.clip(rgb * gain.astype(np.float32) + np.float32(offset) + noise, 0, 1)
    choose = choose_cells(~np.isnan(z), points)
    if choose is None:
        return None
    if random is not None:
        cells = np.flatnonzero(~np.isnan(z))
        spread = ((np.arange(points) + random.random(points)) * len(cells) / points).astype(int)
        choose = cells[spread]
    xyz = back_project(z, u, v, CAMERA).reshape(-1, 3)[choose]
    normal = region["normals"][grid].reshape(-1, 3)[choose] / 127
    cloud = np.concatenate([xyz, rgb.reshape(-1, 3)[choose], normal], 1).astype(np.float32)
    labels = region["labels"][grid].ravel()[choose].astype(np.int64)
    subset = None
    if random is not None:
        objects = np.flatnonzero(labels)
        first = (
            random.choice(objects, FOREGROUND) if len(objects) else random.integers(points, size=FOREGROUND)
        )
        subset = np.concatenate([first, random.integers(points, size=ANYWHERE)])
    return cloud, rgb.transpose(2, 0, 1).copy(), choose[None], labels, region["pose"], subset
