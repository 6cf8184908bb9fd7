"""gpu_check_torch.py LIBRARY: the CUDA kernels under torch. Prints a line for each check, as gpu_check does."""

import sys


def line(status, name, detail):
    print(status, name, " ".join(str(detail).split()), sep="\t", flush=True)


def main(library):
    try:
        import opbridge
        import torch
    except ImportError as e:
        line("skipped", "torch", e)
        return 0
    if not torch.cuda.is_available():
        line("skipped", "torch", f"torch {torch.__version__} sees no CUDA device")
        return 0
    opbridge.load(library)
    clip = torch.ops.my_namespace.my_clip
    failed = 0
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64):
        name = f"my_clip equals torch.clamp, {dtype}"
        try:
            x = (torch.randn(3, 1000, device="cuda") * 4).to(dtype)
            low, high = (
                torch.tensor(-2, dtype=dtype, device="cuda"),
                torch.tensor(3, dtype=dtype, device="cuda"),
            )
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                y = clip(x, low, high)
            torch.cuda.current_stream().wait_stream(stream)
            torch.testing.assert_close(y, torch.clamp(x, low, high), rtol=0, atol=0)
            line("passed", name, f"torch {torch.__version__} on {torch.cuda.get_device_name()}")
        except Exception as e:  # whatever it is, the report is to say it
            failed = 1
            line("failed", name, e)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
