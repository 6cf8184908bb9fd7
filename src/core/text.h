// Words for messages.
#pragma once

#include <string>
#include <vector>

namespace opbridge {

/// "a, b or c"
std::string list_of(const std::vector<std::string>& items);

/// "; did you mean 'x'?" for the closest of `known`, or nothing when none is close.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

}  // namespace opbridge
