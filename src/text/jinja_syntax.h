// The syntax of chat templates: text to tokens, and tokens to a tree.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_value.h"

namespace blipft::jinja {

enum class TokenKind : uint8_t {
  data, print_begin, print_end, block_begin, block_end, name, string, integer, number, sign, end
};

struct Token {
  TokenKind kind = TokenKind::end;
  std::string text;  ///< for strings, their value
  int line = 1;
};

/// Splits a template into tokens as Jinja does with trim_blocks and lstrip_blocks, which transformers sets. Throws
/// SyntaxError.
std::vector<Token> tokens_of(std::string_view source);

struct SyntaxError {
  std::string message;
  int line = 1;
};

enum class Op : uint8_t {
  // Expressions
  constant, name, list, tuple, dict, attribute, item, slice, call, filter, test, negative, positive, not_, binary,
  compare, and_, or_, join, conditional,
  // Statements
  block, data, print, if_, for_, set, set_block, macro, call_block, filter_block, generation, break_, continue_
};

/// A node of the tree. Its parts are, by operation:
///   attribute, item: the object, the index; slice: the object, start, stop, step (each may be null)
///   call, filter, test: the callee or the value (null: of a filter block), then the arguments
///   compare: operands, their operators in `names`; conditional: condition, value, other value or null
///   if_: condition, body, else part or null; for_: target, items, condition or null, body, else part or null
///   set: target, value; set_block: target, body, filter or null; macro: body, then the last parameters' defaults
///   call_block: the call, the body as a macro; filter_block: filter, body; generation: the body as a macro
struct Node {
  Op op = Op::block;
  int line = 1;
  std::string text;  ///< a name, an operator, the text of data
  std::vector<std::unique_ptr<Node>> parts;
  std::vector<std::string> names;  ///< names of arguments ("": positional; "*", "**"), of parameters, or operators
  Value value;                     ///< the value of a constant
  bool takes_caller = false, takes_varargs = false, takes_kwargs = false;  ///< used by macros
};

/// Parses a whole template. Throws SyntaxError.
std::unique_ptr<Node> parse(std::string_view source);

}  // namespace blipft::jinja
