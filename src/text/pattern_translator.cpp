#include "text/pattern_translator.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <optional>
#include <utility>

#include "blipft/error.h"
#include "text/code_point_set.h"
#include "text/unicode.h"

namespace blipft {
namespace {

constexpr size_t max_pattern_bytes = 16384, max_sets = 1024, max_kinds = 256;
constexpr int max_depth = 100;
constexpr uint32_t max_repeats = 1000;
constexpr const char* joined = "letters that case folding joins (\"ss\" and \"\u00df\")";
constexpr char set_mark = '\x01';  // marks a set in a translation: the mark, its index and ";"

class Translator {
 public:
  Translator(const std::string& expression, const std::string& location) : location_(location), quoted_(expression) {
    for (size_t at = 0; at < expression.size();) text_ += unicode::next_code_point(expression, at);
    if (expression.size() > max_pattern_bytes)
      refuse(concat(expression.size(), " bytes, more than ", max_pattern_bytes, ","));
  }

  TranslatedPattern translated() {
    const std::string out = alternatives({}, 0);
    if (!at_end()) refuse("\")\" without \"(\"");
    return with_bytes(out);
  }

 private:
  struct Options {
    bool ignore_case = false, dot_all = false;
  };
  struct Atom {
    std::string text;
    bool repeats = true;  ///< true if a quantifier may follow
  };
  /// One code point, or a set.
  struct Member {
    std::optional<uint32_t> one;
    CodePointSet set;
  };

  [[noreturn]] void refuse(const std::string& found) const {
    throw UserError(concat(location_, ": found ", found, " near character ", at_, " of the pattern \"",
                           brief(quoted_, 200),
                           "\", expected a construct that docs/models.md lists. Use a tokenizer with such a pattern."));
  }

  bool at_end() const { return at_ >= text_.size(); }
  bool sees(std::u32string_view wanted) const { return std::u32string_view(text_).substr(at_).starts_with(wanted); }
  bool takes(std::u32string_view wanted) {
    if (!sees(wanted)) return false;
    at_ += wanted.size();
    return true;
  }
  uint32_t next() {
    if (at_end()) refuse("the end");
    return text_[at_++];
  }
  /// Reads the text up to `end`, and skips `end`.
  std::string until(char32_t end) {
    std::string out;
    for (uint32_t c = next(); c != end; c = next()) unicode::append_utf8(out, c);
    return out;
  }
  uint32_t number(const std::string& digits, int base, uint32_t limit) const {
    uint32_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    if (digits.empty() || error != std::errc() || end != digits.data() + digits.size() || value > limit)
      refuse(concat("the number \"", brief(digits), "\", which is not between 0 and ", limit, ","));
    return value;
  }

  std::string set(const CodePointSet& members) {
    const auto [found, is_new] = sets_.emplace(members, sets_.size());
    if (sets_.size() > max_sets) refuse(concat("more than ", max_sets, " sets of characters"));
    return concat(set_mark, found->second, ";");
  }
  const CodePointSet& named(const std::string& name, bool bracket) {
    const auto [found, is_new] = named_.try_emplace({name, bracket});
    if (is_new) {
      auto members = named_set(name, bracket);
      if (!members) refuse(concat("the character property \"", brief(name), "\""));
      found->second = std::move(*members);
    }
    return found->second;
  }

  /// Translates up to the end or a ")", which is not consumed.
  std::string alternatives(Options options, int depth) {
    if (depth > max_depth) refuse(concat("groups nested deeper than ", max_depth));
    std::string out;
    while (!at_end() && !sees(U")")) {
      if (takes(U"|")) {
        run_.clear();
        out += '|';
      } else {
        out += quantified(atom(options, depth));
      }
    }
    return out;
  }

  std::string quantified(Atom atom) {
    for (int count = 0;; ++count) {
      std::string quantifier = this->quantifier();
      if (quantifier.empty()) return atom.text;
      if (!atom.repeats || count == 2) refuse("a quantifier behind what cannot be repeated");
      run_.clear();
      // A repeated group uses stack for each repetition, a set does not.
      const bool is_set = atom.text.front() == set_mark && atom.text.find(';') + 1 == atom.text.size();
      atom.text = is_set ? atom.text + quantifier : "(?:" + atom.text + ")" + quantifier;
    }
  }

