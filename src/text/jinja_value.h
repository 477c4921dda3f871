// Values of chat templates: the Python values that templates use, and their text in Python.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "blipft/error.h"

namespace blipft::jinja {

struct Node;
struct Scope;
struct Box;

/// An error of a template without its position; ChatTemplate::render() adds template name and line.
struct Failure {
  std::string message;
};
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Failure{concat(parts...)};
}

/// Meter: limits the cost of a rendering, so that a template that never ends fails. One unit is the cost of one output
/// byte; each step, item and scope costs more.
constexpr size_t step_cost = 64, item_cost = 64, scope_cost = 512;
struct Meter {
  int64_t left = int64_t{256} << 20;
  void spend(size_t cost) {
    left -= static_cast<int64_t>(cost);
    if (left < 0) fail("the template takes too long or makes too much text; it may never end");
  }
};

enum class Kind : uint8_t {
  undefined, none, boolean, integer, number, string, list, tuple, generator, dict, name_space, loop, function
};

struct Value {
  Kind kind = Kind::undefined;
  bool safe = false;    ///< a string of the filter "safe": `+` escapes the other operand
  int64_t integer = 0;  ///< the value of an integer, or of a boolean: 0 or 1
  double number = 0;
  std::shared_ptr<Box> box;  ///< contents of the other kinds, and the digits of integers that need more than 64 bits

  Value() = default;
  explicit Value(bool value) : kind(Kind::boolean), integer(value) {}
  explicit Value(int64_t value) : kind(Kind::integer), integer(value) {}
  explicit Value(double value) : kind(Kind::number), number(value) {}
  explicit Value(std::string text);
  static Value none();
  static Value undefined(std::string reason);
  /// Makes a list, a tuple, a generator or a loop.
  static Value sequence(Kind kind, std::vector<Value> items);
  static Value dict(std::vector<Value> keys, std::vector<Value> items);
  static Value function(std::string name, Value self, const Node* macro = nullptr, Scope* scope = nullptr);

  bool is(Kind other) const { return kind == other; }
  bool is_text() const { return kind == Kind::string; }
  bool is_number() const { return kind == Kind::boolean || kind == Kind::integer || kind == Kind::number; }
  bool is_whole() const { return kind == Kind::boolean || kind == Kind::integer; }
  bool is_sequence() const { return kind == Kind::list || kind == Kind::tuple; }
  double as_number() const { return kind == Kind::number ? number : static_cast<double>(integer); }
  const std::string& text() const;  ///< text of a string, name of a function, or reason of an undefined value
  const std::vector<Value>& items() const;
  const std::vector<Value>& keys() const;
  bool truthy() const;
};

/// The contents of a value. Only the contents of namespaces and loops change after they are made.
struct Box {
  std::string text;
  std::vector<Value> items, keys;  ///< keys: one for each item of a dict or namespace
  int depth = 0;                   ///< nesting depth of lists
  size_t at = 0;                   ///< a loop's position
  const Node* macro = nullptr;
  Scope* scope = nullptr;
};

Value from_json(const nlohmann::ordered_json& json);
/// Returns Python's name of the value's type, as in its error messages.
const char* type_name(const Value& value);
bool equal(const Value& a, const Value& b, Meter& meter);
/// Returns a < b; fails if Python does not order the values.
bool less(const Value& a, const Value& b, Meter& meter);
/// Returns the value of a key in a dict or namespace, or null.
const Value* find(const Value& dict, const Value& key, Meter& meter);
const Value* find(const Value& dict, std::string_view key);
/// Return Python's str() and repr().
std::string to_text(const Value& value, Meter& meter);
std::string repr(const Value& value, Meter& meter);
struct JsonStyle {
  bool ascii = false, sort_keys = false;
  std::string indent, item_separator = ", ", key_separator = ": ";
  bool lines = false;  ///< each item on a separate line
};
std::string to_json(const Value& value, const JsonStyle& style, Meter& meter, int depth = 0);
std::string html_escaped(std::string_view text);

// Functions on code points.
std::string_view first_character(std::string_view text);
/// Returns the code points as strings.
std::vector<Value> characters(std::string_view text);
/// Implements str.splitlines().
std::vector<std::string_view> lines_of(std::string_view text, bool keep_ends = false);

}  // namespace blipft::jinja
