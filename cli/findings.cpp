#include "findings.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "command.h"
#include "terminal.h"

namespace opbridge::cli {

void print_findings(const doctor::Report& report) {
  const auto& findings = report.findings;
  std::vector<bool> told(findings.size());
  for (size_t i = 0; i < findings.size(); ++i) {
    if (told[i]) continue;
    const doctor::Finding& f = findings[i];
    std::printf("\n%s %s: %s\n", severity_label(doctor::severity_name(f.entry->severity)).c_str(),
                heading(f.entry->code).c_str(), printable(f.subject).c_str());
    std::printf("  cause: %s\n", printable(f.entry->cause).c_str());
    std::printf("  found: %s\n", printable(f.evidence).c_str());
    if (!f.fix.empty()) std::printf("  fix:   %s\n", printable(f.fix).c_str());
    // The same of other nodes, and what comes after the third of a kind, by name only; --json has all.
    const auto of_kind = [&](const doctor::Finding& g) { return g.entry == f.entry; };
    const bool last = std::count_if(findings.begin(), findings.begin() + static_cast<long>(i), of_kind) >= 2;
    std::vector<std::string> alike;
    for (size_t k = i + 1; k < findings.size(); ++k) {
      const doctor::Finding& g = findings[k];
      if (told[k] || !of_kind(g) || !(last || (g.evidence == f.evidence && g.fix == f.fix))) continue;
      told[k] = true;
      alike.push_back(g.subject);
    }
    if (!alike.empty())
      std::printf("  and %zu more alike: %s\n", alike.size(), printable(doctor::some_of(alike)).c_str());
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
