// How an error of one rank ends all.
#pragma once

#include <exception>
#include <functional>

#include "blipft/comm.h"
#include "faults/watchdog.h"

namespace blipft {

/// An error that every rank meets by itself at the same step. Rank 0 prints it, which ends all.
class SharedError : public UserError {
 public:
  explicit SharedError(const std::string& message, std::source_location place = std::source_location::current())
      : UserError(message, place) {}
};

/// Prints `error` with rank, host and what this rank was in, and ends all ranks with code 1; nothing is torn down
/// before, since that may wait for other ranks. `close` finishes what is to be readable afterwards: it gets a few
/// seconds.
[[noreturn]] void end_all_ranks(const std::exception& error, const World& world, Watchdog& watchdog,
                                const std::function<void()>& close);

}  // namespace blipft
