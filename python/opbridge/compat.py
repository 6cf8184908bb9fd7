"""Puts opbridge's operators where existing networks look for their compiled extension.

  import opbridge.compat
  opbridge.compat.install("pointnet2_ops")      # before the network is imported
  from pointnet2_ops.pointnet2_modules import PointnetSAModuleMSG

The network's source stays as it is, and runs on the CPU too.
"""

import sys
import types

from . import pointnet2

_ops = pointnet2._ops


def install(name, *, force=False):
    """Makes `import <name>` find opbridge's operators. Returns the module.

      "pointnet2_ops"     the package of erikwijmans/Pointnet2_PyTorch: pointnet2_utils, pointnet2_modules and _ext
      a name that ends in "_ext"            its compiled part alone: "pointnet2._ext" (VoteNet),
      "lib.pointnet2_utils._ext"
                          (PVN3D), "models.pytorch_utils._ext", ...
      a name that ends in "_cuda"           the compiled part that writes into given tensors: "pointnet2_cuda"
      (sshaoshuai),
                          "pcdet.ops.pointnet2.pointnet2_batch.pointnet2_batch_cuda" (OpenPCDet)

    Packages that lead to the name are imported where they exist and made up where they do not. Raises ImportError
    where a
    real module of that name is loaded already and `force` is not given, ValueError for a name of no known kind.
    """
    last = name.rpartition(".")[2]
    if name == "pointnet2_ops":
        parts = {
            "": _pointnet2_ops,
            ".pointnet2_utils": _utils,
            ".pointnet2_modules": _modules,
            "._ext": _ext,
        }
    elif last.endswith("_ext"):
        parts = {"": _ext}
    elif last.endswith("_cuda"):
        parts = {"": _cuda_wrappers}
    else:
        raise ValueError(
            f"'{name}' is not a module that opbridge can stand in for: use 'pointnet2_ops', or the dotted "
            "name under which the network imports its compiled part, ending in '_ext' or '_cuda'"
        )
    for suffix, contents in parts.items():
        full = name + suffix
        if full in sys.modules and not force and "__opbridge__" not in vars(sys.modules[full]):
            raise ImportError(
                f"'{full}' is loaded already: call install() before the network is imported, or give force=True"
            )
        module = types.ModuleType(full, f"opbridge in the place of {full}")
        module.__opbridge__ = True
        if suffix == "":
            module.__path__ = []
        module.__dict__.update(contents)
        _attach(full, module)
    return sys.modules[name]


def _attach(full, module):
    """Enters `module` and, where they are missing, the packages above it."""
    parent, _, last = full.rpartition(".")
    if parent:
        if parent not in sys.modules:
            try:
                __import__(parent)
            except ImportError:
                package = types.ModuleType(parent, "made up by opbridge.compat")
                package.__path__ = []
                package.__opbridge__ = True
                _attach(parent, package)
        setattr(sys.modules[parent], last, module)
    sys.modules[full] = module


def _like(grad_out, size):
    """Features of the forward call: their shape is all that a gradient needs to know."""
    return grad_out.new_empty(grad_out.shape[0], grad_out.shape[1], size)


def _square_three_nn(unknown, known):
    return _ops.three_nn(unknown, known, squared=True)


def _three_interpolate_grad(grad_out, idx, weight, m):
    return _ops.three_interpolate_grad(grad_out, _like(grad_out, m), idx, weight)[0]


_ext = {
    "furthest_point_sampling": pointnet2.furthest_point_sample,
    "gather_points": pointnet2.gather_operation,
    "gather_points_grad": lambda grad_out, idx, n: _ops.gather_points_grad(
        grad_out.contiguous(), _like(grad_out, n), idx
    ),
    "group_points": pointnet2.grouping_operation,
    "group_points_grad": lambda grad_out, idx, n: _ops.group_points_grad(
        grad_out.contiguous(), _like(grad_out, n), idx
    ),
    # The compiled function takes the centres first, unlike the Python one.
    "ball_query": lambda new_xyz, xyz, radius, nsample: pointnet2.ball_query(radius, nsample, xyz, new_xyz),
    "three_nn": _square_three_nn,
    "three_interpolate": pointnet2.three_interpolate,
    "three_interpolate_grad": _three_interpolate_grad,
}

_utils = {
    name: getattr(pointnet2, name)
    for name in (
        "furthest_point_sample",
        "gather_operation",
        "grouping_operation",
        "ball_query",
        "three_nn",
        "three_interpolate",
        "QueryAndGroup",
        "GroupAll",
    )
}
_modules = {
    name: getattr(pointnet2, name)
    for name in ("build_shared_mlp", "PointnetSAModuleMSG", "PointnetSAModule", "PointnetFPModule")
}
_pointnet2_ops = {"__version__": "3.0.0"}


def _into(*outputs):
    """Writes results into tensors that the caller allocated; returns 1, as these functions do."""
    for destination, value in outputs:
        destination.copy_(value)
    return 1


def _sample(b, n, npoint, xyz, temp, output):
    return _into((output, pointnet2.furthest_point_sample(xyz, npoint)))


def _query(b, n, npoint, radius, nsample, new_xyz, xyz, idx):
    return _into((idx, pointnet2.ball_query(radius, nsample, xyz, new_xyz)))


def _nearest(b, n, m, unknown, known, dist2, idx):
    squared, found = _square_three_nn(unknown, known)
    return _into((dist2, squared), (idx, found))


_cuda_wrappers = {
    "furthest_point_sampling_wrapper": _sample,
    "farthest_point_sampling_wrapper": _sample,
    "ball_query_wrapper": _query,
    "three_nn_wrapper": _nearest,
    "gather_points_wrapper": lambda b, c, n, npoint, features, idx, out: _into(
        (out, _ops.gather_points(features, idx))
    ),
    "gather_points_grad_wrapper": lambda b, c, n, npoint, grad_out, idx, grad: _into(
        (grad, _ext["gather_points_grad"](grad_out, idx, n))
    ),
    "group_points_wrapper": lambda b, c, n, npoint, nsample, features, idx, out: _into(
        (out, _ops.group_points(features, idx))
    ),
    "group_points_grad_wrapper": lambda b, c, n, npoint, nsample, grad_out, idx, grad: _into(
        (grad, _ext["group_points_grad"](grad_out, idx, n))
    ),
    "three_interpolate_wrapper": lambda b, c, m, n, features, idx, weight, out: _into(
        (out, _ops.three_interpolate(features, idx, weight))
    ),
    "three_interpolate_grad_wrapper": lambda b, c, n, m, grad_out, idx, weight, grad: _into(
        (grad, _three_interpolate_grad(grad_out.contiguous(), idx, weight, m))
    ),
}


def installed():
    """Names of the modules that opbridge stands in for."""
    return sorted(name for name, module in sys.modules.items() if "__opbridge__" in vars(module))
