// The battery: pieces of work on one operator, each done in a child process.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "calls.h"
#include "doctor/child.h"
#include "memory.h"

namespace opbridge::checking {

/// What a piece of work has at hand in the child. Says "finding" {code, evidence}, "refused" (a message),
/// "done" (one for each call that computed) and what else it names.
class Bench {
 public:
  Bench(const Callee& callee, Mark* mark, doctor::Say say, uint64_t seed, double timeout)
      : callee(callee),
        signature(callee.signature()),
        mark(mark),
        say(std::move(say)),
        seed(seed),
        timeout(timeout) {}

  void found(const char* code, const std::string& evidence) const {
    say("finding", {{"code", code}, {"evidence", evidence}});
  }
  /// Says what is being called, for the case that it is the end of the process, and gives it `timeout`.
  std::string doing(const std::string& what, const Case& c) const;

  const Callee& callee;
  const Signature& signature;
  Mark* mark;
  doctor::Say say;
  uint64_t seed;
  double timeout;  // [s]; then SIGALRM ends the process
};

struct Job {
  const char* name;
  std::function<void(Bench&)> run;
  bool compares = true;  // says nothing where results change by themselves
  bool repeats = false;  // is done in two processes, whose "sequence" is compared
};

std::vector<Job> make_jobs(const Signature& signature, uint64_t seed);

}  // namespace opbridge::checking
