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
/// "error", "warning" or "note" as stdout shows a finding of that severity.
std::string severity_label(const std::string& severity);

/// Text of a file that is shown: what is not UTF-8 is replaced and control characters are taken out, so that
/// no model can write to the terminal. New lines stay.
std::string printable(const std::string& text);

/// Left-aligned columns of printable() text, as wide as their contents, indented by two; the first row is the
/// heading.
std::string table(const std::vector<std::vector<std::string>>& rows);

/// "0.25", "1.2e-07": what six digits show.
std::string number(double value);

/// One line on stderr that says what is being done, on a terminal only; gone when it ends.
class Progress {
 public:
  explicit Progress(bool on);
  ~Progress();
  void operator()(const std::string& what) const;
  void operator()(size_t done, size_t of, const std::string& what) const;

 private:
  bool on_;
};

/// Prints indented JSON; bytes that are not UTF-8 are replaced.
void print_json(const nlohmann::ordered_json& json);

}  // namespace opbridge::cli
