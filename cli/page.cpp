#include "page.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "opbridge/error.h"
#include "page_css.h"
#include "terminal.h"

namespace opbridge::cli {

namespace {

std::string escape(const std::string& text) {
  std::string safe;
  for (const char c : printable(text)) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

}  // namespace

Page::Page(const std::string& title, const std::string& verdict, bool good) {
  body_ =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>" +
      escape(title) + "</title>\n<style>\n" + kPageCss + "</style>\n</head>\n<body>\n<main>\n<h1>" +
      escape(title) + "</h1>\n<p class=\"verdict " + (good ? "good" : "bad") + "\">" + escape(verdict) +
      "</p>\n";
}

void Page::facts(const std::vector<std::vector<std::string>>& pairs) {
  body_ += "<dl>\n";
  for (const auto& pair : pairs)
    body_ += "<dt>" + escape(pair[0]) + "</dt><dd>" + escape(pair[1]) + "</dd>\n";
  body_ += "</dl>\n";
}

void Page::table(const std::string& heading, const std::vector<std::vector<std::string>>& rows,
                 const std::vector<std::string>& classes) {
  body_ += "<h2>" + escape(heading) + "</h2>\n<div class=\"wide\"><table>\n";
  for (size_t i = 0; i < rows.size(); ++i) {
    const char* cell = i == 0 ? "th" : "td";
    const std::string style = i > 0 && i - 1 < classes.size() ? classes[i - 1] : "";
    body_ += style.empty() ? "<tr>" : "<tr class=\"" + style + "\">";
    for (const std::string& text : rows[i])
      body_ += std::string("<") + cell + ">" + escape(text) + "</" + cell + ">";
    body_ += "</tr>\n";
  }
  body_ += "</table></div>\n";
}

void Page::list(const std::string& heading, const std::vector<std::string>& items) {
  if (items.empty()) return;
  body_ += "<h2>" + escape(heading) + "</h2>\n<ul>\n";
  for (const std::string& item : items) body_ += "<li>" + escape(item) + "</li>\n";
  body_ += "</ul>\n";
}

void Page::chart(const std::string& heading, const std::vector<Bar>& bars) {
  if (bars.empty()) return;
  // Decades from 1e-6 to 1e3 of what is allowed, 20 units each; smaller and larger ones end there.
  constexpr double kLow = -6, kHigh = 3, kDecade = 20, kTop = 10, kLeft = 46;
  const double width = std::max(8.0, std::min(40.0, 700.0 / static_cast<double>(bars.size())));
  const double bottom = kTop + (kHigh - kLow) * kDecade,
               right = kLeft + width * static_cast<double>(bars.size());
  const auto y_of = [&](double decade) { return kTop + (kHigh - decade) * kDecade; };
  char line[256];
  const auto add = [&](const char* format, auto... values) {
    std::snprintf(line, sizeof(line), format, values...);
    body_ += line;
  };
  body_ += "<h2>" + escape(heading) + "</h2>\n<div class=\"wide\">\n";
  add("<svg role=\"img\" width=\"%g\" height=\"%g\" viewBox=\"0 0 %g %g\">\n", right + 4, bottom + 8,
      right + 4, bottom + 8);
  for (int decade = -6; decade <= 3; decade += 3) {
    add("<line class=\"grid\" x1=\"%g\" x2=\"%g\" y1=\"%g\" y2=\"%g\"/>", kLeft, right, y_of(decade),
        y_of(decade));
    add("<text x=\"%g\" y=\"%g\" text-anchor=\"end\">%s</text>\n", kLeft - 4, y_of(decade) + 4,
        decade == 0    ? "limit"
        : decade == -6 ? "1e-6"
        : decade == -3 ? "1e-3"
                       : "1e3");
  }
  for (size_t i = 0; i < bars.size(); ++i) {
    const double ratio = bars[i].ratio;
    const double decade = ratio > 0 ? std::clamp(std::log10(ratio), kLow + 0.1, kHigh) : kLow + 0.1;
    add("<rect class=\"%s\" x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\">", bars[i].good ? "good" : "bad",
        kLeft + width * static_cast<double>(i) + 1, y_of(decade), width - 2, bottom - y_of(decade));
    body_ += "<title>" + escape(bars[i].label) + ": " +
             (std::isfinite(ratio) ? number(ratio) : "infinitely") + " of the limit</title></rect>\n";
  }
  add("<line class=\"limit\" x1=\"%g\" x2=\"%g\" y1=\"%g\" y2=\"%g\"/>\n</svg>\n</div>\n", kLeft, right,
      y_of(0), y_of(0));
}

void Page::bars(const std::string& heading, const std::vector<Bar>& bars) {
  if (bars.empty()) return;
  constexpr double kWidth = 420, kRow = 36;
  double largest = 0;
  for (const Bar& bar : bars) largest = std::max(largest, bar.ratio);
  const double height = kRow * static_cast<double>(bars.size());
  char line[256];
  const auto add = [&](const char* format, auto... values) {
    std::snprintf(line, sizeof(line), format, values...);
    body_ += line;
  };
  body_ += "<h2>" + escape(heading) + "</h2>\n<div class=\"wide\">\n";
  add("<svg role=\"img\" width=\"%g\" height=\"%g\" viewBox=\"0 0 %g %g\">\n", kWidth + 80, height,
      kWidth + 80, height);
  for (size_t i = 0; i < bars.size(); ++i) {
    const double y = kRow * static_cast<double>(i),
                 width = largest > 0 ? kWidth * bars[i].ratio / largest : 0;
    add("<text x=\"0\" y=\"%g\">", y + 11);
    body_ += escape(bars[i].label) + "</text>";
    add("<rect class=\"%s\" x=\"0\" y=\"%g\" width=\"%g\" height=\"12\"/>", bars[i].good ? "good" : "bad",
        y + 16, width);
    add("<text x=\"%g\" y=\"%g\">", width + 6, y + 26);
    body_ += number(bars[i].ratio) + "</text>\n";
  }
  body_ += "</svg>\n</div>\n";
}

void Page::write(const std::string& path) const {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  const std::string text = body_ + "</main>\n</body>\n</html>\n";
  const bool written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = file != nullptr && std::fclose(file) == 0;
  if (!written || !closed)
    throw InvalidArgument("the page '" + path + "' cannot be written: does its folder exist?");
}

}  // namespace opbridge::cli
