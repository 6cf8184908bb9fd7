"""The operators' cases: what every <op>_ref.py says, and the oracle's. Needs NumPy only.

A reference module has OPERATOR (the ONNX name), reference(inputs, attributes) -> outputs by name, cases() yielding
dict(name, inputs, attributes), and COMPARE: output -> "exact" or ("close", rtol, atol). Where the operator has a
gradient, reference_grad, grad_cases and COMPARE_GRAD say the same of it. Modules import one another by name.

As a program, writes the cases of pvn3d_custom_op for programs that have no Python: to an .npz for
tests/cuda/gpu_check.cpp, or, in the order and with the types that the library declares, to a file for
tests/run_cases.cpp:

  python tests/cases.py FILE
  python tests/cases.py --flat LIBRARY.so FILE
"""

import importlib
import io
import lzma
import struct
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PATHS = sorted(p for p in (ROOT / "ops").glob("**/*_ref.py") if p.stem == f"{p.parent.name}_ref")
sys.path += [str(p.parent) for p in PATHS]


class Reference:
    """What a reference module says of its operator or of the operator's gradient."""

    def __init__(self, path, module, grad):
        self.library = "my_custom_ops" if path.parent.name == "my_clip" else "pvn3d_custom_op"
        snake_case = module.OPERATOR.islower()
        self.operator = module.OPERATOR + (("_grad" if snake_case else "Grad") if grad else "")
        self.compute = module.reference_grad if grad else module.reference
        self.cases = list(module.grad_cases() if grad else module.cases())
        self.compare = module.COMPARE_GRAD if grad else module.COMPARE
        self.known = {}

    def __str__(self):
        return self.operator

    def expected(self, case):
        """Outputs by name, computed once."""
        if case["name"] not in self.known:
            self.known[case["name"]] = self.compute(case["inputs"], case["attributes"])
        return self.known[case["name"]]

    def check(self, case, outputs):
        """Asserts that `outputs`, by name, are what the reference gives."""
        expected = self.expected(case)
        assert expected.keys() == outputs.keys() == self.compare.keys(), case["name"]
        for name, value in outputs.items():
            where = f"{case['name']}: {name}"
            assert (value.dtype, value.shape) == (expected[name].dtype, expected[name].shape), where
            if self.compare[name] == "exact":
                np.testing.assert_array_equal(value, expected[name], err_msg=where)
            else:
                rtol, atol = self.tolerance(name, value.dtype)
                np.testing.assert_allclose(value, expected[name], rtol, atol, err_msg=where)

    def tolerance(self, output, dtype):
        """(rtol, atol); (0, 0) is exact."""
        if self.compare[output] == "exact":
            return 0, 0
        _, rtol, atol = self.compare[output]
        return (max(rtol, 1e-3), max(atol, 6e-8)) if dtype == np.float16 else (rtol, atol)


def references(library=None):
    """Of every operator, or every one of a library, and of their gradients."""
    found = []
    for path in PATHS:
        module = importlib.import_module(path.stem)
        found += [Reference(path, module, g) for g in (False, True) if not g or hasattr(module, "grad_cases")]
    return [r for r in found if library in (None, r.library)]


def oracle():
    """The oracle's cases: (operator, name, {"in": {...}, "attr": {...}, "out": {...}})."""
    path = Path(__file__).parent / "data" / "oracle.npz.xz"
    arrays = np.load(io.BytesIO(lzma.decompress(path.read_bytes())))
    cases = {}
    for key in arrays.files:
        operator, case, group, name = key.split("/")
        cases.setdefault((operator, case), {"in": {}, "attr": {}, "out": {}})[group][name] = arrays[key]
    return [(operator, name, case) for (operator, name), case in cases.items()]


# Gradients that have no slow, obvious reference (tests of the CPU kernel compare them with differences): cases are made
# of the forward's, and hosts and devices are compared. Operator -> outputs with a gradient, outputs and attributes
# that are passed.
DERIVED = {
    "VoteAggregate": (["kps"], ["kps"], ["bandwidth", "offset_sign"]),
    "KabschSolver": (["rotation", "translation"], [], []),
    "EulerToRotation": (["rotation"], [], ["order", "extrinsic"]),
    "AxisAngleToRotation": (["rotation"], [], []),
    "QuaternionToRotation": (["rotation"], [], ["scalar_first"]),
}


def derived_grad_cases(reference):
    """dict(name, inputs, attributes) of <OPERATOR>Grad."""
    graded, passed, attributes = DERIVED[reference.operator]
    rng = np.random.default_rng(31)
    for case in reference.cases:
        if case["attributes"].get("variant") == "ffb6d":
            continue  # refused
        outputs = reference.expected(case)
        inputs = {f"grad_{o}": rng.normal(size=outputs[o].shape).astype(outputs[o].dtype) for o in graded}
        inputs |= case["inputs"] | {o: outputs[o] for o in passed}
        kept = {k: v for k, v in case["attributes"].items() if k in attributes}
        yield dict(name=case["name"], inputs=inputs, attributes=kept)


