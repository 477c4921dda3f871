// ScannerRules: a set of patterns. As in a generated scanner, the longest match at a position wins.
//
// A pattern consists of code points, (...), |, *, +, ?, {n}, {m,n}, classes [...] and [^...], and <name>, which refers
// to a pattern or class that was named before. In a pattern, a letter a-z matches both cases; in a class it matches
// only itself. \ quotes the next character; \xHHHH is the code point with that number.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace blipft {

/// The code points [first, last].
struct CodePoints {
  uint32_t first, last;
};

class ScannerRules {
 public:
  struct Match {
    int64_t rule = -1;   ///< number returned by add(); -1: no rule matches
    int64_t length = 0;  ///< code points of the token, without the text that must follow it
  };

  /// Defines <name> as a class of these code points, for patterns that are added later.
  void name_class(const std::string& name, std::vector<CodePoints> members);
  /// Defines <name> as this pattern, for patterns that are added later.
  void name_pattern(const std::string& name, const std::string& pattern);
  /// Adds a rule: a token that matches `pattern`, followed by a match of `followed_by` ("": anything). Returns the
  /// rule's number: 0, 1, 2, ...
  int64_t add(const std::string& pattern, const std::string& followed_by = "");

  /// Returns the rule with the longest match at text[at], including the text that must follow the token. If several
  /// matches have this length, the rule that was added first wins. A match is never empty. Not thread-safe, because
  /// states are cached between calls.
  Match match(const std::u32string& text, size_t at);

 private:
  class Parser;
  // A state of a nondeterministic automaton. It either consumes a character of a class and goes to one state, or goes
  // to up to two states without consuming one.
  struct State {
    int32_t over = -1;  // index of the class; -1: consumes nothing
    std::array<int32_t, 2> to{-1, -1};
    int32_t accepts = -1;  // number of the rule; -1: none
  };
  struct Class {
    std::vector<CodePoints> members;  // ascending
    bool negated = false;
    bool holds(uint32_t c) const;
  };
  // A set of states: one state of the deterministic automaton, which is built lazily.
  struct Step {
    std::vector<int32_t> states;  // ascending; only states that consume a character or accept
    int32_t accepts = -1;
    std::array<int32_t, 128> ascii;
    std::unordered_map<uint32_t, int32_t> other;
  };
  struct Rule {
    int32_t begin = -1, body = -1, follower = -1;  // first states of the whole rule, of its token, and of its follower
    bool has_follower = false;
  };

  int32_t new_state() { return states_.emplace_back(), static_cast<int32_t>(states_.size()) - 1; }
  int32_t step_of(const std::vector<int32_t>& begins);
  int32_t next(int32_t step, uint32_t c);
  void close(std::vector<int32_t>& set) const;
  bool matches(int32_t begin, const std::u32string& text, size_t from, size_t to) const;
  std::vector<size_t> ends(int32_t begin, const std::u32string& text, size_t from, size_t to) const;

  std::map<std::string, std::string> patterns_;
  std::map<std::string, std::vector<CodePoints>> named_classes_;
  std::vector<Class> classes_;
  std::vector<State> states_;
  std::vector<Rule> rules_;
  std::vector<Step> steps_;
  std::map<std::vector<int32_t>, int32_t> step_numbers_;
};

}  // namespace blipft
