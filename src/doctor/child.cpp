#include "child.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "opbridge/error.h"

namespace opbridge::doctor {

using Json = nlohmann::ordered_json;

Json Outcome::last(const std::string& key) const {
  const auto found = said.find(key);
  return found == said.end() ? Json() : found->second.back();
}

const std::vector<Json>& Outcome::all(const std::string& key) const {
  static const std::vector<Json> none;
  const auto found = said.find(key);
  return found == said.end() ? none : found->second;
}

namespace {

void write_all(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n <= 0) return;
    done += static_cast<size_t>(n);
  }
}

[[noreturn]] void be_the_child(const std::function<void(const Say&)>& work, int results, int output) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  for (const int s : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL}) std::signal(s, SIG_DFL);
  const Say say = [&](const std::string& key, const Json& value) {
    write_all(
        results,
        Json{{"key", key}, {"value", value}}.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  };
  try {
    work(say);
    say("done", true);
  } catch (const std::exception& e) {
    say("error", e.what());
  } catch (...) {
    say("error", "an exception of unknown type was thrown");
  }
  std::fflush(nullptr);
  _exit(0);  // no destructors: what was loaded may not survive them
}

std::string tail_of(int fd) {
  constexpr off_t kKept = 4096;
  const off_t size = lseek(fd, 0, SEEK_END);
  if (size <= 0) return "";
  const off_t from = size > kKept ? size - kKept : 0;
  std::string text(static_cast<size_t>(size - from), '\0');
  const ssize_t n = pread(fd, text.data(), text.size(), from);
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  text.erase(text.find_last_not_of(" \n") + 1);
  return text;
}

}  // namespace

Outcome in_child(const std::function<void(const Say&)>& work, double seconds) {
  int ends[2];
  const int output = memfd_create("output", MFD_CLOEXEC);
  if (output < 0 || pipe2(ends, 0) != 0)
    throw Error(ErrorKind::kInternal, std::string("pipe: ") + std::strerror(errno));
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid < 0) throw Error(ErrorKind::kInternal, std::string("fork: ") + std::strerror(errno));
  if (pid == 0) {
    close(ends[0]);
    be_the_child(work, ends[1], output);
  }
  close(ends[1]);

  Outcome outcome;
  std::string text;
  bool late = false;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (char buffer[4096];;) {
    const double left = std::chrono::duration<double>(deadline - std::chrono::steady_clock::now()).count();
    pollfd ready{ends[0], POLLIN, 0};
    const int n = left <= 0 ? 0 : poll(&ready, 1, static_cast<int>(left * 1000) + 1);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      late = true;
      kill(pid, SIGKILL);
      break;
    }
    const ssize_t got = read(ends[0], buffer, sizeof buffer);
    if (got <= 0) break;
    text.append(buffer, static_cast<size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  outcome.printed = tail_of(output);
  close(output);

  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    const Json line = Json::parse(text.substr(at, end - at), nullptr, false);
    if (line.is_object()) outcome.said[line.at("key").get<std::string>()].push_back(line.at("value"));
  }
  if (late) {
    outcome.crash = "did not end within " + std::to_string(static_cast<int>(seconds)) + " s";
  } else if (WIFSIGNALED(status)) {
    outcome.crash =
        "was ended by signal " + std::to_string(WTERMSIG(status)) + " (" + strsignal(WTERMSIG(status)) + ")";
  } else if (!outcome.last("error").is_null()) {
    outcome.error = outcome.last("error").get<std::string>();
  } else if (outcome.last("done").is_null()) {
    outcome.crash = "ended itself with exit code " + std::to_string(WEXITSTATUS(status));
  }
  return outcome;
}

}  // namespace opbridge::doctor
