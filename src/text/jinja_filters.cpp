// Filters and tests of chat templates; see jinja_eval.h.
#include <algorithm>
#include <cmath>
#include <functional>

#include "text/jinja_eval.h"
#include "text/letter_case.h"
#include "text/python_text.h"
#include "text/unicode.h"

namespace blipft::jinja {
namespace {

using List = std::vector<Value>;

/// Returns the value at the path "a.b.0" of an item.
Value at_path(Evaluator& run, const Value& item, const Value& path) {
  if (!path.is_text()) return run.item(item, path);
  Value value = item;
  const std::string& text = path.text();
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('.', at), text.size());
    const std::string part = text.substr(at, end - at);
    const bool number = !part.empty() && part.size() < 10 &&
                        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    value = run.item(value, number ? Value(int64_t{std::stoi(part)}) : Value(part));
    at = end + 1;
  }
  return value;
}

/// Returns the value that the sorting filters compare: strings are in lower case unless `exact`.
Value sort_key(Evaluator& run, const Value& item, const Value* path, bool exact) {
  const Value key = path && !path->is(Kind::none) ? at_path(run, item, *path) : item;
  return key.is_text() && !exact ? run.text(in_small_letters(key.text())) : key;
}

bool is_true(const Value* value) { return value && value->truthy(); }

/// The filters select, reject, selectattr and rejectattr.
Value selected(Evaluator& run, const std::string& name, const Value& input, const Arguments& given) {
  const bool by_attribute = name.ends_with("attr"), wanted = name.starts_with("select");
  const size_t test = by_attribute ? 1 : 0;
  if (given.positional.size() < test) fail(name, " needs the name of an attribute");
  Arguments rest;
  for (size_t i = test + 1; i < given.positional.size(); ++i) rest.positional.push_back(given.positional[i]);
  rest.by_name = given.by_name;
  List chosen;
  for (const Value& item : input.truthy() ? run.iterate(input) : List()) {
    run.meter.spend(step_cost);
    const Value value = by_attribute ? at_path(run, item, given.positional[0]) : item;
    const bool holds =
        given.positional.size() > test ? run_test(run, run.to_text(given.positional[test]), value, rest) : value.truthy();
    if (holds == wanted) chosen.push_back(item);
  }
  return run.list(Kind::generator, std::move(chosen));
}

Value mapped(Evaluator& run, const std::string& name, const Value& input, const Arguments& given) {
  List out;
  const bool by_attribute = given.positional.empty();
  Arguments rest;
  for (size_t i = 1; i < given.positional.size(); ++i) rest.positional.push_back(given.positional[i]);
  if (!by_attribute) rest.by_name = given.by_name;
  const auto of_attribute =
      by_attribute ? bound(name, given, {"attribute", "default"}, 1) : std::vector<const Value*>();
  for (const Value& item : input.truthy() ? run.iterate(input) : List()) {
    run.meter.spend(step_cost);
    if (!by_attribute) {
      out.push_back(run_filter(run, run.to_text(given.positional[0]), item, rest));
      continue;
    }
    Value value = at_path(run, item, *of_attribute[0]);
    out.push_back(value.is(Kind::undefined) && of_attribute[1] ? *of_attribute[1] : value);
  }
  return run.list(Kind::generator, std::move(out));
}

Value sorted(Evaluator& run, List items, bool reverse, const std::function<Value(const Value&)>& key) {
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : items) keyed.emplace_back(key(item), item);
  const auto before = [&](const auto& a, const auto& b) {
    return reverse ? less(b.first, a.first, run.meter) : less(a.first, b.first, run.meter);
  };
  std::stable_sort(keyed.begin(), keyed.end(), before);
  for (size_t i = 0; i < items.size(); ++i) items[i] = keyed[i].second;
  return run.list(Kind::list, std::move(items));
}

Value pairs_of(Evaluator& run, const Value& dict, Kind kind) {
  List pairs;
  for (size_t i = 0; i < dict.items().size(); ++i)
    pairs.push_back(run.list(Kind::tuple, {dict.keys()[i], dict.items()[i]}));
  return run.list(kind, std::move(pairs));
}

Value dict_sorted(Evaluator& run, const std::string& name, const Value& input, const Arguments& given) {
  const auto options = bound(name, given, {"case_sensitive", "by", "reverse"});
  if (!input.is(Kind::dict)) fail("dictsort takes a mapping, not ", type_name(input));
  const size_t by = options[1] && options[1]->is_text() && options[1]->text() == "value" ? 1 : 0;
  return sorted(run, pairs_of(run, input, Kind::list).items(), is_true(options[2]),
                [&](const Value& pair) { return sort_key(run, pair.items()[by], nullptr, is_true(options[0])); });
}

