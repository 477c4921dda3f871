// Formats activities as text; see activity.h.
#include "blipft/activity.h"

namespace blipft {

namespace {

const char* text_of(Activity::Doing doing) {
  switch (doing) {
    case Activity::Doing::host: return "";
    case Activity::Doing::data: return "waiting for data";
    case Activity::Doing::device: return "on the GPU";
    case Activity::Doing::forward: return "forward";
    case Activity::Doing::recompute: return "recompute";
    case Activity::Doing::backward: return "backward";
    case Activity::Doing::loss: return "loss";
    case Activity::Doing::update: return "update";
    case Activity::Doing::gather: return "all_gather";
    case Activity::Doing::reduce_scatter: return "reduce_scatter";
    case Activity::Doing::all_reduce: return "all_reduce";
    case Activity::Doing::step: return "step";
    case Activity::Doing::barrier: return "barrier";
    case Activity::Doing::broadcast: return "broadcast";
    case Activity::Doing::sum: return "all_reduce of a number";
    case Activity::Doing::gather_on_host: return "gather";
    case Activity::Doing::agreement: return "agreement on errors";
  }
  return "?";
}

}  // namespace

std::string Activity::text(const State& state) const {
  static constexpr const char* kPhases[] = {"start-up", "step ", "validation after step ", "saving after step ",
                                            "end after step ", "generation round ", "scoring round ", "collecting the results"};
  std::string text = state.phase <= Phase::results ? kPhases[static_cast<size_t>(state.phase)] : "?";
  if (state.phase != Phase::start && state.phase != Phase::results) text += std::to_string(state.step);
  if (state.doing == Doing::host) return text;
  text += std::string(": ") + text_of(state.doing);
  if (state.unit < 0) return text;
  const std::vector<std::string>* names = names_.load(std::memory_order_acquire);
  const auto unit = static_cast<size_t>(state.unit);
  return text + " of " + (names && unit < names->size() ? (*names)[unit] : "unit " + std::to_string(unit));
}

}  // namespace blipft
