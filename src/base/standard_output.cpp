// Standard output; see standard_output.h.
#include "base/standard_output.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
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