Value json_text(Evaluator& run, const std::string& name, const Value& input, const Arguments& given) {
  const auto options = bound(name, given, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = is_true(options[0]);
  style.sort_keys = is_true(options[3]);
  if (options[1] && !options[1]->is(Kind::none)) {
    style.lines = true;
    if (options[1]->is_text()) style.indent = options[1]->text();
    else style.indent = std::string(static_cast<size_t>(std::clamp<int64_t>(whole_number(*options[1]), 0, 100)), ' ');
    style.item_separator = ",";
  }
  if (options[2] && !options[2]->is(Kind::none)) {
    const List separators = run.iterate(*options[2]);
    if (separators.size() != 2) fail("tojson needs two separators");
    style.item_separator = run.to_text(separators[0]);
    style.key_separator = run.to_text(separators[1]);
  }
  return Value(to_json(input, style, run.meter));
}

Value indented(Evaluator& run, const std::string& name, const Value& input, const Arguments& given) {
  const auto options = bound(name, given, {"width", "first", "blank"});
  const std::string space =
      !options[0] ? "    "
      : options[0]->is_text()
          ? options[0]->text()
          : std::string(static_cast<size_t>(std::clamp<int64_t>(whole_number(*options[0]), 0, 1000)), ' ');
  std::string out;
  bool first = true;
  const std::string text = run.to_text(input) + "\n";
  for (const std::string_view line : lines_of(text)) {
    if (!first) out += '\n';
    if (first ? is_true(options[1]) : !line.empty() || is_true(options[2])) out += space;
    run.meter.spend(space.size() + 64);
    out += line;
    first = false;
  }
  return run.text(std::move(out));
}

Value number_of(Evaluator&, const std::string& name, const Value& input, const Arguments& given) {
  const bool whole = name == "int";
  const auto options = bound(name, given, {"default", "base"});
  const Value otherwise = options[0] ? *options[0] : whole ? Value(int64_t{0}) : Value(0.0);
  if (input.is(Kind::undefined)) fail(input.text());
  if (input.is_number()) {
    const double number = input.as_number();
    if (!whole) return Value(number);
    return input.is_whole()          ? Value(input.integer)
           : std::abs(number) < 9e18 ? Value(static_cast<int64_t>(number))
                                     : otherwise;
  }
  if (!input.is_text()) return otherwise;
  const std::string text(unicode::stripped(input.text()));
  try {
    size_t end = 0;
    const int base = options[1] ? static_cast<int>(whole_number(*options[1])) : 10;
    if (whole && base >= 2 && base <= 36) {
      const int64_t value = std::stoll(text, &end, base);
      if (end == text.size()) return Value(value);
    }
    const double value = std::stod(text, &end);
    if (end != text.size()) return otherwise;
    return whole ? Value(static_cast<int64_t>(value)) : Value(value);
  } catch (const std::logic_error&) {
    return otherwise;
  }
}

Value rounded(Evaluator&, const std::string& name, const Value& input, const Arguments& given) {
  const auto options = bound(name, given, {"precision", "method"});
  if (!input.is_number()) fail("round takes a number, not ", type_name(input));
  const double scale = std::pow(10.0, options[0] ? static_cast<double>(whole_number(*options[0])) : 0.0);
  const std::string method = options[1] ? options[1]->text() : "common";
  const double scaled = input.as_number() * scale;
  return Value((method == "ceil"    ? std::ceil(scaled)
                : method == "floor" ? std::floor(scaled)
                                    : std::nearbyint(scaled)) /
               scale);
}

Value joined(Evaluator& run, const std::string& name, const Value& input, const Arguments& given) {
  const auto options = bound(name, given, {"d", "attribute"});
  const std::string between = options[0] ? run.to_text(*options[0]) : "";
  std::string out;
  bool first = true;
  for (const Value& item : run.iterate(input)) {
    if (!first) out += between;
    first = false;
    run.meter.spend(between.size());
    out += run.to_text(options[1] && !options[1]->is(Kind::none) ? at_path(run, item, *options[1]) : item);
  }
  return run.text(std::move(out));
}

/// The filters min, max, unique and sum.
Value reduced(Evaluator& run, const std::string& name, const Value& input, const Arguments& given) {
  if (name == "sum") {
    const auto options = bound(name, given, {"attribute", "start"});
    Value sum = options[1] ? *options[1] : Value(int64_t{0});
    for (const Value& item : run.iterate(input))
      sum = add(run, sum, options[0] && !options[0]->is(Kind::none) ? at_path(run, item, *options[0]) : item);
    return sum;
  }
  const auto options = bound(name, given, {"case_sensitive", "attribute"});
  List chosen, keys;
  for (const Value& item : run.iterate(input)) {
    const Value key = sort_key(run, item, options[1], is_true(options[0]));
    const bool better =
        keys.empty() || (name == "unique" ? std::none_of(keys.begin(), keys.end(),
                                                         [&](const Value& one) { return equal(one, key, run.meter); })
                         : name == "min"  ? less(key, keys[0], run.meter)
                                          : less(keys[0], key, run.meter));
    if (!better) continue;
    if (name != "unique") chosen.clear(), keys.clear();
    chosen.push_back(item);
    keys.push_back(key);
  }
  if (name == "unique") return run.list(Kind::generator, std::move(chosen));
  return chosen.empty() ? Value::undefined("No aggregated item, sequence was empty.") : chosen[0];
}

/// Capitalizes each word. Unlike in str.title(), an apostrophe does not begin a word.
std::string titled(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_of("-({[< \t\n\r\v\f", at), text.size());
    out += capitalized(text.substr(at, end - at));
    if (end < text.size()) out += text[end];
    at = end + 1;
  }
  return out;
}

