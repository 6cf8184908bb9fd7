"""Trains the network on the crops of generate.py and writes models/pvn3d.npz. docs/pvn3d.md has the commands.

  python examples/pvn3d/train.py DATA --validation FOLDER [--steps 5500]

DATA is a folder of shards (generate.py crops DATA), which may still be growing. A checkpoint beside the weights keeps
everything; the same command goes on from it. Validation every five minutes goes to a .log beside the weights.
"""

import argparse
import contextlib
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
from crops import FOREGROUND, Crops, sample
from network import PVN3D, UNIT, WEIGHTS, PoseModel, save_weights
from objects import NAMES, SYMMETRIC, load_objects, surface_points
from opbridge import pvn3d
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SAVE_EVERY, VALIDATE_EVERY = 60, 300  # [s]


def keypoints_and_centres():
    """(classes, K + 1, 3) f32: each object's keypoints and, last, its centre; zeros for the background."""
    objects = load_objects()
    rows = [[[0.0] * 3] * (len(objects[0]["keypoints"]) + 1)]
    return torch.tensor(rows + [[*o["keypoints"], o["center"]] for o in objects])


def batch_of(samples):
    return [torch.from_numpy(np.stack(field)) for field in zip(*samples, strict=True)]


def loss_of(network, batch, keypoints):
    cloud, rgb, choose, labels, pose, subset = batch
    kp_of, seg, ctr_of = network(cloud, rgb, choose, subset)
    labels = labels.gather(1, subset)
    xyz = cloud[..., :3].gather(1, subset.unsqueeze(2).expand(-1, -1, 3))
    # Where each object's keypoints are in the camera's frame, for each point those of its own object.
    places = torch.einsum("bmij,mkj->bmki", pose[..., :3], keypoints[1:]) + pose[:, :, None, :, 3]
    own = (labels - 1).clamp(min=0)
    own = places.gather(1, own[..., None, None].expand(-1, -1, *places.shape[2:]))
    truth = (xyz.unsqueeze(2) - own).transpose(1, 2)
    offsets = torch.cat([kp_of, ctr_of], 1)
    error = torch.nn.functional.smooth_l1_loss(offsets / UNIT, truth / UNIT, beta=0.1, reduction="none")
    on_object = (labels > 0).unsqueeze(1)
    vote = (error.sum(3) * on_object).sum() / (on_object.sum() * offsets.shape[1]).clamp(min=1)
    entropy = torch.nn.functional.cross_entropy(
        seg[:, FOREGROUND:].flatten(0, 1), labels[:, FOREGROUND:].flatten()
    )
    return vote + 0.3 * entropy, vote.detach(), entropy.detach()


@torch.no_grad()
def validate(network, crops, count):
    """Shares [%] of views with ADD (ADD-S) below 10% of the diameter, by visible share; and the segmentation's."""
    network.eval()
    model, objects = PoseModel(network), load_objects()
    clouds = [torch.tensor(surface_points(name, 300), dtype=torch.float32) for name in NAMES]
    good, bins, right, per_object = [], [], [], {}
    for start in range(0, min(count, len(crops)), 16):
        regions = [crops[i] for i in range(start, min(start + 16, count, len(crops)))]
        samples = [(s[:-1], r) for r in regions if (s := sample(r, None)) is not None]
        cloud, rgb, choose, labels, pose = batch_of([s for s, _ in samples])
        rotation, translation, valid, _, _ = model(cloud, rgb, choose)
        seg = network(cloud, rgb, choose)[1].argmax(2)
        right.append((seg == labels).float().mean().item())
        for i, (_, region) in enumerate(samples):
            m = int(region["target"]) - 1
            if m < 0:
                continue
            distance = pvn3d.adds if NAMES[m] in SYMMETRIC else pvn3d.add
            error = distance(
                rotation[i, m], translation[i, m], pose[i, m, :, :3], pose[i, m, :, 3], clouds[m]
            )
            hit = bool(valid[i, m] > 0 and error < 0.1 * objects[m]["diameter"])
            good.append(hit)
            bins.append(float(region["visible"]))
            if bins[-1] >= 0.7:
                per_object.setdefault(NAMES[m], []).append(hit)
    network.train()
    good, bins = np.array(good), np.array(bins)
    result = {}
    for low, high in ((0.2, 0.4), (0.4, 0.7), (0.7, 1.1), (0.4, 1.1)):
        hits = good[(bins >= low) & (bins < high)]
        result[f"{low:.1f}-{high:.1f}"] = round(100 * float(hits.mean()), 1) if len(hits) else None
    result |= {name: round(100 * float(np.mean(hits)), 1) for name, hits in sorted(per_object.items())}
    return result | {"segmentation": round(100 * float(np.mean(right)), 1)}


