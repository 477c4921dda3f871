// Evaluator: runs a chat template's tree, with the built-in filters, tests and methods.
#pragma once

#include <ctime>
#include <deque>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/jinja_syntax.h"

namespace blipft::jinja {

struct Scope {
  std::unordered_map<std::string_view, Value> names;  ///< the keys belong to the tree or to the caller
  Scope* parent = nullptr;
  bool captured = false;  ///< true if a macro was defined here, which may be called later
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> by_name;
};

constexpr int max_evaluation_depth = 800;  ///< the limit of nested evaluations

class Evaluator {
 public:
  Evaluator(Scope& globals, const std::tm& today) : now(today), globals_(globals) {}

  std::string run(const Node& root);
  int line() const { return line_; }
  /// Returns the spans of {% generation %} blocks: the bytes printed before a block, and its length in code points. As
  /// in transformers, the span of a block in a macro begins at the end of the text printed so far, although its own
  /// text comes later.
  const std::vector<std::pair<size_t, int64_t>>& spans() const { return spans_; }

  // Functions for the built-ins.
  Value text(std::string text);  ///< a new string
  Value list(Kind kind, std::vector<Value> items);
  std::string to_text(const Value& value);
  /// Returns the items of a loop over the value.
  std::vector<Value> iterate(const Value& value);
  Value attribute(const Value& object, const std::string& name);
  Value item(const Value& object, const Value& index);
  Value call(const Value& callee, const Arguments& arguments);
  bool contains(const Value& container, const Value& item);
  bool compare(const std::string& sign, const Value& left, const Value& right);

  Meter meter;
  const std::tm now;

 private:
  enum class Flow : uint8_t { normal, break_, continue_ };
  struct Frame;
  /// Counts one level of nesting during an evaluation.
  struct Deeper {
    explicit Deeper(Evaluator& of) : run(of) {
      if (++run.depth_ > max_evaluation_depth)
        fail("the template calls itself too often: nested more than ", max_evaluation_depth, " deep");
      run.meter.spend(step_cost);
    }
    ~Deeper() { --run.depth_; }
    Evaluator& run;
  };

  Flow run_statement(const Node& node);
  Flow run_block(const Node& node);
  Flow run_loop(const Node& node);
  Flow run_items(const Node& node, std::vector<Value> items);
  void print(const std::string& text);
  std::string captured_text(const Node& body);
  void assign(const Node& target, const Value& value);
  Value macro(const Node& node);

  Value eval(const Node& node);
  Value eval_deeper(const Node& node);
  Value name(const std::string& name);
  Value slice(const Node& node);
  Value binary(const Node& node);
  bool compare_all(const Node& node);
  Arguments arguments(const Node& node);
  Value filtered(const Node& node, const Value* input = nullptr);
  Value call_macro(const Value& callee, const Arguments& arguments);
  Value call_global(const std::string& name, const Arguments& arguments);

  Scope& globals_;
  Scope* scope_ = &globals_;
  std::deque<std::unique_ptr<Scope>> kept_;  ///< scopes that macros may still read
  std::deque<Box> namespaces_;
  std::string root_;
  std::string* out_ = &root_;
  std::vector<std::pair<size_t, int64_t>> spans_;
  int line_ = 1, depth_ = 0;
};

/// Returns the arguments in the order of `names`; null if not given. `needed`: the number of required arguments.
std::vector<const Value*> bound(std::string_view function, const Arguments& arguments,
                                std::initializer_list<std::string_view> names, size_t needed = 0);
int64_t whole_number(const Value& value);

Value run_filter(Evaluator& run, const std::string& name, const Value& input, const Arguments& arguments);
bool run_test(Evaluator& run, const std::string& name, const Value& value, const Arguments& arguments);
/// Returns true if a string, list or dict has a method of that name that templates may call.
bool has_method(const Value& object, std::string_view name);
Value run_method(Evaluator& run, const std::string& name, const Value& self, const Arguments& arguments);
/// Python's operators.
Value add(Evaluator& run, const Value& left, const Value& right);
Value calculate(Evaluator& run, const std::string& sign, const Value& left, const Value& right);
/// "..." % arguments
std::string percent_format(Evaluator& run, const std::string& format, const std::vector<Value>& arguments);
std::string upper_case(std::string_view text);
std::string capitalized(std::string_view text);

}  // namespace blipft::jinja
