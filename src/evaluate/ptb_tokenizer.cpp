#include "evaluate/ptb_tokenizer.h"

#include <algorithm>
#include <array>

#include "evaluate/ptb_rules.h"
#include "text/letter_case.h"
#include "text/unicode.h"

namespace blipft {
namespace {

constexpr char32_t no_break_space = 0xA0, soft_hyphen = 0xAD;

std::u32string replaced(const std::u32string& text, std::u32string_view from, std::u32string_view to) {
  std::u32string out;
  for (size_t at = 0; at < text.size();) {
    if (text.compare(at, from.size(), from) == 0) out += to, at += from.size();
    else out += text[at++];
  }
  return out;
}

std::u32string without_soft_hyphens(const std::u32string& text) {
  const auto out = replaced(text, U"\u00ad", U"");
  return out.empty() ? U"-" : out;
}

// Converts quotation marks to LaTeX style: ` ' `` ''.
std::u32string quotes(std::u32string text, bool left) {
  text = replaced(text, U"&apos;", U"'");
  text = replaced(text, U"&quot;", U"\"");
  std::u32string out;
  for (char32_t c : text) {
    switch (c) {
      case U'\'': out += left ? U"`" : U"'"; break;
      case U'"': out += left ? U"``" : U"''"; break;
      case 0x91:
      case 0x2018:
      case 0x201B:
      case 0x2039: out += U"`"; break;
      case 0x92:
      case 0x2019:
      case 0x203A: out += U"'"; break;
      case 0x93:
      case 0x201C:
      case 0xAB: out += U"``"; break;
      case 0x94:
      case 0x201D:
      case 0xBB: out += U"''"; break;
      default: out += c;
    }
  }
  return out;
}

std::u32string fraction(char32_t c) {
  switch (c) {
    case 0xBC: return U"1/4";
    case 0xBD: return U"1/2";
    case 0xBE: return U"3/4";
    case 0x2153: return U"1/3";
    case 0x2154: return U"2/3";
    default: return {c};
  }
}

std::u32string currency(char32_t c) {
  switch (c) {
    case 0xA2: return U"cents";
    case 0xA3: return U"#";  // the treebank's symbol for the pound
    case 0x80:
    case 0xA4:
    case 0x20A0:
    case 0x20AC: return U"$";
    default: return {c};
  }
}

std::u32string brackets(const std::u32string& text, std::u32string_view which) {
  constexpr std::array<std::pair<char32_t, std::u32string_view>, 6> names{
      {{U'(', U"-LRB-"}, {U')', U"-RRB-"}, {U'[', U"-LSB-"}, {U']', U"-RSB-"}, {U'{', U"-LCB-"}, {U'}', U"-RCB-"}}};
  std::u32string out = text;
  for (const auto& [bracket, name] : names)
    if (which.find(bracket) != std::u32string_view::npos) out = replaced(out, std::u32string(1, bracket), name);
  return out;
}

// Returns the token for `text`. `consumed` is set to the number of characters that the token uses.
std::u32string token_of(PtbAction action, const std::u32string& text, size_t& consumed) {
  switch (action) {
    case PtbAction::word: return without_soft_hyphens(text);
    case PtbAction::split_last_2: return text.substr(0, consumed = text.size() - 2);
    case PtbAction::split_last_3: return text.substr(0, consumed = text.size() - 3);
    case PtbAction::left_quote: return quotes(text, true);
    case PtbAction::right_quote: return quotes(text, false);
    case PtbAction::dash: return U"--";
    case PtbAction::hyphens: return text.size() == 3 || text.size() == 4 ? U"--" : text;
    case PtbAction::ellipsis: return U"...";
    case PtbAction::ampersand: return replaced(text, U"&amp;", U"&");
    case PtbAction::less: return U"<";
    case PtbAction::greater: return U">";
    case PtbAction::joined_spaces: return replaced(text, U" ", {&no_break_space, 1});
    case PtbAction::telephone: return brackets(replaced(text, U" ", {&no_break_space, 1}), U"()");
    case PtbAction::brackets: return brackets(text, text.size() == 1 ? U"()[]{}" : U"()");
    case PtbAction::fraction: return fraction(text[0]);
    case PtbAction::currency: return currency(text[0]);
    case PtbAction::sentence_end_one: consumed = text.size() - 1; return text.size() == 2 ? text.substr(0, 1) : text;
    case PtbAction::sentence_end: consumed = text.size() - 1; return text;
    default: return text;
  }
}

bool is_line_end(char32_t c) { return (c >= 0xA && c <= 0xD) || c == 0x2028 || c == 0x2029; }

bool is_punctuation(const std::string& token) {
  static const std::array<std::string_view, 17> dropped{"''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-", ".",
                                                        "?",  "!", ",",  ":", "-",     "--",    "...",   ";"};
  return std::find(dropped.begin(), dropped.end(), token) != dropped.end();
}

}  // namespace

PtbTokenizer::PtbTokenizer() : rules_(std::make_unique<PtbRules>()) {}
PtbTokenizer::~PtbTokenizer() = default;

std::vector<std::string> PtbTokenizer::tokens(std::string_view given) {
  std::u32string text;
  for (size_t at = 0; at < given.size();) {
    const char32_t c = unicode::next_code_point(given, at);
    text += is_line_end(c) ? U' ' : c;
  }
  // The original tokenizer reads lines, and some rules look at the following text: here, at the next line.
  const size_t end = text.size();
  text += U"\nz";
  std::vector<std::string> out;
  for (size_t at = 0; at < end;) {
    const auto match = rules_->rules.match(text, at);
    if (match.rule < 0) {  // a character that no rule matches is dropped
      ++at;
      continue;
    }
    size_t consumed = static_cast<size_t>(match.length);
    const PtbAction action = rules_->actions[static_cast<size_t>(match.rule)];
    const std::u32string token = token_of(action, text.substr(at, consumed), consumed);
    if (action != PtbAction::skip) out.push_back(in_small_letters(token));
    at += consumed;
  }
  return out;
}

std::string PtbTokenizer::words(std::string_view text) {
  std::string out;
  for (const auto& token : tokens(text)) {
    if (is_punctuation(token)) continue;
    if (!out.empty()) out += ' ';
    out += token;
  }
  return out;
}

}  // namespace blipft
