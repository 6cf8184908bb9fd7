// What doctor and check share: how findings are shown, and the exit code that they make.
#pragma once

#include "doctor/doctor.h"

namespace opbridge::cli {

/// Every finding with its cause, evidence and fix, then the verdict.
void print_findings(const doctor::Report& report);

/// 0 right, 1 an error, 2 warnings only.
int exit_code(const doctor::Report& report);

}  // namespace opbridge::cli
