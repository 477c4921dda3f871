// RankWatch with a clock of the test's own: who is missing, and when it may be said.
#include <doctest/doctest.h>

#include "liveness/rank_watch.h"

using namespace blipft;

namespace {

using Phase = Activity::Phase;
using RankOperation = Activity::RankOperation;

/// Ranks on hosts h0, h1, ..., all joined at time 0, in step 5 unless told otherwise.
struct Ranks {
  explicit Ranks(int64_t count, double timeout = 10) : watch(count, timeout, names), beats(static_cast<size_t>(count)) {
    for (int64_t r = 0; r < count; ++r) watch.joined(r, "h" + std::to_string(r), 0);
    for (int64_t r = 0; r < count; ++r) moves(r, {Phase::training, RankOperation::forward, 5, -1}, 0);
  }
  void moves(int64_t rank, const Activity::State& state, double now) {
    Beat& beat = beats[static_cast<size_t>(rank)];
    beat.state = state.word();
    ++beat.progress;
    watch.beat(rank, beat, now);
  }
  void stays(int64_t rank, double now) { watch.beat(rank, beats[static_cast<size_t>(rank)], now); }
  void stay(double now) {
    for (size_t r = 0; r < beats.size(); ++r) stays(static_cast<int64_t>(r), now);
  }
  std::string verdict(double now) const { return watch.verdict(now).value_or(""); }

