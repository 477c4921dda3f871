// Parses expressions of chat templates; see jinja_parser.h.
#include <charconv>
#include <cstdlib>

#include "text/jinja_parser.h"

namespace blipft::jinja {

NodePtr Expressions::expression() {
  Deeper deeper(*this);
  NodePtr value = either();
  for (; is_name("if"); deeper.grow()) {
    next();
    NodePtr condition = either();
    NodePtr other = skip_name("else") ? expression() : nullptr;
    value = make_of(Op::conditional, "", std::move(condition), std::move(value), std::move(other));
  }
  return value;
}

NodePtr Expressions::tuple(bool conditions) {
  const auto one = [&] { return conditions ? expression() : either(); };
  NodePtr first = one();
  if (!is_sign(",")) return first;
  NodePtr all = make_of(Op::tuple, "", std::move(first));
  const auto ends = [&] {
    return now().kind == TokenKind::print_end || now().kind == TokenKind::block_end || is_sign(")");
  };
  while (skip_sign(",") && !ends()) all->parts.push_back(one());
  return all;
}

NodePtr Expressions::logical(std::string_view word, Op op, NodePtr (Expressions::*part)()) {
  Deeper deeper(*this);
  NodePtr left = (this->*part)();
  for (; skip_name(word); deeper.grow()) left = make_of(op, "", std::move(left), (this->*part)());
  return left;
}

NodePtr Expressions::either() { return logical("or", Op::or_, &Expressions::both); }
NodePtr Expressions::both() { return logical("and", Op::and_, &Expressions::negated); }

NodePtr Expressions::negated() {
  const Deeper deeper(*this);
  if (skip_name("not")) return make_of(Op::not_, "", negated());
  return comparison();
}

std::string Expressions::comparison_sign() {
  static const std::string_view signs[] = {"==", "!=", "<", "<=", ">", ">="};
  for (const std::string_view sign : signs)
    if (is_sign(sign)) return next().text;
  if (is_name("in")) return next().text;
  if (is_name("not") && ahead().kind == TokenKind::name && ahead().text == "in") return next(), next(), "not in";
  return "";
}

NodePtr Expressions::comparison() {
  NodePtr left = chain({"+", "-"}, &Expressions::joined), all;
  for (std::string sign = comparison_sign(); !sign.empty(); sign = comparison_sign()) {
    if (!all) all = make_of(Op::compare, "", std::move(left));
    all->names.push_back(sign);
    all->parts.push_back(chain({"+", "-"}, &Expressions::joined));
  }
  return all ? std::move(all) : std::move(left);
}

NodePtr Expressions::chain(std::initializer_list<std::string_view> signs, NodePtr (Expressions::*part)()) {
  NodePtr left = (this->*part)();
  const auto is_one = [&] {
    return std::any_of(signs.begin(), signs.end(), [&](std::string_view sign) { return is_sign(sign); });
  };
  for (Deeper deeper(*this); is_one(); deeper.grow()) {
    const std::string sign = next().text;
    left = make_of(Op::binary, sign, std::move(left), (this->*part)());
  }
  return left;
}

NodePtr Expressions::joined() {
  NodePtr left = products();
  if (!is_sign("~")) return left;
  NodePtr all = make_of(Op::join, "", std::move(left));
  while (skip_sign("~")) all->parts.push_back(products());
  return all;
}

NodePtr Expressions::products() { return chain({"*", "/", "//", "%"}, &Expressions::powers); }
NodePtr Expressions::powers() { return chain({"**"}, &Expressions::unary_with_filters); }
NodePtr Expressions::unary_with_filters() { return unary(true); }

NodePtr Expressions::unary(bool with_filters) {
  const Deeper deeper(*this);
  NodePtr node;
  if (skip_sign("-")) node = make_of(Op::negative, "", unary(false));
  else if (skip_sign("+")) node = make_of(Op::positive, "", unary(false));
  else node = primary();
  node = postfix(std::move(node));
  return with_filters ? filters_and_tests(std::move(node)) : std::move(node);
}

NodePtr Expressions::primary() {
  if (now().kind == TokenKind::end) unexpected("an expression");
  NodePtr node = make(Op::constant);
  const Token token = next();
  if (token.kind == TokenKind::string) {
    std::string text = token.text;
    while (now().kind == TokenKind::string) text += next().text;
    node->value = Value(std::move(text));
  } else if (token.kind == TokenKind::integer) {
    int64_t value = 0;
    const char* const end = token.text.data() + token.text.size();
    if (std::from_chars(token.text.data(), end, value).ec != std::errc())
      refuse(concat("found ", brief(token.text), ", expected a number of at most 63 bits"));
    node->value = Value(value);
  } else if (token.kind == TokenKind::number) {
    node->value = Value(std::strtod(token.text.c_str(), nullptr));
  } else if (token.kind == TokenKind::name) {
    const std::string& text = token.text;
    if (text == "true" || text == "True" || text == "false" || text == "False") {
      node->value = Value(text == "true" || text == "True");
    } else if (text == "none" || text == "None") {
      node->value = Value::none();
    } else {
      node->op = Op::name;
      node->text = text;
      note_name(text);
    }
  } else if (token.kind == TokenKind::sign && token.text == "(") {
    if (skip_sign(")")) {
      node->op = Op::tuple;
    } else {
      node = tuple(true);
      expect_sign(")");
    }
  } else if (token.kind == TokenKind::sign && token.text == "[") {
    node->op = Op::list;
    items_to(*node, "]", false);
  } else if (token.kind == TokenKind::sign && token.text == "{") {
    node->op = Op::dict;
    items_to(*node, "}", true);
  } else {
    --at_;
    unexpected("an expression");
  }
  return node;
}

void Expressions::note_name(const std::string& name) {
  if (!macro_) return;
  macro_->takes_caller |= name == "caller";
  macro_->takes_varargs |= name == "varargs";
  macro_->takes_kwargs |= name == "kwargs";
}

void Expressions::items_to(Node& node, std::string_view end, bool pairs) {
  while (!is_sign(end)) {
    node.parts.push_back(expression());
    if (pairs) {
      expect_sign(":");
      node.parts.push_back(expression());
    }
    if (!is_sign(end)) expect_sign(",");
  }
  next();
}

NodePtr Expressions::postfix(NodePtr node) {
  for (Deeper deeper(*this);; deeper.grow()) {
    if (skip_sign(".")) {
      if (now().kind != TokenKind::integer) {
        const std::string name = expect_name();
        node = make_of(Op::attribute, name, std::move(node));
      } else {
        node = make_of(Op::item, "", std::move(node), primary());
      }
    } else if (skip_sign("[")) {
      node = subscript(std::move(node));
    } else if (is_sign("(")) {
      node = call(Op::call, "", std::move(node));
    } else {
      return node;
    }
  }
}

NodePtr Expressions::subscript(NodePtr object) {
  NodePtr first = is_sign(":") ? nullptr : expression();
  if (!is_sign(":")) {
    expect_sign("]");
    return make_of(Op::item, "", std::move(object), std::move(first));
  }
  NodePtr node = make_of(Op::slice, "", std::move(object), std::move(first));
  for (int i = 0; i < 2; ++i)
    node->parts.push_back(skip_sign(":") && !is_sign(":") && !is_sign("]") ? expression() : nullptr);
  expect_sign("]");
  return node;
}

NodePtr Expressions::call(Op op, const std::string& name, NodePtr object) {
  NodePtr node = make(op, name);
  node->parts.push_back(std::move(object));
  expect_sign("(");
  while (!is_sign(")")) {
    if (skip_sign("*")) {
      node->names.emplace_back("*");
    } else if (skip_sign("**")) {
      node->names.emplace_back("**");
    } else if (now().kind == TokenKind::name && ahead().kind == TokenKind::sign && ahead().text == "=") {
      node->names.push_back(next().text);
      next();
    } else {
      if (!node->names.empty() && !node->names.back().empty() && node->names.back() != "*")
        unexpected("an argument with its name");
      node->names.emplace_back();
    }
    node->parts.push_back(expression());
    if (!is_sign(")")) expect_sign(",");
  }
  next();
  return node;
}

std::string Expressions::dotted_name() {
  std::string name = expect_name();
  while (skip_sign(".")) name += "." + expect_name();
  return name;
}

NodePtr Expressions::filter_chain(NodePtr node, bool starts_inline) {
  for (Deeper deeper(*this); starts_inline || is_sign("|"); starts_inline = false) {
    deeper.grow();
    if (!starts_inline) next();
    const std::string name = dotted_name();
    if (is_sign("(")) {
      node = call(Op::filter, name, std::move(node));
    } else {
      NodePtr filter = make(Op::filter, name);
      filter->parts.push_back(std::move(node));
      node = std::move(filter);
    }
  }
  return node;
}

NodePtr Expressions::filters_and_tests(NodePtr node) {
  for (Deeper deeper(*this);; deeper.grow()) {
    if (is_sign("|")) node = filter_chain(std::move(node), false);
    else if (skip_name("is")) node = test(std::move(node));
    else if (is_sign("(")) node = call(Op::call, "", std::move(node));
    else return node;
  }
}

NodePtr Expressions::test(NodePtr value) {
  const bool negative = skip_name("not");
  const std::string name = dotted_name();
  NodePtr node;
  if (is_sign("(")) {
    node = call(Op::test, name, std::move(value));
  } else {
    node = make(Op::test, name);
    node->parts.push_back(std::move(value));
    const TokenKind kind = now().kind;
    const bool is_value = kind == TokenKind::string || kind == TokenKind::integer || kind == TokenKind::number ||
                          is_sign("[") || is_sign("{") ||
                          (kind == TokenKind::name && !is_name("else") && !is_name("or") && !is_name("and"));
    if (is_name("is")) refuse("found a test behind a test, expected \"and\" between them");
    if (is_value) {
      node->names.emplace_back();
      node->parts.push_back(postfix(primary()));
    }
  }
  return negative ? make_of(Op::not_, "", std::move(node)) : std::move(node);
}

}  // namespace blipft::jinja
