"""`make demo`: a denoiser whose activations are MyClip, from PyTorch to ONNX to ONNX Runtime, in Python and C++.

Exports the trained network both ways, runs one photograph through every host, compares all results with PyTorch's, and
writes a picture. Ends with exit code 1 if anything disagrees.
"""

import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import matplotlib
import numpy as np
import opbridge
import torch
from network import NOISE, BuiltInClip, load_denoiser, photograph, psnr, with_noise
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
BUILD = Path(os.environ.get("OPBRIDGE_BUILD", ROOT / "build" / "release"))
LIBRARY = BUILD / "lib" / "libmy_custom_ops.so"
COMMAND = BUILD / "bin" / "opbridge"
OUT = ROOT / "build" / "demo"
TOLERANCE = 1e-5  # hosts add up a convolution's products in different orders
REPEAT = 5

console = Console()


def timed(run):
    """Its result, and the median of a few runs [ms]."""
    result = run()  # warm-up
    times = []
    for _ in range(REPEAT):
        begin = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - begin))
    return result, float(np.median(times))


def in_pytorch(model, image):
    with torch.inference_mode():
        result, ms = timed(lambda: model(image))
    return result.numpy(), ms


def in_ort_python(path, image):
    session = opbridge.session(path, libraries=[LIBRARY])
    result, ms = timed(lambda: session.run(None, {"image": image.numpy()}))
    return result[0], ms


def in_cpp(path, image_file):
    """Through the `opbridge` command, a C++ program that loads the same two files."""
    folder = OUT / path.stem
    command = [str(COMMAND), "run", str(path), "--library", str(LIBRARY), "--input", f"image={image_file}"]
    command += ["--output-dir", str(folder), "--warmup", "1", "--repeat", str(REPEAT), "--json"]
    # The command takes the ONNX Runtime of this Python environment.
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"VIRTUAL_ENV": sys.prefix}
    )
    if done.returncode != 0:
        sys.exit(f"error: {' '.join(command)}\n{done.stderr}{done.stdout}")
    return np.load(folder / "denoised.npy"), json.loads(done.stdout)["times_ms"]["median"]


def export_all(example):
    """The network with MyClip through both exporters, and with torch.clamp (ONNX's Clip) to compare with."""
    names = {"input_names": ["image"], "output_names": ["denoised"]}
    dynamic = {"image": {0: "batch", 2: "height", 3: "width"}}
    models = {}
    for exporter in ("dynamo", "torchscript"):
        path = OUT / f"denoiser_{exporter}.onnx"
        report = opbridge.export(
            load_denoiser(), (example,), path, exporter=exporter, dynamic_shapes=dynamic, **names
        )
        console.print(str(report), highlight=False)
        models[f"MyClip, {exporter}"] = path
    path = OUT / "denoiser_clip.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's, of its older exporter
        torch.onnx.export(
            load_denoiser(BuiltInClip), (example,), path, dynamo=False,
            dynamic_axes={**dynamic, "denoised": dynamic["image"]}, opset_version=17, **names,
        )  # fmt: skip
    models["built-in Clip"] = path
    return models


def picture(noisy, denoised, truth, path):
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    def pixels(image):
        return np.asarray(image)[0].transpose(1, 2, 0).clip(0, 1)

    figure, axes = plt.subplots(1, 3, figsize=(15, 3.8), layout="constrained")
    for axis, (title, image) in zip(axes, {
        f"input: noise of {255 * NOISE:.0f}/255, {psnr(noisy, truth):.1f} dB": noisy,
        f"output of the C++ runner, {psnr(torch.from_numpy(denoised), truth):.1f} dB": denoised,
        "the photograph": truth,
    }.items(), strict=True):  # fmt: skip
        axis.imshow(pixels(image))
        axis.set_title(title)
        axis.axis("off")
    figure.savefig(path, dpi=80)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    truth = photograph()
    noisy = with_noise(truth)
    np.save(OUT / "photo.npy", noisy.numpy())
    models = export_all(noisy[:, :, :96, :128].repeat(2, 1, 1, 1))

    expected, torch_ms = in_pytorch(load_denoiser(), noisy)
    rows = [("PyTorch", "MyClip", expected, torch_ms)]
    rows.append(("PyTorch", "torch.clamp", *in_pytorch(load_denoiser(BuiltInClip), noisy)))
    for name, path in models.items():
        rows.append(("ORT, Python", name, *in_ort_python(path, noisy)))
    for name, path in models.items():
        rows.append(("ORT, C++", name, *in_cpp(path, OUT / "photo.npy")))

    table = Table(title=f"one photograph, {noisy.shape[2]} x {noisy.shape[3]}, through every host")
    for column in ("host", "model", "max |diff|", "min", "max", "PSNR [dB]", "time [ms]", ""):
        table.add_column(column, justify="left" if column in ("host", "model") else "right")
    wrong = 0
    for host, model, result, ms in rows:
        # Written so that a NaN or another shape fails too.
        same_shape = result.shape == expected.shape
        difference = float(np.abs(result - expected).max()) if same_shape else float("nan")
        good = difference <= TOLERANCE and result.min() >= 0 and result.max() <= 1
        wrong += not good
        quality = f"{psnr(torch.from_numpy(result), truth):.2f}" if same_shape else "-"
        table.add_row(host, model, f"{difference:.1e}", f"{result.min():.3f}", f"{result.max():.3f}", quality,
                      f"{ms:.1f}", "[green]same[/]" if good else "[red]DIFFERENT[/]")  # fmt: skip
    console.print(table)
    if psnr(torch.from_numpy(expected), truth) < psnr(noisy, truth) + 5:
        wrong += 1
        console.print(
            "[red]the denoiser does not denoise: models/denoiser.npz is not what train.py writes[/]"
        )

    picture(noisy, rows[-3][2], truth, OUT / "denoised.png")
    console.print(
        f"picture: {(OUT / 'denoised.png').relative_to(ROOT)}   models: {OUT.relative_to(ROOT)}/*.onnx"
    )
    if wrong:
        console.print(f"[red]{wrong} of {len(rows)} results disagree[/]")
        sys.exit(1)
    console.print(f"[green]all {len(rows)} results agree within {TOLERANCE:g}[/]")


if __name__ == "__main__":
    main()
