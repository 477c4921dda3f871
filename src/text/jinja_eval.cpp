// Expressions of chat templates; see jinja_eval.h.
#include "text/jinja_eval.h"

#include <algorithm>

#include "text/python_text.h"

namespace blipft::jinja {
namespace {

constexpr int64_t max_range = 100000;  // the limit of Jinja's sandbox

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Value no_attribute(const Value& object, const std::string& name) {
  return Value::undefined(object.is(Kind::none)
                              ? concat("'None' has no attribute '", brief(name), "'")
                              : concat("'", type_name(object), " object' has no attribute '", brief(name), "'"));
}

Value loop_attribute(const Value& loop, const std::string& name) {
  const auto at = static_cast<int64_t>(loop.box->at), size = static_cast<int64_t>(loop.items().size());
  if (name == "index") return Value(at + 1);
  if (name == "index0") return Value(at);
  if (name == "revindex") return Value(size - at);
  if (name == "revindex0") return Value(size - at - 1);
  if (name == "first") return Value(at == 0);
  if (name == "last") return Value(at + 1 == size);
  if (name == "length") return Value(size);
  if (name == "cycle") return Value::function(name, loop);
  const bool previous = name == "previtem";
  if (!previous && name != "nextitem") return no_attribute(loop, name);
  if (previous ? at == 0 : at + 1 == size)
    return Value::undefined(previous ? "there is no previous item" : "there is no next item");
  return loop.items()[static_cast<size_t>(previous ? at - 1 : at + 1)];
}

/// The items of a dict while it is made.
struct Items {
  explicit Items(Meter& of) : meter(of) {}
  void put(const Value& key, const Value& value) {
    const auto same = std::find_if(keys.begin(), keys.end(), [&](const Value& one) { return equal(one, key, meter); });
    if (same != keys.end()) items[static_cast<size_t>(same - keys.begin())] = value;
    else meter.spend(2 * item_cost), keys.push_back(key), items.push_back(value);
  }
  Meter& meter;
  std::vector<Value> keys, items;
};

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

const Value* element(const std::vector<Value>& items, int64_t index) {
  const auto size = static_cast<int64_t>(items.size());
  if (index < 0) index += size;
  return index >= 0 && index < size ? &items[static_cast<size_t>(index)] : nullptr;
}

}  // namespace

Value Evaluator::text(std::string text) {
  meter.spend(text.size());
  return Value(std::move(text));
}

Value Evaluator::list(Kind kind, std::vector<Value> items) {
  meter.spend(items.size() * item_cost);
  return Value::sequence(kind, std::move(items));
}

std::string Evaluator::to_text(const Value& value) {
  std::string text = jinja::to_text(value, meter);
  meter.spend(text.size());
  return text;
}

std::vector<Value> Evaluator::iterate(const Value& value) {
  switch (value.kind) {
    case Kind::undefined: return {};
    case Kind::string: meter.spend(value.text().size() * item_cost); return characters(value.text());
    case Kind::list:
    case Kind::tuple: meter.spend(value.items().size() * item_cost); return value.items();
    case Kind::dict: meter.spend(value.items().size() * item_cost); return value.keys();
    case Kind::generator:  // yields its items once
      if (value.box->at++ > 0) return {};
      return value.items();
    default: fail("'", type_name(value), "' object is not iterable");
  }
}

Value Evaluator::attribute(const Value& object, const std::string& name) {
  if (object.is(Kind::undefined)) fail(object.text());
  if (object.is(Kind::loop)) return loop_attribute(object, name);
  if (object.is(Kind::list) &&
      is_one_of(name, {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"}))
    return Value::undefined(concat("access to attribute '", name, "' of 'list' object is unsafe."));
  if (object.is(Kind::dict) && is_one_of(name, {"clear", "pop", "popitem", "setdefault", "update"}))
    return Value::undefined(concat("access to attribute '", name, "' of 'dict' object is unsafe."));
  if (has_method(object, name)) return Value::function(name, object);
  if (object.is(Kind::dict) || object.is(Kind::name_space)) {
    meter.spend(object.items().size());
    if (const Value* const value = find(object, name)) return *value;
  }
  return no_attribute(object, name);
}

Value Evaluator::item(const Value& object, const Value& index) {
  if (object.is(Kind::undefined)) fail(object.text());
  const Value* found = nullptr;
  if (object.is(Kind::dict) || object.is(Kind::name_space)) {
    meter.spend(object.items().size());
    found = index.is_text() ? find(object, index.text()) : find(object, index, meter);
  } else if (index.is_whole() && (object.is_sequence() || object.is(Kind::loop))) {
    found = element(object.items(), index.integer);
  } else if (index.is_whole() && object.is_text()) {
    std::string_view text = object.text();
    meter.spend(text.size());
    const int64_t size = count_characters(text), at = index.integer < 0 ? index.integer + size : index.integer;
    if (at >= 0 && at < size) {
      for (int64_t i = 0; i < at; ++i) text.remove_prefix(first_character(text).size());
      return this->text(std::string(first_character(text)));
    }
  }
  if (found) return *found;
  if (index.is_text()) return attribute(object, index.text());
  return Value::undefined(concat(type_name(object), " object has no element ", brief(repr(index, meter))));
}

Value Evaluator::call(const Value& callee, const Arguments& arguments) {
  if (callee.is(Kind::undefined)) fail(callee.text());
  if (!callee.is(Kind::function)) fail("'", type_name(callee), "' object is not callable");
  if (callee.box->macro) return call_macro(callee, arguments);
  const Value& self = callee.items().front();
  if (self.is(Kind::undefined)) return call_global(callee.text(), arguments);
  if (self.is(Kind::loop)) {
    if (arguments.positional.empty()) fail("no items for cycling given");
    return arguments.positional[self.box->at % arguments.positional.size()];
  }
  return run_method(*this, callee.text(), self, arguments);
}

bool Evaluator::contains(const Value& container, const Value& item) {
  if (container.is_text()) {
    if (!item.is_text()) fail("'in <string>' requires string as left operand, not ", type_name(item));
    meter.spend(container.text().size());
    return container.text().find(item.text()) != std::string::npos;
  }
  if (container.is(Kind::dict)) return find(container, item, meter) != nullptr;
  if (!container.is_sequence() && !container.is(Kind::generator) && !container.is(Kind::undefined))
    fail("argument of type '", type_name(container), "' is not iterable");
  const std::vector<Value> items = iterate(container);
  return std::any_of(items.begin(), items.end(), [&](const Value& one) { return equal(one, item, meter); });
}

// ---------------------------------------------------------------- expressions

Value Evaluator::eval(const Node& node) {
  const Deeper deeper(*this);
  line_ = node.line;
  switch (node.op) {
    case Op::constant: return node.value;
    case Op::name: return name(node.text);
    case Op::attribute: return attribute(eval(*node.parts[0]), node.text);
    case Op::item: {
      const Value object = eval(*node.parts[0]);
      return item(object, eval(*node.parts[1]));
    }
    case Op::slice: return slice(node);
    case Op::call: {
      const Value callee = eval(*node.parts[0]);
      return call(callee, arguments(node));
    }
    case Op::filter: return filtered(node);
    case Op::test: {
      const Value value = eval(*node.parts[0]);
      return Value(run_test(*this, node.text, value, arguments(node)));
    }
    case Op::not_: return Value(!eval(*node.parts[0]).truthy());
    case Op::binary: return binary(node);
    case Op::compare: return Value(compare_all(node));
    case Op::and_:
    case Op::or_: {
      Value left = eval(*node.parts[0]);
      return left.truthy() == (node.op == Op::or_) ? left : eval(*node.parts[1]);
    }
    case Op::conditional:
      if (eval(*node.parts[0]).truthy()) return eval(*node.parts[1]);
      return node.parts[2] ? eval(*node.parts[2]) : Value::undefined("the inline if without else has no value here");
    default: return eval_deeper(node);
  }
}

Value Evaluator::eval_deeper(const Node& node) {
  switch (node.op) {
    case Op::list:
    case Op::tuple: {
      std::vector<Value> items;
      for (const auto& part : node.parts) items.push_back(eval(*part));
      return list(node.op == Op::list ? Kind::list : Kind::tuple, std::move(items));
    }
    case Op::dict: {
      Items dict(meter);
      for (size_t i = 0; i < node.parts.size(); i += 2) {
        const Value key = eval(*node.parts[i]);
        if (key.is(Kind::list) || key.is(Kind::dict)) fail("unhashable type: '", type_name(key), "'");
        dict.put(key, eval(*node.parts[i + 1]));
      }
      return Value::dict(std::move(dict.keys), std::move(dict.items));
    }
    case Op::join: {
      std::string joined;
      for (const auto& part : node.parts) joined += to_text(eval(*part));
      return text(std::move(joined));
    }
    default: {
      const Value value = eval(*node.parts[0]);
      if (value.is(Kind::undefined)) fail(value.text());
      if (!value.is_number())
        fail("bad operand type for unary ", node.op == Op::negative ? "-" : "+", ": '", type_name(value), "'");
      const int64_t sign = node.op == Op::negative ? -1 : 1;
      return value.is(Kind::number) ? Value(static_cast<double>(sign) * value.number)
                                    : calculate(*this, "*", Value(sign), value);
    }
  }
}

Value Evaluator::name(const std::string& name) {
  for (const Scope* scope = scope_; scope; scope = scope->parent)
    if (const auto found = scope->names.find(name); found != scope->names.end()) return found->second;
  if (is_one_of(name, {"range", "dict", "namespace", "raise_exception", "strftime_now"}))
    return Value::function(name, Value());
  return Value::undefined(concat("'", brief(name), "' is undefined"));
}

Value Evaluator::slice(const Node& node) {
  const Value object = eval(*node.parts[0]);
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i) bounds[i] = node.parts[i + 1] ? eval(*node.parts[i + 1]) : Value::none();
  if (object.is(Kind::undefined)) fail(object.text());
  const bool whole = std::all_of(std::begin(bounds), std::end(bounds),
                                 [](const Value& bound) { return bound.is(Kind::none) || bound.is_whole(); });
  if (!(object.is_text() || object.is_sequence()) || !whole)
    return Value::undefined(concat(type_name(object), " object has no such slice"));
  const int64_t step = bounds[2].is(Kind::none) ? 1 : bounds[2].integer;
  if (step == 0) fail("slice step cannot be zero");
  const bool ascii = object.is_text() && is_ascii(object.text());
  const std::vector<Value> items = ascii ? std::vector<Value>() : iterate(object);
  const auto size = static_cast<int64_t>(ascii ? object.text().size() : items.size());
  const auto limit = [&](const Value& bound, int64_t otherwise) {
    if (bound.is(Kind::none)) return otherwise;
    const int64_t at = bound.integer < 0 ? bound.integer + size : bound.integer;
    return std::clamp<int64_t>(at, step < 0 ? -1 : 0, step < 0 ? size - 1 : size);
  };
  const int64_t start = limit(bounds[0], step < 0 ? size - 1 : 0), stop = limit(bounds[1], step < 0 ? -1 : size);
  std::string text;
  std::vector<Value> chosen;
  for (int64_t i = start; step < 0 ? i > stop : i < stop;) {
    const auto at = static_cast<size_t>(i);
    if (ascii) text += object.text()[at];
    else if (object.is_text()) text += items[at].text();
    else chosen.push_back(items[at]);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return object.is_text() ? this->text(std::move(text)) : list(object.kind, std::move(chosen));
}

Value Evaluator::binary(const Node& node) {
  const Value left = eval(*node.parts[0]), right = eval(*node.parts[1]);
  for (const Value* const value : {&left, &right})
    if (value->is(Kind::undefined) && !(left.is_text() && node.text == "%")) fail(value->text());
  return node.text == "+" ? add(*this, left, right) : calculate(*this, node.text, left, right);
}

bool Evaluator::compare(const std::string& sign, const Value& left, const Value& right) {
  if (sign == "in") return contains(right, left);
  if (sign == "not in") return !contains(right, left);
  if (sign == "==") return equal(left, right, meter);
  if (sign == "!=") return !equal(left, right, meter);
  for (const Value* const value : {&left, &right})
    if (value->is(Kind::undefined)) fail(value->text());
  if (sign == "<") return less(left, right, meter);
  if (sign == ">") return less(right, left, meter);
  return sign == "<=" ? less(left, right, meter) || equal(left, right, meter)
                      : less(right, left, meter) || equal(left, right, meter);
}

bool Evaluator::compare_all(const Node& node) {
  Value left = eval(*node.parts[0]);
  for (size_t i = 1; i < node.parts.size(); ++i) {
    const Value right = eval(*node.parts[i]);
    if (!compare(node.names[i - 1], left, right)) return false;
    left = right;
  }
  return true;
}

Arguments Evaluator::arguments(const Node& node) {
  Arguments arguments;
  for (size_t i = 0; i < node.names.size(); ++i) {
    const Value value = eval(*node.parts[i + 1]);
    if (node.names[i].empty()) {
      arguments.positional.push_back(value);
    } else if (node.names[i] == "*") {
      for (Value& one : iterate(value)) arguments.positional.push_back(std::move(one));
    } else if (node.names[i] == "**") {
      if (!value.is(Kind::dict)) fail("argument after ** must be a mapping, not ", type_name(value));
      for (size_t k = 0; k < value.keys().size(); ++k)
        arguments.by_name.emplace_back(value.keys()[k].text(), value.items()[k]);
    } else {
      arguments.by_name.emplace_back(node.names[i], value);
    }
  }
  return arguments;
}

/// `input`: the value of the innermost filter of a block.
Value Evaluator::filtered(const Node& node, const Value* input) {
  const Deeper deeper(*this);
  const Value value = !node.parts[0]                             ? *input
                      : input && node.parts[0]->op == Op::filter ? filtered(*node.parts[0], input)
                                                                 : eval(*node.parts[0]);
  line_ = node.line;
  return run_filter(*this, node.text, value, arguments(node));
}

Value Evaluator::call_global(const std::string& name, const Arguments& given) {
  if (name == "raise_exception") fail(to_text(*bound(name, given, {"message"}, 1)[0]));
  if (name == "strftime_now") {
    const std::string format = to_text(*bound(name, given, {"format"}, 1)[0]);
    std::string out(format.size() * 40 + 1, '\0');
    out.resize(std::strftime(out.data(), out.size(), format.c_str(), &now));
    return text(std::move(out));
  }
  if (name == "range") {
    const auto values = bound(name, given, {"start", "stop", "step"}, 1);
    int64_t start = values[1] ? whole_number(*values[0]) : 0;
    const int64_t stop = whole_number(values[1] ? *values[1] : *values[0]),
                  step = values[2] ? whole_number(*values[2]) : 1;
    if (step == 0) fail("range() arg 3 must not be zero");
    std::vector<Value> items;
    for (; step > 0 ? start < stop : start > stop;) {
      if (static_cast<int64_t>(items.size()) == max_range) fail("range() has more than ", max_range, " numbers");
      items.emplace_back(start);
      if (__builtin_add_overflow(start, step, &start)) break;
    }
    return list(Kind::list, std::move(items));
  }
  Items items(meter);
  for (const Value& value : given.positional) {
    const bool dict = value.is(Kind::dict);
    for (size_t i = 0; dict && i < value.keys().size(); ++i) items.put(value.keys()[i], value.items()[i]);
    for (const Value& pair : dict ? std::vector<Value>() : iterate(value)) {
      if (!pair.is_sequence() || pair.items().size() != 2) fail("dict() takes a mapping or pairs");
      items.put(pair.items()[0], pair.items()[1]);
    }
  }
  for (const auto& [key, value] : given.by_name) items.put(text(key), value);
  if (name == "dict") return Value::dict(std::move(items.keys), std::move(items.items));
  meter.spend(item_cost);
  Value value;
  value.kind = Kind::name_space;
  Box& box = namespaces_.emplace_back();
  box.keys = std::move(items.keys);
  box.items = std::move(items.items);
  value.box = std::shared_ptr<Box>(std::shared_ptr<Box>(), &box);  // not owned, because namespaces may contain each other
  return value;
}

}  // namespace blipft::jinja
