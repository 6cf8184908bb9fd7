#include "sessions.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <thread>

#include "runner/onnx_types.h"
#include "runner/proto.h"

namespace opbridge::checking {

namespace {

enum class Shapes : uint8_t { kStatic, kSymbolic, kUnknownRank };
constexpr const char* kShapesNames[] = {"static shapes", "symbolic shapes", "unknown ranks"};

std::string input_name(const Signature& s, size_t i) {
  return argument_of(s, i).name + (s.variadic() && i + 1 >= s.inputs.size() ? std::to_string(i) : "");
}

std::string output_name(const Signature& s, size_t i) { return "out_" + s.outputs[i].name; }

// One node of the operator, inputs and outputs the graph's.
std::string model_of(const Signature& s, const Case& c, const Served& served, Shapes shapes) {
  pb::ModelProto model;
  model.set_ir_version(8);
  model.add_opset_import()->set_version(17);
  pb::OperatorSetIdProto& import = *model.add_opset_import();
  import.set_domain(served.domain);
  import.set_version(served.version);
  pb::GraphProto& graph = *model.mutable_graph();
  graph.set_name("check");
  pb::NodeProto& node = *graph.add_node();
  node.set_name("checked");
  node.set_domain(served.domain);
  node.set_op_type(s.name);
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    if (!c.inputs[i].present) {
      node.add_input("");
      continue;
    }
    node.add_input(input_name(s, i));
    pb::ValueInfoProto& value = *graph.add_input();
    value.set_name(input_name(s, i));
    auto& tensor = *value.mutable_type()->mutable_tensor_type();
    tensor.set_elem_type(to_onnx_type(c.inputs[i].dtype));
    if (shapes == Shapes::kUnknownRank) continue;
    auto& shape = *tensor.mutable_shape();
    for (size_t d = 0; d < c.inputs[i].shape.size(); ++d) {
      auto& dim = *shape.add_dim();
      if (shapes == Shapes::kStatic)
        dim.set_dim_value(c.inputs[i].shape[d]);
      else
        dim.set_dim_param("d" + std::to_string(i) + "_" + std::to_string(d));
    }
  }
  while (node.input_size() > 0 && node.input(node.input_size() - 1).empty())
    node.mutable_input()->RemoveLast();
  for (size_t i = 0; i < s.outputs.size(); ++i) {
    node.add_output(output_name(s, i));
    pb::ValueInfoProto& value = *graph.add_output();
    value.set_name(output_name(s, i));
    const Argument& a = s.outputs[i];
    const DType type = a.type_variable < 0 ? a.concrete : c.types[static_cast<size_t>(a.type_variable)];
    value.mutable_type()->mutable_tensor_type()->set_elem_type(to_onnx_type(type));
  }
  for (const auto& [name, v] : c.attributes) {
    pb::AttributeProto& a = *node.add_attribute();
    a.set_name(name);
    switch (v.type) {
      case AttributeType::kInt:
      case AttributeType::kBool:
        a.set_type(pb::AttributeProto::INT);
        a.set_i(v.i);
        break;
      case AttributeType::kFloat:
        a.set_type(pb::AttributeProto::FLOAT);
        a.set_f(v.f);
        break;
      case AttributeType::kString:
        a.set_type(pb::AttributeProto::STRING);
        a.set_s(v.s);
        break;
      case AttributeType::kInts:
        a.set_type(pb::AttributeProto::INTS);
        for (const int64_t x : v.ints) a.add_ints(x);
        break;
      case AttributeType::kFloats:
        a.set_type(pb::AttributeProto::FLOATS);
        for (const float x : v.floats) a.add_floats(x);
        break;
    }
  }
  return model.SerializeAsString();
}

Session session_of(const Signature& s, const Case& c, const Served& served, const Runtime& runtime,
                   Shapes shapes, int threads) {
  const MemoryFile file(model_of(s, c, served, shapes));
  SessionOptions options;
  options.libraries = {served.library};
  options.threads = threads;
  return Session(runtime, file.path(), options);
}

Arrays arrays_of(const Signature& s, const Case& c, const std::vector<Array>& inputs) {
  Arrays arrays;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (c.inputs[i].present) arrays.emplace(input_name(s, i), inputs[i]);
  }
  return arrays;
}

Result result_of(const Signature& s, const Arrays& arrays) {
  Result r;
  for (size_t i = 0; i < s.outputs.size(); ++i) r.outputs.push_back(arrays.at(output_name(s, i)));
  return r;
}

// What the session says of its outputs must hold for the real ones.
std::string broken_promise(const Signature& s, const Session& session, const Result& r) {
  for (size_t i = 0; i < r.outputs.size(); ++i) {
    for (const TensorInfo& info : session.outputs()) {
      if (info.name != output_name(s, i) || info.dims.empty()) continue;
      const std::vector<int64_t>& shape = r.outputs[i].shape();
      bool kept = shape.size() == info.dims.size();
      for (size_t d = 0; kept && d < shape.size(); ++d)
        kept = info.dims[d].size < 0 || info.dims[d].size == shape[d];
      if (!kept)
        return "output '" + s.outputs[i].name + "' is declared " + info.to_string() + ", but is " +
               r.outputs[i].to_string();
    }
  }
  return "";
}

}  // namespace

