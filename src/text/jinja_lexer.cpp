// Jinja's lexer; see jinja_syntax.h.
#include <algorithm>
#include <cctype>

#include "text/jinja_syntax.h"
#include "text/unicode.h"

namespace blipft::jinja {
namespace {

constexpr auto npos = std::string_view::npos;

/// Replaces CR LF and CR by LF, and removes one LF at the end.
std::string with_plain_lines(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    out += source[i] == '\r' ? '\n' : source[i];
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

bool is_name_byte(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || (c & 0x80); }

/// Unescapes a string by Python's unicode-escape rules.
std::string unescaped(std::string_view text, int line) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    if (text[at] != '\\' || at + 1 == text.size()) {
      out += text[at++];
      continue;
    }
    static constexpr std::string_view letters = "ntrabfv\\'\"", meanings = "\n\t\r\a\b\f\v\\'\"";
    const char c = text[at + 1];
    at += 2;
    size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    int base = 16;
    if (c >= '0' && c <= '7') {
      base = 8, digits = 1, --at;
      while (digits < 3 && at + digits < text.size() && text[at + digits] >= '0' && text[at + digits] <= '7') ++digits;
    }
    if (const size_t known = letters.find(c); known != npos) {
      out += meanings[known];
    } else if (digits > 0) {
      uint32_t code = 0;
      for (size_t i = 0; i < digits; ++i) {
        const char digit = at + i < text.size() ? text[at + i] : '?';
        const size_t value = std::string_view("0123456789abcdef").find(static_cast<char>(std::tolower(digit)));
        if (value == npos)
          throw SyntaxError{concat("found the escape \\", c, " without its ", digits, " digits"), line};
        code = code * static_cast<uint32_t>(base) + static_cast<uint32_t>(value);
      }
      if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        throw SyntaxError{"found an escape of no character", line};
      unicode::append_utf8(out, code);
      at += digits;
    } else if (c == 'N') {
      throw SyntaxError{"found the escape \\N, which is not supported: write the character itself", line};
    } else if (c != '\n') {
      (out += '\\') += c;
    }
  }
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(with_plain_lines(source)), rest_(source_) {}

  std::vector<Token> run() {
    while (!rest_.empty()) {
      const size_t begin = begin_of_tag();
      if (begin == npos) {
        add_data(rest_);
        take(rest_.size());
        break;
      }
      const std::string_view before = rest_.substr(0, begin);
      const char kind = rest_[begin + 1];
      const size_t raw = kind == '%' ? size_of_tag(begin, "raw", false) : 0;
      take_data(before, kind == '{');
      if (kind == '#') comment();
      else if (raw > 0) raw_text(raw);
      else code(kind == '{');
    }
    tokens_.push_back({TokenKind::end, "", line_});
    return std::move(tokens_);
  }

 private:
  size_t begin_of_tag() const {
    for (size_t at = rest_.find('{'); at != npos; at = rest_.find('{', at + 1))
      if (at + 1 < rest_.size() && std::string_view("{%#").find(rest_[at + 1]) != npos) return at;
    return npos;
  }

  /// Returns the size of {% name %} at `begin`, or 0. `trims`: it includes a following newline.
  size_t size_of_tag(size_t begin, std::string_view name, bool trims) const {
    const std::string_view tag = rest_.substr(begin);
    size_t at = 2;
    if (at < tag.size() && (tag[at] == '-' || tag[at] == '+')) ++at;
    at = behind_space(tag, at);
    if (!tag.substr(at).starts_with(name)) return 0;
    at = behind_space(tag, at + name.size());
    return end_of_tag(tag, at, "%}", trims);
  }

  static size_t behind_space(std::string_view text, size_t at) {
    return text.size() - unicode::stripped(text.substr(at), true, false).size();
  }

  /// Returns the position after the tag's end mark at `at` and the white space that it trims, or 0 if there is none.
  static size_t end_of_tag(std::string_view text, size_t at, std::string_view end, bool trims) {
    const bool minus = text.substr(at).starts_with('-'), plus = trims && text.substr(at).starts_with('+');
    if (minus || plus) ++at;
    if (!text.substr(at).starts_with(end)) return 0;
    at += end.size();
    if (minus) return behind_space(text, at);
    return at + (trims && !plus && text.substr(at).starts_with('\n'));
  }

  void take(size_t size) {
    if (size == 0) return;
    line_ += static_cast<int>(std::count(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(size), '\n'));
    starts_line_ = rest_[size - 1] == '\n';
    rest_.remove_prefix(size);
  }

  void add(TokenKind kind, std::string_view text) { tokens_.push_back({kind, std::string(text), line_}); }
  void add_data(std::string_view text) {
    if (!text.empty()) add(TokenKind::data, text);
  }

  /// Consumes the text before a tag, without the white space that the tag removes, and the tag's begin mark and sign.
  void take_data(std::string_view before, bool prints) {
    const size_t size = before.size();
    const char sign = rest_.size() > size + 2 ? rest_[size + 2] : ' ';
    const size_t last_line = before.rfind('\n') + 1;
    if (sign == '-') {
      before = unicode::stripped(before, false, true);
    } else if (sign != '+' && !prints && (last_line > 0 || starts_line_) &&
               unicode::stripped(before.substr(last_line), true, false).empty()) {
      before = before.substr(0, last_line);
    }
    add_data(before);
    take(size + 2 + (sign == '-' || sign == '+'));
  }

