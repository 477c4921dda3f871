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

/// What Oniguruma has at \p{name} or, with `bracket`, at [[:name:]]: general categories, POSIX names and scripts, in
/// Unicode 16. Null: there is no such name here.
std::optional<CodePointSet> named_set(const std::string& name, bool bracket = false);
/// The members and all that is the same when case is ignored. Several code points that are the same as one member ("ss"
/// as "ß") are appended to `others`.
CodePointSet with_all_cases(const CodePointSet& set, std::vector<std::u32string>& others);
/// Whether `text`, folded, ends with what one code point is the same as when case is ignored ("ss").
bool folds_into_one(const std::u32string& text);

}  // namespace blipft
