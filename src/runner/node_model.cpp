#include "node_model.h"

#include <fstream>

#include "onnx_types.h"
#include "proto.h"

namespace opbridge {

namespace {

void set_attribute(pb::AttributeProto& a, const std::string& name, const Array& value) {
  a.set_name(name);
  const bool list = !value.shape().empty();
  if (value.dtype() == DType::u8) {
    a.set_type(pb::AttributeProto::STRING);
    a.set_s(value.data(), value.bytes());
  } else if (value.dtype() == DType::i64 && list) {
    a.set_type(pb::AttributeProto::INTS);
    for (int64_t i = 0; i < value.count(); ++i) a.add_ints(value.as<int64_t>()[i]);
  } else if (value.dtype() == DType::i64) {
    a.set_type(pb::AttributeProto::INT);
    a.set_i(*value.as<int64_t>());
  } else if (list) {
    a.set_type(pb::AttributeProto::FLOATS);
    for (int64_t i = 0; i < value.count(); ++i) a.add_floats(value.as<float>()[i]);
  } else {
    a.set_type(pb::AttributeProto::FLOAT);
    a.set_f(*value.as<float>());
  }
}

void declare(pb::ValueInfoProto& v, const std::string& name, DType dtype) {
  v.set_name(name);
  v.mutable_type()->mutable_tensor_type()->set_elem_type(to_onnx_type(dtype));
}

}  // namespace

void write_node_model(const std::string& path, const NodeCall& call) {
  pb::ModelProto model;
  model.set_ir_version(8);
  model.add_opset_import()->set_version(17);
  auto& opset = *model.add_opset_import();
  opset.set_domain(call.domain);
  opset.set_version(1);
  pb::GraphProto& graph = *model.mutable_graph();
  graph.set_name("call");
  pb::NodeProto& node = *graph.add_node();
  node.set_domain(call.domain);
  node.set_op_type(call.op);
  node.set_name(call.node);
  for (const auto& [name, value] : call.attributes) set_attribute(*node.add_attribute(), name, value);
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const std::string name = call.inputs[i] == nullptr ? "" : "i" + std::to_string(i);
    node.add_input(name);
    if (!name.empty()) declare(*graph.add_input(), name, call.inputs[i]->dtype());
  }
  for (size_t i = 0; i < call.output_types.size(); ++i) {
    const std::string name = call.wanted[i] ? "o" + std::to_string(i) : "";
    node.add_output(name);
    if (!name.empty()) declare(*graph.add_output(), name, call.output_types[i]);
  }
  std::ofstream out(path, std::ios::binary);
  if (!out || !model.SerializeToOstream(&out)) throw InvalidArgument("'" + path + "' cannot be written");
}

}  // namespace opbridge
