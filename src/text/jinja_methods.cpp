// Methods of strings, lists and dicts, and Python's operators; see jinja_eval.h.
#include <algorithm>
#include <cmath>

#include "text/jinja_eval.h"
#include "text/letter_case.h"
#include "text/python_text.h"
#include "text/unicode.h"

namespace blipft::jinja {
namespace {

using List = std::vector<Value>;

int64_t checked(bool overflow, const int64_t& value) {
  if (overflow) fail("found a number of more than 63 bits");
  return value;
}

/// Returns Python's floor division or remainder.
Value divided(const std::string& sign, const Value& left, const Value& right) {
  if (right.as_number() == 0) fail("division by zero");
  const bool whole = left.is_whole() && right.is_whole();
  if (sign == "/") return Value(left.as_number() / right.as_number());
  if (!whole) {
    const double a = left.as_number(), b = right.as_number();
    double rest = std::fmod(a, b);
    if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
    return Value(sign == "%" ? rest : std::floor((a - rest) / b + 0.5));
  }
  const int64_t a = left.integer, b = right.integer;
  if (b == -1) return sign == "%" ? Value(int64_t{0}) : Value(checked(a == INT64_MIN, a == INT64_MIN ? a : -a));
  const int64_t rest = a % b, shift = rest != 0 && (rest < 0) != (b < 0);
  return Value(sign == "%" ? rest + shift * b : a / b - shift);
}

Value power(const Value& left, const Value& right) {
  if (!left.is_whole() || !right.is_whole() || right.integer < 0)
    return Value(std::pow(left.as_number(), right.as_number()));
  int64_t result = 1;
  for (int64_t i = 0; i < right.integer && result != 0 && !(left.integer == 1); ++i)
    if (left.integer == -1) return Value(right.integer % 2 ? int64_t{-1} : int64_t{1});
    else checked(__builtin_mul_overflow(result, left.integer, &result), result);
  return Value(result);
}

Value repeated(Evaluator& run, const Value& value, int64_t count) {
  count = std::max<int64_t>(count, 0);
  const size_t size = value.is_text() ? value.text().size() : value.items().size() * item_cost;
  if (size > 0 && static_cast<uint64_t>(count) > static_cast<uint64_t>(run.meter.left) / size)
    run.meter.spend(static_cast<size_t>(run.meter.left) + 1);
  if (value.is_text()) {
    std::string text;
    for (int64_t i = 0; i < count && size > 0; ++i) text += value.text();
    Value out = run.text(std::move(text));
    out.safe = value.safe;
    return out;
  }
  List items;
  for (int64_t i = 0; i < count && size > 0; ++i) items.insert(items.end(), value.items().begin(), value.items().end());
  return run.list(value.kind, std::move(items));
}

/// Formats one conversion of "..." % arguments; `spec` is the text between % and its letter.
std::string converted(Evaluator& run, const std::string& spec, char letter, const Value& value) {
  if (spec.find_first_not_of("-+ #0123456789.") != std::string::npos)
    fail("the format ", brief(spec), " is not supported");
  if (letter == 's' || letter == 'r') {
    std::string text = letter == 's' ? run.to_text(value) : repr(value, run.meter);
    const bool left = spec.find('-') != std::string::npos;
    const size_t digits = spec.find_first_of("123456789"),
                 width = digits == std::string::npos
                             ? 0
                             : static_cast<size_t>(std::min(std::stol(spec.substr(digits, 6)), 10000L));
    const auto size = static_cast<size_t>(count_characters(text));
    if (size < width) text.insert(left ? text.size() : 0, std::string(width - size, ' '));
    return text;
  }
  if (!value.is_number())
    fail("%", std::string(1, letter), " format: a real number is required, not ", type_name(value));
  const bool whole = letter == 'd' || letter == 'i' || letter == 'x' || letter == 'X' || letter == 'o';
  if (!whole && std::string_view("eEfFgG").find(letter) == std::string::npos)
    fail("unsupported format character '", std::string(1, letter), "'");
  char buffer[512];
  const std::string format = "%" + spec + (whole ? "ll" : "") + letter;
  if (std::count_if(spec.begin(), spec.end(), [](char c) { return c >= '0' && c <= '9'; }) > 4)
    fail("found the format ", brief(format), ", which is too wide");
  const int size =
      whole
          ? std::snprintf(buffer, sizeof buffer, format.c_str(),
                          static_cast<long long>(value.is_whole() ? value.integer : static_cast<int64_t>(value.number)))
          : std::snprintf(buffer, sizeof buffer, format.c_str(), value.as_number());
  if (size < 0 || size >= static_cast<int>(sizeof buffer))
    fail("found the format ", brief(format), ", which is too wide");
  return buffer;
}

/// Implements str.format() with {}, {0}, {name} and a format after a colon.
std::string brace_format(Evaluator& run, const std::string& format, const Arguments& given) {
  std::string out;
  size_t automatic = 0;
  for (size_t at = 0; at < format.size(); ++at) {
    const char c = format[at];
    if ((c == '{' || c == '}') && at + 1 < format.size() && format[at + 1] == c) {
      out += c, ++at;
    } else if (c == '{') {
      const size_t end = format.find('}', at);
      if (end == std::string::npos) fail("expected '}' before end of string");
      const std::string field = format.substr(at + 1, end - at - 1);
      const size_t colon = std::min(field.find(':'), field.size());
      const std::string name = field.substr(0, colon), spec = colon < field.size() ? field.substr(colon + 1) : "";
      const bool number =
          std::all_of(name.begin(), name.end(), [](char digit) { return digit >= '0' && digit <= '9'; });
      const size_t index = name.empty()                ? automatic++
                           : number && name.size() < 6 ? std::stoul(name)
                                                       : given.positional.size();
      const Value* value = index < given.positional.size() ? &given.positional[index] : nullptr;
      for (const auto& [key, named] : given.by_name)
        if (key == name) value = &named;
      if (!value) fail("str.format() has no argument for {", brief(field), "}");
      const bool letter = !spec.empty() && std::isalpha(static_cast<unsigned char>(spec.back()));
      out += spec.empty() ? run.to_text(*value)
                          : converted(run, letter ? spec.substr(0, spec.size() - 1) : spec,
                                      letter               ? spec.back()
                                      : value->is_whole()  ? 'd'
                                      : value->is_number() ? 'g'
                                                           : 's',
                                      *value);
      at = end;
    } else if (c == '}') {
      fail("Single '}' encountered in format string");
    } else {
      out += c;
    }
  }
  return out;
}

Value parts(Evaluator& run, const std::vector<std::string_view>& views) {
  List items;
  for (const std::string_view view : views) items.push_back(run.text(std::string(view)));
  return run.list(Kind::list, std::move(items));
}

/// Splits a text. Without a separator, white space of any length separates.
Value split(Evaluator& run, std::string_view text, const Arguments& given, bool from_right) {
  const auto options = bound("split", given, {"sep", "maxsplit"});
  int64_t maximum = options[1] ? whole_number(*options[1]) : -1;
  if (maximum < 0) maximum = INT64_MAX;
  std::vector<std::string_view> out;
  const auto put = [&](std::string_view part) {
    run.meter.spend(step_cost);
    out.push_back(part);
  };
  if (!options[0] || options[0]->is(Kind::none)) {
    std::vector<std::string_view> words = split_words(text);
    if (from_right) std::reverse(words.begin(), words.end());
    for (const std::string_view word : words) {
      const auto begin = static_cast<size_t>(word.data() - text.data());
      const bool last = maximum-- == 0;
      put(!last ? word : from_right ? text.substr(0, begin + word.size()) : text.substr(begin));
      if (last) break;
    }
  } else {
    if (!options[0]->is_text()) fail("must be str or None, not ", type_name(*options[0]));
    const std::string& separator = options[0]->text();
    if (separator.empty()) fail("empty separator");
    for (size_t at;
         maximum-- > 0 && (at = from_right ? text.rfind(separator) : text.find(separator)) != std::string_view::npos;) {
      put(from_right ? text.substr(at + separator.size()) : text.substr(0, at));
      text = from_right ? text.substr(0, at) : text.substr(at + separator.size());
    }
    put(text);
  }
  if (from_right) std::reverse(out.begin(), out.end());
  return parts(run, out);
}

std::string replaced(Evaluator& run, const std::string& text, const Arguments& given) {
  const auto options = bound("replace", given, {"old", "new", "count"}, 2);
  if (!options[0]->is_text() || !options[1]->is_text())
    fail("replace() argument must be str, not ", type_name(*options[options[0]->is_text()]));
  const std::string &before = options[0]->text(), &after = options[1]->text();
  int64_t count = options[2] ? whole_number(*options[2]) : -1;
  std::string out;
  size_t at = 0;
  for (; count != 0 && at <= text.size(); --count) {
    size_t found = before.empty() ? at : text.find(before, at);
    if (found == std::string::npos) break;
    out.append(text, at, found - at) += after;
    run.meter.spend(after.size() + 8);
    at = found + before.size();
    if (!before.empty()) continue;
    const std::string_view next = first_character(std::string_view(text).substr(at));
    out += next;
    at += std::max<size_t>(next.size(), 1);
  }
  return at < text.size() ? out.append(text, at) : out;
}

bool starts_or_ends(const std::string& name, const std::string& text, const Arguments& given) {
  const Value& what = *bound(name, given, {"prefix"}, 1)[0];
  const auto holds = [&](const Value& part) {
    if (!part.is_text()) fail(name, " first arg must be str or a tuple of str, not ", type_name(part));
    return name == "startswith" ? text.starts_with(part.text()) : text.ends_with(part.text());
  };
  return what.is(Kind::tuple) ? std::any_of(what.items().begin(), what.items().end(), holds) : holds(what);
}

/// Implements str.isdigit() and similar: the text is not empty and every character matches.
bool is_all(const std::string& name, const std::string& text) {
  bool any = false;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const uint32_t c = unicode::next_code_point(text, at);
    const std::string one = text.substr(begin, at - begin);
    const bool letter = unicode::is_letter(c), small = upper_case(one) != one, large = in_small_letters(one) != one;
    if (name == "isupper" || name == "islower") {
      if (name == "isupper" ? small : large) return false;
      any |= small || large;
      continue;
    }
    const bool holds = name == "isalpha"   ? letter
                       : name == "isspace" ? unicode::stripped(one).empty()
                       : name == "isalnum" ? letter || unicode::is_number(c)
                                           : unicode::is_number(c);
    if (!holds) return false;
    any = true;
  }
  return any;
}

/// Implements str.title(): a letter that does not follow a letter begins a word.
std::string python_title(const std::string& text) {
  std::string out;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const bool letter = unicode::is_letter(unicode::next_code_point(text, at));
    const std::string one = text.substr(begin, at - begin);
    out += inside ? in_small_letters(one) : upper_case(one);
    inside = letter;
  }
  return out;
}

