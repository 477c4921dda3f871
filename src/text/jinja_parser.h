// Parses expressions of chat templates, with Jinja's order of operators; jinja_parser.cpp adds the statements.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "text/jinja_syntax.h"

namespace blipft::jinja {

using NodePtr = std::unique_ptr<Node>;

constexpr int max_tree_depth = 300;

class Expressions {
 protected:
  explicit Expressions(std::string_view source) : tokens_(tokens_of(source)) {}

  /// Counts one level of the tree during its lifetime, and one for each further operator of a chain.
  struct Deeper {
    explicit Deeper(Expressions& of) : parser(of), before(of.depth_) { grow(); }
    ~Deeper() { parser.depth_ = before; }
    void grow() {
      if (++parser.depth_ > max_tree_depth)
        parser.refuse(concat("found tags or expressions nested more than ", max_tree_depth, " deep"));
    }
    Expressions& parser;
    const int before;
  };

  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  bool is_sign(std::string_view sign) const { return now().kind == TokenKind::sign && now().text == sign; }
  bool is_name(std::string_view name) const { return now().kind == TokenKind::name && now().text == name; }
  Token next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool skip_sign(std::string_view sign) { return is_sign(sign) && (next(), true); }
  bool skip_name(std::string_view name) { return is_name(name) && (next(), true); }

  [[noreturn]] void refuse(const std::string& problem) const { throw SyntaxError{problem, now().line}; }
  [[noreturn]] void unexpected(std::string_view expected) const {
    const bool ends = now().kind == TokenKind::end,
               tag_ends = now().kind == TokenKind::print_end || now().kind == TokenKind::block_end;
    refuse(concat("found ",
                  ends       ? "the end of the template"
                  : tag_ends ? "the end of the tag"
                             : concat("\"", brief(now().text), "\""),
                  ", expected ", expected));
  }
  void expect_sign(std::string_view sign) {
    if (!skip_sign(sign)) unexpected(sign);
  }
  void expect(TokenKind kind, std::string_view what) {
    if (now().kind != kind) unexpected(what);
    next();
  }
  std::string expect_name() {
    if (now().kind != TokenKind::name) unexpected("a name");
    return next().text;
  }
  void end_block() { expect(TokenKind::block_end, "%}"); }
  void end_tag() { next(), end_block(); }

  NodePtr make(Op op, std::string text = "") const {
    auto node = std::make_unique<Node>();
    node->op = op;
    node->line = now().line;
    node->text = std::move(text);
    return node;
  }
  template <class... Parts>
  NodePtr make_of(Op op, std::string text, Parts... parts) const {
    NodePtr node = make(op, std::move(text));
    for (Node* const part : {parts.get()...})
      if (part) {
        node->line = part->line;
        break;
      }
    (node->parts.push_back(std::move(parts)), ...);
    return node;
  }

  NodePtr expression();
  /// Parses expressions; several with commas become a tuple. `conditions`: each may be an inline if.
  NodePtr tuple(bool conditions);
  NodePtr either();
  NodePtr both();
  NodePtr logical(std::string_view word, Op op, NodePtr (Expressions::*part)());
  NodePtr negated();
  std::string comparison_sign();
  NodePtr comparison();
  NodePtr chain(std::initializer_list<std::string_view> signs, NodePtr (Expressions::*part)());
  NodePtr joined();
  NodePtr products();
  NodePtr powers();
  NodePtr unary_with_filters();
  NodePtr unary(bool with_filters);
  NodePtr primary();
  void note_name(const std::string& name);
  void items_to(Node& node, std::string_view end, bool pairs);
  NodePtr postfix(NodePtr node);
  NodePtr subscript(NodePtr object);
  /// Parses the arguments in brackets of a call, filter or test.
  NodePtr call(Op op, const std::string& name, NodePtr object);
  std::string dotted_name();
  /// Parses filters; the first one has no | before it if `starts_inline`. `node`: null for a filter block.
  NodePtr filter_chain(NodePtr node, bool starts_inline);
  NodePtr filters_and_tests(NodePtr node);
  NodePtr test(NodePtr value);

  Node* macro_ = nullptr;  ///< the macro whose body is being parsed

 private:
  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace blipft::jinja