int64_t size_of(const Value& value) {
  if (value.is(Kind::undefined)) return 0;
  if (value.is_text()) return count_characters(value.text());
  if (!value.is_sequence() && !value.is(Kind::dict) && !value.is(Kind::loop))
    fail("object of type '", type_name(value), "' has no len()");
  return static_cast<int64_t>(value.items().size());
}

using Filter = Value (*)(Evaluator&, const std::string& name, const Value& input, const Arguments& given);

/// String methods as filters; the result of a safe string is safe.
Value of_text(Evaluator& run, const std::string& name, const Value& input, const Arguments& given) {
  const std::string text = run.to_text(input);
  std::string out;
  if (name == "trim") {
    const auto options = bound(name, given, {"chars"});
    const std::string* const set = options[0] && options[0]->is_text() ? &options[0]->text() : nullptr;
    out = unicode::stripped(text, true, true, set);
  } else if (name == "format") {
    out = percent_format(run, text, given.positional);
  } else {
    (void)bound(name, given, {});
    out = name == "upper"                                    ? upper_case(text)
          : name == "lower"                                  ? in_small_letters(text)
          : name == "title"                                  ? titled(text)
          : name == "capitalize"                             ? capitalized(text)
          : name == "string" || name == "safe" || input.safe ? text
                                                             : html_escaped(text);
  }
  Value value = run.text(std::move(out));
  value.safe = input.safe || name == "safe" || name == "escape" || name == "e";
  return value;
}

Value end_of(Evaluator& run, const std::string& name, const Value& input, const Arguments& given) {
  (void)bound(name, given, {});
  const List items = run.iterate(input);
  if (items.empty()) return Value::undefined("No " + name + " item, sequence was empty.");
  return name == "first" ? items.front() : items.back();
}

Value defaulted(Evaluator&, const std::string& name, const Value& input, const Arguments& given) {
  const auto options = bound(name, given, {"default_value", "boolean"});
  const bool absent = input.is(Kind::undefined) || (is_true(options[1]) && !input.truthy());
  return !absent ? input : options[0] ? *options[0] : Value(std::string());
}

Value reversed(Evaluator& run, const std::string& name, const Value& input, const Arguments& given) {
  (void)bound(name, given, {});
  List items = run.iterate(input);
  std::reverse(items.begin(), items.end());
  if (!input.is_text()) return run.list(Kind::generator, std::move(items));
  std::string text;
  for (const Value& item : items) text += item.text();
  return run.text(std::move(text));
}

Value sorted_items(Evaluator& run, const std::string& name, const Value& input, const Arguments& given) {
  const auto options = bound(name, given, {"reverse", "case_sensitive", "attribute"});
  return sorted(run, run.iterate(input), is_true(options[0]),
                [&](const Value& item) { return sort_key(run, item, options[2], is_true(options[1])); });
}

/// The filters length, list, items, abs, attr and replace.
Value simple(Evaluator& run, const std::string& name, const Value& input, const Arguments& given) {
  if (name == "attr") return run.attribute(input, run.to_text(*bound(name, given, {"name"}, 1)[0]));
  if (name == "replace") {
    (void)bound(name, given, {"old", "new", "count"}, 2);
    return run_method(run, name, run.text(run.to_text(input)), given);
  }
  (void)bound(name, given, {});
  if (name == "length" || name == "count") return Value(size_of(input));
  if (name == "list") return run.list(Kind::list, run.iterate(input));
  if (name == "items") {
    if (!input.is(Kind::dict) && !input.is(Kind::undefined)) fail("Can only get item pairs from a mapping.");
    return pairs_of(run, input, Kind::generator);
  }
  if (!input.is_number()) fail("bad operand type for abs(): '", type_name(input), "'");
  return input.as_number() < 0 ? calculate(run, "*", input, Value(int64_t{-1})) : input;
}