/// Implements find, rfind, index, rindex and count.
Value searched(const std::string& name, const std::string& text, const Arguments& given) {
  const Value& what = *bound(name, given, {"sub"}, 1)[0];
  if (!what.is_text()) fail("must be str, not ", type_name(what));
  if (name == "count") {
    int64_t count = 0;
    for (size_t at = text.find(what.text()); at != std::string::npos && !what.text().empty();
         at = text.find(what.text(), at + what.text().size()))
      ++count;
    return Value(what.text().empty() ? count_characters(text) + 1 : count);
  }
  const size_t at = name.starts_with('r') ? text.rfind(what.text()) : text.find(what.text());
  if (at == std::string::npos && name.ends_with("index")) fail("substring not found");
  return Value(at == std::string::npos ? int64_t{-1} : count_characters(text.substr(0, at)));
}

Value string_method(Evaluator& run, const std::string& name, const std::string& text, const Arguments& given) {
  run.meter.spend(4 * text.size());
  if (name == "split" || name == "rsplit") return split(run, text, given, name == "rsplit");
  if (name == "splitlines") {
    const auto options = bound(name, given, {"keepends"});
    run.meter.spend(step_cost * text.size());
    return parts(run, lines_of(text, options[0] && options[0]->truthy()));
  }
  if (name.ends_with("strip")) {
    const auto options = bound(name, given, {"chars"});
    if (options[0] && !options[0]->is_text() && !options[0]->is(Kind::none)) fail(name, " arg must be None or str");
    return run.text(std::string(unicode::stripped(text, name != "rstrip", name != "lstrip",
                                         options[0] && options[0]->is_text() ? &options[0]->text() : nullptr)));
  }
  if (name == "startswith" || name == "endswith") return Value(starts_or_ends(name, text, given));
  if (name == "replace") return run.text(replaced(run, text, given));
  if (name == "format") return run.text(brace_format(run, text, given));
  if (name == "join") {
    std::string out;
    const List items = run.iterate(*bound(name, given, {"iterable"}, 1)[0]);
    for (size_t i = 0; i < items.size(); ++i) {
      if (!items[i].is_text()) fail("sequence item ", i, ": expected str instance, ", type_name(items[i]), " found");
      out += (i > 0 ? text : "") + items[i].text();
      run.meter.spend(text.size());
    }
    return run.text(std::move(out));
  }
  if (name == "removeprefix" || name == "removesuffix") {
    const std::string part = run.to_text(*bound(name, given, {"part"}, 1)[0]);
    const bool front = name == "removeprefix", has = front ? text.starts_with(part) : text.ends_with(part);
    return run.text(!has ? text : front ? text.substr(part.size()) : text.substr(0, text.size() - part.size()));
  }
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex" || name == "count")
    return searched(name, text, given);
  if (name == "partition" || name == "rpartition") {
    const std::string part = run.to_text(*bound(name, given, {"sep"}, 1)[0]);
    const size_t at = name == "partition" ? text.find(part) : text.rfind(part);
    std::vector<std::string> found = {text.substr(0, std::min(at, text.size())), part,
                                      at == std::string::npos ? "" : text.substr(at + part.size())};
    if (at == std::string::npos)
      found = name == "partition" ? std::vector<std::string>{text, "", ""} : std::vector<std::string>{"", "", text};
    return run.list(Kind::tuple, {run.text(found[0]), run.text(found[1]), run.text(found[2])});
  }
  (void)bound(name, given, {});
  if (name.starts_with("is")) return Value(is_all(name, text));
  return run.text(name == "upper"   ? upper_case(text)
                  : name == "lower" ? in_small_letters(text)
                  : name == "title" ? python_title(text)
                                    : capitalized(text));
}

}  // namespace

