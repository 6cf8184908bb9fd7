// A library whose entry points are not what opbridge_add_library() makes: between the host and opbridge's own functions
// each operator tells one lie.
#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "opbridge/library.h"

namespace {

using opbridge::Call;

void copy(const Call& call) {
  const auto x = call.input<float>(0);
  for (int64_t i = 0; i < x.count(); ++i) call.output<float>(0)[i] = x[i];
}

const OpbridgeLibrary* honest = nullptr;
std::mutex mutex;
std::map<const OpbridgeNode*, std::string> names;
bool last_was_refused = false;

std::string name_of(const OpbridgeNode* node) {
  const std::lock_guard<std::mutex> lock(mutex);
  return names.at(node);
}

int32_t create_node(const char* op, const char* node_name, const OpbridgeAttribute* attributes, size_t count,
                    OpbridgeNode** node, OpbridgeError* error) {
  const std::string name = op;
  // Known to the manifest, and to ONNX Runtime only under its other name.
  const int32_t kind =
      honest->create_node(name == "Ghost" ? "Spook" : op, node_name, attributes, count, node, error);
  if (kind != 0) return kind;
  const std::lock_guard<std::mutex> lock(mutex);
  names[*node] = name;
  return 0;
}

void destroy_node(OpbridgeNode* node) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    names.erase(node);
  }
  honest->destroy_node(node);
}

int32_t infer(const OpbridgeNode* node, const OpbridgeTensor* const* inputs, size_t input_count,
              OpbridgeTensorSpec* outputs, size_t output_count, OpbridgeError* error) {
  const std::string name = name_of(node);
  int32_t kind = honest->infer(node, inputs, input_count, outputs, output_count, error);
  if (name == "MakesShapesUp" && kind == 0) ++outputs[0].shape[0];
  if (name == "AcceptsAnything" && kind != 0) {
    outputs[0] = {2, 32, 0, 1, {1}};
    kind = 0;
  }
  if (name == "RefusesTheRight" && kind == 0 && outputs[0].shape[0] == 4) {
    kind = error->kind = OPBRIDGE_INVALID_ARGUMENT;
    std::strcpy(error->message, "four is an unlucky number");
  }
  if (name == "SaysNothing" && kind != 0) error->message[0] = '\0';
  if (name == "IsUpsetByErrors" && kind != 0) last_was_refused = true;
  return kind;
}

int32_t compute(const OpbridgeNode* node, const OpbridgeTensor* const* inputs, size_t input_count,
                const OpbridgeTensor* const* outputs, size_t output_count, const OpbridgeHost* host,
                OpbridgeError* error) {
  const std::string name = name_of(node);
  if (name == "ThrowsAcrossC") throw 42;
  OpbridgeTensor x = *inputs[0];
  if (name == "IgnoresOffsets") {
    x.data = static_cast<char*>(x.data) + x.byte_offset;
    if (x.byte_offset != 0) x.data = outputs[0]->data;
    x.byte_offset = 0;
    std::memset(outputs[0]->data, 0, static_cast<size_t>(outputs[0]->shape[0]) * sizeof(float));
  }
  if (name == "IgnoresStrides") x.strides = nullptr;
  const OpbridgeTensor* first = &x;
  const int32_t kind = honest->compute(node, &first, input_count, outputs, output_count, host, error);
  const bool other = name == "DiffersFromItself" || (name == "IsUpsetByErrors" && last_was_refused);
  if (kind == 0 && other) {
    last_was_refused = false;
    for (int64_t i = 0; i < outputs[0]->shape[0]; ++i) static_cast<float*>(outputs[0]->data)[i] += 1;
  }
  return kind;
}

void replace(std::string* text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text->find(from, at)) != std::string::npos; at += to.size())
    text->replace(at, from.size(), to);
}

}  // namespace

namespace opbridge {
LibraryDefinition library_definition() {
  std::vector<Operator> operators;
  for (const char* signature :
       {"Lies(x: f32[N]) -> y: f32[N]", "MakesShapesUp(x: f32[N]) -> y: f32[N]",
        "AcceptsAnything(x: f32[N]) -> y: f32[N]", "RefusesTheRight(x: f32[N]) -> y: f32[N]",
        "SaysNothing(x: f32[N]) -> y: f32[N]", "IsUpsetByErrors(x: f32[N]) -> y: f32[N]",
        "ThrowsAcrossC(x: f32[N]) -> y: f32[N]", "IgnoresOffsets(x: f32[N]) -> y: f32[N]",
        "IgnoresStrides(x: f32[N]) -> y: f32[N]", "DiffersFromItself(x: f32[N]) -> y: f32[N]",
        "Spook(x: f32[N]) -> y: f32[N]", "Mumbles(x: f32[N]) -> y: f32[N]"})
    operators.push_back(Operator(signature).cpu(copy));
  return {"opbridge_zoo_lies", "opbridge.zoo.lies", 1, OPBRIDGE_VERSION, "", "", {{"lies", operators}}};
}
}  // namespace opbridge

#define OPBRIDGE_EXPORT extern "C" __attribute__((visibility("default")))

OPBRIDGE_EXPORT const OpbridgeLibrary* opbridge_get_library(uint32_t abi_version, OpbridgeError* error) {
  honest = opbridge::get_library(abi_version, error);
  if (honest == nullptr) return nullptr;
  static std::string manifest = honest->manifest;
  replace(&manifest, "Spook", "Ghost");
  replace(&manifest, "Mumbles(x: f32[N])", "Mumbles(x: f33[N])");
  static OpbridgeLibrary table;
  table = *honest;
  table.manifest = manifest.c_str();
  table.create_node = create_node;
  table.destroy_node = destroy_node;
  table.infer = infer;
  table.compute = compute;
  return &table;
}

OPBRIDGE_EXPORT void* RegisterCustomOps(void* session_options, const void* api_base) {
  return opbridge::register_custom_ops(session_options, api_base);
}
