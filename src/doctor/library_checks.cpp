// A library's file, looked at from outside.
#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <gnu/libc-version.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/text.h"
#include "internal.h"
#include "opbridge/error.h"
#include "runner/proto.h"

namespace opbridge::doctor {

namespace fs = std::filesystem;

std::set<std::string> Library::domains() const {
  std::set<std::string> found;
  if (file.is_opbridge()) found.insert(file.domain());
  for (const RegisteredOp& op : registered) found.insert(op.domain);
  return found;
}

std::set<std::string> Library::operators(const std::string& domain) const {
  std::set<std::string> found;
  if (file.is_opbridge() && file.domain() == domain) {
    for (const auto& op : file.manifest.at("operators")) found.insert(op.at("name").get<std::string>());
  }
  for (const RegisteredOp& op : registered) {
    if (op.domain == domain) found.insert(op.name);
  }
  return found;
}

std::string some_of(const std::vector<std::string>& items, size_t shown) {
  std::string text;
  for (size_t i = 0; i < items.size() && i < shown; ++i) text += (i == 0 ? "" : ", ") + items[i];
  if (items.size() > shown) text += " and " + std::to_string(items.size() - shown) + " more";
  return text;
}

namespace {

// What a file that does not start as an ELF file does is instead.
Format format_of(const std::string& bytes) {
  const Format neither = format_of_neither(bytes, "library-not-elf");
  if (neither.code != nullptr) return neither;
  if (starts_with(bytes, "!<arch>\n")) return {"library-not-shared", "it is a static archive (.a)", ""};
  if (starts_with(bytes, "MZ")) return {"library-platform", "it is a Windows library (.dll)", ""};
  static constexpr const char* kMach[] = {"\xcf\xfa\xed\xfe", "\xce\xfa\xed\xfe", "\xca\xfe\xba\xbe"};
  for (const char* magic : kMach) {
    if (starts_with(bytes, magic)) return {"library-platform", "it is a macOS library (.dylib)", ""};
  }
  const auto other = [](const char* what) { return Format{"library-not-elf", what, ""}; };
  if (starts_with(bytes, "PK\x03\x04"))
    return other("it is a ZIP archive (a wheel, or a model saved by PyTorch?)");
  if (starts_with(bytes, "/* GNU ld script") || starts_with(bytes, "INPUT(") || starts_with(bytes, "GROUP("))
    return other("it is a linker script, not the library itself");
  const std::string head = bytes.substr(0, 256);
  const bool text = std::all_of(head.begin(), head.end(), [](unsigned char c) {
    return c >= 32 || c == '\n' || c == '\r' || c == '\t';
  });
  return other(text ? "it is text" : "it does not start as an ELF file does");
}

std::string demangled(const std::string& symbol) {
  int status = 0;
  char* text = abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status);
  if (text == nullptr) return symbol;
  std::string result = text;
  std::free(text);
  return result;
}

// ---------------------------------------------------------------------------------------- the dynamic loader

// Soname -> path, from the cache that ldconfig writes.
const std::map<std::string, std::string>& loader_cache() {
  static const std::map<std::string, std::string> cache = [] {
    std::map<std::string, std::string> found;
    std::ifstream in("/etc/ld.so.cache", std::ios::binary);
    std::stringstream stream;
    stream << in.rdbuf();
    const std::string all = stream.str();
    const size_t begin = all.find("glibc-ld.so.cache1.1");
    if (begin == std::string::npos) return found;
    const std::string bytes = all.substr(begin);
    constexpr size_t kHeader = 48, kEntry = 24;
    const auto u32 = [&](size_t at) {
      uint32_t v = 0;
      if (at + 4 <= bytes.size()) std::memcpy(&v, bytes.data() + at, 4);
      return v;
    };
    const auto text = [&](size_t at) {
      return at < bytes.size() ? std::string(bytes.data() + at, strnlen(bytes.data() + at, bytes.size() - at))
                               : std::string();
    };
    const uint32_t count = u32(20);
    for (uint32_t i = 0; i < count && kHeader + (i + 1) * kEntry <= bytes.size(); ++i) {
      const size_t at = kHeader + i * kEntry;
      const std::string name = text(u32(at + 4)), path = text(u32(at + 8));
      // A 32-bit library may have the same name.
      std::ifstream file(path, std::ios::binary);
      char ident[EI_CLASS + 1] = {};
      file.read(ident, sizeof ident);
      if (file && ident[EI_CLASS] == ELFCLASS64) found.emplace(name, path);
    }
    return found;
  }();
  return cache;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

}  // namespace

std::string find_dependency(const std::string& name, const std::string& file, const ElfFacts& elf) {
  std::error_code ec;
  if (name.find('/') != std::string::npos) return fs::exists(name, ec) ? name : "";
  const std::string origin = fs::absolute(file, ec).parent_path().string();
  std::vector<std::string> folders;
  const auto add = [&](const std::string& list) {
    for (std::string folder : split(list, ':')) {
      for (const char* variable : {"$ORIGIN", "${ORIGIN}"}) {
        const size_t at = folder.find(variable);
        if (at != std::string::npos) folder.replace(at, std::strlen(variable), origin);
      }
      if (!folder.empty()) folders.push_back(folder);
    }
  };
  const char* path = std::getenv("LD_LIBRARY_PATH");
  if (path != nullptr) add(path);
  for (const std::string& p : elf.run_path) add(p);
  for (const std::string& folder : folders) {
    if (fs::exists(fs::path(folder) / name, ec)) return (fs::path(folder) / name).string();
  }
  const auto cached = loader_cache().find(name);
  if (cached != loader_cache().end() && fs::exists(cached->second, ec)) return cached->second;
  for (const char* folder :
       {"/lib64", "/usr/lib64", "/lib", "/usr/lib", "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu",
        "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu"}) {
    if (fs::exists(fs::path(folder) / name, ec)) return (fs::path(folder) / name).string();
  }
  return "";
}

namespace {

bool is_torch(const std::string& needed) {
  return starts_with(needed, "libtorch") || starts_with(needed, "libc10") || starts_with(needed, "libATen");
}

bool is_tensorrt(const std::string& needed) { return starts_with(needed, "libnvinfer"); }

std::string version_number(const std::string& version) { return version.substr(version.rfind('_') + 1); }

// Symbol versions that this machine's own C and C++ libraries lack.
void check_system_versions(const Library& library, Report& report) {
  for (const std::string& needed : library.file.elf.needed_versions) {
    if (starts_with(needed, "GLIBC_") && needed != "GLIBC_PRIVATE" &&
        version_numbers(version_number(needed)) > version_numbers(gnu_get_libc_version())) {
      report.add("library-needs-newer-system", library.path,
                 "it needs " + needed + ", this machine has glibc " + std::string(gnu_get_libc_version()));
    }
    if (!starts_with(needed, "GLIBCXX_") && !starts_with(needed, "CXXABI_")) continue;
    const std::string cxx = find_dependency("libstdc++.so.6", library.path, library.file.elf);
    if (cxx.empty()) continue;
    const std::string bytes = read_file(cxx);
    if (bytes.find(needed + '\0') == std::string::npos) {
      report.add("library-needs-newer-system", library.path,
                 "it needs " + needed + ", which " + cxx + " does not have");
    }
  }
}

// Whether a mangled name takes a std::string of the ABI before GCC 5 and none of the present one.
bool old_string(const std::string& symbol) {
  return starts_with(symbol, "_Z") && symbol.find("__cxx11") == std::string::npos &&
         demangled(symbol).find("std::string") != std::string::npos;
}

// A demangled name with both kinds of std::string spelled alike.
std::string without_abi(std::string name) {
  static constexpr const char* kNew =
      "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >";
  static constexpr const char* kOld =
      "std::basic_string<char, std::char_traits<char>, std::allocator<char> >";
  for (const char* text : {kNew, kOld}) {
    for (size_t at = 0; (at = name.find(text, at)) != std::string::npos;)
      name.replace(at, std::strlen(text), "std::string");
  }
  for (size_t at = 0; (at = name.find("std::__cxx11::", at)) != std::string::npos;) name.erase(at + 5, 9);
  return name;
}

// A function of the library with the name of an undefined one and other parameters, or empty.
std::string relative_of(const std::string& undefined, const ElfFacts& elf) {
  const size_t stop = undefined.find('(');
  if (stop == std::string::npos) return "";
  for (const auto* symbols : {&elf.exported, &elf.hidden}) {
    for (const std::string& symbol : *symbols) {
      if (!starts_with(symbol, "_Z")) continue;
      const std::string name = demangled(symbol);
      if (name.compare(0, stop + 1, undefined, 0, stop + 1) == 0) return name;
    }
  }
  return "";
}

// A sanitizer's run-time library has to be in the program before anything else. Its name, or empty.
std::string sanitizer_of(const ElfFacts& elf) {
  static constexpr std::pair<const char*, const char*> kRuntimes[] = {
      {"libasan", "__asan_"}, {"libtsan", "__tsan_"}, {"libhwasan", "__hwasan_"}, {"libmsan", "__msan_"}};
  for (const auto& [name, prefix] : kRuntimes) {
    const auto uses = [start = name](const std::string& n) { return starts_with(n, start); };
    const auto calls = [start = prefix](const std::string& s) { return starts_with(s, start); };
    if (!std::any_of(elf.needed.begin(), elf.needed.end(), uses) &&
        !std::any_of(elf.undefined.begin(), elf.undefined.end(), calls))
      continue;
    if (dlsym(RTLD_DEFAULT, (std::string(prefix) + "init").c_str()) == nullptr) return name;
  }
  return "";
}

// Every file that the loader would bring in with the library, and what is missing.
void check_dependencies(const Library& library, Report& report) {
  std::map<std::string, std::string> missing;  // name -> who needs it
  std::set<std::string> seen, exported(library.file.elf.exported.begin(), library.file.elf.exported.end());
  std::vector<std::pair<std::string, ElfFacts>> open = {{library.path, library.file.elf}};
  bool complete = true;
  while (!open.empty()) {
    const auto [file, elf] = open.back();
    open.pop_back();
    for (const std::string& name : elf.needed) {
      if (!seen.insert(name).second) continue;
      const std::string found = find_dependency(name, file, elf);
      if (found.empty()) {
        missing.emplace(name, file);
        continue;
      }
      try {
        ElfFacts facts = read_elf(found);
        exported.insert(facts.exported.begin(), facts.exported.end());
        open.emplace_back(found, std::move(facts));
      } catch (const Error&) {
        complete = false;  // a linker script, or a file that may not be read
      }
    }
  }
  std::map<std::string, std::vector<std::string>> by_fix;  // one finding for all that one thing mends
  for (const auto& [name, who] : missing) {
    std::string fix;
    if (starts_with(name, "libonnxruntime"))
      fix =
          "Do not link libonnxruntime: take the OrtApi that RegisterCustomOps is given. For now: "
          "LD_LIBRARY_PATH=<folder that has " +
          name + ">";
    if (is_torch(name))
      fix = "Do not link PyTorch into it. For now: LD_LIBRARY_PATH=<site-packages>/torch/lib";
    if (starts_with(name, "libcudart"))
      fix = "Link cudart statically (CUDA_RUNTIME_LIBRARY Static), or add CUDA's folder to LD_LIBRARY_PATH";
    by_fix[fix].push_back(
        name + (who == library.path ? "" : " (needed by " + fs::path(who).filename().string() + ")"));
  }
  for (const auto& [fix, names] : by_fix)
    report.add("library-dependency-missing", library.path,
               some_of(names) + (names.size() == 1 ? " is" : " are") + " not found", fix);
  if (!missing.empty() || !complete) return;
  // What the newer system has and this one lacks follows from that.
  if (report.has("library-needs-newer-system", library.path)) return;
  std::vector<std::string> undefined;
  for (const std::string& symbol : library.file.elf.undefined) {
    if (exported.count(symbol) == 0) undefined.push_back(demangled(symbol));
  }
  if (undefined.empty()) return;
  const auto of_python = [](const std::string& s) { return starts_with(s, "Py") || starts_with(s, "_Py"); };
  if (std::all_of(undefined.begin(), undefined.end(), of_python)) {
    report.add("library-needs-python", library.path, "nothing has " + some_of(undefined));
    return;
  }
  std::string fix;
  for (const std::string& symbol : undefined) {
    if (starts_with(symbol, "Ort"))
      fix = "Do not call " + symbol +
            ": RegisterCustomOps is given the OrtApiBase (ORT_API_MANUAL_INIT, Ort::InitApi)";
  }
  for (const std::string& symbol : library.file.elf.undefined) {
    // "Ss" is std::string as it was before GCC 5; the present one has __cxx11 in its name.
    if (exported.count(symbol) == 0 && old_string(symbol))
      fix =
          "It is the old std::string: compile everything with the same -D_GLIBCXX_USE_CXX11_ABI=0 or 1 "
          "(torch.compiled_with_cxx11_abi() tells PyTorch's)";
  }
  std::string relative;
  for (const std::string& symbol : library.file.elf.undefined) {
    if (!relative.empty() || exported.count(symbol) != 0) continue;
    relative = relative_of(demangled(symbol), library.file.elf);
    if (!relative.empty() && without_abi(relative) == without_abi(demangled(symbol)))
      fix =
          "One half was compiled with the std::string of before GCC 5: compile everything with the same "
          "-D_GLIBCXX_USE_CXX11_ABI=0 or 1 (torch.compiled_with_cxx11_abi() tells PyTorch's)";
    else if (!relative.empty())
      fix = "Declaration and definition differ in their types: make them the same";
  }
  report.add(
      "library-undefined-symbol", library.path,
      "nothing has " + some_of(undefined) + (relative.empty() ? "" : "; the library itself has " + relative),
      fix);
}

bool has_static_cxx(const Library& library, const std::string& bytes) {
  for (const std::string& n : library.file.elf.needed) {
    if (starts_with(n, "libstdc++") || starts_with(n, "libc++")) return false;
  }
  return bytes.find("terminate called after throwing an instance of") != std::string::npos;
}

// Which of ONNX Runtime's entries there is.
void check_entry(const Library& library, Report& report) {
  const ElfFacts& elf = library.file.elf;
  if (elf.exports("RegisterCustomOps")) return;
  if (elf.exports("OrtGetApiBase")) {
    report.add("library-is-onnxruntime", library.path, "it exports OrtGetApiBase",
               "--library <the library with the operators> --ort " + library.path);
    return;
  }
  std::string mangled, module;
  for (const std::string& symbol : elf.exported) {
    if (starts_with(symbol, "_Z") && symbol.find("17RegisterCustomOps") != std::string::npos)
      mangled = symbol;
    if (starts_with(symbol, "PyInit_")) module = symbol.substr(7);
  }
  const bool torch =
      std::any_of(elf.needed.begin(), elf.needed.end(), is_torch) ||
      std::any_of(elf.undefined.begin(), elf.undefined.end(), [](const std::string& s) {
        return s.find("N5torch7Library") != std::string::npos || s.find("N3c10") != std::string::npos;
      });
  // A library for both hosts that only lacks extern "C" is that, whatever else it is.
  if (!mangled.empty()) {
    report.add("library-entry-mangled", library.path,
               "it exports " + mangled + ", which is " + demangled(mangled));
  } else if (torch) {
    report.add("library-torch-extension", library.path,
               "it uses PyTorch's libraries and exports no RegisterCustomOps" +
                   (module.empty() ? "" : "; Python imports it as '" + module + "'"));
  } else if (std::any_of(elf.needed.begin(), elf.needed.end(), is_tensorrt)) {
    report.add("library-tensorrt-plugin", library.path,
               "it is linked to TensorRT (libnvinfer) and exports no RegisterCustomOps");
  } else if (!module.empty()) {
    report.add("library-python-module", library.path,
               "it exports PyInit_" + module + " and no RegisterCustomOps");
  } else if (elf.exports("OrtGetCustomOpDomain")) {
    report.add("library-entry-old", library.path, "it exports OrtGetCustomOpDomain and no RegisterCustomOps");
  } else {
    std::vector<std::string> shown;
    for (const std::string& s : elf.exported) shown.push_back(demangled(s));
    std::string evidence =
        shown.empty() ? "it exports nothing at all"
                      : "it exports " + some_of(shown) + did_you_mean("RegisterCustomOps", elf.exported);
    std::string fix;
    for (const std::string& symbol : elf.hidden) {
      if (symbol != "RegisterCustomOps" && symbol.find("17RegisterCustomOps") == std::string::npos) continue;
      evidence += "; it has " + demangled(symbol) + ", but hidden";
      fix =
          "It was compiled with -fvisibility=hidden, or a version script hides it: declare it extern \"C\" "
          "__attribute__((visibility(\"default\"))), or add it to the script's global part";
    }
    report.add("library-no-entry", library.path, evidence, fix);
  }
}

void read_manifest(Library& library, Report& report) {
  const Outcome outcome =
      in_child([&](const Say& say) { say("manifest", read_library(library.path).manifest); }, 60);
  if (!outcome.crash.empty()) {
    report.add(outcome.crash.find("ended itself") == 0 ? "library-ends-process" : "library-crashes",
               library.path,
               "the process " + outcome.crash + " while it was loaded" +
                   (outcome.printed.empty() ? "" : "; it printed: " + outcome.printed));
  } else if (!outcome.error.empty()) {
    const bool abi = outcome.error.find("interface") != std::string::npos ||
                     outcome.error.find("manifest") != std::string::npos;
    const bool loader = outcome.error.find("cannot be loaded") != std::string::npos;
    if (loader && (report.has("library-dependency-missing", library.path) ||
                   report.has("library-undefined-symbol", library.path) ||
                   report.has("library-needs-newer-system", library.path)))
      return;
    report.add(loader ? "library-undefined-symbol"
               : abi  ? "library-other-abi"
                      : "library-broken-declaration",
               library.path, outcome.error);
  } else {
    library.file.manifest = outcome.last("manifest");
  }
}

}  // namespace

Library check_library(const std::string& path, Report& report) {
  Library library;
  library.path = path;
  library.name = fs::path(path).filename().string();
  std::error_code ec;
  library.file.path = fs::absolute(path, ec).string();
  const size_t before = report.findings.size();
  if (!fs::exists(path, ec)) {
    std::string fix;
    const fs::path folder = fs::path(path).parent_path().empty() ? "." : fs::path(path).parent_path();
    std::vector<std::string> there;
    for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
      const std::string name = it->path().filename().string();
      if (name.find(".so") != std::string::npos) there.push_back(name);
    }
    const std::string hint = did_you_mean(library.name, there);
    report.add("library-missing", path,
               fs::exists(folder, ec) ? "no such file; its folder has " +
                                            (there.empty() ? "no library" : some_of(there, 5)) + hint
                                      : "the folder '" + folder.string() + "' does not exist");
    return library;
  }
  if (fs::is_directory(path, ec)) {
    report.add("library-not-elf", path, "it is a folder");
    return library;
  }
  std::string bytes;
  try {
    bytes = read_file(path);
  } catch (const Error& e) {
    report.add("library-missing", path, e.what());
    return library;
  }
  if (!starts_with(bytes, ELFMAG)) {
    const Format format = format_of(bytes);
    report.add(format.code, path, format.what);
    return library;
  }
  try {
    library.file.elf = parse_elf(bytes, path);
  } catch (const Error& e) {
    const std::string what = e.what();
    const auto says = [&](const char* part) { return what.find(part) != std::string::npos; };
    report.add(says("is built for") || says("32-bit") || says("endian") ? "library-platform"
               : says("not a shared library")                           ? "library-not-shared"
                                                                        : "library-not-elf",
               path, what);
    return library;
  }
  check_entry(library, report);
  // A file that is something else altogether needs no further word.
  const bool other = report.has("library-is-onnxruntime", library.path) ||
                     report.has("library-torch-extension", library.path) ||
                     report.has("library-tensorrt-plugin", library.path) ||
                     report.has("library-python-module", library.path);
  check_system_versions(library, report);
  const std::string sanitizer = other ? "" : sanitizer_of(library.file.elf);
  if (!sanitizer.empty()) {
    report.add("library-sanitizer", path, "it uses " + sanitizer + ", which this process does not have",
               "give the library built without -fsanitize, or start the program with LD_PRELOAD=$(g++ "
               "-print-file-name=" +
                   sanitizer + ".so)");
  } else if (!other) {
    check_dependencies(library, report);
    for (const std::string& n : library.file.elf.needed) {
      if (starts_with(n, "libonnxruntime") && !report.has("library-dependency-missing", library.path))
        report.add("library-links-onnxruntime", path, "it is linked to " + n);
      if (is_torch(n) && !report.has("library-dependency-missing", library.path))
        report.add("library-links-torch", path, "it is linked to " + n);
    }
    if (has_static_cxx(library, bytes))
      report.add("library-static-cxx", path, "it is not linked to libstdc++.so but contains its code");
    if (library.file.elf.executable_stack)
      report.add("library-executable-stack", path, "its PT_GNU_STACK header says executable");
    if (library.file.elf.exports("opbridge_get_library")) read_manifest(library, report);
  }
  library.usable = std::none_of(report.findings.begin() + static_cast<long>(before), report.findings.end(),
                                [](const Finding& f) { return f.entry->severity == Severity::kError; });
  return library;
}

void check_libraries(const std::vector<Library>& libraries, Report& report) {
  for (size_t i = 0; i < libraries.size(); ++i) {
    for (size_t k = i + 1; k < libraries.size(); ++k) {
      const Library &a = libraries[i], &b = libraries[k];
      std::error_code ec;
      const bool same = fs::equivalent(a.path, b.path, ec) ||
                        (a.usable && b.usable && read_file(a.path) == read_file(b.path));
      if (same) {
        report.add("library-given-twice", b.path, "it is the same as '" + a.path + "'",
                   "leave out one: --library " + a.path);
        continue;
      }
      for (const std::string& domain : a.domains()) {
        if (b.domains().count(domain) == 0) continue;
        report.add(
            "domain-shared", b.path, "'" + a.path + "' also has the domain '" + domain + "'",
            "give only the one that serves the model, or build the operators of both into one library");
      }
    }
  }
}

}  // namespace opbridge::doctor
