// The usual errors of compilers and linkers in builds of custom operators.
#include <fstream>
#include <regex>
#include <sstream>

#include "internal.h"
#include "runner/proto.h"

namespace opbridge::doctor {

namespace {

struct Pattern {
  const char* code;
  const char* regex;
};

// In order: the first that fits a line names it. Quotes are ASCII or typographic, as the locale has it.
constexpr Pattern kPatterns[] = {
    {"build-missing-header",
     R"((fatal error|error): .*(onnxruntime\w*|opbridge/\w+)\.h(: No such file| file not found))"},
    {"build-missing-header", R"(cannot open (source|include) file "[^"]*onnxruntime)"},
    {"build-removed-class",
     R"((CustomOpApi|KernelContext_GetInput|Ort::Unowned).*(is not a member of|has not been declared|does not name a type|no member named))"},
    {"build-removed-class", R"(no (type|member) named .CustomOpApi)"},
    {"build-header-mismatch",
     R"((OrtApi|OrtCustomOp|OrtApiBase|Ort::\w+).*(has no (non-static data )?member named|no member named))"},
    {"build-header-mismatch", R"(no member named .* in .(OrtApi|OrtCustomOp|Ort::))"},
    {"build-header-mismatch",
     R"(ORT_API_VERSION.*(redefined|mismatch)|(does not match|differs from).*onnxruntime)"},
    {"build-host-compiler",
     R"(unsupported GNU version|unsupported clang version|unsupported Microsoft Visual Studio version)"},
    {"build-gpu-architecture",
     R"(Unsupported gpu architecture|Value .* is not defined for option .gpu-(architecture|code))"},
    {"build-no-nvcc",
     R"(No CMAKE_CUDA_COMPILER could be found|nvcc: (command )?not found|Could NOT find CUDA|CUDA_HOME environment variable is not set|Failed to find nvcc|CMAKE_CUDA_COMPILER.*not (a full path|found))"},
    {"build-undefined-torch",
     R"(undefined (reference to|symbol:) .*(c10|at::|torch::|_ZN3c10|_ZN2at|_ZN5torch))"},
    {"build-undefined-ort", R"(undefined (reference to|symbol:) .*(Ort[A-Z:]|Ort::))"},
    {"build-duplicate-symbol", R"(multiple definition of|duplicate symbol)"},
    {"build-not-pic", R"(recompile with -fPIC|relocation R_\w+ against)"},
    {"build-undefined-reference", R"(undefined reference to|undefined symbol: )"},
    {"build-missing-library",
     R"(cannot find -l\w+|No rule to make target .*\.(so|a)\b|ninja: error: .*\.(so|a).*missing and no known rule)"},
    {"build-language-standard",
     R"((optional|variant|string_view|filesystem|any|span|concepts)\W.*is not a member of .std|C\+\+(14|17|20)( or later)? (compatible compiler )?(is )?required|requires (at least )?C\+\+(14|17|20)|only available (with|from) .*-std=|You need C\+\+(14|17|20) to compile)"},
    {"build-out-of-memory",
     R"(Killed signal terminated program|virtual memory exhausted|c\+\+: fatal error: Killed|std::bad_alloc)"},
};

constexpr const char* kOtherString =
    "Add the source or library that defines it; where the library with it is there already, it was compiled "
    "for the "
    "std::string of the other ABI: compile both with the same -D_GLIBCXX_USE_CXX11_ABI=0 or 1 (nm -C "
    "lib<x>.a shows "
    "which).";

bool is_error(const std::string& line) {
  static const std::regex error(
      R"((^|[^-\w])(error|Error|ERROR|fatal)\b[^=]*:|undefined reference|multiple definition|ld returned \d|\*\*\* .*Error \d)");
  static const std::regex harmless(R"(\b(0 errors|no error|Werror|warning:|error\.h|error_code|-error))");
  return std::regex_search(line, error) && !std::regex_search(line, harmless);
}

}  // namespace

void check_build_log(const std::string& path, Report& report) {
  std::istringstream log(read_file(path));
  static const std::vector<std::pair<const char*, std::regex>> patterns = [] {
    std::vector<std::pair<const char*, std::regex>> all;
    for (const Pattern& p : kPatterns) all.emplace_back(p.code, std::regex(p.regex, std::regex::optimize));
    return all;
  }();
  std::map<std::string, int> seen;
  std::string first_unknown, first_line;
  int number = 0;
  for (std::string line; std::getline(log, line);) {
    ++number;
    if (line.size() > 2000) line.resize(2000);  // the regular expressions of the standard library recurse
    const char* code = nullptr;
    for (const auto& [candidate, regex] : patterns) {
      if (!std::regex_search(line, regex)) continue;
      code = candidate;
      break;
    }
    const std::string where = path + ":" + std::to_string(number);
    if (code != nullptr) {
      // A function of std::string that is there, but for the other std::string, is undefined, too.
      const bool string =
          line.find("__cxx11") != std::string::npos || line.find("[abi:cxx11]") != std::string::npos;
      if (++seen[code] == 1)
        report.add(code, where, line,
                   string && std::string(code) == "build-undefined-reference" ? kOtherString : "");
    } else if (first_unknown.empty() && is_error(line)) {
      first_unknown = where;
      first_line = line;
    }
  }
  if (!seen.empty()) return;
  if (first_unknown.empty())
    report.add("build-log-clean", path, "no line of " + std::to_string(number) + " is an error");
  else
    report.add("build-log-unknown", first_unknown, first_line);
}

}  // namespace opbridge::doctor
