// The arena: places of a recorded program, its replay, the accounting of peaks, and what it refuses.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>

#include "blipft/arena.h"

using namespace blipft;

namespace {

int64_t aligned(int64_t bytes) { return std::max<int64_t>(256, (bytes + 255) / 256 * 256); }

// A program of takes and gives, the same each time it runs.
struct Program {
  struct Event {
    bool take;
    size_t tensor;
    Owner owner;
    int64_t bytes;
  };
  std::vector<Event> events;
  size_t tensors = 0;
  bool peers_read_gradients = false;

  static Program random(uint64_t seed, int64_t length) {
    std::mt19937_64 random(seed);
    Program program;
    std::vector<size_t> held;
    const auto give = [&](size_t i) {
      program.events.push_back({false, held[i], {}, 0});
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
    };
    // Sizes over six orders of magnitude: zero bytes, single elements, and what is larger than everything else.
    for (int64_t i = 0; i < length; ++i) {
      if (!held.empty() && random() % 100 < 45) {
        give(random() % 3 ? held.size() - 1 : random() % held.size());
      } else {
        const int64_t bytes = static_cast<int64_t>(random() % (uint64_t{1} << (random() % 20)));
        program.events.push_back({true, program.tensors, static_cast<Owner>(random() % kOwners), bytes});
        held.push_back(program.tensors++);
      }
    }
    while (!held.empty()) give(random() % held.size());
    return program;
  }

  // Repeats the allocations and releases with `share` of the bytes.
  Program scaled(double share) const {
    Program program = *this;
    for (Event& event : program.events) event.bytes = static_cast<int64_t>(share * static_cast<double>(event.bytes));
    return program;
  }

  Readers readers(const Event& event) const {
    return peers_read_gradients && event.owner == Owner::gradients ? Readers::peers : Readers::own_rank;
  }

  // Runs the program as pass `name`; `seen` is told of each event and has all tensors so far.
  template <class Seen>
  void run(Arena& arena, const std::string& name, Seen seen) const {
    arena.begin_pass(name);
    std::vector<Tensor> tensor_of(tensors);
    for (const Event& event : events) {
      if (event.take)
        tensor_of[event.tensor] = arena.take(event.owner, concat("tensor ", event.tensor), DType::u8, {event.bytes}, readers(event));
      seen(event, tensor_of);
      if (!event.take) arena.give(tensor_of[event.tensor]);
    }
    arena.end_pass();
  }
  void run(Arena& arena, const std::string& name) const {
    run(arena, name, [](const Event&, const std::vector<Tensor>&) {});
  }

  // Live bytes after each event, alignment included.
  std::vector<int64_t> live() const {
    std::vector<int64_t> sizes(tensors), live;
    int64_t now = 0;
    for (const Event& event : events) {
      if (event.take) sizes[event.tensor] = aligned(event.bytes);
      now += event.take ? sizes[event.tensor] : -sizes[event.tensor];
      live.push_back(now);
    }
    return live;
  }
  int64_t peak() const {
    const std::vector<int64_t> all = live();
    return all.empty() ? 0 : *std::max_element(all.begin(), all.end());
  }
};

}  // namespace

