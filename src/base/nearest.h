// Nearest: the "did you mean" of every error message about a name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace blipft {

/// Number of single-character insertions, deletions, substitutions and swaps of neighbours between `a` and `b`
/// (optimal string alignment distance). Case, '_' and '-' do not count.
int64_t name_distance(const std::string& a, const std::string& b);

/// The candidate nearest to `name`, or "" when none is near enough to be meant.
std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates);

/// "a, b or c" ("" for none).
std::string join_names(const std::vector<std::string>& names, const std::string& last = " or ");

}  // namespace blipft