  Activity names;
  RankWatch watch;
  std::vector<Beat> beats;
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_SUITE("rank watch") {
  TEST_CASE("activity: a state survives its word, and texts name phase, step, collective and unit") {
    Activity activity;
    CHECK(activity.text(activity.state()) == "start-up");
    activity.name_units({"vision.layer.0", "head"});
    for (const Activity::State& state :
         {Activity::State{Phase::training, RankOperation::reduce_scatter, (int64_t{1} << 27) - 2, 1},
          Activity::State{Phase::end, RankOperation::agreement, 0, -1}, Activity::State{Phase::saving, RankOperation::host, -1, 70000}}) {
      const Activity::State same = Activity::State::of(state.word());
      CHECK((same.phase == state.phase && same.doing == state.doing && same.step == state.step && same.unit == state.unit));
    }
    activity.step(7);
    activity.doing(RankOperation::gather, 0);
    CHECK(activity.text(activity.state()) == "step 7: all_gather of vision.layer.0");
    const uint64_t progress = activity.progress();
    {
      const Activity::Scope scope(activity, RankOperation::all_reduce);
      CHECK(activity.text(activity.state()) == "step 7: all_reduce of vision.layer.0");
    }
    CHECK(activity.text(activity.state()) == "step 7: all_gather of vision.layer.0");
    CHECK(activity.progress() > progress);
    activity.phase(Phase::saving);
    CHECK(activity.text(activity.state()) == "saving after step 7");
  }

  TEST_CASE("a connection that closes is a killed rank, but for one that has said goodbye") {
    Ranks ranks(3);
    ranks.watch.left(2);
    ranks.watch.closed(2, 1);
    CHECK(ranks.verdict(1) == "");
    ranks.watch.closed(1, 1);
    CHECK(has(ranks.verdict(1), "missing: rank 1 on h1 (last heard: step 5: forward): killed"));
  }

  TEST_CASE("a rank without heartbeat is stopped, after the timeout and not before") {
    Ranks ranks(3);
    for (double now = 1; now <= 10; now += 1) {
      ranks.moves(0, {Phase::training, RankOperation::all_reduce, 5, -1}, now);
      ranks.stays(2, now);
      CHECK(ranks.verdict(now) == "");
    }
    ranks.moves(0, {Phase::training, RankOperation::all_reduce, 5, -1}, 10.5);
    ranks.stays(2, 10.5);
    CHECK(has(ranks.verdict(10.5), "missing: rank 1 on h1 (last heard: step 5: forward): stopped or cut off, no "
                                   "heartbeat for 10.5 s"));
    CHECK((ranks.watch.hears(0, 10.5) && !ranks.watch.hears(1, 10.5) && ranks.watch.hears(2, 10.5)));
  }

  TEST_CASE("ranks that never join, or have left, are not waited for") {
    Activity names;
    RankWatch watch(3, 10, names);
    watch.joined(0, "h0", 0);
    watch.joined(2, "h2", 0);
    watch.left(2);
    Beat beat{Activity::State{Phase::training, RankOperation::host, 9, -1}.word(), 1, 0};
    for (int i = 1; i < 100; ++i) watch.beat(0, {beat.state, static_cast<uint64_t>(i), 0}, i);
    CHECK(!watch.verdict(99));
    CHECK(watch.absent() == "1");
    watch.beat(0, {beat.state, 99, 0}, 120);
    CHECK(has(watch.verdict(120).value_or(""), "; never heard of: rank(s) 1"));
    CHECK(!watch.has_gone());
    watch.closed(2, 121);
    CHECK(!watch.has_gone());              // it had left
    watch.closed(0, 121);
    CHECK(watch.has_gone());
  }

  TEST_CASE("no progress: the missing one is outside of the collective that the others are in, or behind") {
    Ranks ranks(3);
    ranks.moves(0, {Phase::training, RankOperation::all_reduce, 5, -1}, 1);
    ranks.moves(2, {Phase::training, RankOperation::all_reduce, 5, -1}, 1);
    ranks.moves(1, {Phase::training, RankOperation::data, 5, -1}, 1);
    ranks.stay(11);
    CHECK(ranks.verdict(11) == "");
    ranks.stay(11.5);
    const std::string text = ranks.verdict(11.5);
    CHECK(has(text, "no rank has got any further for 10.5 s"));
    CHECK(has(text, "missing: rank 1 on h1 (last heard: step 5: waiting for data)"));
    CHECK(!has(text, "rank 0"));

    Ranks gpus(2);
    gpus.moves(0, {Phase::training, RankOperation::device, 8, -1}, 1);
    gpus.moves(1, {Phase::training, RankOperation::device, 7, -1}, 1);
    gpus.stay(12);
    CHECK(has(gpus.verdict(12), "missing: rank 1 on h1 (last heard: step 7: on the GPU)"));
    Ranks alike(2);
    alike.stay(12);
    CHECK(has(alike.verdict(12), "all are alike: rank 0 on h0 (last heard: step 5: forward), rank 1 on h1"));
  }

  TEST_CASE("one rank's progress is everybody's, and long steps allow longer stillness") {
    Ranks ranks(2);
    for (double now = 1; now < 100; now += 9) {
      ranks.moves(1, {Phase::training, RankOperation::forward, 5, -1}, now);
      ranks.stays(0, now);
      CHECK(ranks.verdict(now + 9) == "");
    }
    Ranks slow(2);                         // a step of 9 s ended by itself: 18 s are allowed
    slow.moves(0, {Phase::training, RankOperation::device, 6, -1}, 9);
    slow.stay(26.5);
    CHECK(slow.verdict(26.5) == "");
    slow.stay(27.5);
    CHECK(slow.verdict(27.5) != "");
  }

  TEST_CASE("first steps, start and saving are allowed more; bytes that move count there, and are bounded") {
    Ranks first(1);
    first.moves(0, {Phase::training, RankOperation::device, 1, -1}, 0);
    first.stay(99);
    CHECK(first.verdict(99) == "");
    first.stay(101);
    CHECK(first.verdict(101) != "");
    for (const Phase phase : {Phase::start, Phase::saving, Phase::end}) {
      Ranks ranks(1);
      ranks.moves(0, {phase, RankOperation::host, 5, -1}, 0);
      ranks.stay(299);
      CHECK(ranks.verdict(299) == "");
      ranks.stay(301);
      CHECK(ranks.verdict(301) != "");
      ranks.beats[0].io_bytes += 1 << 20;
      ranks.stay(302);
      CHECK(ranks.verdict(302) == "");
    }
    Ranks training(1);                     // there they do not
    training.beats[0].io_bytes += 1 << 20;
    training.stay(11);
    CHECK(training.verdict(11) != "");
  }
}
