// Text on a terminal: tables, bold headings, numbers.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace opbridge::cli {

/// Bold on a terminal, plain in a file or pipe, or where NO_COLOR is set.
std::string heading(const std::string& text);
/// "error:" and "warning:" as stderr shows them.
std::string error_label();
std::string warning_label();
/// "error", "warning" or "note" as stdout shows a finding of that severity (0 note, 1 error, 2 warning).
std::string severity_label(int severity);

/// Text of a file that is shown: what is not UTF-8 is replaced and control characters are taken out, so that
/// no model can write to the terminal. New lines stay.
std::string printable(const std::string& text);

/// Left-aligned columns of printable() text, as wide as their contents, indented by two; the first row is the
/// heading.
std::string table(const std::vector<std::vector<std::string>>& rows);

/// "0.25", "1.2e-07": what six digits show.
std::string number(double value);

/// Prints indented JSON; bytes that are not UTF-8 are replaced.
void print_json(const nlohmann::ordered_json& json);

}  // namespace opbridge::cli
