// Running the parts of a start; see start_parts.h.
#include "train/start/start_parts.h"

#include <algorithm>
#include <set>

#include "blipft/error.h"

namespace blipft {

namespace {

using Where = StartPart::Where;

void check_table(const std::vector<StartPart>& parts) {
  std::set<std::string> above, needed;
  for (const StartPart& part : parts) {
    for (const std::string& need : part.needs)
      BLIPFT_CHECK(above.count(need) > 0, "part ", part.name, " of the start needs ", need, ", which is not above it");
    above.insert(part.name);
    needed.insert(part.needs.begin(), part.needs.end());
  }
  for (const StartPart& part : parts) {
    if (part.where != Where::beside) continue;
    BLIPFT_CHECK(needed.count(part.name) > 0, "no part of the start needs ", part.name, ", which runs beside the others");
    BLIPFT_CHECK(!part.timed_as.empty(), "part ", part.name, " of the start has no name for its time");
  }
}

}  // namespace

void StartParts::run(const std::vector<StartPart>& parts) {
  check_table(parts);
  for (const StartPart& part : parts) run(part);
}

void StartParts::run(const StartPart& part) {
  const bool applies = !part.applies || part.applies();
  const auto body = [&] {
    if (applies && part.body) part.body();
  };
  if (part.where == Where::local) {
    world_.run_agreeing_on_errors([&] {
      wait_for(part.needs);
      body();
      if (!part.timed_as.empty()) times_.part(part.timed_as);  // the time excludes the wait for other ranks
    });
    return;
  }
  const bool waits = std::any_of(part.needs.begin(), part.needs.end(), [&](const auto& need) { return running_.count(need) > 0; });
  if (waits) world_.run_agreeing_on_errors([&] { wait_for(part.needs); });
  if (part.where == Where::beside) {
    if (applies) running_[part.name] = std::make_unique<BackgroundTask>(times_, part.timed_as, part.body);
    return;
  }
  body();
  if (!part.timed_as.empty()) times_.part(part.timed_as);
}

void StartParts::wait_for(const std::vector<std::string>& needs) {
  for (const std::string& need : needs) {
    const auto found = running_.find(need);
    if (found == running_.end()) continue;
    const std::unique_ptr<BackgroundTask> part = std::move(found->second);
    running_.erase(found);
    part->wait();
  }
}

}  // namespace blipft
