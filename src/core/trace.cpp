#include "trace.h"

#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "node.h"
#include "npz.h"
#include "text.h"

namespace opbridge {

namespace {

// --- switches

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_on(const char* name) {
  const std::string value = variable(name);
  return !value.empty() && value != "0";
}

void print(const HostServices& host, const std::string& line) {
  if (host.log != nullptr) return host.log(host.log_host, line.c_str());
  // In one piece, whatever other threads and processes write.
  const std::string text = line + "\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
}

// Once in the life of the library: a full disk must not fill the log as well.
void warn_once(const HostServices& host, const std::string& what) {
  static std::atomic<bool> warned{false};
  if (!warned.exchange(true)) print(host, "opbridge: warning: " + what);
}

// The shared library that this code is part of. (dladdr() would ask for a newer C library.)
std::string own_file() {
  struct Search {
    uintptr_t address;
    std::string path;
  } search{reinterpret_cast<uintptr_t>(&own_file), ""};
  dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* data) {
        Search& s = *static_cast<Search*>(data);
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          const auto& segment = object->dlpi_phdr[i];
          const uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
          if (segment.p_type != PT_LOAD || s.address - begin >= segment.p_memsz) continue;
          s.path = object->dlpi_name;
          return 1;
        }
        return 0;
      },
      &search);
  char* real = realpath(search.path.c_str(), nullptr);
  const std::string path = real != nullptr ? real : search.path;
  std::free(real);
  return path;
}

}  // namespace

std::unique_ptr<const Trace> make_trace(const LibraryDefinition& library, const Signature& signature,
                                        const std::string& node_name) {
  auto trace = std::make_unique<Trace>();
  trace->log_ = is_on("OPBRIDGE_TRACE");
  trace->sync_ = is_on("OPBRIDGE_SYNC");
  trace->dump_ = variable("OPBRIDGE_DUMP");
  trace->cuda_ = library.cuda;
  // Profilers that listen to NVTX name their library in this variable of the processes they start.
  trace->ranges_ =
      library.cuda != nullptr &&
      (*variable("OPBRIDGE_NVTX") != '\0' ? is_on("OPBRIDGE_NVTX") : is_on("NVTX_INJECTION64_PATH"));
  if (!trace->log_ && !trace->sync_ && trace->dump_.empty() && !trace->ranges_) return nullptr;
  const std::string when = variable("OPBRIDGE_DUMP_ON");
  trace->only_failed_ = when == "error";
  if (!when.empty() && when != "error" && when != "all")
    warn_once({}, "OPBRIDGE_DUMP_ON is '" + when + "', neither 'all' nor 'error': taken as 'all'");
  trace->description_ =
      "{\"opbridge\": " + quoted(library.opbridge_version) + ", \"library\": " + quoted(library.name) +
      ", \"version\": " + std::to_string(library.version) + ", \"file\": " + quoted(own_file()) +
      ", \"domain\": " + quoted(library.domain) + ", \"operator\": " + quoted(signature.name) +
      ", \"fingerprint\": " + quoted(signature.fingerprint()) + ", \"node\": " + quoted(node_name);
  return trace;
}

