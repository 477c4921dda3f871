#include "evaluate/scanner_rules.h"

#include <algorithm>

#include "blipft/error.h"
#include "text/unicode.h"

namespace blipft {
namespace {

constexpr size_t max_steps = 20000;  // about 12 MB; unusual texts cannot make the cache grow further
constexpr int32_t unknown = -2, dead = -1;

std::u32string code_points(std::string_view text) {
  std::u32string out;
  for (size_t at = 0; at < text.size();) out += unicode::next_code_point(text, at);
  return out;
}

}  // namespace

// Parses one pattern by recursive descent. Each function appends a fragment of the automaton and returns its first and
// last state.
class ScannerRules::Parser {
 public:
  Parser(ScannerRules& rules, const std::string& pattern)
      : rules_(rules), text_(code_points(pattern)), pattern_(pattern) {}

  struct Fragment {
    int32_t begin, end;
  };
  Fragment whole() {
    const Fragment fragment = alternatives();
    BLIPFT_CHECK(at_ == text_.size(), "pattern ", pattern_, ": unexpected character at ", at_);
    return fragment;
  }

 private:
  bool more() const { return at_ < text_.size(); }
  bool take(char32_t c) {
    if (!more() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char32_t c) {
    BLIPFT_CHECK(take(c), "pattern ", pattern_, ": expected ", static_cast<char>(c), " at ", at_);
  }

  Fragment alternatives() {
    Fragment all = sequence();
    while (take(U'|')) all = either(all, sequence());
    return all;
  }
  Fragment either(Fragment a, Fragment b) {
    const int32_t begin = rules_.new_state(), end = rules_.new_state();
    rules_.states_[begin].to = {a.begin, b.begin};
    rules_.states_[a.end].to[0] = end;
    rules_.states_[b.end].to[0] = end;
    return {begin, end};
  }
  Fragment empty() {
    const int32_t state = rules_.new_state();
    return {state, state};
  }
  Fragment join(Fragment a, Fragment b) {
    rules_.states_[a.end].to[0] = b.begin;
    return {a.begin, b.end};
  }
  Fragment sequence() {
    Fragment all = empty();
    while (more() && text_[at_] != U'|' && text_[at_] != U')') all = join(all, repeated());
    return all;
  }
  Fragment repeated() {
    const size_t from = at_;
    Fragment one = atom();
    const size_t behind = at_;
    if (take(U'?')) return optional(one);
    if (take(U'*')) return optional(loop(one));
    if (take(U'+')) return loop(one);
    if (!take(U'{')) return one;
    const int64_t minimum = number();
    const int64_t maximum = take(U',') ? number() : minimum;
    expect(U'}');
    const size_t end = at_;
    // Parse the atom again for each copy.
    const auto copy = [&] {
      at_ = from;
      const Fragment made = atom();
      BLIPFT_CHECK(at_ == behind, "pattern ", pattern_);
      return made;
    };
    Fragment all = minimum > 0 ? one : optional(one);
    for (int64_t n = 1; n < maximum; ++n) all = join(all, n < minimum ? copy() : optional(copy()));
    at_ = end;
    return all;
  }
  Fragment optional(Fragment one) {
    const int32_t begin = rules_.new_state(), end = rules_.new_state();
    rules_.states_[begin].to = {one.begin, end};
    rules_.states_[one.end].to[0] = end;
    return {begin, end};
  }
  Fragment loop(Fragment one) {
    const int32_t begin = rules_.new_state(), end = rules_.new_state();
    rules_.states_[begin].to[0] = one.begin;
    rules_.states_[one.end].to = {begin, end};
    return {begin, end};
  }
  int64_t number() {
    int64_t n = 0;
    while (more() && text_[at_] >= U'0' && text_[at_] <= U'9') n = n * 10 + (text_[at_++] - U'0');
    return n;
  }

  Fragment atom() {
    if (take(U'(')) {
      const Fragment inner = alternatives();
      expect(U')');
      return inner;
    }
    if (take(U'[')) return over(char_class());
    if (take(U'<')) return named();
    const uint32_t c = character();
    Class one{{{c, c}}};
    if (c < 128 && std::isalpha(static_cast<int>(c))) one.members = {{c & ~0x20u, c & ~0x20u}, {c | 0x20u, c | 0x20u}};
    return over(std::move(one));
  }
  std::string name() {
    std::string out;
    while (more() && text_[at_] != U'>') unicode::append_utf8(out, text_[at_++]);
    expect(U'>');
    return out;
  }
  Fragment named() {
    const std::string wanted = name();
    if (const auto found = rules_.named_classes_.find(wanted); found != rules_.named_classes_.end())
      return over(Class{found->second});
    const auto found = rules_.patterns_.find(wanted);
    BLIPFT_CHECK(found != rules_.patterns_.end(), "pattern ", pattern_, ": no <", wanted, "> was named before");
    return Parser(rules_, found->second).whole();
  }
  uint32_t character() {
    if (!take(U'\\')) return text_[at_++];
    if (!take(U'x')) return text_[at_++];
    uint32_t c = 0;
    for (int n = 0; n < 4; ++n) {
      const char32_t digit = text_.at(at_++);
      c = c * 16 + (digit <= U'9' ? digit - U'0' : (digit | 0x20u) - U'a' + 10);
    }
    return c;
  }
  Class char_class() {
    Class made;
    made.negated = take(U'^');
    while (more() && text_[at_] != U']') {
      if (take(U'<')) {
        const auto& members = rules_.named_classes_.at(name());
        made.members.insert(made.members.end(), members.begin(), members.end());
        continue;
      }
      const uint32_t first = character();
      uint32_t last = first;
      if (at_ + 1 < text_.size() && text_[at_] == U'-' && text_[at_ + 1] != U']') {
        ++at_;
        last = character();
      }
      made.members.push_back({first, last});
    }
    expect(U']');
    std::sort(made.members.begin(), made.members.end(), [](auto& a, auto& b) { return a.first < b.first; });
    return made;
  }
  Fragment over(Class made) {
    const int32_t begin = rules_.new_state(), end = rules_.new_state();
    rules_.states_[begin].over = static_cast<int32_t>(rules_.classes_.size());
    rules_.states_[begin].to[0] = end;
    rules_.classes_.push_back(std::move(made));
    return {begin, end};
  }

  ScannerRules& rules_;
  std::u32string text_;
  std::string pattern_;
  size_t at_ = 0;
};

bool ScannerRules::Class::holds(uint32_t c) const {
  auto above =
      std::upper_bound(members.begin(), members.end(), c, [](uint32_t x, const CodePoints& r) { return x < r.first; });
  // Ranges of a class may contain each other.
  while (above != members.begin())
    if (c <= (--above)->last) return !negated;
  return negated;
}

void ScannerRules::name_class(const std::string& name, std::vector<CodePoints> members) {
  std::sort(members.begin(), members.end(), [](auto& a, auto& b) { return a.first < b.first; });
  named_classes_[name] = std::move(members);
}

void ScannerRules::name_pattern(const std::string& name, const std::string& pattern) { patterns_[name] = pattern; }

int64_t ScannerRules::add(const std::string& pattern, const std::string& followed_by) {
  const auto number = static_cast<int32_t>(rules_.size());
  Rule rule;
  const auto token = Parser(*this, pattern).whole();
  rule.begin = rule.body = token.begin;
  if (followed_by.empty()) {
    states_[token.end].accepts = number;
  } else {
    rule.has_follower = true;
    const auto both = Parser(*this, "(" + pattern + ")(" + followed_by + ")").whole();
    states_[both.end].accepts = number;
    rule.begin = both.begin;
    states_[token.end].accepts = number;
    const auto follower = Parser(*this, followed_by).whole();
    states_[follower.end].accepts = number;
    rule.follower = follower.begin;
  }
  rules_.push_back(rule);
  steps_.clear();
  step_numbers_.clear();
  return number;
}

void ScannerRules::close(std::vector<int32_t>& set) const {
  std::vector<bool> seen(states_.size());
  std::vector<int32_t> todo = std::move(set), kept;
  while (!todo.empty()) {
    const int32_t at = todo.back();
    todo.pop_back();
    if (at < 0 || seen[at]) continue;
    seen[at] = true;
    const State& state = states_[at];
    if (state.over >= 0 || state.accepts >= 0) kept.push_back(at);
    if (state.over < 0) todo.insert(todo.end(), state.to.begin(), state.to.end());
  }
  std::sort(kept.begin(), kept.end());
  set = std::move(kept);
}

int32_t ScannerRules::step_of(const std::vector<int32_t>& begins) {
  std::vector<int32_t> set = begins;
  close(set);
  if (set.empty()) return dead;
  const auto [found, added] = step_numbers_.try_emplace(set, static_cast<int32_t>(steps_.size()));
  if (!added) return found->second;
  Step step;
  step.states = std::move(set);
  step.ascii.fill(unknown);
  for (int32_t state : step.states) {
    const int32_t rule = states_[state].accepts;
    if (rule >= 0 && (step.accepts < 0 || rule < step.accepts)) step.accepts = rule;
  }
  steps_.push_back(std::move(step));
  return found->second;
}

int32_t ScannerRules::next(int32_t step, uint32_t c) {
  if (c < 128 && steps_[step].ascii[c] != unknown) return steps_[step].ascii[c];
  if (c >= 128)
    if (const auto found = steps_[step].other.find(c); found != steps_[step].other.end()) return found->second;
  std::vector<int32_t> targets;
  for (int32_t state : steps_[step].states)
    if (states_[state].over >= 0 && classes_[states_[state].over].holds(c)) targets.push_back(states_[state].to[0]);
  const int32_t to = step_of(targets);
  if (c < 128) steps_[step].ascii[c] = to;
  else steps_[step].other[c] = to;
  return to;
}

std::vector<size_t> ScannerRules::ends(int32_t begin, const std::u32string& text, size_t from, size_t to) const {
  std::vector<size_t> found;
  std::vector<int32_t> set{begin};
  close(set);
  for (size_t at = from;; ++at) {
    if (std::any_of(set.begin(), set.end(), [&](int32_t s) { return states_[s].accepts >= 0; })) found.push_back(at);
    if (at == to || set.empty()) return found;
    std::vector<int32_t> targets;
    for (int32_t state : set)
      if (states_[state].over >= 0 && classes_[states_[state].over].holds(text[at]))
        targets.push_back(states_[state].to[0]);
    close(targets);
    set = std::move(targets);
  }
}

bool ScannerRules::matches(int32_t begin, const std::u32string& text, size_t from, size_t to) const {
  const auto found = ends(begin, text, from, to);
  return !found.empty() && found.back() == to;
}

ScannerRules::Match ScannerRules::match(const std::u32string& text, size_t at) {
  if (steps_.size() > max_steps) {
    steps_.clear();
    step_numbers_.clear();
  }
  if (steps_.empty()) {
    std::vector<int32_t> begins;
    for (const Rule& rule : rules_) begins.push_back(rule.begin);
    step_of(begins);
  }
  Match best;
  size_t end = at;
  int32_t step = 0;
  for (size_t i = at; i < text.size(); ++i) {
    step = next(step, text[i]);
    if (step == dead) break;
    if (steps_[step].accepts >= 0) best.rule = steps_[step].accepts, end = i + 1;
  }
  if (best.rule < 0) return best;
  best.length = static_cast<int64_t>(end - at);
  const Rule& rule = rules_[best.rule];
  if (!rule.has_follower) return best;
  // Find the longest token that is followed by a match of rule.follower up to `end`.
  auto tokens = ends(rule.body, text, at, end);
  while (!tokens.empty() && !matches(rule.follower, text, tokens.back(), end)) tokens.pop_back();
  BLIPFT_CHECK(!tokens.empty() && tokens.back() > at, "token rule ", best.rule, " matched no token");
  best.length = static_cast<int64_t>(tokens.back() - at);
  return best;
}

}  // namespace blipft
