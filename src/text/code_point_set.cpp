#include "text/code_point_set.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <memory>
#include <set>
#include <string_view>

#include "text/unicode.h"
#include "text/unicode_additions.h"

namespace blipft {
namespace {

template <class Keeps>
CodePointSet combined(const CodePointSet& a, const CodePointSet& b, const Keeps& keeps) {
  CodePointSet out;
  for (size_t i = 0, j = 0; i < a.size() || j < b.size();) {
    const uint32_t at =
        std::min(i < a.size() ? a[i] : unicode::code_points, j < b.size() ? b[j] : unicode::code_points);
    if (i < a.size() && a[i] == at) ++i;
    if (j < b.size() && b[j] == at) ++j;
    if (keeps(i % 2 == 1, j % 2 == 1) != (out.size() % 2 == 1)) out.push_back(at);
  }
  return out;
}

template <class Holds>
CodePointSet all_that(const Holds& holds) {
  CodePointSet out;
  for (uint32_t c = 0; c < unicode::code_points; ++c)
    if (holds(c) != (out.size() % 2 == 1)) out.push_back(c);
  if (out.size() % 2 == 1) out.push_back(unicode::code_points);
  return out;
}

/// Returns the members of a property in PCRE2's Unicode, or nullopt if PCRE2 does not know it.
std::optional<CodePointSet> pcre2_property(const std::string& name) {
  const std::string pattern = "\\p{" + name + "}++";
  int error = 0;
  size_t offset = 0;
  const std::unique_ptr<pcre2_code, void (*)(pcre2_code*)> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF, &error, &offset, nullptr),
      pcre2_code_free);
  if (!code) return std::nullopt;
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  std::string all;
  for (uint32_t c = 0; c < unicode::code_points; ++c)
    if (c < 0xD800 || c > 0xDFFF) unicode::append_utf8(all, c);
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> match(pcre2_match_data_create(1, nullptr),
                                                                             pcre2_match_data_free);
  CodePointSet out;
  for (size_t end = 0; pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(all.data()), all.size(), end,
                                   PCRE2_NO_UTF_CHECK, match.get(), nullptr) > 0;) {
    size_t at = pcre2_get_ovector_pointer(match.get())[0];
    end = pcre2_get_ovector_pointer(match.get())[1];
    const uint32_t first = unicode::next_code_point(all, at);
    for (at = end - 1; (all[at] & 0xC0) == 0x80;) --at;
    out = united(out, range_set(first, unicode::next_code_point(all, at)));
  }
  return out;
}

/// Returns the code points of a property in Unicode 16: those of PCRE2 and the additions. `name` is in lowercase,
/// without "_".
std::optional<CodePointSet> property(const std::string& name, const std::string& pcre2_name) {
  std::optional<CodePointSet> out = pcre2_property(pcre2_name);
  for (const unicode::AddedMembers& range : unicode::added_members)
    if (out && name == range.property) *out = united(*out, range_set(range.first, range.last));
  return out;
}

/// Returns the code points whose general category begins with `letters`: "L", "Lu".
std::optional<CodePointSet> category_set(std::string_view name) {
  constexpr std::string_view names = "CnLuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCo";
  uint32_t wanted = 0;
  for (size_t i = 0; i < names.size(); i += 2)
    if (names.substr(i, name.size()) == name) wanted |= 1u << (i / 2);
  if (name.empty() || wanted == 0) return std::nullopt;
  return all_that([&](uint32_t c) { return (wanted >> static_cast<uint32_t>(unicode::category(c)) & 1) != 0; });
}

CodePointSet categories(std::initializer_list<const char*> names) {
  CodePointSet out;
  for (const char* name : names) out = united(out, *category_set(name));
  return out;
}

CodePointSet alphabetic() { return united(*property("alphabetic", "Alphabetic"), categories({"L", "Nl"})); }

/// Returns groups of code points that are equal without case, by their case folding.
const std::map<std::u32string, std::vector<uint32_t>>& case_groups() {
  static const auto groups = [] {
    std::map<std::u32string, std::vector<uint32_t>> out;
    for (uint32_t c = 0; c < 0x20000; ++c) {  // later characters have no case
      if (c >= 0xD800 && c <= 0xDFFF) continue;
      const std::u32string folded = unicode::folded(c);
      if (folded == std::u32string{c}) continue;
      if (folded.size() == 1 && !out.contains(folded)) out[folded] = {folded[0]};
      out[folded].push_back(c);
    }
    return out;
  }();
  return groups;
}

}  // namespace