def oracle_call(operator, case):
    """An oracle case as a call: (inputs, attributes)."""
    inputs, attributes = dict(case["in"]), {k: v.item() for k, v in case["attr"].items() if v.ndim == 0}
    single = {k: v.astype(np.float32) if v.dtype == np.float64 else v for k, v in inputs.items()}
    if operator == "PVN3DPoseSolve":
        inputs = {k: single[k][None] for k in ("points", "labels", "kp_of")} | {
            "ctr_of": single["ctr_of"][None, None]
        }
        inputs |= {k: single[k] for k in ("mesh_kps", "mesh_ctr")}
        if attributes["refine"]:
            inputs["radii"] = case["attr"]["radii"].astype(np.float32)
        kept = dict(bandwidth=attributes["bandwidth"], variant=str(attributes["variant"]))
        if kept["variant"] == "ffb6d":
            kept["max_iter"] = 4  # all votes move each time: minutes where a GPU is emulated
        return inputs, kept | {k: bool(attributes[k]) for k in ("ctr_filter", "use_ctr")}
    if operator == "VoteAggregate":
        return {k: v[None] for k, v in single.items()}, dict(bandwidth=attributes["bandwidth"])
    if operator.endswith("ToRotation"):
        name = {"Euler": "angles", "AxisAngle": "axis_angle", "Quaternion": "quaternion"}[
            operator.removesuffix("ToRotation")
        ]
        (x,) = inputs.values()
        return {name: x}, attributes
    if operator in ("KabschSolver", "L2Normalize"):
        return inputs, attributes
    return {k: v[None] for k, v in inputs.items()}, attributes


def arrays_of(operator, name, inputs, attributes, outputs=None, tolerance=None):
    """One case as entries of the .npz."""
    key = f"{operator}/{name}"
    yield f"{key}/case", np.zeros(0, np.uint8)  # there, even where it has no inputs
    for k, x in inputs.items():
        if x is not None:
            yield f"{key}/in/{k}", np.array(x, order="C")
    for k, v in attributes.items():
        yield (
            f"{key}/attr/{k}",
            np.frombuffer(v.encode(), np.uint8) if isinstance(v, str) else np.asarray(v, np.float64),
        )
    for k, x in (outputs or {}).items():
        yield f"{key}/out/{k}", np.array(x, order="C")
        yield f"{key}/tolerance/{k}", np.array(tolerance(k, x.dtype), np.float64)


def every_case():
    """(operator, name, inputs, attributes, expected outputs or None, tolerance or None) of pvn3d_custom_op."""
    for reference in references("pvn3d_custom_op"):
        for c in reference.cases:
            expected = reference.expected(c)
            yield reference.operator, c["name"], c["inputs"], c["attributes"], expected, reference.tolerance
        if reference.operator in DERIVED:
            for c in derived_grad_cases(reference):
                yield f"{reference.operator}Grad", c["name"], c["inputs"], c["attributes"], None, None
    for operator, name, c in oracle():
        yield operator, f"oracle_{name}", *oracle_call(operator, c), None, None


def write(path):
    arrays = {}
    for case in every_case():
        arrays |= arrays_of(*case)
    np.savez_compressed(path, **arrays)


def write_flat(library_path, path):
    import opbridge  # only here: who writes an .npz needs no library

    library = opbridge.load(library_path, torch=False)
    data, count = bytearray(), 0
    types = {"int": 1, "float": 2, "bool": 3, "string": 4}

    def text(s):
        data.extend(struct.pack("<I", len(s)) + s.encode())

    def array(x):
        data.append(x is not None)
        if x is not None:
            data.extend([{"i": 0, "f": 2, "b": 6}[x.dtype.kind], 8 * x.dtype.itemsize, x.ndim])
            data.extend(struct.pack(f"<{x.ndim}q", *x.shape) + np.array(x, order="C").tobytes())

    for operator, name, inputs, attributes, expected, tolerance in every_case():
        declared = library.operators[operator]
        kinds = {a.name: a.type for a in declared.attributes}
        text(operator), text(name)
        data.extend(struct.pack("<I", len(attributes)))
        for key, v in attributes.items():
            text(key)
            data.extend(struct.pack("<Bd", types[kinds[key]], 0 if isinstance(v, str) else v))
            text(v if isinstance(v, str) else "")
        data.extend(struct.pack("<I", len(declared.inputs)))
        for i in declared.inputs:
            array(inputs.get(i.name))
        data.extend(struct.pack("<I", len(declared.outputs) if expected else 0))
        for o in declared.outputs if expected else ():
            array(expected[o.name])
            data.extend(struct.pack("<dd", *tolerance(o.name, expected[o.name].dtype)))
        count += 1
    Path(path).write_bytes(struct.pack("<I", count) + data)


if __name__ == "__main__":
    write_flat(*sys.argv[2:]) if sys.argv[1] == "--flat" else write(sys.argv[1])
