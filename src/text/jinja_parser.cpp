// Parses statements of chat templates; see jinja_syntax.h.
#include "text/jinja_parser.h"

namespace blipft::jinja {
namespace {

class Parser : Expressions {
 public:
  explicit Parser(std::string_view source) : Expressions(source) {}

  NodePtr whole() { return body({}); }

 private:
  /// Parses up to a tag of one of these names; the name stays the current token.
  NodePtr body(std::initializer_list<std::string_view> ends) {
    const Deeper deeper(*this);
    NodePtr block = make(Op::block);
    for (;;) {
      if (now().kind == TokenKind::end) {
        if (ends.size() == 0) return block;
        unexpected(concat("{% ", *(ends.end() - 1), " %}"));
      }
      if (now().kind == TokenKind::data) {
        NodePtr data = make(Op::data, now().text);
        next();
        block->parts.push_back(std::move(data));
      } else if (now().kind == TokenKind::print_begin) {
        next();
        block->parts.push_back(make_of(Op::print, "", tuple(true)));
        expect(TokenKind::print_end, "}}");
      } else {
        next();
        if (std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return is_name(end); })) return block;
        block->parts.push_back(statement());
      }
    }
  }

  /// Parses the body of a tag and its end.
  NodePtr body_to(std::string_view end) {
    end_block();
    NodePtr block = body({end});
    end_tag();
    return block;
  }

  NodePtr statement() {
    const std::string name = now().kind == TokenKind::name ? now().text : "";
    NodePtr node = make(Op::block);
    if (name == "if") return next(), if_statement();
    if (name == "for") return next(), for_statement();
    if (name == "set") return next(), set_statement();
    if (name == "macro") {
      next();
      const std::string macro = expect_name();
      return macro_of(macro, true, "endmacro");
    }
    if (name == "call") {
      next();
      const bool has_parameters = is_sign("(");
      // The parameters of the caller block precede the call.
      NodePtr caller = make(Op::macro, "caller");
      if (has_parameters) parameters(*caller);
      NodePtr call = expression();
      if (call->op != Op::call) unexpected("a call");
      macro_body(*caller, "endcall");
      return make_of(Op::call_block, "", std::move(call), std::move(caller));
    }
    if (name == "filter") {
      next();
      NodePtr filters = filter_chain(nullptr, true);
      NodePtr text = body_to("endfilter");
      return make_of(Op::filter_block, "", std::move(filters), std::move(text));
    }
    if (name == "generation") {
      next();
      return make_of(Op::generation, "", macro_of("caller", false, "endgeneration"));
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) refuse(concat("found {% ", name, " %} outside of a loop"));
      node->op = name == "break" ? Op::break_ : Op::continue_;
      return end_tag(), std::move(node);
    }
    unexpected("a statement of chat templates (if, for, set, macro, call, filter, generation, break, continue, raw)");
  }

  NodePtr if_statement() {
    NodePtr node = make_of(Op::if_, "", tuple(false));
    end_block();
    node->parts.push_back(body({"elif", "else", "endif"}));
    const Deeper deeper(*this);
    if (skip_name("elif")) return node->parts.push_back(if_statement()), std::move(node);
    const bool has_else = skip_name("else");
    if (has_else) {
      end_block();
      node->parts.push_back(body({"endif"}));
    } else {
      node->parts.push_back(nullptr);
    }
    return end_tag(), std::move(node);
  }

  NodePtr for_statement() {
    NodePtr target = assign_target(false);
    if (!skip_name("in")) unexpected("in");
    NodePtr items = tuple(false), condition;
    if (skip_name("if")) condition = expression();
    if (is_name("recursive")) refuse("found a recursive loop, which is not supported: use a macro that calls itself");
    end_block();
    ++loops_;
    NodePtr block = body({"else", "endfor"}), other;
    --loops_;
    if (skip_name("else")) {
      end_block();
      other = body({"endfor"});
    }
    end_tag();
    return make_of(Op::for_, "", std::move(target), std::move(items), std::move(condition), std::move(block),
                   std::move(other));
  }

  NodePtr set_statement() {
    NodePtr target = assign_target(true);
    if (skip_sign("=")) {
      NodePtr node = make_of(Op::set, "", std::move(target), tuple(true));
      end_block();
      return node;
    }
    NodePtr filters = is_sign("|") ? filter_chain(nullptr, false) : nullptr;
    NodePtr text = body_to("endset");
    return make_of(Op::set_block, "", std::move(target), std::move(text), std::move(filters));
  }

  NodePtr assign_target(bool with_attribute) {
    const auto one = [&]() -> NodePtr {
      if (skip_sign("(")) {
        NodePtr inner = assign_target(false);
        expect_sign(")");
        return inner;
      }
      NodePtr name = make(Op::name, now().text);
      const std::string text = expect_name();
      if (text == "true" || text == "false" || text == "none") refuse(concat("cannot assign to ", text));
      return name;
    };
    const Deeper deeper(*this);
    NodePtr first = one();
    if (with_attribute && first->op == Op::name && skip_sign(".")) {
      const std::string attribute = expect_name();
      return make_of(Op::attribute, attribute, std::move(first));
    }
    if (!is_sign(",")) return first;
    NodePtr all = make_of(Op::tuple, "", std::move(first));
    while (skip_sign(","))
      if (now().kind == TokenKind::name || is_sign("(")) all->parts.push_back(one());
    return all;
  }

  void parameters(Node& macro) {
    expect_sign("(");
    while (!is_sign(")")) {
      macro.names.push_back(expect_name());
      if (skip_sign("=")) macro.parts.push_back(expression());
      else if (!macro.parts.empty()) unexpected("a default for each parameter behind one that has it");
      if (!is_sign(")")) expect_sign(",");
    }
    next();
  }

  void macro_body(Node& macro, std::string_view end) {
    const int loops = loops_;
    Node* const outer = macro_;
    loops_ = 0;
    macro_ = &macro;
    macro.parts.insert(macro.parts.begin(), body_to(end));
    macro_ = outer;
    loops_ = loops;
  }

  NodePtr macro_of(const std::string& name, bool has_parameters, std::string_view end) {
    NodePtr macro = make(Op::macro, name);
    if (has_parameters) parameters(*macro);
    macro_body(*macro, end);
    return macro;
  }

  int loops_ = 0;
};

}  // namespace

NodePtr parse(std::string_view source) { return Parser(source).whole(); }

}  // namespace blipft::jinja
