// ScannerRules: a set of patterns of which the longest match at a place wins, as in a generated scanner.
//
// A pattern is made of code points, (...), |, *, +, ?, {n}, {m,n}, classes [...] and [^...], and <name>, which stands
// for a pattern or class that was named before. A letter of a-z in a pattern stands for both its cases, one in a class
// for itself alone. \ takes the next character as it is; \xHHHH is the code point with that number.
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
    int64_t rule = -1;   ///< what add() gave; -1: no rule matches
    int64_t length = 0;  ///< code points of the token, without what was asked to follow it
  };

  /// From here on <name> is a class of these code points.
  void name_class(const std::string& name, std::vector<CodePoints> members);
  /// From here on <name> is this pattern.
  void name_pattern(const std::string& name, const std::string& pattern);
  /// Adds a rule: `pattern`, with what must stand behind it ("": anything). Gives its number: 0, 1, 2, ...
  int64_t add(const std::string& pattern, const std::string& followed_by = "");

  /// The rule with the longest match at text[at], what follows the token included; of several the one that was added
  /// first. Never an empty match. Remembers states between calls: not thread-safe.
  Match match(const std::u32string& text, size_t at);

 private:
  class Parser;
  // A nondeterministic automaton: a state either goes on over a class to one state, or freely to up to two.
  struct State {
    int32_t over = -1;  // class; -1: free
    std::array<int32_t, 2> to{-1, -1};
    int32_t accepts = -1;  // rule
  };
  struct Class {
    std::vector<CodePoints> members;  // ascending
    bool negated = false;
    bool holds(uint32_t c) const;
  };
  // A set of states, as one state of the deterministic automaton that is made as texts need it.
  struct Step {
    std::vector<int32_t> states;  // ascending; those over a class, and those that accept
    int32_t accepts = -1;
    std::array<int32_t, 128> ascii;
    std::unordered_map<uint32_t, int32_t> other;
  };
  struct Rule {
    int32_t begin = -1, body = -1, follower = -1;  // first states: of all, of the token alone, of what follows
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