  void comment() {
    for (size_t at = rest_.find('#'); at != npos; at = rest_.find('#', at + 1)) {
      if (!rest_.substr(at).starts_with("#}")) continue;
      const bool sign = at > 0 && (rest_[at - 1] == '-' || rest_[at - 1] == '+');
      take(end_of_tag(rest_, at - sign, "#}", true));
      return;
    }
    throw SyntaxError{"found a comment without its end, expected #}", line_};
  }

  void raw_text(size_t tag_size) {
    // The tag's size includes the part of the tag that take_data() has already taken.
    take(tag_size - static_cast<size_t>(rest_.data() - tag_begin()));
    for (size_t at = rest_.find("{%"); at != npos; at = rest_.find("{%", at + 1)) {
      const size_t size = size_of_tag(at, "endraw", true);
      if (size == 0) continue;
      const size_t end = at + size;
      const std::string_view all = rest_;
      take_data(rest_.substr(0, at), false);
      take(end - static_cast<size_t>(rest_.data() - all.data()));
      return;
    }
    throw SyntaxError{"found {% raw %} without its end, expected {% endraw %}", line_};
  }

  const char* tag_begin() const {
    const char* begin = rest_.data() - 2;
    return *begin == '{' ? begin : begin - 1;
  }

  void code(bool prints) {
    add(prints ? TokenKind::print_begin : TokenKind::block_begin, "");
    const std::string_view end = prints ? "}}" : "%}";
    std::string open;  // brackets that are still open
    for (;;) {
      take(behind_space(rest_, 0));
      if (rest_.empty()) throw SyntaxError{concat("found a tag without its end, expected ", end), line_};
      if (open.empty()) {
        // trim_blocks: a newline belongs to the end of a block, but not to the end of {{ }}.
        if (const size_t size = end_of_tag(rest_, 0, end, !prints); size > 0) {
          add(prints ? TokenKind::print_end : TokenKind::block_end, end);
          take(size);
          return;
        }
      }
      token(open);
    }
  }

  void token(std::string& open) {
    const char c = rest_.front();
    if (std::isdigit(static_cast<unsigned char>(c))) return number();
    if (c == '\'' || c == '"') return string(c);
    if (is_name_byte(c)) {
      const auto end = std::find_if_not(rest_.begin(), rest_.end(), is_name_byte);
      const std::string_view name = rest_.substr(0, static_cast<size_t>(end - rest_.begin()));
      add(TokenKind::name, name);
      return take(name.size());
    }
    static constexpr std::string_view two[] = {"**", "//", "==", "!=", "<=", ">="};
    static constexpr std::string_view one = "+-*/%~<>=.,:|()[]{};";
    for (const std::string_view sign : two)
      if (rest_.starts_with(sign)) return add(TokenKind::sign, sign), take(2);
    if (one.find(c) == npos)
      throw SyntaxError{concat("found the character ", brief(rest_.substr(0, 1)), " in a tag"), line_};
    static constexpr std::string_view opens = "([{", closes = ")]}";
    if (opens.find(c) != npos) open += closes[opens.find(c)];
    if (closes.find(c) != npos) {
      if (open.empty() || open.back() != c)
        throw SyntaxError{concat("found ", std::string(1, c), " without its beginning"), line_};
      open.pop_back();
    }
    add(TokenKind::sign, rest_.substr(0, 1));
    take(1);
  }

  void number() {
    const auto digits = [&](size_t at) {
      while (at < rest_.size() && (std::isdigit(static_cast<unsigned char>(rest_[at])) || rest_[at] == '_')) ++at;
      return at;
    };
    const auto digit_at = [&](size_t at) {
      return at < rest_.size() && std::isdigit(static_cast<unsigned char>(rest_[at]));
    };
    size_t size = digits(0);
    const size_t whole = size;
    if (size < rest_.size() && rest_[size] == '.' && digit_at(size + 1)) size = digits(size + 1);
    if (size < rest_.size() && std::tolower(rest_[size]) == 'e') {
      const size_t sign = size + 1 < rest_.size() && (rest_[size + 1] == '-' || rest_[size + 1] == '+');
      if (digit_at(size + 1 + sign)) size = digits(size + 1 + sign);
    }
    std::string text(rest_.substr(0, size));
    std::erase(text, '_');
    add(size > whole ? TokenKind::number : TokenKind::integer, text);
    take(size);
  }

  void string(char quote) {
    size_t end = 1;
    while (end < rest_.size() && rest_[end] != quote) end += rest_[end] == '\\' ? 2 : 1;
    if (end >= rest_.size()) throw SyntaxError{"found a string without its end", line_};
    add(TokenKind::string, unescaped(rest_.substr(1, end - 1), line_));
    take(end + 1);
  }

  const std::string source_;
  std::string_view rest_;
  std::vector<Token> tokens_;
  int line_ = 1;
  bool starts_line_ = true;  ///< true if nothing or a newline precedes `rest_`
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source) { return Lexer(source).run(); }

}  // namespace blipft::jinja