namespace {

// --- what is said of a tensor

std::string text_of(double v) { return to_text(v); }
std::string text_of(float v) { return to_text(v); }
std::string text_of(f16 v) { return to_text(static_cast<float>(v)); }
std::string text_of(bf16 v) { return to_text(static_cast<float>(v)); }
template <class T>
std::string text_of(T v) {
  return std::to_string(v);
}

// f16 and bf16 are compared as what they stand for.
template <class T>
using Comparable = std::conditional_t<std::is_same_v<T, f16> || std::is_same_v<T, bf16>, float, T>;

template <class T>
std::string range_of(const T* data, int64_t count) {
  if (count == 1) return " = " + text_of(data[0]);
  int64_t nans = 0;
  Comparable<T> low{}, high{};
  for (int64_t i = 0; i < count; ++i) {
    const auto v = static_cast<Comparable<T>>(data[i]);
    if (v != v) {
      ++nans;
      continue;
    }
    if (i == nans || v < low) low = v;  // i == nans: the first that is a number
    if (i == nans || v > high) high = v;
  }
  if (nans == count) return " all NaN";
  const std::string range = " in [" + text_of(low) + ", " + text_of(high) + "]";
  return nans == 0 ? range : range + " and " + std::to_string(nans) + " NaN";
}

std::string range_of(const TensorArg& t, const void* data) {
  std::string text;
  const auto look = [&](auto zero) { text = range_of(static_cast<const decltype(zero)*>(data), t.count()); };
  dispatch<f16, bf16, float, double, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t,
           bool>(t.dtype, look);
  return text;
}

std::string now() {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  tm parts{};
  gmtime_r(&time.tv_sec, &parts);
  char text[64];
  std::snprintf(text, sizeof text, "%04d%02d%02dT%02d%02d%02d.%06ld", parts.tm_year + 1900, parts.tm_mon + 1,
                parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, time.tv_nsec / 1000);
  return text;
}

}  // namespace

// One call as it is written down. Nothing here throws.
class Record {
 public:
  // `visible`: the data of tensors on the device may be copied now.
  Record(const Trace& trace, const TracedCall& call, bool visible)
      : trace_(trace), call_(call), visible_(visible) {
    const auto each = [&](const auto& look) {
      for (int i = 0; i < call.input_count; ++i) {
        const TensorArg& t = call.inputs[i];
        const Argument* a = input(i);
        std::vector<char> copy;
        look(input_name(i), t, t.present ? data_of(t, a != nullptr && a->host, copy) : nullptr);
      }
    };
    if (trace_.log_) {
      guarded([&] {
        each([&](const std::string& name, const TensorArg& t, const void* data) {
          inputs_ += (inputs_.empty() ? "" : "; ") + describe(name, t, data);
        });
      });
    }
    if (!trace_.dump_.empty()) {
      guarded([&] {
        each([&](const std::string& name, const TensorArg& t, const void* data) {
          dump_input("inputs/" + name, t, data);
        });
        dump_call();
      });
    }
  }

  void succeeded(double microseconds) {
    const auto each = [&](const auto& look) {
      for (size_t i = 0; i < call_.signature.outputs.size(); ++i) {
        const TensorArg& t = call_.outputs[i];
        std::vector<char> copy;
        if (t.present) look(call_.signature.outputs[i].name, t, data_of(t, false, copy));
      }
    };
    if (trace_.log_) {
      guarded([&] {
        std::string outputs;
        each([&](const std::string& name, const TensorArg& t, const void* data) {
          outputs += (outputs.empty() ? "" : "; ") + describe(name, t, data);
        });
        log(time(microseconds) + place(), " -> " + outputs);
      });
    }
    if (file_ == nullptr) return;
    guarded([&] {
      if (trace_.only_failed_) {
        file_->remove();
        return;
      }
      each([&](const std::string& name, const TensorArg& t, const void* data) {
        file_->add("outputs/" + name, t.dtype, t.shape, t.rank, data);
      });
      file_->add("result",
                 "{\"status\": \"ok\", \"microseconds\": " + to_text(static_cast<float>(microseconds)) + "}");
      file_->save();
    });
  }

  // `how`: "failed after 12 us", "refused".
  void failed(const char* status, const std::string& how, const std::string& what) {
    guarded([&] {
      const std::string start = call_.title + ": ";
      const std::string why = what.compare(0, start.size(), start) == 0 ? what.substr(start.size()) : what;
      if (trace_.log_) log(how + place(), ": " + why);
      if (file_ == nullptr) return;
      file_->add("result", std::string("{\"status\": \"") + status + "\", \"error\": " + quoted(why) + "}");
      file_->save();
      if (!trace_.log_)
        print(call_.host, "opbridge: " + call_.title + " " + how + "; the call is in " + file_->path());
    });
  }
  void failed(double microseconds, const std::string& what) {
    failed("failed", "failed after " + time(microseconds), what);
  }

