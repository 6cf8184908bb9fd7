// The `opbridge` command.
#include <cstdio>
#include <exception>
#include <new>

#include "command.h"
#include "terminal.h"

using namespace opbridge::cli;

int main(int argc, char** argv) {
  CLI::App app("opbridge: runs, explains and checks ONNX models with custom operators.", "opbridge");
  app.set_version_flag("--version", "opbridge " OPBRIDGE_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 done, 1 failed (the message says why), 2 wrong command line; doctor, check, verify: 2 "
      "works, but.\n"
      "'opbridge COMMAND --help' shows the options of a command, with examples.");
  try {
    const Command commands[] = {add_bench(app),   add_check(app),     add_compare(app), add_doctor(app),
                                add_inspect(app), add_keypoints(app), add_new(app),     add_pose(app),
                                add_replay(app),  add_run(app),       add_verify(app)};
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
      return app.exit(e) == 0 ? kOk : kUsage;
    }
    for (const Command& command : commands) {
      if (command.app->parsed()) return command.run();
    }
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "%s out of memory\n", error_label().c_str());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s %s\n", error_label().c_str(), printable(e.what()).c_str());
  }
  return kFailed;
}
