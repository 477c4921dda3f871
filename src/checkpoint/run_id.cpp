// Ids of runs; see run_id.h.
#include "checkpoint/run_id.h"

#include <sys/random.h>

#include <cerrno>

#include "blipft/error.h"
#include "io/file.h"

namespace blipft {

std::string run_id_of(const std::map<std::string, std::string>& run) {
  const auto found = run.find(kRunId);
  return found == run.end() ? "" : found->second;
}

std::string new_run_id() {
  unsigned char bytes[16];
  BLIPFT_CHECK(::getrandom(bytes, sizeof bytes, 0) == static_cast<ssize_t>(sizeof bytes),
               "no random bytes for the run's id: ", io::errno_text());
  constexpr char kDigits[] = "0123456789abcdef";
  std::string id;
  for (const unsigned char byte : bytes) id += {kDigits[byte >> 4], kDigits[byte & 15]};
  return id;
}

std::string agree_on_run_id(const World& world, const std::string& earlier) {
  std::string id = earlier;
  world.together([&] {
    if (world.rank() == 0 && id.empty()) id = new_run_id();
  });
  return world.from_rank(0, id);
}

}  // namespace blipft
