// Words for messages.
#pragma once

#include <string>
#include <vector>

#include "opbridge/signature.h"

namespace opbridge {

/// "a, b or c"
std::string list_of(const std::vector<std::string>& items, const char* last = "or");

/// The shortest decimal that reads back as the same float64 (float32): "0.1", "1e-08", "inf", "nan",
/// "4294967295".
std::string to_text(double v);
std::string to_text(float v);
/// An attribute's value as the signature spells it.
std::string to_text(const AttributeValue& v);

/// A JSON string.
std::string quoted(const std::string& text);

/// "[0, 1)" of an attribute's range, as the signature spells it.
std::string range_to_text(const Attribute& a);

/// "; did you mean 'x'?" for the closest of `known`, or nothing when none is close.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

}  // namespace opbridge