  /// Translates a quantifier; returns an empty text if there is none.
  std::string quantifier() {
    std::string out;
    if (takes(U"{")) {
      const std::string range = until(U'}');
      const size_t comma = std::min(range.find(','), range.size());
      const bool exact = comma == range.size(), open = comma + 1 == range.size();
      const uint32_t low = comma == 0 ? 0 : number(range.substr(0, comma), 10, max_repeats);
      const uint32_t high = exact || open ? low : number(range.substr(comma + 1), 10, max_repeats);
      if (low > high || (comma == 0 && open)) refuse(concat("{", range, "}"));
      if (exact && sees(U"?")) refuse(concat("{", range, "}?"));
      if (low > 1 && !run_.empty() && folds_into_one(run_ + run_.back())) refuse(joined);
      out = exact ? concat("{", low, "}") : open ? concat("{", low, ",}") : concat("{", low, ",", high, "}");
      return takes(U"?") ? out + '?' : out;  // a "+" after it repeats the repetition
    }
    for (const char32_t sign : {U'*', U'+', U'?'})
      if (takes({&sign, 1})) {
        out = static_cast<char>(sign);
        return takes(U"?") ? out + '?' : takes(U"+") ? out + '+' : out;
      }
    return out;
  }

  Atom atom(Options options, int depth) {
    const uint32_t c = next();
    if (c == U'(') return group(options, depth);
    if (c != U'[' && c != U'\\' && c != U'.' && c != U'^' && c != U'$') {
      if (c == U'{' || c == U'}' || c == U']' || c == U'*' || c == U'+' || c == U'?')
        refuse(concat("\"", static_cast<char>(c), "\" without \"\\\" before it"));
      return {literal(c, options)};
    }
    if (c == U'\\') {
      if (auto anchor = this->anchor()) return *anchor;
      const Member member = escape(false);
      if (member.one) return {literal(*member.one, options)};
      run_.clear();
      return {set(member.set)};
    }
    run_.clear();
    if (c == U'[') return {bracket(options)};
    const std::string line_end = set(range_set('\n', '\n'));
    if (c == U'^') return {"(?:\\A|(?<=" + line_end + ")(?!\\z))", false};
    if (c == U'$') return {"(?=" + line_end + "|\\z)", false};
    return {set(options.dot_all ? complement({}) : complement(range_set('\n', '\n')))};
  }

  std::string literal(uint32_t c, Options options) {
    if (!options.ignore_case) {
      run_.clear();
      return set(range_set(c, c));
    }
    std::vector<std::u32string> others;
    const CodePointSet members = with_all_cases(range_set(c, c), others);
    const std::u32string folded = c >= 0xD800 && c <= 0xDFFF ? U"" : unicode::folded(c);
    run_ += folded;
    if (!others.empty() || folds_into_one(run_)) refuse(joined);
    return set(members);
  }

  Atom group(Options options, int depth) {
    std::string opening = "(?:";
    bool repeats = true;
    if (sees(U"*")) refuse("\"(*\"");
    if (takes(U"?#")) {
      until(U')');
      return {"", false};
    }
    if (takes(U"?")) {
      constexpr const char* known[] = {":", ">", "=", "!", "<=", "<!"};
      const auto found = std::find_if(std::begin(known), std::end(known), [&](std::string_view name) {
        return takes(std::u32string(name.begin(), name.end()));
      });
      if (found != std::end(known)) {
        opening = concat("(?", *found);
        repeats = found < known + 2;       // the others are lookarounds
      } else if (read_options(options)) {  // holds for all alternatives to the end of the enclosing group
        return {"(?:" + alternatives(options, depth + 1) + ")", false};
      }
    }
    if (!repeats) run_.clear();
    const std::string inside = alternatives(options, depth + 1);
    if (!takes(U")")) refuse("\"(\" without \")\"");
    if (!repeats) run_.clear();
    return {opening + inside + ")", repeats};
  }

