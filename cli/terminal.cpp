#include "terminal.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace opbridge::cli {

namespace {

std::string styled(int stream, const char* code, const std::string& text) {
  const char* term = std::getenv("TERM");
  const bool plain = isatty(stream) == 0 || std::getenv("NO_COLOR") != nullptr || term == nullptr ||
                     std::strcmp(term, "dumb") == 0;
  return plain ? text : std::string("\x1b[") + code + "m" + text + "\x1b[0m";
}

// Columns that the text takes: UTF-8 continuation bytes take none.
size_t width(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

std::string heading(const std::string& text) { return styled(STDOUT_FILENO, "1", text); }
std::string error_label() { return styled(STDERR_FILENO, "1;31", "error:"); }
std::string warning_label() { return styled(STDERR_FILENO, "1;33", "warning:"); }
std::string severity_label(const std::string& severity) {
  return styled(STDOUT_FILENO, severity == "error" ? "1;31" : severity == "warning" ? "1;33" : "1", severity);
}

std::string printable(const std::string& text) {
  using Json = nlohmann::json;
  std::string clean =
      Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
  for (char& c : clean) {
    if (c != '\n' && (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)) c = ' ';
  }
  return clean;
}

std::string table(const std::vector<std::vector<std::string>>& raw) {
  std::vector<std::vector<std::string>> rows = raw;
  for (auto& row : rows) {
    for (std::string& cell : row) {
      cell = printable(cell);
      std::replace(cell.begin(), cell.end(), '\n', ' ');
    }
  }
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line = " ";
    for (size_t i = 0; i < row.size(); ++i)
      line += " " + row[i] + std::string(widths[i] - width(row[i]) + 1, ' ');
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return text;
}

Progress::Progress(bool on) : on_(on && isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  if (on_) std::fprintf(stderr, "\r\x1b[K");
}

void Progress::operator()(const std::string& what) const {
  if (on_) std::fprintf(stderr, "\r\x1b[K%s ..", printable(what).c_str());
}

void Progress::operator()(size_t done, size_t of, const std::string& what) const {
  (*this)("[" + std::to_string(done) + "/" + std::to_string(of) + "] " + what);
}

void print_json(const nlohmann::ordered_json& json) {
  std::puts(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
}

}  // namespace opbridge::cli