bool has_method(const Value& object, std::string_view name) {
  static const std::initializer_list<std::string_view>
      of_text = {"split",    "rsplit",  "splitlines", "strip",   "lstrip",       "rstrip",       "startswith",
                 "endswith", "replace", "format",     "join",    "removeprefix", "removesuffix", "find",
                 "rfind",    "index",   "rindex",     "count",   "partition",    "rpartition",   "upper",
                 "lower",    "title",   "capitalize", "isdigit", "isnumeric",    "isdecimal",    "isalpha",
                 "isalnum",  "isspace", "isupper",    "islower"},
      of_dict = {"get", "items", "keys", "values", "copy"}, of_list = {"index", "count", "copy"};
  const auto& names = object.is_text() ? of_text : object.is(Kind::dict) ? of_dict : of_list;
  return (object.is_text() || object.is(Kind::dict) || object.is_sequence()) &&
         std::find(names.begin(), names.end(), name) != names.end();
}

Value run_method(Evaluator& run, const std::string& name, const Value& self, const Arguments& given) {
  if (self.is_text()) {
    Value value = string_method(run, name, self.text(), given);
    value.safe = self.safe && value.is_text();
    return value;
  }
  if (name == "get") {
    const auto options = bound(name, given, {"key", "default"}, 1);
    run.meter.spend(self.items().size());
    const Value* const found = find(self, *options[0], run.meter);
    return found ? *found : options[1] ? *options[1] : Value::none();
  }
  if (name == "index" || name == "count") {
    const Value& what = *bound(name, given, {"value"}, 1)[0];
    const auto same = [&](const Value& item) { return equal(item, what, run.meter); };
    if (name == "count")
      return Value(static_cast<int64_t>(std::count_if(self.items().begin(), self.items().end(), same)));
    const auto found = std::find_if(self.items().begin(), self.items().end(), same);
    if (found == self.items().end()) fail("the value is not in the list");
    return Value(static_cast<int64_t>(found - self.items().begin()));
  }
  (void)bound(name, given, {});
  if (name == "copy") return self;
  if (name != "items") return run.list(Kind::list, name == "keys" ? self.keys() : self.items());
  return run_filter(run, "list", run_filter(run, "items", self, {}), {});
}

