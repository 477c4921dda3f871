// Statements of chat templates; see jinja_eval.h.
#include <algorithm>

#include "text/python_text.h"

#include "text/jinja_eval.h"

namespace blipft::jinja {

/// A scope during the evaluation of a body. It is kept if a macro may read it later.
struct Evaluator::Frame {
  Frame(Evaluator& of, Scope* parent) : evaluator(of), before(of.scope_) {
    evaluator.meter.spend(scope_cost);
    scope->parent = parent;
    evaluator.scope_ = scope.get();
  }
  ~Frame() {
    evaluator.scope_ = before;
    if (scope->captured) evaluator.kept_.push_back(std::move(scope));
  }
  Evaluator& evaluator;
  Scope* const before;
  std::unique_ptr<Scope> scope = std::make_unique<Scope>();
};

std::string Evaluator::run(const Node& root) {
  (void)run_block(root);
  return std::move(root_);
}

void Evaluator::print(const std::string& text) {
  meter.spend(text.size());
  *out_ += text;
}

/// Runs a body in a separate scope and returns the text that it prints.
std::string Evaluator::captured_text(const Node& body) {
  struct Redirect {
    Redirect(std::string*& from, std::string& to) : out(from), before(from) { out = &to; }
    ~Redirect() { out = before; }
    std::string*& out;
    std::string* const before;
  };
  std::string text;
  const Redirect redirect(out_, text);
  (void)run_block(body);
  return text;
}

Evaluator::Flow Evaluator::run_block(const Node& node) {
  for (const auto& part : node.parts)
    if (const Flow flow = run_statement(*part); flow != Flow::normal) return flow;
  return Flow::normal;
}

Evaluator::Flow Evaluator::run_statement(const Node& node) {
  const Deeper deeper(*this);
  line_ = node.line;
  switch (node.op) {
    case Op::data: print(node.text); break;
    case Op::print: print(jinja::to_text(eval(*node.parts[0]), meter)); break;
    case Op::if_:
      if (eval(*node.parts[0]).truthy()) return run_block(*node.parts[1]);
      if (!node.parts[2]) break;
      return node.parts[2]->op == Op::block ? run_block(*node.parts[2]) : run_statement(*node.parts[2]);
    case Op::for_: return run_loop(node);
    case Op::set: assign(*node.parts[0], eval(*node.parts[1])); break;
    case Op::set_block: {
      Value value;
      {
        const Frame frame(*this, scope_);
        value = text(captured_text(*node.parts[1]));
      }
      assign(*node.parts[0], node.parts[2] ? filtered(*node.parts[2], &value) : value);
      break;
    }
    case Op::macro: scope_->names[node.text] = macro(node); break;
    case Op::call_block: {
      const Node& call = *node.parts[0];
      const Value callee = eval(*call.parts[0]);
      Arguments given = arguments(call);
      given.by_name.emplace_back("caller", macro(*node.parts[1]));
      print(to_text(this->call(callee, given)));
      break;
    }
    case Op::filter_block: {
      const Frame frame(*this, scope_);
      const Value text = this->text(captured_text(*node.parts[1]));
      print(to_text(filtered(*node.parts[0], &text)));
      break;
    }
    case Op::generation: {
      const std::string text = to_text(call_macro(macro(*node.parts[0]), {}));
      spans_.emplace_back(root_.size(), count_characters(text));
      print(text);
      break;
    }
    case Op::break_: return Flow::break_;
    case Op::continue_: return Flow::continue_;
    default: return run_block(node);
  }
  return Flow::normal;
}

Evaluator::Flow Evaluator::run_loop(const Node& node) {
  std::vector<Value> items = iterate(eval(*node.parts[1]));
  if (node.parts[2]) {
    std::vector<Value> chosen;
    for (const Value& item : items) {
      const Frame frame(*this, scope_);
      assign(*node.parts[0], item);
      if (eval(*node.parts[2]).truthy()) chosen.push_back(item);
    }
    items = std::move(chosen);
  }
  return run_items(node, std::move(items));
}

Evaluator::Flow Evaluator::run_items(const Node& node, std::vector<Value> items) {
  const Value loop = list(Kind::loop, std::move(items));
  bool completed = false;  // true after a complete body: as in Jinja, "else" runs if there was none
  for (size_t i = 0; i < loop.items().size(); ++i) {
    const Frame frame(*this, scope_);
    loop.box->at = i;
    scope_->names["loop"] = loop;
    assign(*node.parts[0], loop.items()[i]);
    const Flow flow = run_block(*node.parts[3]);
    if (flow == Flow::break_) break;
    completed |= flow == Flow::normal;
  }
  if (completed || !node.parts[4]) return Flow::normal;
  const Frame frame(*this, scope_);
  return run_block(*node.parts[4]);
}

void Evaluator::assign(const Node& target, const Value& value) {
  if (target.op == Op::name) {
    scope_->names[target.text] = value;
  } else if (target.op == Op::tuple) {
    const std::vector<Value> values = iterate(value);
    if (values.size() != target.parts.size())
      fail("found ", values.size(), " values to unpack, expected ", target.parts.size());
    for (size_t i = 0; i < values.size(); ++i) assign(*target.parts[i], values[i]);
  } else {
    const Value object = eval(*target.parts[0]);
    if (!object.is(Kind::name_space)) fail("cannot assign attribute on non-namespace object");
    Box& box = *object.box;
    if (const Value* const old = find(object, target.text)) {
      box.items[static_cast<size_t>(old - box.items.data())] = value;
    } else {
      meter.spend(item_cost);
      box.keys.emplace_back(target.text);
      box.items.push_back(value);
    }
  }
}

Value Evaluator::macro(const Node& node) {
  for (Scope* scope = scope_; scope && !scope->captured; scope = scope->parent) scope->captured = true;
  return Value::function(node.text, Value(), &node, scope_);
}

Value Evaluator::call_macro(const Value& callee, const Arguments& arguments) {
  const Node& node = *callee.box->macro;
  const Frame frame(*this, callee.box->scope);
  const size_t first_default = node.names.size() - (node.parts.size() - 1);
  std::vector<bool> used(arguments.by_name.size());
  for (size_t i = 0; i < node.names.size(); ++i) {
    const std::string& name = node.names[i];
    Value value = Value::undefined(concat("parameter '", name, "' was not provided"));
    bool given = i < arguments.positional.size();
    if (given) value = arguments.positional[i];
    for (size_t k = 0; k < arguments.by_name.size() && !given; ++k)
      if (arguments.by_name[k].first == name) value = arguments.by_name[k].second, given = used[k] = true;
    if (!given && i >= first_default) value = eval(*node.parts[1 + i - first_default]);
    scope_->names[name] = value;
  }
  std::vector<Value> rest, keys, values;
  for (size_t i = node.names.size(); i < arguments.positional.size(); ++i) rest.push_back(arguments.positional[i]);
  if (!rest.empty() && !node.takes_varargs)
    fail("macro '", node.text, "' takes not more than ", node.names.size(), " argument(s)");
  for (size_t k = 0; k < used.size(); ++k) {
    const auto& [name, value] = arguments.by_name[k];
    if (used[k]) continue;
    if (name == "caller" && node.takes_caller) {
      scope_->names["caller"] = value;
    } else if (node.takes_kwargs && name != "caller") {
      keys.emplace_back(name);
      values.push_back(value);
    } else {
      fail("macro '", node.text, "' takes no keyword argument '", brief(name), "'");
    }
  }
  if (node.takes_varargs) scope_->names["varargs"] = list(Kind::tuple, std::move(rest));
  if (node.takes_kwargs) scope_->names["kwargs"] = Value::dict(std::move(keys), std::move(values));
  return text(captured_text(*node.parts[0]));
}

}  // namespace blipft::jinja
