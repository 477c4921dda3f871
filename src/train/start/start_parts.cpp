// Running the parts of a start; see start_parts.h.
#include "train/start/start_parts.h"

#include <map>
#include <memory>
#include <set>

#include "blipft/error.h"

namespace blipft {

void run_start_parts(const std::vector<StartPart>& parts, const World& world, StartTimes& times) {
  std::set<std::string> begun;
  std::map<std::string, std::unique_ptr<Beside>> running;  // those that nobody has waited for
  for (const StartPart& part : parts) {
    bool waits = false;
    for (const std::string& need : part.needs) {
      BLIPFT_CHECK(begun.count(need) > 0, "part ", part.name, " of the start needs ", need, ", which is not above it");
      waits = waits || running.count(need) > 0;
    }
    const auto wait = [&] {
      for (const std::string& need : part.needs)
        if (const auto found = running.find(need); found != running.end()) {
          const std::unique_ptr<Beside> needed = std::move(found->second);
          running.erase(found);
          needed->wait();
        }
    };
    const bool local = part.where == StartPart::Where::local;
    if (waits && !local) world.together(wait);
    if (local)
      world.together([&] {
        wait();
        if (part.body) part.body();
      });
    else if (!part.applies || part.applies()) {
      if (part.where == StartPart::Where::collective) part.body();
      else running[part.name] = std::make_unique<Beside>(times, part.timed_as, part.body);
    }
    begun.insert(part.name);
    if (part.where != StartPart::Where::beside && !part.timed_as.empty()) times.part(part.timed_as);
  }
  BLIPFT_CHECK(running.empty(), "no part of the start needs ", running.begin()->first);
}

}  // namespace blipft