TEST_SUITE("arena") {
  TEST_CASE("tensors that live at the same time never overlap, and stay inside of their block") {
    const auto device = make_cpu_device(1);
    for (uint64_t seed = 0; seed < 40; ++seed) {
      CAPTURE(seed);
      const Program first = Program::random(seed, 20 + static_cast<int64_t>(seed) * 10);
      std::vector<Program> programs = {first, Program::random(seed + 1000, 60), first.scaled(0.6)};
      for (Program& program : programs) program.peers_read_gradients = seed % 2 == 1;
      Arena arena(*device);
      const Tensor fixed = arena.persistent(Owner::parameters, "fixed", DType::f32, {100});
      const Tensor shard = arena.persistent(Owner::parameters, "shard", DType::f32, {100}, MemorySpace::device,
                                            seed % 2 == 1 ? Readers::peers : Readers::own_rank);
      for (size_t p = 0; p < programs.size(); ++p) programs[p].run(arena, concat("pass ", p));
      arena.plan();
      arena.commit();
      const Tensor scratch = arena.scratch(), peer_scratch = arena.peer_scratch();
      const auto lies_in = [](const Tensor& block, const char* begin, const char* end) {
        return begin >= block.as<char>() && end <= block.as<char>() + block.bytes();
      };
      CHECK(arena.resolve(fixed).as<char>() < scratch.as<char>());
      CHECK(bool(arena.peer_block()) == (seed % 2 == 1));
      if (arena.peer_block()) CHECK(arena.resolve(shard).data == arena.peer_block().data);
      for (int repetition = 0; repetition < 2; ++repetition)
        for (size_t p = 0; p < programs.size(); ++p) {
          std::map<const char*, const char*> live;  // begin -> end
          bool overlaps = false, outside = false, misaligned = false;
          const auto look = [&](const Program::Event& event, const std::vector<Tensor>& tensor_of) {
            const char* begin = tensor_of[event.tensor].as<char>();
            if (!event.take) {
              live.erase(begin);
              return;
            }
            const char* end = begin + std::max<int64_t>(event.bytes, 1);
            misaligned = misaligned || reinterpret_cast<uintptr_t>(begin) % 256 != 0;
            const bool in_peers = lies_in(peer_scratch, begin, end);
            const bool for_peers = programs[p].readers(event) == Readers::peers;
            outside = outside || !(in_peers || (!for_peers && lies_in(scratch, begin, end)));
            const auto after = live.lower_bound(begin);
            overlaps = overlaps || (after != live.end() && after->first < end);
            overlaps = overlaps || (after != live.begin() && std::prev(after)->second > begin);
            live[begin] = end;
          };
          programs[p].run(arena, concat("pass ", p), look);
          CHECK_FALSE(overlaps);
          CHECK_FALSE(outside);
          CHECK_FALSE(misaligned);
        }
    }
  }

  TEST_CASE("a replay gives every tensor the same place, and a blueprint's plan the same offsets") {
    const Program program = Program::random(3, 300);
    const auto plan_device = make_plan_device();
    Arena blueprint(*plan_device);
    blueprint.persistent(Owner::data, "batch", DType::u8, {1000});
    program.run(blueprint, "step");
    blueprint.plan();

    const auto device = make_cpu_device(1);
    std::vector<std::vector<int64_t>> offsets;
    for (int i = 0; i < 2; ++i) {
      Arena arena(*device, blueprint);
      const Tensor batch = arena.persistent(Owner::data, "batch", DType::u8, {1000});
      arena.commit();
      const char* base = arena.resolve(batch).as<char>();
      for (int repetition = 0; repetition < 3; ++repetition) {
        std::vector<int64_t> offsets_of_pass;
        program.run(arena, "step", [&](const Program::Event& event, const std::vector<Tensor>& tensor_of) {
          if (event.take) offsets_of_pass.push_back(tensor_of[event.tensor].as<char>() - base);
        });
        offsets.push_back(offsets_of_pass);
      }
      CHECK(arena.total_bytes() == blueprint.total_bytes());
      CHECK(arena.peak_live_bytes() == blueprint.peak_live_bytes());
    }
    for (const auto& offsets_of_pass : offsets) CHECK(offsets_of_pass == offsets[0]);
  }

  TEST_CASE("passes that differ only by smaller sizes share addresses, and the largest is reported") {
    const Program large = Program::random(5, 200), small = large.scaled(0.5);
    Program other = small;
    const auto last_take =
        std::find_if(other.events.rbegin(), other.events.rend(), [](const auto& event) { return event.take; });
    last_take->bytes = 4 * large.peak();
    const auto plan_device = make_plan_device();
    const auto planned = [&](const std::vector<std::pair<std::string, const Program*>>& passes) {
      auto arena = std::make_unique<Arena>(*plan_device);
      for (const auto& [name, program] : passes) program->run(*arena, name);
      arena->plan();
      return arena;
    };
    const auto offsets = [](Arena& arena, const std::string& name, const Program& program) {
      std::vector<int64_t> offsets_of_pass;
      const char* base = arena.scratch().as<char>();
      program.run(arena, name, [&](const Program::Event& event, const std::vector<Tensor>& tensor_of) {
        if (event.take) offsets_of_pass.push_back(tensor_of[event.tensor].as<char>() - base);
      });
      return offsets_of_pass;
    };
    const auto alone = planned({{"b", &large}}), both = planned({{"a", &small}, {"b", &large}});
    CHECK(both->transient_bytes() == alone->transient_bytes());
    const std::vector<PlanEntry> expected = alone->peak_entries(), merged = both->peak_entries();
    REQUIRE(merged.size() == expected.size());
    for (size_t i = 0; i < merged.size(); ++i) {
      CHECK(merged[i].name == expected[i].name);
      CHECK(merged[i].bytes == expected[i].bytes);
    }
    const auto device = make_cpu_device(1);
    Arena arena(*device, *both);
    arena.commit();
    CHECK(offsets(arena, "a", small) == offsets(arena, "b", large));
    CHECK(planned({{"a", &other}, {"b", &large}})->transient_bytes() >= 4 * large.peak());  // places of its own
  }

  TEST_CASE("peaks and extent agree with a count by hand") {
    const auto device = make_plan_device();
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const Program small = Program::random(seed, 30), large = Program::random(seed + 500, 200);
      Arena arena(*device);
      arena.persistent(Owner::gradients, "gradients", DType::f32, {65});  // 260 bytes: 512 with alignment
      small.run(arena, "small");
      large.run(arena, "large");
      arena.plan();
      CHECK(arena.persistent_bytes() == 512);
      CHECK(arena.peak_live_bytes() == 512 + std::max(small.peak(), large.peak()));
      CHECK(arena.transient_bytes() >= std::max(small.peak(), large.peak()));
      CHECK(arena.total_bytes() == arena.persistent_bytes() + arena.transient_bytes());
      CHECK(arena.peak_transient("large") == large.peak());
      CHECK(arena.peak_transient("small") == small.peak());
      CHECK(arena.passes() == std::vector<std::string>{"large", "small"});
      int64_t sum = 0;
      for (const PlanEntry& entry : arena.peak_entries()) sum += entry.name == "gradients" ? 512 : entry.bytes;
      CHECK(sum <= arena.total_bytes());
      CHECK(sum >= arena.peak_live_bytes());
    }
  }

  TEST_CASE("what lies in the host is planned apart, and no part of the device's block") {
    const auto device = make_cpu_device(1);
    Arena blueprint(*device);
    const auto declare = [](Arena& arena) {
      return std::pair(arena.persistent(Owner::parameters, "near", DType::f32, {100}),
                       arena.persistent(Owner::optimizer, "far", DType::f32, {100}, MemorySpace::host));
    };
    declare(blueprint);
    blueprint.plan();
    CHECK(blueprint.persistent_bytes() == 512);
    CHECK(blueprint.total_bytes() == blueprint.persistent_bytes() + blueprint.transient_bytes());
    CHECK(blueprint.host_bytes() == 512);
    CHECK(blueprint.persistent_use().total() == 400);
    Arena arena(*device, blueprint);
    const auto [near, far] = declare(arena);
    arena.commit();
    const Tensor scratch = arena.scratch();
    const auto begin = scratch.as<char>() - arena.persistent_bytes(), end = scratch.as<char>() + scratch.bytes();
    const auto inside = [&](const Tensor& tensor) {
      const char* at = arena.resolve(tensor).as<char>();
      return at >= begin && at + tensor.bytes() <= end;
    };
    CHECK(inside(near));
    CHECK_FALSE(inside(far));
    arena.resolve(far).as<float>()[99] = 1;  // there is memory behind it
    int64_t in_host = 0;
    for (const PlanEntry& entry : arena.peak_entries()) in_host += entry.space == MemorySpace::host ? entry.bytes : 0;
    CHECK(in_host == 400);
  }

  TEST_CASE("memory given back is used again") {
    const auto device = make_plan_device();
    Arena arena(*device);
    arena.begin_pass("step");
    for (int i = 0; i < 100; ++i) {
      const Tensor a = arena.take(Owner::activations, "a", DType::f32, {1000});
      const Tensor b = arena.take(Owner::activations, "b", DType::f32, {500});
      arena.give(a);
      arena.give(b);
    }
    arena.end_pass();
    arena.plan();
    CHECK(arena.transient_bytes() == aligned(4000) + aligned(2000));
    arena.plan(1 << 20);
    CHECK(arena.transient_bytes() == 1 << 20);
  }

  TEST_CASE("phases: use at the mark and peak since the one before") {
    const auto device = make_plan_device();
    Arena arena(*device);
    arena.persistent(Owner::parameters, "parameters", DType::bf16, {512});
    arena.begin_pass("step");
    const Tensor kept = arena.take(Owner::activations, "kept", DType::f32, {256});
    arena.give(arena.take(Owner::workspace, "scratch", DType::u8, {4096}));
    arena.mark("after_forward");
    arena.give(arena.take(Owner::workspace, "scratch", DType::u8, {512}));
    arena.give(kept);
    arena.mark("after_backward");
    arena.end_pass();
    arena.plan();
    const auto& phases = arena.phases("step");
    REQUIRE(phases.size() == 2);
    CHECK(phases[0].phase == "after_forward");
    CHECK(phases[0].now.of(Owner::activations) == 1024);
    CHECK(phases[0].now.of(Owner::workspace) == 0);
    CHECK(phases[0].now.of(Owner::parameters) == 1024);
    CHECK(phases[0].peak.of(Owner::workspace) == 4096);
    CHECK(phases[0].peak.of(Owner::parameters) == 1024);
    CHECK(phases[1].now.total() == 1024);
    CHECK(phases[1].peak.of(Owner::activations) == 1024);
    CHECK(phases[1].peak.of(Owner::workspace) == 512);
    CHECK_THROWS_AS(arena.phases("walk"), Error);
    CHECK_THROWS_AS(arena.peak_transient("walk"), Error);
  }

  TEST_CASE("a peak is a moment: owners that are largest at different moments are not summed") {
    const auto device = make_plan_device();
    Arena arena(*device);
    arena.persistent(Owner::parameters, "parameters", DType::u8, {512});
    arena.begin_pass("step");
    const Tensor kept = arena.take(Owner::activations, "kept", DType::u8, {4096});
    arena.give(arena.take(Owner::communication, "small", DType::u8, {1024}));  // the largest sum: 5120
    arena.give(kept);
    arena.give(arena.take(Owner::communication, "large", DType::u8, {2048}));
    arena.mark("after_forward");
    arena.give(arena.take(Owner::workspace, "scratch", DType::u8, {256}));
    arena.mark("after_backward");
    arena.end_pass();
    arena.plan();
    const auto check = [](const MemoryUse& use) {
      CHECK(use.of(Owner::parameters) == 512);
      CHECK(use.of(Owner::activations) == 4096);
      CHECK(use.of(Owner::communication) == 1024);
      CHECK(use.total() == 512 + 4096 + 1024);
    };
    check(arena.phases("step")[0].peak);
    CHECK(arena.phases("step")[1].peak.total() == 512 + 256);
    check(arena.peak("step"));
    CHECK(arena.peak("step").total() == arena.peak_live_bytes());
    CHECK_THROWS_AS(arena.peak("walk"), Error);
  }

  TEST_CASE("peak entries: takes of one name are summed, largest first, gaps are named") {
    const auto device = make_plan_device();
    Arena arena(*device);
    arena.persistent(Owner::parameters, "parameters", DType::f32, {2048});
    arena.begin_pass("step");
    const Tensor a = arena.take(Owner::activations, "saved", DType::f32, {512});
    const Tensor b = arena.take(Owner::activations, "saved", DType::f32, {512});
    const Tensor c = arena.take(Owner::communication, "gathered", DType::f32, {256});
    arena.give(a);
    arena.give(b);
    arena.give(c);
    arena.end_pass();
    arena.plan();
    const auto entries = arena.peak_entries();
    REQUIRE(entries.size() == 3);
    CHECK(entries[0].name == "parameters");
    CHECK(entries[0].bytes == 8192);
    CHECK(entries[1].name == "saved");
    CHECK(entries[1].bytes == 4096);
    CHECK(entries[2].name == "gathered");
    CHECK(entries[2].owner == Owner::communication);
    CHECK(std::string(owner_name(entries[2].owner)) == "communication");
  }

  TEST_CASE("a pass that is forgotten takes nothing of the plan") {
    const std::unique_ptr<Device> device = make_cpu_device(1);
    Arena arena(*device);
    for (const int64_t bytes : {4096, 1024}) {
      arena.begin_pass(concat("of ", bytes));
      arena.give(arena.take(Owner::activations, "tensor", DType::u8, {bytes}));
      arena.end_pass();
    }
    arena.forget_pass("of 4096");
    arena.forget_pass("never there");
    arena.plan();
    CHECK(arena.passes() == std::vector<std::string>{"of 1024"});
    CHECK(arena.transient_bytes() == 1024);
  }

  TEST_CASE("scratch is the transient memory, and persistent tensors do not lie in it") {
    const auto device = make_cpu_device(1);
    Arena arena(*device);
    const Tensor planned = arena.persistent(Owner::parameters, "parameters", DType::f32, {100});
    arena.begin_pass("step");
    arena.give(arena.take(Owner::activations, "a", DType::f32, {10000}));
    arena.end_pass();
    arena.plan();
    CHECK_THROWS_AS(arena.scratch(), Error);
    arena.commit();
    const Tensor real = arena.resolve(planned), scratch = arena.scratch();
    CHECK(scratch.numel() == arena.transient_bytes());
    CHECK(real.as<char>() + real.bytes() <= scratch.as<char>());
    CHECK(arena.resolve(real).data == real.data);
    CHECK_FALSE(bool(arena.resolve(Tensor{})));
    CHECK(device->memory().process >= arena.total_bytes());
  }

  TEST_CASE("what the arena refuses") {
    const auto device = make_cpu_device(1);
    Arena arena(*device);
    CHECK_THROWS_WITH_AS(arena.take(Owner::data, "early", DType::u8, {1}),
                         doctest::Contains("outside of a pass: early"), Error);
    CHECK_THROWS_AS(arena.end_pass(), Error);
    arena.begin_pass("step");
    CHECK_THROWS_AS(arena.begin_pass("other"), Error);
    const Tensor a = arena.take(Owner::activations, "a", DType::f32, {100});
    CHECK_THROWS_WITH_AS(arena.end_pass(), doctest::Contains("not given back, the first is a"), Error);
    arena.give(a);
    CHECK_THROWS_WITH_AS(arena.give(a), doctest::Contains("not taken"), Error);
    arena.give(Tensor{});  // absent tensors may be given back
    arena.give(arena.take(Owner::activations, "b", DType::f32, {50}));
    arena.end_pass();
    arena.plan();
    arena.commit();
    CHECK_THROWS_AS(arena.commit(), Error);
    CHECK_THROWS_WITH_AS(arena.persistent(Owner::data, "late", DType::u8, {1}), doctest::Contains("late"), Error);
    CHECK_THROWS_WITH_AS(arena.begin_pass("walk"), doctest::Contains("walk was not planned"), Error);

    // Departures of the replay from the plan: another size, another name, too few takes, too many, a forgotten give.
    arena.begin_pass("step");
    CHECK_THROWS_WITH_AS(arena.take(Owner::activations, "a", DType::f32, {200}),
                         doctest::Contains("departs from its plan at take 0"), Error);
    CHECK_THROWS_WITH_AS(arena.take(Owner::activations, "z", DType::f32, {100}), doctest::Contains("planned was a"),
                         Error);
    arena.give(arena.take(Owner::activations, "a", DType::f32, {100}));
    CHECK_THROWS_WITH_AS(arena.end_pass(), doctest::Contains("took 1 tensors, planned were 2"), Error);
    const Tensor b = arena.take(Owner::activations, "b", DType::f32, {50});
    CHECK_THROWS_WITH_AS(arena.end_pass(), doctest::Contains("not given back, the first is b"), Error);
    arena.give(b);
    CHECK_THROWS_WITH_AS(arena.take(Owner::activations, "c", DType::f32, {1}),
                         doctest::Contains("more than planned: c"), Error);
    CHECK_THROWS_WITH_AS(arena.give(b), doctest::Contains("not taken"), Error);
    arena.end_pass();
  }

  TEST_CASE("tensors held longer or shorter than planned are noticed") {
    const auto device = make_cpu_device(1);
    Arena arena(*device);
    arena.begin_pass("step");
    arena.give(arena.take(Owner::activations, "a", DType::f32, {64}));
    arena.give(arena.take(Owner::activations, "b", DType::f32, {64}));
    arena.end_pass();
    arena.plan();
    arena.commit();
    arena.begin_pass("step");
    const Tensor a = arena.take(Owner::activations, "a", DType::f32, {64});
    CHECK_THROWS_WITH_AS(arena.take(Owner::activations, "b", DType::f32, {64}),
                         doctest::Contains("taken at event 1, planned was 2"), Error);
    arena.give(a);
    const Tensor b = arena.take(Owner::activations, "b", DType::f32, {64});
    arena.give(b);
    CHECK_THROWS_WITH_AS(arena.take(Owner::activations, "c", DType::f32, {64}), doctest::Contains("more than planned"),
                         Error);
    arena.end_pass();
  }

  TEST_CASE("a run that declares other persistent memory than its plan is refused") {
    const auto plan_device = make_plan_device();
    const auto device = make_cpu_device(1);
    Arena blueprint(*plan_device);
    blueprint.persistent(Owner::parameters, "parameters", DType::f32, {100});
    blueprint.plan();
    Arena arena(*device, blueprint);
    arena.persistent(Owner::parameters, "parameters", DType::f32, {1000});
    CHECK_THROWS_WITH_AS(arena.commit(), doctest::Contains("persistent bytes"), Error);
  }
}
