// ChatTemplate: a Jinja template of a model's folder, with the semantics of transformers.
#pragma once

#include <ctime>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace blipft {

namespace jinja {
struct Node;
}

class ChatTemplate {
 public:
  struct Text {
    std::string text;
    /// The parts of the text from {% generation %} blocks: [begin, end) in bytes.
    std::vector<std::pair<size_t, size_t>> spans;
  };

  /// `name`: the file or key, for messages. render() reports syntax errors, because a run may never render anything.
  ChatTemplate(std::string_view source, std::string name);

  /// `variables`: an object with the template's variables: messages, add_generation_prompt, bos_token... `now`: the
  /// time of strftime_now(). Throws UserError with name and line; time, memory and depth are bounded.
  Text render(const nlohmann::ordered_json& variables, const std::tm& now) const;
  /// Returns true if the template has {% generation %} blocks.
  bool marks_answers() const { return marks_answers_; }
  /// Returns true if the template names this variable or key: it prints only variables and keys that it names.
  bool reads(const std::string& key) const { return names_.contains(key); }

 private:
  const std::string name_;
  std::shared_ptr<const jinja::Node> root_;
  std::string syntax_error_;
  std::set<std::string> names_;
  bool marks_answers_ = false;
};

/// Returns messages as transformers 5 passes them to a template: without null keys, and with reasoning under the keys
/// reasoning_content and thinking.
nlohmann::ordered_json chat_messages(const nlohmann::ordered_json& messages);

}  // namespace blipft
