// Chat templates; see jinja_template.h.
#include "text/jinja_template.h"

#include <algorithm>

#include "text/jinja_eval.h"

namespace blipft {
namespace {

/// Adds the names and strings of a tree. Returns true if it has {% generation %}.
bool collect(const jinja::Node& node, std::set<std::string>& names) {
  if (node.op == jinja::Op::name || node.op == jinja::Op::attribute) names.insert(node.text);
  if (node.value.is_text()) names.insert(node.value.text());
  bool marks = node.op == jinja::Op::generation;
  for (const auto& part : node.parts) marks |= part && collect(*part, names);
  return marks;
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, std::string name) : name_(std::move(name)) {
  try {
    root_ = jinja::parse(source);
  } catch (const jinja::SyntaxError& error) {
    syntax_error_ = concat(name_, ":", error.line, ": ", error.message, ". Correct the chat template.");
    return;
  }
  marks_answers_ = collect(*root_, names_);
}

ChatTemplate::Text ChatTemplate::render(const nlohmann::ordered_json& variables, const std::tm& now) const {
  if (!root_) throw UserError(syntax_error_);
  jinja::Scope globals;
  for (const auto& item : variables.items()) globals.names[item.key()] = jinja::from_json(item.value());
  jinja::Evaluator evaluator(globals, now);
  try {
    Text out{evaluator.run(*root_), {}};
    for (const auto& [begin, length] : evaluator.spans()) {
      std::string_view rest = std::string_view(out.text).substr(begin);
      for (int64_t i = 0; i < length; ++i) rest.remove_prefix(jinja::first_character(rest).size());
      out.spans.emplace_back(begin, out.text.size() - rest.size());
    }
    return out;
  } catch (const jinja::Failure& failure) {
    throw UserError(concat(name_, ":", evaluator.line(), ": ", brief(failure.message, 400)));
  }
}

nlohmann::ordered_json chat_messages(const nlohmann::ordered_json& messages) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const auto& message : messages) {
    nlohmann::ordered_json kept = nlohmann::ordered_json::object(), reasoning;
    for (const char* name : {"reasoning_content", "thinking", "reasoning"})
      if (reasoning.is_null() && message.contains(name)) reasoning = message[name];
    if (!reasoning.is_null()) kept["thinking"] = reasoning;
    for (const auto& item : message.items())
      if (!item.value().is_null() && !(item.key() == "thinking" && !reasoning.is_null()))
        kept[item.key()] = item.value();
    if (!reasoning.is_null()) kept["reasoning_content"] = reasoning;
    out.push_back(std::move(kept));
  }
  return out;
}

}  // namespace blipft
