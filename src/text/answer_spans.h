// The positions of a conversation's answers in its text, if the chat template has no {% generation %} blocks.
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

/// Returns the spans, [begin, end) in bytes, of the answers that `trains` lists in `whole`, the text of all messages.
/// An answer begins where the prompt of the messages before it ends. If the template opens the prompt with something
/// that the text leaves out, such as a thought, it begins behind what the two have in common. It ends behind the mark
/// that ends its turn, or behind `eos_token` (empty: unknown) if this comes first.
///
/// The time is linear in the length of the conversation: prompts and ends are rendered until the same has come eight
/// times, and for the last answer. If they differ from answer to answer, each is rendered, in quadratic time, up to a
/// limit. Throws UserError naming `location` for an answer that cannot be located.
std::vector<std::pair<size_t, size_t>> answer_spans(const nlohmann::ordered_json& messages, const std::string& whole,
                                                    const std::vector<size_t>& trains, const std::string& eos_token,
                                                    const RenderMessages& render, const std::string& location);

}  // namespace blipft
