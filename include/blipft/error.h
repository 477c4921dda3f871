// Errors: one exception type for the whole program.
//
// A user's mistake (a file, a key, a value) is a UserError: its text names the cause, what was found, what was expected
// and what to do. Everything else is an Error with the source location that raised it. main() catches both types, one
// rank prints the message, and all ranks exit.
#pragma once

#include <cstdint>
#include <source_location>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace blipft {

/// Concatenates its arguments, formatted with operator<<, into one string.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

/// "1 sample", "3 samples".
inline std::string counted(int64_t number, std::string_view what) { return concat(number, " ", what, number == 1 ? "" : "s"); }

/// Returns `text` for quoting in a message: at most `maximum` bytes, with "?" for each control character, so that a broken
/// file neither fills the screen nor controls the terminal.
inline std::string brief(std::string_view text, size_t maximum = 80) {
  const auto continues = [&](size_t at) { return (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80; };
  size_t end = text.size() > maximum ? maximum : text.size();
  while (end > 0 && end < text.size() && continues(end)) --end;  // cuts only between whole UTF-8 characters
  std::string out(text.substr(0, end));
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return end < text.size() ? out + "..." : out;
}

/// Returns `message` with each NUL character written as \0, because what() would end at the first NUL.
inline std::string without_nul(std::string message) {
  for (size_t at = message.find('\0'); at != std::string::npos; at = message.find('\0', at)) message.replace(at, 1, "\\0");
  return message;
}

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, std::source_location location = std::source_location::current())
      : std::runtime_error(without_nul(message)), location_(location) {}
  const std::source_location& location() const { return location_; }

 private:
  std::source_location location_;
};

/// A mistake in the user's input; printed without the source location.
class UserError : public Error {
 public:
  // The constructor is written out instead of inherited: nvcc 13.0 crashes on an inherited constructor with this
  // default argument.
  explicit UserError(const std::string& message, std::source_location location = std::source_location::current())
      : Error(message, location) {}
};

/// Returns the message of an error for the user, with the source location unless it is a UserError.
inline std::string describe(const std::exception& error) {
  const auto* ours = dynamic_cast<const Error*>(&error);
  const std::string text = *error.what() ? error.what() : "unknown error";
  if (!ours || dynamic_cast<const UserError*>(&error)) return text;
  return concat(text, " (", ours->location().file_name(), ":", ours->location().line(), ")");
}

}  // namespace blipft

/// Throws Error with the failed expression and the joined message parts if `condition` is false.
#define BLIPFT_CHECK(condition, ...)                                                       \
  do {                                                                                     \
    if (!(condition)) [[unlikely]]                                                         \
      throw ::blipft::Error(::blipft::concat("check failed: " #condition ": ", __VA_ARGS__)); \
  } while (false)

/// Throws UserError with the joined message parts if `condition` is false.
#define BLIPFT_USER_CHECK(condition, ...)                                      \
  do {                                                                         \
    if (!(condition)) [[unlikely]]                                             \
      throw ::blipft::UserError(::blipft::concat(__VA_ARGS__));                \
  } while (false)
