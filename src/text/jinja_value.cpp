// Values of chat templates; see jinja_value.h.
#include "text/jinja_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "text/unicode.h"

namespace blipft::jinja {
namespace {

constexpr int max_depth = 250;

std::shared_ptr<Box> new_box(std::string text) {
  auto box = std::make_shared<Box>();
  box->text = std::move(text);
  return box;
}

void set_depth(Box& box) {
  for (const auto* values : {&box.items, &box.keys})
    for (const Value& value : *values)
      if (value.box && !value.is(Kind::name_space)) box.depth = std::max(box.depth, value.box->depth + 1);
  if (box.depth > max_depth) fail("lists or dicts are nested more than ", max_depth, " deep");
}

/// Returns the shortest digits that parse to the same number, as Python does.
std::string number_text(double number, const char* nan, const char* infinity) {
  if (std::isnan(number)) return nan;
  if (std::isinf(number)) return (number < 0 ? "-" : "") + std::string(infinity);
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::scientific).ptr;
  const std::string scientific(buffer, end);
  const int exponent = std::stoi(scientific.substr(scientific.find('e') + 1));
  if (exponent < -4 || exponent >= 16) return scientific;
  std::string text(buffer, std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::fixed).ptr);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

/// str.isprintable(): the categories Z and C are last in their list.
bool is_printable(uint32_t c) {
  const unicode::Category category = unicode::category(c);
  return c == ' ' || (category != unicode::Category::Cn && category < unicode::Category::Zs);
}

std::string hex(const char* prefix, int digits, uint32_t c) {
  char buffer[16];
  std::snprintf(buffer, sizeof buffer, "%s%0*x", prefix, digits, c);
  return buffer;
}

/// Returns Python's repr() of a string.
std::string quoted(const std::string& text) {
  const char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const uint32_t c = unicode::next_code_point(text, at);
    if (c == '\n') out += "\\n";
    else if (c == '\r') out += "\\r";
    else if (c == '\t') out += "\\t";
    else if (c == '\\' || c == static_cast<uint32_t>(quote)) (out += '\\') += static_cast<char>(c);
    else if (is_printable(c)) out.append(text, begin, at - begin);
    else out += c < 0x100 ? hex("\\x", 2, c) : c < 0x10000 ? hex("\\u", 4, c) : hex("\\U", 8, c);
  }
  return out + quote;
}

std::string json_string(const std::string& text, bool ascii) {
  static const std::string short_escapes = "\"\\\n\r\t\f\b", letters = "\"\\nrtfb";
  std::string out = "\"";
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const uint32_t c = unicode::next_code_point(text, at);
    const size_t escape = c < 0x80 ? short_escapes.find(static_cast<char>(c)) : std::string::npos;
    if (escape != std::string::npos) (out += '\\') += letters[escape];
    else if (c < 0x20 || (ascii && c >= 0x7f && c < 0x10000 && c != 0x7f)) out += hex("\\u", 4, c);
    else if (ascii && c >= 0x10000)
      out += hex("\\u", 4, 0xd800 + ((c - 0x10000) >> 10)) + hex("\\u", 4, 0xdc00 + ((c - 0x10000) & 0x3ff));
    else out.append(text, begin, at - begin);
  }
  return out + '"';
}

std::string json_key(const Value& key, const JsonStyle& style, Meter& meter) {
  if (key.is_text()) return json_string(key.text(), style.ascii);
  if (!key.is_number() && !key.is(Kind::none)) fail("keys must be str, int, float, bool or None, not ", type_name(key));
  return '"' + to_json(key, style, meter) + '"';
}

}  // namespace

Value::Value(std::string text) : kind(Kind::string), box(new_box(std::move(text))) {}

Value Value::none() {
  Value value;
  value.kind = Kind::none;
  return value;
}

Value Value::undefined(std::string reason) {
  Value value;
  value.box = new_box(std::move(reason));
  return value;
}

Value Value::sequence(Kind kind, std::vector<Value> items) {
  Value value;
  value.kind = kind;
  value.box = std::make_shared<Box>();
  value.box->items = std::move(items);
  set_depth(*value.box);
  return value;
}

Value Value::dict(std::vector<Value> keys, std::vector<Value> items) {
  Value value = sequence(Kind::dict, std::move(items));
  value.box->keys = std::move(keys);
  set_depth(*value.box);
  return value;
}

