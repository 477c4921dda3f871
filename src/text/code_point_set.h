// Sets of code points, and the named sets of patterns.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace blipft {

/// Ascending code points at which membership changes: members from the first on, none from the second on, and so on.
using CodePointSet = std::vector<uint32_t>;

CodePointSet range_set(uint32_t first, uint32_t last);
CodePointSet united(const CodePointSet& a, const CodePointSet& b);
CodePointSet intersected(const CodePointSet& a, const CodePointSet& b);
CodePointSet complement(CodePointSet set);
bool has(const CodePointSet& set, uint32_t code_point);

/// Returns the code points that Oniguruma matches by \p{name} or, with `bracket`, by [[:name:]]: general categories,
/// POSIX names and scripts, in Unicode 16. Returns null if the name is not supported.
std::optional<CodePointSet> named_set(const std::string& name, bool bracket = false);
/// Returns the members and all code points that equal one without case. Sequences that equal one member without case
/// ("ss" and "ß") are appended to `others`.
CodePointSet with_all_cases(const CodePointSet& set, std::vector<std::u32string>& others);
/// Returns true if `text`, which is case-folded, ends with several code points that equal a single one without case:
/// "ss" equals "ß".
bool folds_into_one(const std::u32string& text);

}  // namespace blipft
