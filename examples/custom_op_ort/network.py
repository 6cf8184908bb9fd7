"""A small convolutional image denoiser whose activations are MyClip, and how its pictures are made.

Input and output: images (batch, 3, height, width), float32 in [0, 1]; any batch, height and width.
"""

import itertools
from pathlib import Path

import numpy as np
import skimage.data
import torch
from opbridge.my_clip import MyClip

WEIGHTS = Path(__file__).parent / "models" / "denoiser.npz"
NOISE = 25 / 255  # standard deviation of the noise that it removes


class Denoiser(torch.nn.Module):
    """Predicts the noise and takes it away; the result is clipped to an image's range.

    `clip` makes an activation from (min, max): MyClip, or a built-in one to compare with.
    """

    def __init__(self, channels=40, hidden_layers=4, clip=MyClip):
        super().__init__()
        widths = [3] + [channels] * (hidden_layers + 1)
        layers = []
        for before, after in itertools.pairwise(widths):
            layers += [torch.nn.Conv2d(before, after, 3, padding=1), clip(-1.0, 1.0)]
        self.noise = torch.nn.Sequential(*layers, torch.nn.Conv2d(channels, 3, 3, padding=1))
        self.to_range = clip(0.0, 1.0)

    def forward(self, image):
        return self.to_range(image - self.noise(image))


class BuiltInClip(torch.nn.Module):
    """The same with torch.clamp, which exporters turn into ONNX's own Clip."""

    def __init__(self, min_val, max_val):
        super().__init__()
        self.bounds = min_val, max_val

    def forward(self, x):
        return torch.clamp(x, *self.bounds)


def load_denoiser(clip=MyClip):
    model = Denoiser(clip=clip)
    with np.load(WEIGHTS) as weights:
        model.load_state_dict({name: torch.from_numpy(weights[name].astype(np.float32)) for name in weights})
    return model.eval()


def photograph():
    """A photograph of a cat, 300 x 451 (scikit-image ships it; by Stéfan van der Walt, CC0). (1, 3, h, w) in [0, 1]."""
    return to_tensor(skimage.data.chelsea())


def to_tensor(image):
    return torch.from_numpy(image.astype(np.float32) / 255).permute(2, 0, 1)[None].contiguous()


def with_noise(image, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (image + NOISE * torch.randn(image.shape, generator=generator)).clamp(0, 1)


def psnr(image, truth):
    """Peak signal-to-noise ratio [dB]; higher is better."""
    return float(-10 * torch.log10(torch.mean((image - truth) ** 2)))