void check_in_sessions(Bench& bench, const Served& served) {
  const Signature& s = bench.signature;
  struct Way {
    Choice choice;
    Shapes shapes;
  };
  const Choice plain = usual(s);
  std::vector<Way> ways = {
      {plain, Shapes::kStatic}, {plain, Shapes::kSymbolic}, {plain, Shapes::kUnknownRank}};
  for (const auto& types : all_types(s)) {
    if (types == plain.types || ways.size() > 10) continue;
    ways.push_back({plain, Shapes::kSymbolic});
    ways.back().choice.types = types;
  }
  ways.push_back({plain, Shapes::kSymbolic});
  ways.back().choice.sizes = all_sizes(s, 0, {0});

  for (const Way& way : ways) {
    Case c;
    Choice choice = way.choice;
    choice.seed = bench.seed;
    if (!make_case(s, choice, &c) || !bench.callee.expected(c, nullptr).empty()) continue;
    const std::vector<Array> inputs = make_inputs(c);
    const Result expected = bench.callee.call(c, inputs);
    const Arrays arrays = arrays_of(s, c, inputs);
    std::vector<Session> sessions;  // all of them alive together
    for (const Runtime& runtime : served.runtimes) {
      const std::string label = bench.doing(
          "in ONNX Runtime " + runtime.version() + ", " + kShapesNames[static_cast<int>(way.shapes)], c);
      try {
        sessions.push_back(session_of(s, c, served, runtime, way.shapes, 2));
      } catch (const Error& e) {
        bench.found("session-fails", label + ": " + e.what());
        return;
      }
    }
    for (int round = 0; round < 2; ++round) {
      for (size_t i = 0; i < sessions.size(); ++i) {
        const std::string label = bench.doing("in ONNX Runtime " + served.runtimes[i].version() + ", " +
                                                  kShapesNames[static_cast<int>(way.shapes)],
                                              c);
        Result r;
        try {
          r = result_of(s, sessions[i].run(arrays));
        } catch (const Error& e) {
          r.kind = static_cast<int32_t>(e.kind());
          r.message = e.what();
        }
        // ONNX Runtime has no kinds of errors of ours: refused is refused.
        if (r.kind != 0 && expected.kind != 0) continue;
        const std::string broken = r.kind == 0 ? broken_promise(s, sessions[i], r) : "";
        if (!broken.empty()) bench.found("shape-rule-wrong", label + ": " + broken);
        if (!bench.mark->unrepeatable && !same_bits(expected, r)) {
          bench.found("onnxruntime-differs",
                      label + ": the C interface against the session, " + difference(s, expected, r));
          return;
        }
      }
    }
    // A run that is refused, and the next.
    if (expected.kind == 0 && way.shapes == Shapes::kUnknownRank && !bench.mark->unrepeatable) {
      for (size_t i = 0; i < sessions.size(); ++i) {
        Case wrong = c;
        for (CaseInput& in : wrong.inputs) in.shape.insert(in.shape.begin(), 2);
        if (bench.callee.expected(wrong, nullptr).empty()) continue;
        const std::string label = bench.doing(
            "in ONNX Runtime " + served.runtimes[i].version() + ", after a run with wrong shapes", c);
        try {
          sessions[i].run(arrays_of(s, wrong, make_inputs(wrong)));
          bench.found("wrong-call-accepted", label + ": it ran with one dimension more in every input");
        } catch (const Error&) {
        }
        const Result after = result_of(s, sessions[i].run(arrays));
        if (!same_bits(expected, after))
          bench.found("wrong-after-error", label + ": " + difference(s, expected, after));
      }
    }
    // All sessions at the same time, twice each.
    if (expected.kind == 0 && way.shapes == Shapes::kStatic && !bench.mark->unrepeatable) {
      const std::string label = bench.doing("sessions that run at the same time", c);
      std::mutex mutex;
      std::string wrong;
      std::vector<std::thread> threads;
      for (size_t t = 0; t < 2 * std::max<size_t>(2, sessions.size()); ++t) {
        threads.emplace_back([&, t] {
          for (int i = 0; i < 8; ++i) {
            Result r;
            try {
              r = result_of(s, sessions[t % sessions.size()].run(arrays));
            } catch (const Error& e) {
              r.kind = static_cast<int32_t>(e.kind());
              r.message = e.what();
            }
            if (same_bits(expected, r)) continue;
            const std::lock_guard<std::mutex> lock(mutex);
            wrong = difference(s, expected, r);
          }
        });
      }
      for (std::thread& t : threads) t.join();
      if (!wrong.empty()) bench.found("not-thread-safe", label + ": " + wrong);
    }
  }
}

}  // namespace opbridge::checking