def average(ema, network, step):
    decay = min(0.998, (1 + step) / (10 + step))
    for name, value in network.state_dict().items():
        if value.is_floating_point():
            ema[name].lerp_(value, 1 - decay)


def save(path, state):
    """As a whole or not at all."""
    torch.save(state, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--validation", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=5500)
    parser.add_argument("--stop", type=int, help="end before this step, to go on later")
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    random = np.random.default_rng(args.seed)
    crops, held_out, keypoints = Crops(args.data), Crops(args.validation), keypoints_and_centres()
    for folder, shards in ((args.data, crops), (args.validation, held_out)):
        if not len(shards):
            raise SystemExit(f"error: no crops in '{folder}': examples/pvn3d/generate.py crops writes them")
    network, evaluated = PVN3D(), PVN3D()
    optimizer = torch.optim.AdamW(network.parameters(), lr=args.learning_rate, weight_decay=1e-2)
    ema = {name: value.clone() for name, value in network.state_dict().items()}
    checkpoint, step = args.weights.with_suffix(".checkpoint"), 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=False)
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        ema, step = state["ema"], state["step"]
        torch.set_rng_state(state["torch_random"])
        random.bit_generator.state = state["random"]

    def keep():
        save(checkpoint, {
            "network": network.state_dict(), "optimizer": optimizer.state_dict(), "ema": ema, "step": step,
            "torch_random": torch.get_rng_state(), "random": random.bit_generator.state,
        })  # fmt: skip
        save_weights(ema, args.weights)

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    log = args.weights.with_suffix(".log").open("a")
    saved = validated = time.monotonic()
    means = np.zeros(3)
    with Progress(*columns) as progress, contextlib.closing(log):
        bar = progress.add_task("training", total=args.steps, completed=step)
        last = min(args.stop or args.steps, args.steps)
        while step < last:
            # Cosine, after a short warm-up; a function of the step alone, so that it can be resumed.
            rate = 0.5 * (1 + np.cos(np.pi * step / args.steps)) * min(1, (step + 1) / 200)
            for group in optimizer.param_groups:
                group["lr"] = args.learning_rate * max(rate, 0.005)
            samples = []
            while len(samples) < args.batch:
                made = sample(crops[random.integers(len(crops))], random)
                if made is not None:
                    samples.append(made)
            loss, vote, entropy = loss_of(network, batch_of(samples), keypoints)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
            optimizer.step()
            step += 1
            average(ema, network, step)
            means = 0.98 * means + 0.02 * np.array([loss.item(), vote.item(), entropy.item()])
            progress.update(bar, advance=1, description=f"votes {means[1]:.4f} segmentation {means[2]:.4f}")
            now = time.monotonic()
            if now - saved > SAVE_EVERY or step == last:
                crops.refresh()
                keep()
                saved = now
            if now - validated > VALIDATE_EVERY or step == args.steps:
                held_out.refresh()
                evaluated.load_state_dict(ema)
                line = {"step": step, "crops": len(crops), "loss": np.round(means, 4).tolist()}
                line |= validate(evaluated, held_out, 320 if step < args.steps else len(held_out))
                log.write(json.dumps(line) + "\n")
                log.flush()
                validated = time.monotonic()


if __name__ == "__main__":
    main()
