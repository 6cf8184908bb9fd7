// Runs a model with custom operators in plain ONNX Runtime: nothing of opbridge is included, only its library
// is loaded.
//
//   test_inference model.onnx libmy_custom_ops.so MIN MAX [SIZE]
//
// Every input gets random numbers in [-10, 10]; dynamic dimensions become SIZE (1 if not given). Checks that
// every element of every output lies in [MIN, MAX]. Exit codes: 0 yes, 1 no or an error, 2 wrong command
// line.
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? "," : "") + std::to_string(shape[i]);
  return text + "]";
}

template <class T>
Ort::Value random_tensor(Ort::AllocatorWithDefaultOptions& allocator, const std::vector<int64_t>& shape,
                         std::mt19937& generator) {
  Ort::Value tensor = Ort::Value::CreateTensor<T>(allocator, shape.data(), shape.size());
  std::uniform_real_distribution<double> distribution(-10, 10);
  T* data = tensor.GetTensorMutableData<T>();
  const size_t count = tensor.GetTensorTypeAndShapeInfo().GetElementCount();
  for (size_t i = 0; i < count; ++i) data[i] = static_cast<T>(distribution(generator));
  return tensor;
}

Ort::Value random_tensor(ONNXTensorElementDataType type, const std::string& name,
                         Ort::AllocatorWithDefaultOptions& allocator, const std::vector<int64_t>& shape,
                         std::mt19937& generator) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
      return random_tensor<float>(allocator, shape, generator);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE:
      return random_tensor<double>(allocator, shape, generator);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32:
      return random_tensor<int32_t>(allocator, shape, generator);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64:
      return random_tensor<int64_t>(allocator, shape, generator);
    default:
      throw std::runtime_error("input '" + name + "' has element type " + std::to_string(type) +
                               "; this example fills float, double, int32 and int64");
  }
}

struct Range {
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  size_t outside = 0;  // NaN is outside
};

template <class T>
Range range_of(const Ort::Value& tensor, double min, double max) {
  Range range;
  if (std::is_floating_point_v<T>) {  // 0.08 in float is not 0.08 in double
    min = static_cast<T>(min);
    max = static_cast<T>(max);
  }
  const T* data = tensor.GetTensorData<T>();
  const size_t count = tensor.GetTensorTypeAndShapeInfo().GetElementCount();
  for (size_t i = 0; i < count; ++i) {
    const double v = static_cast<double>(data[i]);
    range.min = std::min(range.min, v);
    range.max = std::max(range.max, v);
    if (!(v >= min && v <= max)) ++range.outside;
  }
  return range;
}

Range range_of(const std::string& name, const Ort::Value& tensor, double min, double max) {
  switch (tensor.GetTensorTypeAndShapeInfo().GetElementType()) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
      return range_of<float>(tensor, min, max);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE:
      return range_of<double>(tensor, min, max);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32:
      return range_of<int32_t>(tensor, min, max);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64:
      return range_of<int64_t>(tensor, min, max);
    default:
      throw std::runtime_error("output '" + name + "': this example checks float, double, int32 and int64");
  }
}

bool parse(const char* text, double& value) {
  char* end = nullptr;
  value = std::strtod(text, &end);
  return end != text && *end == '\0' && !std::isnan(value);
}

}  // namespace

int main(int argc, char** argv) {
  double min = 0, max = 0, size = 1;
  if (argc < 5 || argc > 6 || !parse(argv[3], min) || !parse(argv[4], max) ||
      (argc == 6 && (!parse(argv[5], size) || size < 0 || size > 1e6))) {
    std::cerr << "usage: test_inference model.onnx libmy_custom_ops.so MIN MAX [SIZE]\n";
    return 2;
  }
  const std::string version = OrtGetApiBase()->GetVersionString();
  if (OrtGetApiBase()->GetApi(ORT_API_VERSION) == nullptr) {
    std::cerr << "built with the headers of ONNX Runtime 1." << ORT_API_VERSION << ", but " << version
              << " is older: give both of one release (ONNXRUNTIME_ROOT)\n";
    return 1;
  }
  try {
    Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "test_inference");
    Ort::SessionOptions options;
    // The absolute path: a name without a folder is looked up among the system's libraries.
    options.RegisterCustomOpsLibrary(std::filesystem::absolute(argv[2]).c_str());
    Ort::Session session(env, argv[1], options);

    // Names, types and shapes are the session's, so this program fits any model.
    Ort::AllocatorWithDefaultOptions allocator;
    std::vector<std::string> input_names, output_names;
    std::vector<Ort::Value> inputs;
    std::mt19937 generator(0);
    for (size_t i = 0; i < session.GetInputCount(); ++i) {
      input_names.emplace_back(session.GetInputNameAllocated(i, allocator).get());
      const Ort::TypeInfo type = session.GetInputTypeInfo(i);
      if (type.GetONNXType() != ONNX_TYPE_TENSOR)
        throw std::runtime_error("input '" + input_names[i] + "' is no tensor");
      const auto info = type.GetTensorTypeAndShapeInfo();
      std::vector<int64_t> shape = info.GetShape();
      for (int64_t& d : shape) d = d < 0 ? static_cast<int64_t>(size) : d;
      inputs.push_back(random_tensor(info.GetElementType(), input_names[i], allocator, shape, generator));
      std::cout << "input  " << input_names[i] << " " << shape_text(shape) << "\n";
    }
    for (size_t i = 0; i < session.GetOutputCount(); ++i) {
      output_names.emplace_back(session.GetOutputNameAllocated(i, allocator).get());
    }

    std::vector<const char*> input_pointers, output_pointers;
    for (const std::string& name : input_names) input_pointers.push_back(name.c_str());
    for (const std::string& name : output_names) output_pointers.push_back(name.c_str());
    const std::vector<Ort::Value> outputs =
        session.Run(Ort::RunOptions{}, input_pointers.data(), inputs.data(), inputs.size(),
                    output_pointers.data(), output_pointers.size());

    size_t outside = 0;
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Range range = range_of(output_names[i], outputs[i], min, max);
      std::cout << "output " << output_names[i] << " "
                << shape_text(outputs[i].GetTensorTypeAndShapeInfo().GetShape()) << " from " << range.min
                << " to " << range.max << ": " << range.outside << " elements outside [" << min << ", " << max
                << "]\n";
      outside += range.outside;
    }
    std::cout << (outside == 0 ? "PASSED" : "FAILED") << " with ONNX Runtime " << version << "\n";
    return outside == 0 ? 0 : 1;
  } catch (const std::exception& e) {
    std::cerr << "error: " << e.what() << "\n";
    return 1;
  }
}