CodePointSet range_set(uint32_t first, uint32_t last) { return {first, last + 1}; }
CodePointSet united(const CodePointSet& a, const CodePointSet& b) {
  return combined(a, b, [](bool x, bool y) { return x || y; });
}
CodePointSet intersected(const CodePointSet& a, const CodePointSet& b) {
  return combined(a, b, [](bool x, bool y) { return x && y; });
}
CodePointSet complement(CodePointSet set) {
  return combined(set, range_set(0, unicode::code_points - 1), [](bool x, bool y) { return y && !x; });
}
bool has(const CodePointSet& set, uint32_t code_point) {
  return (std::upper_bound(set.begin(), set.end(), code_point) - set.begin()) % 2 == 1;
}

std::optional<CodePointSet> named_set(const std::string& given, bool bracket) {
  std::string name;
  for (const char c : given) {
    if (std::isalpha(static_cast<unsigned char>(c)) == 0 && c != '_' && c != ' ' && c != '-') return std::nullopt;
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) name += static_cast<char>(c | 0x20);
  }
  if (name == "any") return range_set(0, unicode::code_points - 1);
  if (name == "ascii") return range_set(0, 0x7F);
  if (name == "alpha" || name == "alphabetic") return alphabetic();
  if (name == "alnum") return united(alphabetic(), categories({"Nd"}));
  if (name == "blank") return united(range_set('\t', '\t'), categories({"Zs"}));
  if (name == "cntrl") return categories({"Cc"});
  if (name == "digit") return categories({"Nd"});
  if (name == "graph") return complement(categories({"Z", "Cc", "Cn", "Cs"}));
  if (name == "print") return complement(categories({"Zl", "Zp", "Cc", "Cn", "Cs"}));
  if (name == "lower" || name == "lowercase") return united(*property("lowercase", "Lowercase"), categories({"Ll"}));
  if (name == "upper" || name == "uppercase") return united(*pcre2_property("Uppercase"), categories({"Lu"}));
  if (name == "punct") return bracket ? categories({"P", "S"}) : categories({"P"});
  if (name == "space") return all_that(unicode::is_space);
  if (name == "xdigit") return united(range_set('0', '9'), united(range_set('A', 'F'), range_set('a', 'f')));
  if (name == "word") {
    // Oniguruma has no joiners, and ² ³ ¹ ¼ ½ ¾.
    const CodePointSet no_joiners =
        intersected(all_that(unicode::is_word_character), complement(range_set(0x200C, 0x200D)));
    return united(united(no_joiners, range_set(0xB2, 0xB3)), united(range_set(0xB9, 0xB9), range_set(0xBC, 0xBE)));
  }
  if (bracket) return std::nullopt;
  for (const std::string_view whole : {"letter", "mark", "number", "punctuation", "symbol", "separator"})
    if (name == whole) name.resize(1);
  if (name.size() == 1 || name.size() == 2) {
    std::string category = name;
    category[0] = static_cast<char>(category[0] - 0x20);
    if (auto found = category_set(category)) return found;
  }
  // PCRE2 also has short names ("hani"); the additions do not.
  const auto is = [&](std::initializer_list<std::string_view> names) { return std::ranges::count(names, name) > 0; };
  const bool is_short = name.size() == 4 && !is({"ahom", "cham", "lisu", "modi", "newa", "thai", "toto"});
  if (is_short || is({"", "common", "inherited", "unknown"})) return std::nullopt;
  return property(name, "sc:" + name);
}

CodePointSet with_all_cases(const CodePointSet& set, std::vector<std::u32string>& others) {
  std::set<uint32_t> more;
  for (const auto& [folded, group] : case_groups()) {
    const bool touched = std::ranges::any_of(group, [&](uint32_t c) { return has(set, c); });
    if (touched && folded.size() > 1) others.push_back(folded);
    if (touched) more.insert(group.begin(), group.end());
  }
  CodePointSet out;
  for (const uint32_t c : more) {
    if (!out.empty() && out.back() == c)
      ++out.back();
    else
      out.insert(out.end(), {c, c + 1});
  }
  return united(set, out);
}

bool folds_into_one(const std::u32string& text) {
  for (size_t size = 2; size <= std::min<size_t>(text.size(), 3); ++size)
    if (case_groups().contains(text.substr(text.size() - size))) return true;
  return false;
}

}  // namespace blipft
