// Errors: one exception type for the whole program.
//
// A user's mistake (a file, a key, a value) is a UserError: its text names the thing, what was found, what was
// expected and what to do. Everything else is an Error and carries the place in the source where it was raised.
// main() catches both, one rank prints, and all ranks end.
#pragma once

#include <source_location>
#include <sstream>
#include <stdexcept>
#include <string>

namespace blipft {

/// Joins its arguments with operator<< into one string.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, std::source_location place = std::source_location::current())
      : std::runtime_error(message), place_(place) {}
  const std::source_location& place() const { return place_; }

 private:
  std::source_location place_;
};

/// A mistake in what the user gave; printed without the source place.
class UserError : public Error {
 public:
  // Spelled out, not inherited: nvcc 13.0 crashes on an inherited constructor with this default argument.
  explicit UserError(const std::string& message, std::source_location place = std::source_location::current())
      : Error(message, place) {}
};

/// What an error says to the user: with its place in the source, unless it is a user's mistake.
inline std::string describe(const std::exception& error) {
  const auto* ours = dynamic_cast<const Error*>(&error);
  const std::string text = *error.what() ? error.what() : "unknown error";
  if (!ours || dynamic_cast<const UserError*>(&error)) return text;
  return concat(text, " (", ours->place().file_name(), ":", ours->place().line(), ")");
}

}  // namespace blipft

/// Throws Error with the failed expression and the joined message parts when `condition` is false.
#define BLIPFT_CHECK(condition, ...)                                                       \
  do {                                                                                     \
    if (!(condition)) [[unlikely]]                                                         \
      throw ::blipft::Error(::blipft::concat("check failed: " #condition ": ", __VA_ARGS__)); \
  } while (false)

/// Throws UserError with the joined message parts when `condition` is false.
#define BLIPFT_USER_CHECK(condition, ...)                                      \
  do {                                                                         \
    if (!(condition)) [[unlikely]]                                             \
      throw ::blipft::UserError(::blipft::concat(__VA_ARGS__));                \
  } while (false)
