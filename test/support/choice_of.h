// The values of a run file's choices by their words, for tests with loops over words.
#pragma once

#include <string_view>

#include "blipft/choices.h"
#include "blipft/error.h"

namespace blipft {

/// Returns the enumerator of `word`. Throws Error if there is none.
template <Choice E>
E choice_of(std::string_view word) {
  const std::optional<E> value = find_choice<E>(word);
  BLIPFT_CHECK(value, "no choice ", word);
  return *value;
}

}  // namespace blipft
