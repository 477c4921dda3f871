// Standard output and standard error: a check that all output was written, generated text on a terminal, and the last
// messages of a process that ends.
#pragma once

#include <string>
#include <string_view>

namespace blipft {

/// Flushes standard output. Returns `status`; if the output could not be written, for example because the disk is full,
/// prints a message on standard error and returns 1 instead of 0. A pipe whose reader has exited is not an error.
int check_standard_output(int status);

/// Writes to standard error at once, bypassing every queue. If the reader accepts nothing (a stopped terminal, a pipe
/// without a reader), gives up after a second, so that the process can end. Safe in signal handlers.
void write_error_now(std::string_view text);

/// Returns generated text for printing. On a terminal, control characters except line ends and tabs are written as \x1b
/// or \u009b, so that the text cannot control the terminal; otherwise the text is unchanged. `text` must consist of
/// complete UTF-8 characters.
std::string printable(std::string_view text, bool is_terminal);

}  // namespace blipft
