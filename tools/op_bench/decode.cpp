// Ops that a decode step adds to a model's layers: attention to the cache, and the choice of tokens.
#include <algorithm>
#include <cmath>

#include "blipft/decode_ops.h"
#include "blipft/error.h"
#include "op_bench/cases.h"

namespace blipft::bench {

namespace {

/// Times attention to a cache: each text uses `length` of `positions` positions.
void attention_decode_case(Harness& harness, int64_t slots, int64_t heads, int64_t kv_heads, int64_t size,
                           int64_t length, int64_t positions) {
  const double cached = 2 * 2.0 * static_cast<double>(slots * length * kv_heads * size);
  const double rows = 2 * 2.0 * static_cast<double>(slots * heads * size);
  const std::string shape = concat(dims({slots, heads, size}), " kv heads ", kv_heads, " ", length, " of ", positions);
  const Cost cost{cached + rows, 4.0 * static_cast<double>(slots * length * heads * size)};
  harness.run("attention_decode", shape, cost, [&]() -> Harness::Work {
    AttentionDecode args;
    args.q = harness.tensor({slots, heads * size}), args.out = harness.tensor({slots, heads * size});
    args.heads = heads, args.kv_heads = kv_heads, args.head_size = size;
    args.scale = 1.0f / std::sqrt(static_cast<float>(size));
    args.lengths = harness.integers({slots}, [=](int64_t) { return static_cast<int32_t>(length); });
    const Shape cache{slots * positions, kv_heads * size};
    args.cache = {harness.tensor(cache), harness.tensor(cache), positions};
    return [&harness, args] { harness.ops().attention_decode(args, harness.stream()); };
  });
}

/// Returns texts that do not end during the timing.
DecodeState long_texts(Harness& harness, int64_t slots) {
  constexpr int32_t kMax = 1 << 16;
  const auto all = [&](int32_t number) { return harness.integers({slots}, [=](int64_t) { return number; }); };
  DecodeState state{harness.ids({slots, kMax}, 1000), all(16), all(16), all(kMax), harness.raw({slots}, DType::i64),
                    all(kRunning)};
  return state;
}

void pick_tokens_case(Harness& harness, int64_t slots, int64_t vocabulary, const char* name, const TokenRules& rules) {
  const double bytes = 2.0 * static_cast<double>(slots * vocabulary);
  harness.run("pick_tokens", concat(dims({slots, vocabulary}), " ", name), {bytes}, [&]() -> Harness::Work {
    PickTokens args;
    args.logits = harness.tensor({slots, vocabulary}, DType::bf16, 0, 3);
    args.rules = rules;
    args.scores = harness.tensor({slots, vocabulary}, DType::f32);
    args.state = long_texts(harness, slots);
    args.log_probs = harness.raw(args.state.ids.shape, DType::f32);
    return [&harness, args] { harness.ops().pick_tokens(args, harness.stream()); };
  });
}

}  // namespace

void decode_cases(Harness& harness) {
  for (int64_t length : {128, 512, 1024, 2048, 4096}) {
    attention_decode_case(harness, 1, 32, 32, 128, length, 4096);
    if (length <= 2048) attention_decode_case(harness, 64, 32, 32, 128, length, 2048);
    attention_decode_case(harness, 64, 32, 8, 128, length, 4096);
  }
  attention_decode_case(harness, 1, 28, 4, 128, 4096, 4096);
  attention_decode_case(harness, 64, 32, 32, 80, 128, 128);  // the heads of OPT-2.7B
  for (int64_t slots : {1, 64})
    for (int64_t vocabulary : {32000, 151936}) {
      TokenRules rules;
      pick_tokens_case(harness, slots, vocabulary, "greedy", rules);
      rules.sample = true, rules.top_k = 50;
      pick_tokens_case(harness, slots, vocabulary, "top-k 50", rules);
      rules.top_k = 0, rules.top_p = 0.9f;
      pick_tokens_case(harness, slots, vocabulary, "top-p 0.9", rules);
    }
}

}  // namespace blipft::bench
