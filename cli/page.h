// An HTML page that stands alone: its style is inside, it refers to nothing outside, and any browser shows
// it, light or dark. python/opbridge/_compare/page.py writes the same pages;
// python/opbridge/_compare/page.css is the style of both.
#pragma once

#include <string>
#include <vector>

namespace opbridge::cli {

struct Bar {
  std::string label;
  double ratio;  // of error and limit; 1 is just allowed
  bool good;
};

class Page {
 public:
  Page(const std::string& title, const std::string& verdict, bool good);
  /// Pairs of name and value.
  void facts(const std::vector<std::vector<std::string>>& pairs);
  /// The first row is the heading; `classes`: "bad" or "" for each row after it, may be shorter.
  void table(const std::string& heading, const std::vector<std::vector<std::string>>& rows,
             const std::vector<std::string>& classes);
  void list(const std::string& heading, const std::vector<std::string>& items);
  /// Bars from 0 to the largest value; Bar::ratio is the value.
  void bars(const std::string& heading, const std::vector<Bar>& bars);
  void chart(const std::string& heading, const std::vector<Bar>& bars);
  /// Throws Error where the file cannot be written.
  void write(const std::string& path) const;

 private:
  std::string body_;
};

}  // namespace opbridge::cli
