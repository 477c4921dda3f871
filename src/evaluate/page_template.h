// The frame of the evaluation page: style, search, order, and the cards, which are made as they come into sight.
#pragma once

namespace blipft {

/// Has the marks @TITLE@, @HEADING@, @SUMMARY@, @METRICS@ ([[name, higher is better], ...]) and @SAMPLES@
/// ([[id, link to the picture, prompt, candidate, [reference, ...], [score, ...]], ...]), in this order.
extern const char* const page_template;

}  // namespace blipft
