// Standard output and standard error: whether what was printed has reached its file, generated text on a terminal, and the
// last words of a process that ends.
#pragma once

#include <string>
#include <string_view>

namespace blipft {

/// Flushes standard output. Returns `status`, or 1 in place of 0 after a message on standard error if the output could not be
/// written, such as to a full disk. A pipe whose reader has gone is no error.
int check_standard_output(int status);

/// Writes to standard error at once, past every queue. If the reader takes nothing (a stopped terminal, a pipe that nobody
/// reads), gives up after a second, so that a process which must end does end. Safe in signal handlers.
void write_error_now(std::string_view text);

/// Returns true if a person reads standard output on a terminal. Open MPI gives rank 0 a pseudo-terminal of its own; then the
/// output of mpirun, the parent process, decides.
bool stdout_is_terminal();

/// Returns generated text as it may be printed: on a terminal, control characters but line ends and tabs are written as \x1b
/// or \u009b, so that a text does not steer the terminal; else unchanged. `text` is UTF-8 in whole characters.
std::string printable(std::string_view text, bool is_terminal);

}  // namespace blipft
