// opbridge new: writes a stand-alone project with one operator.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <regex>

#include "command.h"
#include "opbridge/error.h"
#include "opbridge/signature.h"
#include "templates.h"
#include "terminal.h"

namespace opbridge::cli {

namespace {

namespace fs = std::filesystem;

struct Options {
  std::string project, op, domain, dir = ".";
  bool no_cuda = false;
};

// An operator's name becomes a C++ function, a Python attribute and a folder.
const char* const kReserved[] = {
    "alignas",     "alignof",      "and",      "and_eq",     "as",        "asm",
    "assert",      "async",        "auto",     "await",      "bitand",    "bitor",
    "bool",        "break",        "build",    "case",       "catch",     "char",
    "class",       "compl",        "const",    "const_cast", "constexpr", "continue",
    "decltype",    "def",          "default",  "del",        "delete",    "do",
    "double",      "dynamic_cast", "elif",     "else",       "enum",      "except",
    "explicit",    "export",       "extern",   "finally",    "float",     "for",
    "friend",      "from",         "global",   "goto",       "if",        "import",
    "in",          "inline",       "int",      "is",         "lambda",    "long",
    "mutable",     "namespace",    "new",      "noexcept",   "nonlocal",  "not",
    "not_eq",      "nullptr",      "operator", "or",         "or_eq",     "pass",
    "private",     "protected",    "public",   "raise",      "register",  "reinterpret_cast",
    "return",      "short",        "signed",   "sizeof",     "static",    "static_assert",
    "static_cast", "struct",       "switch",   "template",   "this",      "thread_local",
    "throw",       "true",         "try",      "typedef",    "typeid",    "typename",
    "union",       "unsigned",     "using",    "virtual",    "void",      "volatile",
    "wchar_t",     "while",        "with",     "xor",        "xor_eq",    "yield",
    "false"};
// Targets that CMake or the template has already.
const char* const kTargets[] = {"all",     "clean",         "depend",  "edit_cache",
                                "help",    "inference",     "install", "list_install_components",
                                "package", "rebuild_cache", "test"};

template <size_t N>
bool contains(const char* const (&words)[N], const std::string& word) {
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

std::string check_identifier(const std::string& name) {
  static const std::regex identifier("[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*");
  return std::regex_match(name, identifier)
             ? ""
             : "'" + name + "' is not a name: letters, digits and single underscores, a letter first";
}

std::string check_project(const std::string& name) {
  return contains(kTargets, name) ? "'" + name + "' is a target of every build: take another name"
                                  : check_identifier(name);
}

std::string check_op(const std::string& name) {
  const std::string snake = snake_case(name);
  return contains(kReserved, snake)
             ? "'" + snake + "' means something in C++, Python or the project: take another name"
             : check_identifier(name);
}

std::string check_domain(const std::string& domain) {
  static const std::regex valid("[A-Za-z][A-Za-z0-9_]*(\\.[A-Za-z][A-Za-z0-9_]*)*");
  static const std::regex taken("((ai\\.onnx|com\\.microsoft|com\\.ms)(\\..*)?)|onnx|aten|prims?");
  if (!std::regex_match(domain, valid)) {
    return "'" + domain + "' is not a domain: words of letters, digits and '_', joined by dots";
  }
  return std::regex_match(domain, taken)
             ? "'" + domain + "' belongs to ONNX, ONNX Runtime or PyTorch: take one of your own"
             : "";
}

bool remove_suffix(std::string& text, const std::string& suffix) {
  if (text.size() < suffix.size() || text.compare(text.size() - suffix.size(), suffix.size(), suffix) != 0)
    return false;
  text.resize(text.size() - suffix.size());
  return true;
}

std::string filled_in(std::string text, const Options& options) {
  std::string torch_namespace = options.domain;
  std::replace(torch_namespace.begin(), torch_namespace.end(), '.', '_');
  const std::pair<const char*, std::string> values[] = {
      {"@project@", options.project},         {"@Op@", options.op},
      {"@op@", snake_case(options.op)},       {"@domain@", options.domain},
      {"@torch_namespace@", torch_namespace}, {"@version@", OPBRIDGE_VERSION}};
  for (const auto& [name, value] : values) {
    for (size_t at = 0; (at = text.find(name, at)) != std::string::npos; at += value.size()) {
      text.replace(at, std::strlen(name), value);
    }
  }
  return text;
}

// The lines for projects with CUDA, or for those without.
std::string chosen_lines(const std::string& text, bool cuda) {
  std::istringstream lines(text);
  std::string chosen;
  for (std::string line; std::getline(lines, line);) {
    const bool needs_cuda = remove_suffix(line, "@cuda@"),
               needs_none = !needs_cuda && remove_suffix(line, "@no_cuda@");
    if (cuda ? !needs_none : !needs_cuda) chosen += line + "\n";
  }
  return chosen;
}

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw InvalidArgument("cannot write '" + path.string() + "': " + std::strerror(errno));
}

int run(const Options& options) {
  const fs::path root = fs::path(options.dir) / options.project;
  if (fs::exists(fs::symlink_status(root)) && !(fs::is_directory(root) && fs::is_empty(root))) {
    throw InvalidArgument("'" + root.string() +
                          "' is already there, and nothing is overwritten: name another --dir or project");
  }
  std::printf("%s\n", heading(root.string()).c_str());
  for (const Template* t = kTemplates; t->name != nullptr; ++t) {
    const std::string name = filled_in(t->name, options);
    if (options.no_cuda && fs::path(name).extension() == ".cu") continue;
    write(root / name, filled_in(chosen_lines(t->text, !options.no_cuda), options));
    std::printf("  %s\n", name.c_str());
  }
  std::printf("\nNext:\n  cd %s\n  make\n  make test   # needs requirements.txt\n", root.string().c_str());
  return kOk;
}

}  // namespace

Command add_new(CLI::App& parent) {
  const auto o = std::make_shared<Options>();
  CLI::App* app =
      parent.add_subcommand("new", "Writes a stand-alone project with one operator, ready to build and test");
  app->footer(
      "Examples:\n  opbridge new my_ops --op my_clip\n"
      "  opbridge new pose_ops --op KabschSolver --domain my.pose --no-cuda --dir ~/src");
  app->add_option("project", o->project, "The name of folder and library: lib<project>.so")
      ->required()
      ->check(check_project)
      ->option_text(" ");
  app->add_option("--op", o->op,
                  "The operator, as ONNX shall name it; its folder and torch name are the snake_case")
      ->required()
      ->check(check_op)
      ->option_text("NAME");
  app->add_option("--domain", o->domain, "The operator's ONNX domain [the project's name]")
      ->check(check_domain)
      ->option_text("NAME");
  app->add_option("--dir", o->dir, "Where the project's folder goes [.]")->option_text("DIR");
  auto* cuda = app->add_flag("--cuda", "With a CUDA kernel: the default");
  app->add_flag("--no-cuda", o->no_cuda, "Without a CUDA kernel")->excludes(cuda);
  return {app, [o] {
            if (o->domain.empty()) o->domain = o->project;
            return run(*o);
          }};
}

}  // namespace opbridge::cli