  /// Reads "i-m:" or "i)" after "(?". Returns true for the latter.
  bool read_options(Options& options) {
    for (bool on = true;;) {
      const uint32_t c = next();
      if (c == U':') return false;
      if (c == U')') return true;
      if (c == U'-')
        on = false;
      else if (c == U'i')
        options.ignore_case = on;
      else if (c == U'm')
        options.dot_all = on;
      else
        refuse("a group of an unknown kind");
    }
  }

  /// Translates an escape after "\" that is not one character. Returns nullopt if a character follows.
  std::optional<Atom> anchor() {
    const auto is = [&](std::u32string_view name) { return takes(name) && (run_.clear(), true); };
    if (is(U"A")) return Atom{"\\A", false};
    if (is(U"z")) return Atom{"\\z", false};
    if (is(U"Z")) return Atom{"(?=" + set(range_set('\n', '\n')) + "?\\z)", false};
    if (is(U"R"))
      return Atom{"(?>" + set(range_set('\r', '\r')) + set(range_set('\n', '\n')) + "|" + set(line_ends()) + ")"};
    const bool inside = sees(U"B");
    if (!is(U"b") && !is(U"B")) return std::nullopt;
    const std::string word = set(named("word", false));
    const std::string same = inside ? "(?=" : "(?!", other = inside ? "(?!" : "(?=";
    return Atom{"(?:(?<=" + word + ")" + same + word + ")|(?<!" + word + ")" + other + word + "))", false};
  }
  static CodePointSet line_ends() {
    return united(range_set('\n', '\r'), united(range_set(0x85, 0x85), range_set(0x2028, 0x2029)));
  }

  /// Reads an escaped character or set after the backslash.
  Member escape(bool in_bracket) {
    const uint32_t c = next();
    constexpr std::u32string_view letters = U"tnrfvae", controls = U"\t\n\r\f\v\a\x1b";
    if (const size_t at = letters.find(c); at != letters.npos) return {controls[at], {}};
    constexpr std::pair<char32_t, const char*> classes[] = {
        {U's', "space"}, {U'd', "digit"}, {U'w', "word"}, {U'h', "xdigit"}};
    for (const auto& [letter, name] : classes)
      if ((c | 0x20) == letter) return inverted(named(name, false), c != letter);
    if (in_bracket && c == U'b') return {'\b', {}};
    if (!in_bracket && c == U'N') return {{}, complement(range_set('\n', '\n'))};
    if (!in_bracket && c == U'O') return {{}, complement({})};
    if (c == U'x') return {takes(U"{") ? scalar(until(U'}')) : scalar(digits(2), 0x7F), {}};
    if (c == U'u') return {scalar(digits(4)), {}};
    if ((c | 0x20) == U'p' && takes(U"{")) {
      const bool opposite = takes(U"^");
      return inverted(named(until(U'}'), false), opposite != (c == U'P'));
    }
    if (c >= 0x80 || std::isalnum(static_cast<int>(c)) == 0) return {c, {}};
    refuse(concat("\"\\", static_cast<char>(c), "\""));
  }
  static Member inverted(const CodePointSet& members, bool inverts) {
    return {{}, inverts ? complement(members) : members};
  }
  std::string digits(size_t count) {
    std::string out;
    for (size_t i = 0; i < count; ++i) unicode::append_utf8(out, next());
    return out;
  }
  uint32_t scalar(const std::string& hexadecimal, uint32_t limit = unicode::code_points - 1) const {
    return number(hexadecimal, 16, limit);
  }

  std::string bracket(Options options) {
    const bool inverts = takes(U"^");
    CodePointSet members = bracket_members(0);
    std::vector<std::u32string> others;
    if (options.ignore_case) members = with_all_cases(members, others);
    if (inverts || others.empty()) return set(inverts ? complement(members) : members);
    std::string out = "(?:" + set(members);
    for (const std::u32string& other : others) {
      out += '|';
      std::vector<std::u32string> none;
      for (const char32_t c : other) out += set(with_all_cases(range_set(c, c), none));
    }
    return out + ")";
  }

