// Sets of code points, and those that patterns know by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace blipft {

/// The places where membership changes, ascending: members from the first on, none from the second on, and so forth.
using CodePointSet = std::vector<uint32_t>;

CodePointSet range_set(uint32_t first, uint32_t last);
CodePointSet united(const CodePointSet& a, const CodePointSet& b);
CodePointSet intersected(const CodePointSet& a, const CodePointSet& b);
CodePointSet complement(CodePointSet set);
bool has(const CodePointSet& set, uint32_t code_point);

/// Returns the code points that Oniguruma matches by \p{name} or, with `bracket`, by [[:name:]]: general categories,
/// POSIX names and scripts, in Unicode 16. Returns null if the name is not known here.
std::optional<CodePointSet> named_set(const std::string& name, bool bracket = false);
/// The members and all that is the same when case is ignored. Several code points that are the same as one member ("ss"
/// as "ß") are appended to `others`.
CodePointSet with_all_cases(const CodePointSet& set, std::vector<std::u32string>& others);
/// Returns true if `text`, which is case-folded, ends with several code points that are the same as one code point when
/// case is ignored: "ss" is the same as "ß".
bool folds_into_one(const std::u32string& text);

}  // namespace blipft
