#include "findings.h"

#include <cstdio>

#include "command.h"
#include "terminal.h"

namespace opbridge::cli {

void print_findings(const doctor::Report& report) {
  for (const doctor::Finding& f : report.findings) {
    std::printf("\n%s %s: %s\n", severity_label(doctor::severity_name(f.entry->severity)).c_str(),
                heading(f.entry->code).c_str(), printable(f.subject).c_str());
    std::printf("  cause: %s\n", printable(f.entry->cause).c_str());
    std::printf("  found: %s\n", printable(f.evidence).c_str());
    if (!f.fix.empty()) std::printf("  fix:   %s\n", printable(f.fix).c_str());
  }
  std::printf("\n%s\n", heading(report.verdict()).c_str());
}

int exit_code(const doctor::Report& report) {
  constexpr int kBut = 2;
  return report.count(doctor::Severity::kError) > 0     ? kFailed
         : report.count(doctor::Severity::kWarning) > 0 ? kBut
                                                        : kOk;
}

}  // namespace opbridge::cli