  static std::string time(double microseconds) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f us", microseconds);
    return text;
  }

 private:
  template <class F>
  void guarded(F&& f) noexcept {
    try {
      try {
        f();
      } catch (const std::exception& e) {
        if (file_ != nullptr) file_->remove();
        file_ = nullptr;
        warn_once(call_.host, std::string("tracing: ") + e.what() + "; the calls go on without");
      }
    } catch (...) {  // no memory for the words
    }
  }

  const Argument* input(int i) const {
    const auto& declared = call_.signature.inputs;
    return declared.empty() ? nullptr : &declared[std::min(static_cast<size_t>(i), declared.size() - 1)];
  }
  std::string input_name(int i) const {
    const size_t declared = call_.signature.inputs.size(), at = static_cast<size_t>(i);
    if (at + 1 < declared || (at + 1 == declared && !call_.signature.variadic()))
      return call_.signature.inputs[at].name;
    if (!call_.signature.variadic()) return "extra." + std::to_string(at - declared);  // refused for it
    return call_.signature.inputs.back().name + "." + std::to_string(at + 1 - declared);
  }

  // Where the data can be read, or null.
  const void* data_of(const TensorArg& t, bool on_host, std::vector<char>& copy) const {
    if (t.data == nullptr || call_.device == Device::kCpu || on_host) return t.data;
    if (!visible_) return nullptr;
    copy.resize(static_cast<size_t>(t.count()) * dtype_size(t.dtype) + 1);
    trace_.cuda_->copy_to_host(call_.host.device_id, copy.data(), t.data, copy.size() - 1);
    return copy.data();
  }

  std::string describe(const std::string& name, const TensorArg& t, const void* data) const {
    if (!t.present) return name + " absent";
    std::string text = name + " " + dtype_name(t.dtype) + shape_to_string(t.shape, t.rank);
    if (t.count() == 0) return text + " empty";
    if (data != nullptr) return text + range_of(t, data);
    return text + (t.data == nullptr ? " without data" : " on the device");
  }

  std::string place() const {
    if (call_.device == Device::kCpu) return " on the CPU";
    const int id = call_.host.device_id;
    return std::string(trace_.sync_ ? "" : ", enqueued,") + " on CUDA" +
           (id < 0 ? "" : " device " + std::to_string(id));
  }

  void log(const std::string& how, const std::string& end) const {
    std::string attributes;
    for (size_t i = 0; i < call_.attributes.size(); ++i)
      attributes += "; " + call_.signature.attributes[i].name + " = " + to_text(call_.attributes[i]);
    print(call_.host, "opbridge: " + call_.title + " " + how + ": " + inputs_ + attributes + end);
  }

  // --- the dump. What a crash leaves behind is complete: the file is saved before the kernel runs.

  void dump_input(const std::string& name, const TensorArg& t, const void* data) {
    names_ += (names_.empty() ? "" : ", ") + (t.present ? quoted(name) : "null");
    if (!t.present || incomplete_) return;
    if (data == nullptr && t.count() != 0) {
      incomplete_ = true;  // shapes alone cannot be run again
      if (file_ != nullptr) file_->remove();
      file_ = nullptr;
      return;
    }
    open();
    file_->add(name, t.dtype, t.shape, t.rank, data);
  }

  void dump_call() {
    if (incomplete_) return;
    open();
    std::string outputs;
    for (size_t i = 0; i < call_.attributes.size(); ++i)
      dump_attribute("attributes/" + call_.signature.attributes[i].name, call_.attributes[i]);
    for (size_t i = 0; i < call_.signature.outputs.size(); ++i) {
      const bool wanted = call_.outputs == nullptr || call_.outputs[i].present;
      outputs += (i == 0 ? "" : ", ") +
                 (wanted ? quoted("outputs/" + call_.signature.outputs[i].name) : std::string("null"));
    }
    file_->add("call", trace_.description_ + ", \"device\": \"" +
                           (call_.device == Device::kCpu ? "cpu" : "cuda") + "\", \"inputs\": [" + names_ +
                           "], \"outputs\": [" + outputs + "]}");
    file_->save();
  }

  void dump_attribute(const std::string& name, const AttributeValue& v) {
    const int64_t count[] = {
        static_cast<int64_t>(v.type == AttributeType::kInts ? v.ints.size() : v.floats.size())};
    switch (v.type) {
      case AttributeType::kInt:
        return file_->add(name, DType::i64, nullptr, 0, &v.i);
      case AttributeType::kFloat:
        return file_->add(name, DType::f32, nullptr, 0, &v.f);
      case AttributeType::kBool:
        return file_->add(name, DType::i64, nullptr, 0, &v.i);
      case AttributeType::kString:
        return file_->add(name, v.s);
      case AttributeType::kInts:
        return file_->add(name, DType::i64, count, 1, v.ints.data());
      case AttributeType::kFloats:
        return file_->add(name, DType::f32, count, 1, v.floats.data());
    }
  }

  void open() {
    if (file_ != nullptr) return;
    const std::string stem =
        trace_.dump_ + "/" + now() + "-" + snake_case(call_.signature.name) + "-" + std::to_string(getpid());
    mkdir(trace_.dump_.c_str(), 0777);  // where it is missing
    for (int n = 0;; ++n) {             // two calls in one microsecond
      const std::string path = stem + (n == 0 ? "" : "." + std::to_string(n)) + ".npz";
      if (access(path.c_str(), F_OK) == 0) continue;
      try {
        file_ = std::make_unique<NpzWriter>(path);
        return;
      } catch (const Error&) {
        if (access(path.c_str(), F_OK) != 0 || n > 1000) throw;
      }
    }
  }

  const Trace& trace_;
  const TracedCall& call_;
  const bool visible_;
  std::string inputs_;  // as the log says them
  std::string names_;   // as the dump lists them
  bool incomplete_ = false;
  std::unique_ptr<NpzWriter> file_;
};

