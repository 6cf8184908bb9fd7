// `opbridge verify`: hands over to the Python package, where the steps that need Python are.
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "command.h"
#include "opbridge/error.h"

namespace opbridge::cli {

namespace {

namespace fs = std::filesystem;

// Of the environment in use, else the one that this command is installed in, else the first on PATH.
std::string python() {
  std::vector<fs::path> folders;
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') folders.push_back(fs::path(value) / "bin");
  }
  std::error_code ec;
  folders.push_back(fs::read_symlink("/proc/self/exe", ec).parent_path());
  for (const fs::path& folder : folders) {
    for (const char* name : {"python3", "python"}) {
      if (fs::exists(folder / name, ec)) return (folder / name).string();
    }
  }
  return "python3";
}

int run(const std::vector<std::string>& arguments) {
  const std::string program = python();
  // In one process: what the module prints when it is missing says less than this.
  const char* code =
      "import importlib.util, sys\n"
      "if importlib.util.find_spec('opbridge') is None:\n"
      "    sys.exit('error: ' + sys.executable + ' has no package opbridge, which does the steps in Python: "
      "'\n"
      "             'pip install it there, or activate the environment that has it')\n"
      "try:\n"
      "    from opbridge.verify import main\n"
      "except ImportError as e:\n"
      "    sys.exit(f'error: opbridge verify needs more in {sys.executable}: {e} (pip install onnx "
      "onnxruntime)')\n"
      "sys.exit(main(sys.argv[1:]))\n";
  std::vector<std::string> words = {program, "-c", code};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  throw Error(ErrorKind::kNotSupported, "'" + program + "' cannot be run: " + std::strerror(errno) +
                                            ". opbridge verify needs Python with the packages opbridge, onnx "
                                            "and onnxruntime");
}

}  // namespace

Command add_verify(CLI::App& parent) {
  CLI::App* app = parent.add_subcommand(
      "verify",
      "Walks a model up the ladder: checker, Python, C++, CUDA; stops at the first step that differs");
  app->prefix_command();  // Python reads the arguments
  app->set_help_flag();
  return {app, [app] { return run(app->remaining()); }};
}

}  // namespace opbridge::cli
