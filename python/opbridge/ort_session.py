"""ONNX Runtime sessions with operator libraries registered, and the model checked against them first."""

import os
from dataclasses import dataclass

from .errors import InvalidArgumentError, ModelError, NotSupportedError, nearest
from .library import Library, is_operator_library, load

MIN_ONNXRUNTIME = (1, 16)
_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
# Domains that ONNX Runtime serves itself, and the beginnings of such.
_BUILT_IN = {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training", "org.pytorch.aten"}
_BUILT_IN_PREFIXES = ("com.microsoft", "com.ms.internal")


def session(
    model,
    libraries=(),
    providers=None,
    *,
    provider=None,
    allow_fallback=False,
    session_options=None,
    **options,
):
    """An onnxruntime.InferenceSession on `model` with `libraries` registered. `model`: a path, a serialized
    model or an onnx.ModelProto. `libraries`: paths or Library objects; a custom-op library that was not built
    with opbridge is registered unchecked. `providers`: as for InferenceSession; or `provider`: "cpu" or
    "cuda". With "cuda" everything runs there, or an error says what cannot; `allow_fallback` lets it run on
    the CPU instead. `session_options` is changed by the registration; `options` go to InferenceSession.
    Raises ModelError where the model does not fit the libraries, NotSupportedError where this ONNX Runtime
    cannot run it, LoadError for a bad library; what ONNX Runtime itself finds keeps its own type.
    """
    onnxruntime = _onnxruntime()
    opened, foreign = _open(libraries)
    problems = check_model(_proto(model), opened, others=bool(foreign))
    if problems:
        raise ModelError("\n".join(problems))
    session_options = session_options or onnxruntime.SessionOptions()
    for path in [library.path for library in opened] + foreign:
        session_options.register_custom_ops_library(path)
    if provider is not None:
        if providers is not None:
            raise InvalidArgumentError("give either provider= or providers=")
        providers = _providers(onnxruntime, provider, allow_fallback, session_options)
        if provider == "cuda" and not allow_fallback:
            _check_devices(_proto(model), opened)
            options.setdefault("enable_fallback", 0)
    if not isinstance(model, (str, os.PathLike, bytes)):
        model = model.SerializeToString()
    return onnxruntime.InferenceSession(
        os.fspath(model) if isinstance(model, os.PathLike) else model,
        sess_options=session_options,
        providers=providers or [_PROVIDERS["cpu"]],
        **options,
    )


def _onnxruntime():
    try:
        import onnxruntime
    except ImportError as e:
        raise NotSupportedError(f"sessions need ONNX Runtime: pip install onnxruntime ({e})") from None
    version = onnxruntime.__version__
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_ONNXRUNTIME:
        raise NotSupportedError(
            f"operator libraries need ONNX Runtime {'.'.join(map(str, MIN_ONNXRUNTIME))} or newer, this is "
            f"{version}: "
            "upgrade onnxruntime"
        )
    return onnxruntime


def _open(libraries):
    """(Library objects, paths of custom-op libraries that are not opbridge's)."""
    if isinstance(libraries, (str, os.PathLike, Library)):
        libraries = [libraries]
    opened, foreign = [], []
    for library in libraries:
        if not isinstance(library, Library):
            if not is_operator_library(library):
                foreign.append(os.fspath(library))
                continue
            library = load(library, torch=False)
        if library not in opened:
            opened.append(library)
    return opened, foreign


def _proto(model):
    import onnx

    if isinstance(model, bytes):
        return onnx.load_from_string(model)
    if isinstance(model, (str, os.PathLike)):
        if not os.path.exists(model):
            raise ModelError(f"no model file '{os.fspath(model)}'")
        return onnx.load(model, load_external_data=False)
    return model


def _providers(onnxruntime, provider, allow_fallback, session_options):
    if provider not in _PROVIDERS:
        known = ", ".join(f"'{p}'" for p in _PROVIDERS)
        raise InvalidArgumentError(
            f"provider is one of {known}, got {provider!r}; other providers go into providers=[..]"
        )
    name = _PROVIDERS[provider]
    available = onnxruntime.get_available_providers()
    if provider == "cpu" or (allow_fallback and name not in available):
        return [_PROVIDERS["cpu"]]
    if name not in available:
        raise NotSupportedError(
            f"this onnxruntime {onnxruntime.__version__} has no {name}, only {', '.join(available)}: install "
            "onnxruntime-gpu in its place, or pass allow_fallback=True to run on the CPU"
        )
    if allow_fallback:
        return [name, _PROVIDERS["cpu"]]
    # ORT runs silently on the CPU where the provider cannot be created, unless this forbids it.
    session_options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    return [name]


# --- what the model asks for, and what the libraries have


@dataclass(frozen=True)
class CustomNode:
    """A node of the model, or of one of its subgraphs or local functions, that ONNX Runtime does not serve
    itself."""

    domain: str
    op: str
    name: str
    attributes: tuple

    def __str__(self):
        return f"{self.domain}::{self.op} (node '{self.name}')" if self.name else f"{self.domain}::{self.op}"


def custom_nodes(model):
    """Every CustomNode of an onnx.ModelProto."""
    local = {(f.domain, f.name) for f in model.functions}

    def walk(nodes):
        for node in nodes:
            if not _is_built_in(node.domain) and (node.domain, node.op_type) not in local:
                yield CustomNode(node.domain, node.op_type, node.name, tuple(a.name for a in node.attribute))
            for attribute in node.attribute:
                for graph in (attribute.g, *attribute.graphs):
                    yield from walk(graph.node)

    nodes = list(walk(model.graph.node))
    for function in model.functions:
        nodes.extend(walk(function.node))
    return nodes


def _is_built_in(domain):
    return domain in _BUILT_IN or domain.startswith(_BUILT_IN_PREFIXES)


def check_model(model, libraries, others=False):
    """What keeps an onnx.ModelProto from running with `libraries`, a list of texts that name cause and cure;
    empty if nothing does. `others`: further custom-op libraries of unknown content will be registered,
    too."""
    problems = {}  # text -> None: the same problem of many nodes is told once
    by_domain = {library.domain: library for library in libraries}
    recorded = {p.key: p.value for p in model.metadata_props}
    for node in custom_nodes(model):
        library = by_domain.get(node.domain)
        operator = library.operators.get(node.op) if library else None
        if operator is None:
            if not (others and library is None):
                problems[_unserved(node, library, libraries, recorded)] = None
            continue
        known = [a.name for a in operator.attributes]
        for name in node.attributes:
            if name not in known:
                has = f"it has {', '.join(known)}" if known else "it has none"
                problems[f"{node} has an unknown attribute '{name}'{nearest(name, known)}; {has}"] = None
        fingerprint = recorded.get(f"opbridge.fingerprint.{operator.qualified_name}")
        if fingerprint is not None and fingerprint != operator.fingerprint:
            written = recorded.get(f"opbridge.library.{node.domain}", "another library")
            problems[
                f"{operator.qualified_name}: the model was exported with another declaration of this "
                "operator ("
                f"{written}) than '{library.path}' ({library.name} {library.version}) has: re-export the "
                "model, or give the library that it was exported with"
            ] = None
    return list(problems)


def _unserved(node, library, libraries, recorded):
    if library is not None:
        return (
            f"{node}: library '{library.path}' has domain '{node.domain}', but no operator '{node.op}'"
            f"{nearest(node.op, library.operators)}; it has {', '.join(library.operators)}"
        )
    elsewhere = [lib for lib in libraries if node.op in lib.operators]
    if elsewhere:
        return (
            f"{node}: no library given has domain '{node.domain}', but '{elsewhere[0].path}' has the same "
            "operator under "
            f"another domain, {elsewhere[0].domain}::{node.op}: export the model with that domain"
        )
    written = recorded.get(f"opbridge.library.{node.domain}")
    cure = f": the model was exported with {written}" if written else ""
    given = ", ".join(f"'{lib.domain}' ({lib.path})" for lib in libraries)
    if not given:
        return f"{node}: no library given has domain '{node.domain}'{cure}; give libraries=[..]"
    return (
        f"{node}: no library given has domain '{node.domain}'"
        f"{nearest(node.domain, [lib.domain for lib in libraries])}{cure}; given are {given}"
    )


def _check_devices(model, libraries):
    """Raises NotSupportedError for operators without a CUDA kernel."""
    operators = {(lib.domain, name): op for lib in libraries for name, op in lib.operators.items()}
    cpu_only = [
        node
        for node in custom_nodes(model)
        if (node.domain, node.op) in operators and "cuda" not in operators[node.domain, node.op].devices
    ]
    if cpu_only:
        raise NotSupportedError(
            f"provider 'cuda': the library has no CUDA kernel for {', '.join(map(str, cpu_only))}: use a "
            "library built with CUDA, or pass allow_fallback=True to run these nodes on the CPU"
        )