Value add(Evaluator& run, const Value& left, const Value& right) {
  if (left.is_whole() && right.is_whole()) {
    int64_t sum = 0;
    return Value(checked(__builtin_add_overflow(left.integer, right.integer, &sum), sum));
  }
  if (left.is_number() && right.is_number()) return Value(left.as_number() + right.as_number());
  if (left.is_text() && right.is_text()) {
    // Python's Markup escapes strings that are not Markup.
    const bool safe = left.safe || right.safe;
    Value sum = run.text((safe && !left.safe ? html_escaped(left.text()) : left.text()) +
                         (safe && !right.safe ? html_escaped(right.text()) : right.text()));
    sum.safe = safe;
    return sum;
  }
  if (left.is_sequence() && left.kind == right.kind) {
    List items = left.items();
    items.insert(items.end(), right.items().begin(), right.items().end());
    return run.list(left.kind, std::move(items));
  }
  if (left.is_text() || left.is_sequence())
    fail("can only concatenate ", type_name(left), " (not \"", type_name(right), "\") to ", type_name(left));
  fail("unsupported operand type(s) for +: '", type_name(left), "' and '", type_name(right), "'");
}

Value calculate(Evaluator& run, const std::string& sign, const Value& left, const Value& right) {
  if (left.is_text() && sign == "%")
    return run.text(percent_format(run, left.text(), right.is(Kind::tuple) ? right.items() : List{right}));
  if (sign == "*" && (left.is_text() || left.is_sequence()) && right.is_whole())
    return repeated(run, left, right.integer);
  if (sign == "*" && (right.is_text() || right.is_sequence()) && left.is_whole())
    return repeated(run, right, left.integer);
  if (!left.is_number() || !right.is_number())
    fail("unsupported operand type(s) for ", sign, ": '", type_name(left), "' and '", type_name(right), "'");
  if (sign == "**") return power(left, right);
  if (sign != "-" && sign != "*") return divided(sign, left, right);
  if (!left.is_whole() || !right.is_whole())
    return Value(sign == "-" ? left.as_number() - right.as_number() : left.as_number() * right.as_number());
  int64_t result = 0;
  return Value(checked(sign == "-" ? __builtin_sub_overflow(left.integer, right.integer, &result)
                                   : __builtin_mul_overflow(left.integer, right.integer, &result),
                       result));
}

std::string percent_format(Evaluator& run, const std::string& format, const List& arguments) {
  std::string out;
  size_t used = 0;
  for (size_t at = 0; at < format.size(); ++at) {
    if (format[at] != '%') {
      out += format[at];
      continue;
    }
    const size_t end = std::min(format.find_first_not_of("-+ #0123456789.", at + 1), format.size());
    if (end == format.size()) fail("incomplete format");
    if (format[end] == '%') {
      out += '%';
    } else {
      if (used == arguments.size()) fail("not enough arguments for format string");
      out += converted(run, format.substr(at + 1, end - at - 1), format[end], arguments[used++]);
    }
    at = end;
  }
  if (used < arguments.size()) fail("not all arguments converted during string formatting");
  return out;
}

std::string upper_case(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const uint32_t letter = unicode::next_code_point(text, at), capital = unicode::capital_letter(letter);
    if (letter == 0xdf) out += "SS";
    else if (capital != letter) unicode::append_utf8(out, capital);
    else out += text.substr(begin, at - begin);   // ill-formed bytes stay
  }
  return out;
}

std::string capitalized(std::string_view text) {
  const std::string_view first = first_character(text);
  return upper_case(first) + in_small_letters(text.substr(first.size()));
}

}  // namespace blipft::jinja