Value Value::function(std::string name, Value self, const Node* macro, Scope* scope) {
  Value value = sequence(Kind::function, {std::move(self)});
  value.box->text = std::move(name);
  value.box->macro = macro;
  value.box->scope = scope;
  return value;
}

const std::string& Value::text() const {
  static const std::string empty;
  return box ? box->text : empty;
}

const std::vector<Value>& Value::items() const {
  static const std::vector<Value> none;
  return box ? box->items : none;
}

const std::vector<Value>& Value::keys() const {
  static const std::vector<Value> none;
  return box ? box->keys : none;
}

bool Value::truthy() const {
  switch (kind) {
    case Kind::undefined:
    case Kind::none: return false;
    case Kind::boolean:
    case Kind::integer: return integer != 0;
    case Kind::number: return number != 0;
    case Kind::string: return !text().empty();
    case Kind::list:
    case Kind::tuple:
    case Kind::dict: return !items().empty();
    default: return true;
  }
}

Value from_json(const nlohmann::ordered_json& json) {
  using Type = nlohmann::ordered_json::value_t;
  std::vector<Value> keys, items;
  Value value;
  switch (json.type()) {
    case Type::boolean: return Value(json.get<bool>());
    case Type::number_integer: return Value(json.get<int64_t>());
    case Type::number_unsigned:
      if (json.get<uint64_t>() >> 63 == 0) return Value(json.get<int64_t>());
      value = Value(INT64_MAX);
      value.box = new_box(json.dump());
      return value;
    case Type::number_float: return Value(json.get<double>());
    case Type::string: return Value(json.get<std::string>());
    case Type::array:
      for (const auto& item : json) items.push_back(from_json(item));
      return Value::sequence(Kind::list, std::move(items));
    case Type::object:
      for (const auto& item : json.items()) {
        keys.emplace_back(item.key());
        items.push_back(from_json(item.value()));
      }
      return Value::dict(std::move(keys), std::move(items));
    default: return Value::none();
  }
}

const char* type_name(const Value& value) {
  static const char* const names[] = {"Undefined", "NoneType",  "bool", "int",       "float",       "str",     "list",
                                      "tuple",     "generator", "dict", "Namespace", "LoopContext", "function"};
  return names[static_cast<size_t>(value.kind)];
}

bool equal(const Value& a, const Value& b, Meter& meter) {
  meter.spend(step_cost);
  if (a.is_number() && b.is_number())
    return a.is_whole() && b.is_whole() ? a.integer == b.integer && a.text() == b.text()
                                        : a.as_number() == b.as_number();
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::undefined:
    case Kind::none: return true;
    case Kind::string: return a.text() == b.text();
    case Kind::list:
    case Kind::tuple:
      return a.items().size() == b.items().size() &&
             std::equal(a.items().begin(), a.items().end(), b.items().begin(),
                        [&](const Value& one, const Value& other) { return equal(one, other, meter); });
    case Kind::dict:
      if (a.items().size() != b.items().size()) return false;
      for (size_t i = 0; i < a.items().size(); ++i) {
        const Value* const other = find(b, a.keys()[i], meter);
        if (!other || !equal(a.items()[i], *other, meter)) return false;
      }
      return true;
    default: return a.box == b.box;
  }
}

bool less(const Value& a, const Value& b, Meter& meter) {
  meter.spend(step_cost);
  if (a.is_whole() && b.is_whole()) return a.integer < b.integer;
  if (a.is_number() && b.is_number()) return a.as_number() < b.as_number();
  if (a.is_text() && b.is_text()) return a.text() < b.text();  // UTF-8 keeps the order of code points
  if (a.kind != b.kind || !a.is_sequence())
    fail("'<' not supported between instances of '", type_name(a), "' and '", type_name(b), "'");
  for (size_t i = 0; i < a.items().size() && i < b.items().size(); ++i)
    if (!equal(a.items()[i], b.items()[i], meter)) return less(a.items()[i], b.items()[i], meter);
  return a.items().size() < b.items().size();
}

const Value* find(const Value& dict, const Value& key, Meter& meter) {
  for (size_t i = 0; i < dict.keys().size(); ++i)
    if (equal(dict.keys()[i], key, meter)) return &dict.items()[i];
  return nullptr;
}

const Value* find(const Value& dict, std::string_view key) {
  for (size_t i = 0; i < dict.keys().size(); ++i)
    if (dict.keys()[i].is_text() && dict.keys()[i].text() == key) return &dict.items()[i];
  return nullptr;
}

