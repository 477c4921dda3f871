// The message of the UserError that an action ends with, for tests that read it.
#pragma once

#include <functional>
#include <string>

#include "blipft/error.h"

namespace blipft::testing {

/// "" where none is thrown.
inline std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

}  // namespace blipft::testing
