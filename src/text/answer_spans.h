// Finds the answers of a conversation in its rendered text, if the chat template has no {% generation %} blocks.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace blipft {

/// Renders the first `count` of these messages.
using RenderMessages =
    std::function<std::string(const nlohmann::ordered_json& messages, size_t count, bool generation_prompt)>;

/// Returns the spans, [begin, end) in bytes, of answers in `whole`, the text of all messages. `trains` lists the
/// indices of these answers, ascending. An answer begins at the end of the prompt that the template renders for the
/// messages before it. Some templates end this prompt with text that `whole` does not have, such as the start of a
/// thought; then the answer begins after the common part of both. An answer ends after the mark that ends its turn, or
/// after `eos_token` (empty: unknown) if that comes first.
///
/// The time is linear in the length of the conversation: prompts and ends are rendered until the same text was found
/// eight times, and for the last answer. If they differ between answers, each one is rendered, in quadratic time, up to
/// a limit. An answer that cannot be located is a UserError naming `location`: nothing is ever trained on a guess.
std::vector<std::pair<size_t, size_t>> answer_spans(const nlohmann::ordered_json& messages, const std::string& whole,
                                                    const std::vector<size_t>& trains, const std::string& eos_token,
                                                    const RenderMessages& render, const std::string& location);

}  // namespace blipft