std::string to_text(const Value& value, Meter& meter) {
  if (value.is(Kind::undefined)) return "";
  return value.is_text() ? value.text() : repr(value, meter);
}

std::string repr(const Value& value, Meter& meter) {
  meter.spend(step_cost);
  std::string out;
  const auto add_items = [&](const char* open, const char* close) {
    out = open;
    for (size_t i = 0; i < value.items().size(); ++i) {
      if (i > 0) out += ", ";
      if (!value.keys().empty()) out += repr(value.keys()[i], meter) + ": ";
      out += repr(value.items()[i], meter);
      meter.spend(out.size() / 8);
    }
    return out += close;
  };
  switch (value.kind) {
    case Kind::undefined: return "Undefined";
    case Kind::none: return "None";
    case Kind::boolean: return value.integer ? "True" : "False";
    case Kind::integer: return value.box ? value.text() : std::to_string(value.integer);
    case Kind::number: return number_text(value.number, "nan", "inf");
    case Kind::string: out = quoted(value.text()); break;
    case Kind::list: return add_items("[", "]");
    case Kind::tuple: return add_items("(", value.items().size() == 1 ? ",)" : ")");
    case Kind::dict: return add_items("{", "}");
    default: return concat("<", type_name(value), ">");
  }
  meter.spend(out.size());
  return value.safe ? "Markup(" + out + ")" : out;
}

std::string to_json(const Value& value, const JsonStyle& style, Meter& meter, int depth) {
  meter.spend(step_cost);
  std::string out;
  switch (value.kind) {
    case Kind::none: return "null";
    case Kind::boolean: return value.integer ? "true" : "false";
    case Kind::integer: return value.box ? value.text() : std::to_string(value.integer);
    case Kind::number: return number_text(value.number, "NaN", "Infinity");
    case Kind::string: out = json_string(value.text(), style.ascii); break;
    case Kind::list:
    case Kind::tuple:
    case Kind::dict: {
      const bool dict = value.is(Kind::dict);
      if (value.items().empty()) return dict ? "{}" : "[]";
      const auto new_line = [&](int level) {
        if (!style.lines) return;
        out += '\n';
        for (int i = 0; i < level; ++i) out += style.indent;
      };
      std::vector<size_t> order(value.items().size());
      std::iota(order.begin(), order.end(), size_t{0});
      if (dict && style.sort_keys)
        std::stable_sort(order.begin(), order.end(),
                         [&](size_t a, size_t b) { return less(value.keys()[a], value.keys()[b], meter); });
      out = dict ? "{" : "[";
      for (size_t i = 0; i < order.size(); ++i) {
        if (i > 0) out += style.item_separator;
        new_line(depth + 1);
        if (dict) out += json_key(value.keys()[order[i]], style, meter) + style.key_separator;
        out += to_json(value.items()[order[i]], style, meter, depth + 1);
        meter.spend(out.size() / 8);
      }
      new_line(depth);
      return out += dict ? "}" : "]";
    }
    default: fail("Object of type ", type_name(value), " is not JSON serializable");
  }
  meter.spend(out.size());
  return out;
}

std::string html_escaped(std::string_view text) {
  static constexpr std::string_view special = "&<>'\"";
  static const char* const escapes[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
  std::string out;
  for (const char c : text)
    if (const size_t found = special.find(c); found != std::string_view::npos) out += escapes[found];
    else out += c;
  return out;
}

std::string_view first_character(std::string_view text) {
  size_t size = 0;
  if (!text.empty()) (void)unicode::next_code_point(text, size);
  return text.substr(0, size);
}

std::vector<Value> characters(std::string_view text) {
  std::vector<Value> out;
  while (!text.empty()) {
    const std::string_view first = first_character(text);
    out.emplace_back(std::string(first));
    text.remove_prefix(first.size());
  }
  return out;
}

std::vector<std::string_view> lines_of(std::string_view text, bool keep_ends) {
  static const std::string_view ends[] = {"\r\n", "\n",   "\r",     "\v",     "\f",    "\x1c",
                                          "\x1d", "\x1e", "\u0085", "\u2028", "\u2029"};
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    size_t size = 0;
    for (const std::string_view end : ends)
      if (size == 0 && text.substr(at).starts_with(end)) size = end.size();
    at += size > 0 ? size : 1;
    if (size == 0 && at < text.size()) continue;
    lines.push_back(text.substr(begin, at - begin - (keep_ends ? 0 : size)));
    begin = at;
  }
  return lines;
}

}  // namespace blipft::jinja
