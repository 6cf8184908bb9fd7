"""Trains the demo's denoiser on photographs that scikit-image ships (never on the one that the demo shows) and writes
models/denoiser.npz. About ten minutes on one core.

  python examples/custom_op_ort/train.py [--steps 1500]
"""

import argparse

import numpy as np
import skimage.data
import torch
from network import NOISE, WEIGHTS, Denoiser, photograph, psnr, to_tensor, with_noise
from rich.progress import track


def patches(images, count, size, generator):
    """Random square pieces, turned and mirrored: (count, 3, size, size)."""
    out = []
    for _ in range(count):
        image = images[torch.randint(len(images), (1,), generator=generator)]
        top = torch.randint(image.shape[2] - size + 1, (1,), generator=generator)
        left = torch.randint(image.shape[3] - size + 1, (1,), generator=generator)
        piece = image[0, :, top : top + size, left : left + size]
        turns, mirror = torch.randint(4, (2,), generator=generator)
        piece = torch.rot90(piece, int(turns), (1, 2))
        out.append(piece.flip(2) if mirror % 2 else piece)
    return torch.stack(out)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1500)
    steps = parser.parse_args().steps

    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    data = skimage.data
    images = [to_tensor(make()) for make in (data.astronaut, data.coffee, data.rocket, data.colorwheel)]
    images += [to_tensor(image) for image in data.stereo_motorcycle()[:2]]

    model = Denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=steps)
    for _ in track(range(steps), description="training"):
        truth = patches(images, 16, 40, generator)
        noisy = (truth + NOISE * torch.randn(truth.shape, generator=generator)).clamp(0, 1)
        loss = torch.nn.functional.mse_loss(model(noisy), truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()

    # Half precision is enough for weights and halves the file.
    np.savez_compressed(
        WEIGHTS, **{name: value.numpy().astype(np.float16) for name, value in model.state_dict().items()}
    )
    truth = photograph()
    noisy = with_noise(truth)
    with torch.no_grad():
        print(
            f"unseen photograph: noisy {psnr(noisy, truth):.2f} dB, denoised {psnr(model.eval()(noisy), truth):.2f} dB"
        )
    print(f"wrote {WEIGHTS} ({WEIGHTS.stat().st_size / 1024:.0f} KiB)")


if __name__ == "__main__":
    main()
