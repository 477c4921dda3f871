// Detection of lost and stalled ranks; see rank_watch.h.
#include "liveness/rank_watch.h"

#include <algorithm>

#include "blipft/error.h"

namespace blipft {

namespace {
constexpr size_t kListed = 8;
constexpr uint64_t kMovedBytes = 1 << 16;  // smaller amounts come from the trace or the watchdog itself

std::string seconds_text(double seconds) { return concat(static_cast<int64_t>(seconds * 10 + 0.5) / 10.0, " s"); }

// Returns true for a rank that has generated its own part and waits for the results of others.
bool waits_for_results(const Activity::State& state) {
  return state.phase == Activity::Phase::results && is_collective(state.doing);
}
}  // namespace

RankWatch::RankWatch(int64_t ranks, double timeout_seconds, const Activity& names)
    : timeout_(timeout_seconds), names_(names), ranks_(static_cast<size_t>(ranks)) {}

void RankWatch::joined(int64_t rank, const std::string& host, double now) {
  Rank& one = ranks_.at(static_cast<size_t>(rank));
  one.joined = true;
  one.host = host;
  one.heard = one.changed = now;
  progress_ = std::max(progress_, now);
}

void RankWatch::beat(int64_t rank, const Beat& beat, double now) {
  Rank& one = ranks_.at(static_cast<size_t>(rank));
  one.heard = now;
  const Activity::Phase phase = Activity::State::of(beat.state).phase;
  const bool steps = Activity::has_steps(phase);
  const bool moved = !steps && beat.io_bytes >= one.beat.io_bytes + kMovedBytes;
  if (beat.progress == one.beat.progress && !moved) return;
  one.beat = beat;
  one.changed = now;
  if (steps && progress_ >= 0) longest_still_ = std::max(longest_still_, now - progress_);
  progress_ = now;
}

void RankWatch::left(int64_t rank) { ranks_.at(static_cast<size_t>(rank)).left = true; }

void RankWatch::closed(int64_t rank, double now) {
  Rank& one = ranks_.at(static_cast<size_t>(rank));
  one.gone = one.joined && !one.left;
  one.heard = now;
}

std::string RankWatch::name(size_t rank) const {
  return concat("rank ", rank, " on ", ranks_[rank].host);
}

std::string RankWatch::list(const std::vector<size_t>& ranks, bool with_state) const {
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kListed); ++i) {
    text += concat(i == 0 ? "" : ", ", name(ranks[i]));
    if (with_state) text += concat(" (last heard: ", names_.text(Activity::State::of(ranks_[ranks[i]].beat.state)), ")");
  }
  return ranks.size() > kListed ? concat(text, " and ", ranks.size() - kListed, " more") : text;
}

std::optional<std::string> RankWatch::lost(double now) const {
  std::vector<size_t> gone, silent;
  double longest = 0;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const Rank& rank = ranks_[r];
    if (rank.gone) gone.push_back(r);
    if (!rank.joined || rank.left || rank.gone || now - rank.heard <= timeout_) continue;
    silent.push_back(r);
    longest = std::max(longest, now - rank.heard);
  }
  if (!gone.empty()) return concat("missing: ", list(gone, true), ": killed, its process has ended without a word");
  if (silent.empty()) return std::nullopt;
  return concat("missing: ", list(silent, true), ": stopped or cut off, no heartbeat for ", seconds_text(longest),
                " (parallel.timeout_seconds ", timeout_, ")");
}

double RankWatch::allowed_stillness() const {
  int64_t step = -1;
  for (const Rank& rank : ranks_) {
    if (!rank.joined || rank.left) continue;
    const Activity::State state = Activity::State::of(rank.beat.state);
    if (waits_for_results(state)) continue;
    if (!Activity::has_steps(state.phase)) return kOtherPhases * timeout_;
    step = std::max(step, state.step);
  }
  return step < 2 ? kFirstSteps * timeout_ : std::max(timeout_, 2 * longest_still_);
}

// The missing ranks are those with fewer steps than the others, or else those that are not in a collective while others
// are.
std::optional<std::string> RankWatch::still(double now) const {
  if (progress_ < 0 || now - progress_ <= allowed_stillness()) return std::nullopt;
  std::vector<size_t> outside, behind, inside;
  int64_t last = INT64_MAX, first = -1;
  const auto state = [&](size_t r) { return Activity::State::of(ranks_[r].beat.state); };
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (!ranks_[r].joined || ranks_[r].left) continue;
    (is_collective(state(r).doing) ? inside : outside).push_back(r);
    if (waits_for_results(state(r))) continue;
    last = std::min(last, state(r).step), first = std::max(first, state(r).step);
  }
  if (inside.empty() && outside.empty()) return std::nullopt;
  for (const std::vector<size_t>* ranks : {&inside, &outside})
    for (const size_t r : *ranks)
      if (!waits_for_results(state(r)) && state(r).step == last && last < first) behind.push_back(r);
  const std::vector<size_t>& missing = !behind.empty() ? behind : inside.empty() ? inside : outside;
  const std::string who = missing.empty() ? concat("all are alike: ", list(inside.empty() ? outside : inside, true))
                                          : concat("missing: ", list(missing, true));
  return concat("no rank has got any further for ", seconds_text(now - progress_), " (parallel.timeout_seconds ",
                timeout_, "); ", who, absent().empty() ? "" : concat("; never heard of: rank(s) ", absent()));
}

std::optional<std::string> RankWatch::verdict(double now) const {
  if (const std::optional<std::string> fault = lost(now)) return fault;
  return still(now);
}

bool RankWatch::hears(int64_t rank, double now) const {
  const Rank& one = ranks_.at(static_cast<size_t>(rank));
  return one.joined && !one.gone && now - one.heard <= timeout_;
}

bool RankWatch::has_gone() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.gone; });
}

std::string RankWatch::absent() const {
  std::string text;
  for (size_t r = 0; r < ranks_.size(); ++r)
    if (!ranks_[r].joined) text += concat(text.empty() ? "" : ", ", r);
  return text;
}

}  // namespace blipft