  /// Reads the members of a bracket after "[" or "[^", including the "]".
  CodePointSet bracket_members(int depth) {
    if (depth > max_depth) refuse(concat("sets nested deeper than ", max_depth));
    std::optional<CodePointSet> left;  // the left side of "&&"
    CodePointSet members;
    bool empty = true;
    for (;;) {
      if (sees(U"]") || sees(U"&&")) {
        if (empty) refuse("a set without members");
        left = left ? intersected(*left, members) : members;
        if (takes(U"]")) return *left;
        takes(U"&&");
        members.clear();
        empty = true;
        continue;
      }
      const Member one = bracket_member(depth);
      empty = false;
      if (!one.one) {
        members = united(members, one.set);
      } else if (!sees(U"-") || sees(U"-]")) {
        members = united(members, range_set(*one.one, *one.one));
        continue;
      } else {
        takes(U"-");
        const Member last = bracket_member(depth);
        if (!last.one || *last.one < *one.one) refuse("a range without an end");
        members = united(members, range_set(*one.one, *last.one));
      }
      if (sees(U"-") && !sees(U"-]")) refuse("\"-\" behind a range or a set");
    }
  }

  Member bracket_member(int depth) {
    const uint32_t c = next();
    if (c == U'\\') return escape(true);
    if (c != U'[') return {c, {}};
    if (takes(U":")) {
      const bool inverts = takes(U"^");
      const std::string name = until(U':');
      if (!takes(U"]")) refuse("\"[:\" without \":]\"");
      return inverted(named(name, true), inverts);
    }
    const bool inverts = takes(U"^");
    return inverted(bracket_members(depth + 1), inverts);
  }

  /// Assigns a byte to each class of code points that are in the same sets.
  TranslatedPattern with_bytes(const std::string& text) const {
    std::vector<const CodePointSet*> sets(sets_.size());
    std::vector<uint32_t> bounds{0, unicode::code_points};
    for (const auto& [members, index] : sets_) {
      sets[index] = &members;
      bounds.insert(bounds.end(), members.begin(), members.end());
    }
    std::sort(bounds.begin(), bounds.end());
    bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
    TranslatedPattern out;
    out.byte_of.resize(unicode::code_points);
    std::map<std::vector<bool>, uint8_t> bytes;
    for (size_t i = 0; i + 1 < bounds.size(); ++i) {
      std::vector<bool> in(sets.size());
      for (size_t s = 0; s < sets.size(); ++s) in[s] = has(*sets[s], bounds[i]);
      const uint8_t byte = bytes.emplace(in, static_cast<uint8_t>(bytes.size())).first->second;
      if (bytes.size() > max_kinds) refuse(concat("more than ", max_kinds, " kinds of characters"));
      std::fill(out.byte_of.begin() + bounds[i], out.byte_of.begin() + bounds[i + 1], byte);
    }
    std::vector<std::string> classes(sets.size());
    constexpr char hex[] = "0123456789abcdef";
    for (const auto& [in, byte] : bytes)
      for (size_t s = 0; s < sets.size(); ++s)
        if (in[s]) classes[s] += {'\\', 'x', hex[byte / 16], hex[byte % 16]};
    for (size_t at = 0; at < text.size(); ++at) {
      if (text[at] != set_mark) {
        out.pcre2 += text[at];
        continue;
      }
      const size_t end = text.find(';', at);
      const std::string& members = classes[number(text.substr(at + 1, end - at - 1), 10, max_sets)];
      out.pcre2 += members.empty() ? "(?!)" : "[" + members + "]";
      at = end;
    }
    return out;
  }

  const std::string& location_;
  const std::string& quoted_;
  std::u32string text_;
  size_t at_ = 0;
  std::map<CodePointSet, size_t> sets_;
  std::map<std::pair<std::string, bool>, CodePointSet> named_;
  std::u32string run_;  ///< successive literals without case, folded
};

}  // namespace

TranslatedPattern translate_pattern(const std::string& expression, const std::string& location) {
  return Translator(expression, location).translated();
}

}  // namespace blipft
