// Attention, forward and backward, at the shapes of the models. The JSON has each shape's sizes as numbers, so that
// other implementations can be timed at the same ones.
#include <cmath>

#include "blipft/error.h"
#include "op_bench/cases.h"

namespace blipft::bench {

namespace {

struct AttentionCase {
  const char* name;
  int64_t batch, heads, queries, keys, size;
  bool causal = false;
  float p = 0;         ///< dropout of the probabilities
  bool dbias = false;  ///< also times backward with the gradient of the bias of queries, keys and values
};

AttentionForward make_forward(Harness& harness, const AttentionCase& c) {
  const int64_t width = c.heads * c.size;
  AttentionForward args;
  args.dtype = DType::bf16;
  args.batch = c.batch, args.heads = c.heads, args.head_size = c.size;
  args.query_tokens = c.queries, args.kv_tokens = c.keys;
  args.scale = 1.0f / std::sqrt(static_cast<float>(c.size));
  args.causal = c.causal;
  if (c.queries == c.keys) {  // one matrix of queries, keys and values, as the layers make it
    const Tensor qkv = harness.tensor({c.batch * c.queries, 3 * width});
    args.q = Heads::in(qkv, 0, c.queries), args.k = Heads::in(qkv, width, c.queries);
    args.v = Heads::in(qkv, 2 * width, c.queries);
  } else {
    args.q = Heads::in(harness.tensor({c.batch * c.queries, width}), 0, c.queries);
    const Tensor kv = harness.tensor({c.batch * c.keys, 2 * width});
    args.k = Heads::in(kv, 0, c.keys), args.v = Heads::in(kv, width, c.keys);
  }
  if (c.p > 0) args.dropout = harness.dropout(c.p, c.batch, 1);
  args.out = Heads::in(harness.tensor({c.batch * c.queries, width}), 0, c.queries);
  args.lse = harness.tensor({c.batch, c.heads, c.queries}, DType::f32);
  return args;
}

AttentionBackward make_backward(Harness& harness, const AttentionCase& c, bool dbias) {
  const int64_t width = c.heads * c.size;
  AttentionBackward args;
  args.forward = make_forward(harness, c);
  harness.ops().attention_forward(args.forward, harness.stream());
  args.dout = Heads::in(harness.tensor({c.batch * c.queries, width}), 0, c.queries);
  if (dbias) {  // wants one matrix
    const Tensor dqkv = harness.tensor({c.batch * c.queries, 3 * width});
    args.dq = Heads::in(dqkv, 0, c.queries), args.dk = Heads::in(dqkv, width, c.queries);
    args.dv = Heads::in(dqkv, 2 * width, c.queries);
    args.dbias = harness.tensor({3 * width}), args.accumulate_dbias = true;
  } else {
    args.dq = Heads::in(harness.tensor({c.batch * c.queries, width}), 0, c.queries);
    const Tensor dkv = harness.tensor({c.batch * c.keys, 2 * width});
    args.dk = Heads::in(dkv, 0, c.keys), args.dv = Heads::in(dkv, width, c.keys);
  }
  args.delta = harness.tensor({c.batch, c.heads, c.queries}, DType::f32);
  return args;
}

void attention_case(Harness& harness, const AttentionCase& c) {
  double flops = 4.0 * static_cast<double>(c.batch * c.heads * c.queries * c.keys * c.size);
  if (c.causal) flops *= 0.5 * (1.0 + 1.0 / static_cast<double>(c.queries));  // what is not masked
  // bf16 matrices like the queries and like the keys, and the f32 row of log-sums.
  const double q = 2.0 * static_cast<double>(c.batch * c.heads * c.queries * c.size),
               k = 2.0 * static_cast<double>(c.batch * c.heads * c.keys * c.size),
               lse = 4.0 * static_cast<double>(c.batch * c.heads * c.queries);
  const std::string shape = concat(c.name, " ", dims({c.batch, c.heads, c.queries, c.keys, c.size}),
                                   c.causal ? " causal" : "", c.p > 0 ? " dropout" : "");
  const std::string fields =
      concat("\"attention\": {\"name\": \"", c.name, "\", \"batch\": ", c.batch, ", \"heads\": ", c.heads,
             ", \"queries\": ", c.queries, ", \"keys\": ", c.keys, ", \"head_size\": ", c.size,
             ", \"causal\": ", c.causal ? "true" : "false", ", \"dropout\": ", c.p, "}");
  harness.run("attention_forward", shape, {2 * q + 2 * k + lse, flops}, [&]() -> Harness::Work {
    return [&harness, args = make_forward(harness, c)] { harness.ops().attention_forward(args, harness.stream()); };
  }, Sources::both, fields);
  const Cost backward{4 * q + 4 * k + lse, 2.5 * flops};
  harness.run("attention_backward", shape, backward, [&]() -> Harness::Work {
    return [&harness, args = make_backward(harness, c, false)] {
      harness.ops().attention_backward(args, harness.stream());
    };
  }, Sources::both, fields);
  if (!c.dbias) return;
  // Read and written. Without the fields: other implementations have no such output.
  const double bias = 2 * 2.0 * static_cast<double>(3 * c.heads * c.size);
  harness.run("attention_backward", shape + " dbias", {backward.bytes + bias, backward.flops}, [&]() -> Harness::Work {
    return [&harness, args = make_backward(harness, c, true)] {
      harness.ops().attention_backward(args, harness.stream());
    };
  });
}

}  // namespace

void blip2_attention_cases(Harness& harness, int64_t batch) {
  for (const AttentionCase& c : {AttentionCase{"vit", batch, 16, 257, 257, 88, false, 0, true},
                                 {"opt", batch, 32, 82, 82, 80, true, 0, true},
                                 {"qformer cross", batch, 12, 32, 257, 64, false, 0.1f},
                                 {"qformer self", batch, 12, 32, 32, 64, false, 0.1f}})
    attention_case(harness, c);
}

void other_attention_cases(Harness& harness) {
  for (const AttentionCase& c : {AttentionCase{"llama 256", 8, 32, 256, 256, 128, true},
                                 {"llama 512", 4, 32, 512, 512, 128, true},
                                 {"llama 2048", 4, 32, 2048, 2048, 128, true},
                                 {"llama 3b", 4, 32, 512, 512, 100, true}, {"head size 64", 16, 16, 257, 257, 64},
                                 {"head size 100", 16, 14, 257, 257, 100}})
    attention_case(harness, c);
}

}  // namespace blipft::bench
