// Values of chat templates: those of Python that Jinja's templates meet, and how Python prints them.
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

/// A template's error before its place is known; ChatTemplate::render() adds the place.
struct Failure {
  std::string message;
};
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Failure{concat(parts...)};
}

/// Meter: the cost that a rendering may still cause. One unit is the cost of one byte that it makes.
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
  bool safe = false;    ///< a string of the filter "safe": `+` escapes what is added to it
  int64_t integer = 0;  ///< also of booleans: 0 or 1
  double number = 0;
  std::shared_ptr<Box> box;  ///< of the other kinds, and of integers of 64 bits: their digits

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
  const std::string& text() const;  ///< of strings, functions (their name), undefined values (why they are)
  const std::vector<Value>& items() const;
  const std::vector<Value>& keys() const;
  bool truthy() const;
};

/// The contents of a value. Only the contents of namespaces and loops change after they are made.
struct Box {
  std::string text;
  std::vector<Value> items, keys;  ///< keys: of dicts and namespaces, one for each item
  int depth = 0;                   ///< of lists inside of each other
  size_t at = 0;                   ///< a loop's position
  const Node* macro = nullptr;
  Scope* scope = nullptr;
};

Value from_json(const nlohmann::ordered_json& json);
/// Python's name of the value's type, as its error messages have it.
const char* type_name(const Value& value);
bool equal(const Value& a, const Value& b, Meter& meter);
/// Less than; fails where Python has no order.
bool less(const Value& a, const Value& b, Meter& meter);
/// The value of a dict or namespace, or null.
const Value* find(const Value& dict, const Value& key, Meter& meter);
const Value* find(const Value& dict, std::string_view key);
/// Python's str() and repr().
std::string to_text(const Value& value, Meter& meter);
std::string repr(const Value& value, Meter& meter);
struct JsonStyle {
  bool ascii = false, sort_keys = false;
  std::string indent, item_separator = ", ", key_separator = ": ";
  bool lines = false;  ///< items on lines of their own
};
std::string to_json(const Value& value, const JsonStyle& style, Meter& meter, int depth = 0);
std::string html_escaped(std::string_view text);

// Strings by code points.
size_t length_of(std::string_view text);
/// The code points as strings.
std::vector<Value> characters(std::string_view text);
/// str.splitlines()
std::vector<std::string_view> lines_of(std::string_view text, bool keep_ends = false);
/// str.strip(), lstrip(), rstrip(); `set`: the characters to take away, null: white space.
std::string_view stripped(std::string_view text, bool left, bool right, const std::string* set = nullptr);

}  // namespace blipft::jinja