const std::unordered_map<std::string_view, Filter>& filters() {
  static const std::unordered_map<std::string_view, Filter> table = {
      {"trim", of_text},         {"format", of_text},      {"upper", of_text},    {"lower", of_text},
      {"title", of_text},        {"capitalize", of_text},  {"string", of_text},   {"safe", of_text},
      {"escape", of_text},       {"e", of_text},           {"select", selected},  {"reject", selected},
      {"selectattr", selected},  {"rejectattr", selected}, {"map", mapped},       {"min", reduced},
      {"max", reduced},          {"sum", reduced},         {"unique", reduced},   {"first", end_of},
      {"last", end_of},          {"length", simple},       {"count", simple},     {"list", simple},
      {"items", simple},         {"abs", simple},          {"attr", simple},      {"replace", simple},
      {"default", defaulted},    {"d", defaulted},         {"int", number_of},    {"float", number_of},
      {"round", rounded},        {"join", joined},         {"tojson", json_text}, {"indent", indented},
      {"dictsort", dict_sorted}, {"sort", sorted_items},   {"reverse", reversed}};
  return table;
}

/// Tests without an argument that depend on the value's kind.
bool kind_test(const std::string& name, const Value& value, bool& known) {
  const bool undefined = value.is(Kind::undefined), text = value.is_text();
  if (name == "defined") return !undefined;
  if (name == "undefined") return undefined;
  if (name == "none") return value.is(Kind::none);
  if (name == "string") return text;
  if (name == "boolean") return value.is(Kind::boolean);
  if (name == "true") return value.is(Kind::boolean) && value.integer;
  if (name == "false") return value.is(Kind::boolean) && !value.integer;
  if (name == "number") return value.is_number();
  if (name == "integer") return value.is(Kind::integer);
  if (name == "float") return value.is(Kind::number);
  if (name == "mapping") return value.is(Kind::dict);
  if (name == "sequence") return undefined || text || value.is_sequence() || value.is(Kind::dict);
  if (name == "iterable")
    return undefined || text || value.is_sequence() || value.is(Kind::dict) || value.is(Kind::generator) ||
           value.is(Kind::loop);
  if (name == "callable") return value.is(Kind::function);
  if (name == "escaped") return value.safe;
  known = false;
  return false;
}

}  // namespace

std::vector<const Value*> bound(std::string_view function, const Arguments& arguments,
                                std::initializer_list<std::string_view> names, size_t needed) {
  std::vector<const Value*> values(names.size());
  if (arguments.positional.size() > names.size()) fail(function, " takes at most ", names.size(), " argument(s)");
  for (size_t i = 0; i < arguments.positional.size(); ++i) values[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.by_name) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) fail(function, " takes no argument '", brief(name), "'");
    values[static_cast<size_t>(found - names.begin())] = &value;
  }
  for (size_t i = 0; i < needed; ++i)
    if (!values[i]) fail(function, " misses the argument '", names.begin()[i], "'");
  return values;
}

int64_t whole_number(const Value& value) {
  if (!value.is_whole()) fail("'", type_name(value), "' object cannot be interpreted as an integer");
  return value.integer;
}

Value run_filter(Evaluator& run, const std::string& name, const Value& input, const Arguments& arguments) {
  const auto found = filters().find(name);
  if (found == filters().end()) fail("No filter named '", brief(name), "' found.");
  return found->second(run, name, input, arguments);
}

bool run_test(Evaluator& run, const std::string& name, const Value& value, const Arguments& arguments) {
  bool known = true;
  const bool holds = kind_test(name, value, known);
  if (known) return holds;
  Meter& meter = run.meter;
  if (name == "odd" || name == "even") return calculate(run, "%", value, Value(int64_t{2})).integer == (name == "odd");
  if (name == "lower") return in_small_letters(run.to_text(value)) == run.to_text(value);
  if (name == "upper") return upper_case(run.to_text(value)) == run.to_text(value);
  if (name == "filter") return filters().contains(run.to_text(value));
  static const std::unordered_map<std::string_view, std::string_view> of_two = {
      {"in", "in"},         {"eq", "=="},      {"equalto", "=="}, {"==", "=="}, {"ne", "!="},     {"!=", "!="},
      {"lt", "<"},          {"lessthan", "<"}, {"<", "<"},        {"le", "<="}, {"<=", "<="},     {"gt", ">"},
      {"greaterthan", ">"}, {">", ">"},        {"ge", ">="},      {">=", ">="}, {"sameas", "is"}, {"divisibleby", "%"}};
  const auto sign = of_two.find(name);
  if (sign == of_two.end()) fail("No test named '", brief(name), "' found.");
  const Value& other = *bound(name, arguments, {"other"}, 1)[0];
  if (sign->second == "is") return value.kind == other.kind && value.box == other.box && equal(value, other, meter);
  if (sign->second == "%") return !calculate(run, "%", value, other).truthy();
  return run.compare(std::string(sign->second), value, other);
}

}  // namespace blipft::jinja
