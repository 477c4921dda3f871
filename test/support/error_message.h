// The message of the error that an action ends with, for tests that read it.
#pragma once

#include <string>

#include "blipft/error.h"

namespace blipft::testing {

/// "" where none is thrown. E: the kind of error that is expected; others pass.
template <class E = UserError, class Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

}  // namespace blipft::testing
