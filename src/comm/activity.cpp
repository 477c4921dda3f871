// Formats activities as text; see activity.h.
#include "blipft/activity.h"

namespace blipft {

namespace {

const char* text_of(Activity::RankOperation doing) {
  switch (doing) {
    case Activity::RankOperation::host: return "";
    case Activity::RankOperation::data: return "waiting for data";
    case Activity::RankOperation::device: return "on the GPU";
    case Activity::RankOperation::forward: return "forward";
    case Activity::RankOperation::recompute: return "recompute";
    case Activity::RankOperation::backward: return "backward";
    case Activity::RankOperation::loss: return "loss";
    case Activity::RankOperation::update: return "update";
    case Activity::RankOperation::gather: return "all_gather";
    case Activity::RankOperation::reduce_scatter: return "reduce_scatter";
    case Activity::RankOperation::all_reduce: return "all_reduce";
    case Activity::RankOperation::step: return "step";
    case Activity::RankOperation::barrier: return "barrier";
    case Activity::RankOperation::broadcast: return "broadcast";
    case Activity::RankOperation::sum: return "all_reduce of a number";
    case Activity::RankOperation::gather_on_host: return "gather";
    case Activity::RankOperation::agreement: return "agreement on errors";
  }
  return "?";
}

}  // namespace

std::string Activity::text(const State& state) const {
  static constexpr const char* kPhases[] = {"start-up", "step ", "validation after step ", "saving after step ",
                                            "end after step ", "generation round ", "scoring round ", "collecting the results"};
  std::string text = state.phase <= Phase::results ? kPhases[static_cast<size_t>(state.phase)] : "?";
  if (state.phase != Phase::start && state.phase != Phase::results) text += std::to_string(state.step);
  if (state.doing == RankOperation::host) return text;
  text += std::string(": ") + text_of(state.doing);
  if (state.unit < 0) return text;
  const std::vector<std::string>* names = names_.load(std::memory_order_acquire);
  const auto unit = static_cast<size_t>(state.unit);
  return text + " of " + (names && unit < names->size() ? (*names)[unit] : "unit " + std::to_string(unit));
}

}  // namespace blipft