void Trace::run(const TracedCall& traced, Kernel kernel, const Call& call) const {
  const bool wait = traced.device == Device::kCuda && cuda_ != nullptr && (sync_ || !dump_.empty());
  bool visible = false;
  if (wait) {
    try {
      visible = cuda_->synchronize(traced.host.device_id, traced.host.stream);
    } catch (const Error& e) {
      throw Error(e.kind(), std::string("what was enqueued before it on its stream failed: ") + e.what());
    }
  }
  Record record(*this, traced, visible);
  struct Range {
    const CudaServices* cuda;
    ~Range() {
      if (cuda != nullptr) cuda->pop_range();
    }
  } range{ranges_ ? cuda_ : nullptr};
  if (ranges_) cuda_->push_range(traced.title.c_str());
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  };
  try {
    kernel(call);
    if (visible) cuda_->synchronize(traced.host.device_id, traced.host.stream);
  } catch (const std::exception& e) {
    record.failed(elapsed(), e.what());
    throw;
  } catch (...) {
    record.failed(elapsed(), "an exception of unknown type was thrown");
    throw;
  }
  record.succeeded(elapsed());
}

void Trace::refused(const TracedCall& traced, const std::string& what) const noexcept {
  bool visible = false;
  if (traced.device == Device::kCuda && cuda_ != nullptr && (sync_ || !dump_.empty())) {
    try {
      visible = cuda_->synchronize(traced.host.device_id, traced.host.stream);
    } catch (const Error&) {  // the call is refused for another reason
    }
  }
  if (!log_ && dump_.empty()) return;
  Record(*this, traced, visible).failed("refused", "refused", what);
}

}  // namespace opbridge
