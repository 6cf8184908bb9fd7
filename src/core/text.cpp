#include "text.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace opbridge {

std::string list_of(const std::vector<std::string>& items, const char* last) {
  std::string text;
  for (size_t i = 0; i < items.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == items.size() ? " " + std::string(last) + " " : ", ") + items[i];
  }
  return text;
}

namespace {

template <class T>
std::string shortest(T v, int max_digits) {
  if (std::isnan(v)) return "nan";
  if (std::isinf(v)) return v < 0 ? "-inf" : "inf";
  char buffer[40];
  // Integers in full, so that 16777216 is not 1.67772e+07.
  if (v == std::floor(v) && std::fabs(v) < 1e15)
    return std::snprintf(buffer, sizeof buffer, "%.0f", static_cast<double>(v)), buffer;
  for (int digits = 1; digits <= max_digits; ++digits) {
    std::snprintf(buffer, sizeof buffer, "%.*g", digits, static_cast<double>(v));
    if (static_cast<T>(std::strtod(buffer, nullptr)) == v) break;
  }
  return buffer;
}

}  // namespace

std::string range_to_text(const Attribute& a) {
  // Bounds of floats are float32, as the values are.
  const auto bound = [&](double v) {
    const bool is_float = a.type == AttributeType::kFloat || a.type == AttributeType::kFloats;
    return is_float ? to_text(static_cast<float>(v)) : to_text(v);
  };
  return (a.min_open ? "(" : "[") + bound(a.min) + ", " + bound(a.max) + (a.max_open ? ")" : "]");
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char buffer[8];
      std::snprintf(buffer, sizeof buffer, "\\u%04x", static_cast<unsigned>(c));
      out += buffer;
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string to_text(const AttributeValue& v) {
  std::string list;
  for (const int64_t x : v.ints) list += (list.empty() ? "" : ", ") + std::to_string(x);
  for (const float x : v.floats) list += (list.empty() ? "" : ", ") + to_text(x);
  switch (v.type) {
    case AttributeType::kInt:
      return std::to_string(v.i);
    case AttributeType::kFloat:
      return to_text(v.f);
    case AttributeType::kBool:
      return v.i != 0 ? "true" : "false";
    case AttributeType::kString:
      return v.s;
    default:
      return "[" + list + "]";
  }
}

std::string to_text(double v) { return shortest(v, 17); }
std::string to_text(float v) { return shortest(v, 9); }

namespace {

// Letters without case and underscores, so that MyClip and my_clip are one.
std::string folded(const std::string& word) {
  std::string text;
  for (const char c : word) {
    if (c != '_') text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

// Insertions, deletions, replacements and swaps of neighbours that turn one word into the other.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
  const std::string* best = nullptr;
  size_t best_distance = 0;
  for (const std::string& k : known) {
    const size_t distance = edit_distance(folded(word), folded(k));
    if (distance <= std::max(word.size(), k.size()) / 3 && (best == nullptr || distance < best_distance)) {
      best = &k;
      best_distance = distance;
    }
  }
  return best == nullptr ? "" : "; did you mean '" + *best + "'?";
}

}  // namespace opbridge
