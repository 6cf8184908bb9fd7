// An operator inside ONNX Runtime, against the library's own C interface.
#pragma once

#include <string>
#include <vector>

#include "jobs.h"

namespace opbridge::checking {

struct Served {
  std::string library;  // its absolute path
  std::string domain;
  int version = 1;
  std::vector<Runtime> runtimes;  // one after another in every step, all in this process
};

/// Models of one node with static, symbolic and unknown shapes, run in every runtime: the bits of the C
/// interface, the shapes that ONNX Runtime was told, two sessions at the same time, a run after a refused one.
void check_in_sessions(Bench& bench, const Served& served);

}  // namespace opbridge::checking
