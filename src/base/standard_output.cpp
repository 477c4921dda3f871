// Standard output; see standard_output.h.
#include "base/standard_output.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>

namespace blipft {

int check_standard_output(int status) {
  const bool failed_now = std::fflush(stdout) != 0;
  const char* const why = failed_now ? std::strerror(errno) : "an earlier write failed";
  const bool lost = failed_now || std::ferror(stdout);
  pollfd output{STDOUT_FILENO, 0, 0};
  if (!lost || (::poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0)) return status;
  std::fprintf(stderr, "blipft: standard output: cannot be written: %s; free some space, or send it elsewhere\n",
               why);
  return status == 0 ? 1 : status;
}

void write_error_now(std::string_view text) {
  constexpr int kMaxWaitMs = 1000;
  const int before = errno;                  // of the code that a signal has interrupted
  while (!text.empty()) {
    pollfd output{STDERR_FILENO, POLLOUT, 0};
    const int ready = ::poll(&output, 1, kMaxWaitMs);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) break;
    const ssize_t count = ::write(STDERR_FILENO, text.data(), text.size() < PIPE_BUF ? text.size() : PIPE_BUF);
    if (count < 0 && errno != EINTR && errno != EAGAIN) break;
    if (count > 0) text.remove_prefix(static_cast<size_t>(count));
  }
  errno = before;
}

std::string printable(std::string_view text, bool is_terminal) {
  if (!is_terminal) return std::string(text);
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const auto next = at + 1 < text.size() ? static_cast<unsigned char>(text[at + 1]) : 0;
    char escape[8];
    if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f) {
      std::snprintf(escape, sizeof escape, "\\x%02x", byte);
      out += escape;
    } else if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {  // U+0080 to U+009F
      std::snprintf(escape, sizeof escape, "\\u%04x", next);
      out += escape;
      ++at;
    } else {
      out += text[at];
    }
  }
  return out;
}

}  // namespace blipft
