"""`opbridge bench`: its numbers are of the right order, ratios tell fast from slow, and wrong outputs are told."""

import itertools

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from test_cli_compare import MY_CLIP, check_page, save, scaled, tensor
from test_cli_compare import opbridge as command


def opbridge(*arguments, code=0, both=False):
    return command(*arguments, code=code, both=both, name="bench")


def bench_json(*arguments, code=0):
    import json

    return json.loads(opbridge(*arguments, "--json", code=code))


def products(path, count):
    """y = x w w w ..: as much work as `count` says, with the same result."""
    weight = numpy_helper.from_array(np.eye(128, dtype=np.float32), "w")
    names = ["x", *(f"t{k}" for k in range(count - 1)), "y"]
    nodes = [helper.make_node("MatMul", [a, "w"], [b]) for a, b in itertools.pairwise(names)]
    graph = helper.make_graph(nodes, "g", [tensor("x", [128, 128])], [tensor("y", [128, 128])], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_one_model(tmp_path):
    result = bench_json(scaled(tmp_path / "m.onnx"), "--random", "--runs", 40, "--warmup", 3)
    (side,) = result["sides"]
    latency = side["latency_ms"]
    assert 0 < latency["min"] <= latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["max"]
    assert latency["min"] <= latency["mean"] <= latency["max"]
    assert result["rounds"] == 40
    assert result["warmup"] == 3
    assert side["ratio"] == {"median": 1, "low": 1, "high": 1}
    assert side["runs_per_second"] is None


def test_ratio_of_two_models(tmp_path):
    """Sixteen products against one: the ratio is far from 1, and its interval leaves no doubt."""
    a, b = products(tmp_path / "a.onnx", 1), products(tmp_path / "b.onnx", 16)
    result = bench_json(a, b, "--random", "--runs", 60, "--threads", 1)
    ratio = result["sides"][1]["ratio"]
    assert 2 < ratio["low"] <= ratio["median"] <= ratio["high"]
    back = bench_json(b, a, "--random", "--runs", 60, "--threads", 1)["sides"][1]["ratio"]
    assert back["high"] < 0.5
    text = opbridge(a, b, "--random", "--runs", 20)
    assert "p99" in text
    assert ".." in text


def test_wrong_outputs_are_told(tmp_path):
    a, b = scaled(tmp_path / "a.onnx"), scaled(tmp_path / "b.onnx", 3)
    result = bench_json(a, b, "--random", "--runs", 10, code=1)
    assert [s["equal"] for s in result["sides"]] == [True, False]
    assert "'y'" in result["sides"][1]["difference"]
    assert "DIFFERENT" in opbridge(a, b, "--random", "--runs", 10, code=1)


def test_profile_tells_the_custom_operators_share(tmp_path):
    big = [512, 512]
    nodes = [
        helper.make_node("MatMul", ["x", "x"], ["t"], name="product"),
        helper.make_node("my_clip", ["t"], ["y"], name="clip", domain="my_namespace"),
    ]
    model = save(tmp_path / "m.onnx", nodes, [tensor("x", big)], [tensor("y", big)], [], ["my_namespace"])
    arguments = [model, "--library", MY_CLIP, "--random", "--runs", 3, "--profile"]
    profile = bench_json(*arguments)["sides"][0]["profile"]
    times = {node["name"]: node["ms"] for node in profile["nodes"]}
    assert [node["name"] for node in profile["nodes"]] == ["product", "clip"]  # the slowest first
    assert [node["custom"] for node in profile["nodes"]] == [False, True]
    assert profile["custom_ms"] == times["clip"] > 0
    assert profile["ms"] == pytest.approx(sum(times.values()))
    text = opbridge(*arguments, "--html", tmp_path / "page.html")
    assert "of which custom operators" in text
    check_page(tmp_path / "page.html")
    assert "custom operators marked" in (tmp_path / "page.html").read_text()


def test_throughput_of_several_sessions(tmp_path):
    result = bench_json(
        scaled(tmp_path / "m.onnx"),
        "--random",
        "--runs",
        10,
        "--sessions",
        3,
        "--seconds",
        0.2,
        "--threads",
        1,
    )
    assert result["sides"][0]["runs_per_second"] > 100


def test_pinning(tmp_path):
    import os

    allowed = sorted(os.sched_getaffinity(0))
    model = scaled(tmp_path / "m.onnx")
    assert f"on CPU {allowed[0]}" in opbridge(model, "--random", "--runs", 10, "--cpus", allowed[0])
    assert "may not run there" in opbridge(model, "--random", "--cpus", 1000, code=1, both=True)


@pytest.mark.parametrize("cpus", ["", "a", "1-", "3-2", "1,", "1,,2", "99999"])
def test_wrong_lists_of_cpus(cpus, tmp_path):
    text = opbridge(scaled(tmp_path / "m.onnx"), "--random", f"--cpus={cpus}", code=2, both=True)
    assert "--cpus" in text


def test_page(tmp_path):
    model = scaled(tmp_path / "m.onnx")
    opbridge(
        model, "--random", "--runs", 10, "--threads", 1, "--threads", 2, "--html", tmp_path / "page.html"
    )
    page = check_page(tmp_path / "page.html")
    assert "threads 2" in page.text
    assert page.tags.count("rect") == 2
