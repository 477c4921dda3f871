// Attention, forward and backward, at the shapes of the models. The JSON has the sizes of each shape as numbers, so
// that other implementations can be timed with equal shapes.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "blipft/error.h"
#include "blipft/relative_bias.h"
#include "op_bench/cases.h"

namespace blipft::bench {

namespace {

struct AttentionCase {
  const char* name;
  int64_t batch, heads, queries, keys, size;
  bool causal = false;
  float p = 0;         ///< dropout probability
  bool dbias = false;  ///< also times backward with the gradient of the bias of queries, keys and values
  int64_t kv_heads = 0;               ///< 0: equal to heads
  std::vector<int64_t> lengths = {};  ///< rows of packed samples, at most `queries`; empty: all samples have `queries`
  DType dtype = DType::bf16;
  int64_t relative = 0;               ///< relative positions: offsets in each direction with their own score

  int64_t heads_of_kv() const { return kv_heads ? kv_heads : heads; }
  int64_t rows() const {
    return lengths.empty() ? batch * queries : std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  }
  /// The pairs of query and key of a head, in all samples.
  double scores() const {
    double total = lengths.empty() ? static_cast<double>(batch * queries * keys) : 0;
    for (int64_t n : lengths) total += static_cast<double>(n * n);
    return total;
  }
  /// Returns the columns of a matrix of keys and values.
  int64_t kv_columns() const { return 2 * heads_of_kv() * size; }
};

Packing make_packing(Harness& harness, const AttentionCase& c) {
  if (c.lengths.empty()) return {};
  std::vector<int32_t> starts{0}, padded;
  for (size_t b = 0; b < c.lengths.size(); ++b) {
    starts.push_back(starts.back() + static_cast<int32_t>(c.lengths[b]));
    for (int64_t t = 0; t < c.lengths[b]; ++t)
      padded.push_back(static_cast<int32_t>(static_cast<int64_t>(b) * c.queries + t));
  }
  const auto tensor = [&](const std::vector<int32_t>& values) {
    return harness.integers({static_cast<int64_t>(values.size())},
                            [&](int64_t i) { return values[static_cast<size_t>(i)]; });
  };
  return {tensor(starts), tensor(padded)};
}

AttentionForward make_forward(Harness& harness, const AttentionCase& c) {
  const int64_t width = c.heads * c.size, kv_width = c.heads_of_kv() * c.size;
  AttentionForward args;
  args.dtype = c.dtype;
  args.batch = c.batch, args.heads = c.heads, args.head_size = c.size;
  args.query_tokens = c.queries, args.kv_tokens = c.keys;
  args.scale = 1.0f / std::sqrt(static_cast<float>(c.size));
  args.causal = c.causal;
  args.kv_heads = c.kv_heads;
  args.packing = make_packing(harness, c);
  if (c.relative > 0)
    args.relative = {harness.tensor({c.heads, 2 * c.relative + 1}, DType::f32), c.relative, c.relative};
  if (c.queries == c.keys) {  // one matrix of queries, keys and values, as in the layers
    const Tensor qkv = harness.tensor({c.rows(), width + c.kv_columns()}, c.dtype);
    args.q = Heads::in(qkv, 0, c.queries), args.k = Heads::in(qkv, width, c.queries);
    args.v = Heads::in(qkv, width + kv_width, c.queries);
  } else {
    args.q = Heads::in(harness.tensor({c.batch * c.queries, width}, c.dtype), 0, c.queries);
    const Tensor kv = harness.tensor({c.batch * c.keys, c.kv_columns()}, c.dtype);
    args.k = Heads::in(kv, 0, c.keys), args.v = Heads::in(kv, kv_width, c.keys);
  }
  if (c.p > 0) args.dropout = harness.dropout(c.p, c.batch, 1);
  args.out = Heads::in(harness.tensor({c.rows(), width}, c.dtype), 0, c.queries);
  args.lse = harness.tensor({c.batch, c.heads, c.queries}, DType::f32);
  return args;
}

AttentionBackward make_backward(Harness& harness, const AttentionCase& c, bool dbias) {
  const int64_t width = c.heads * c.size, kv_width = c.heads_of_kv() * c.size, columns = width + c.kv_columns();
  AttentionBackward args;
  args.forward = make_forward(harness, c);
  harness.ops().attention_forward(args.forward, harness.stream());
  args.dout = Heads::in(harness.tensor({c.rows(), width}, c.dtype), 0, c.queries);
  if (dbias) {  // needs one matrix
    const Tensor dqkv = harness.tensor({c.rows(), columns}, c.dtype);
    args.dq = Heads::in(dqkv, 0, c.queries), args.dk = Heads::in(dqkv, width, c.queries);
    args.dv = Heads::in(dqkv, width + kv_width, c.queries);
    args.dbias = harness.tensor({columns}), args.accumulate_dbias = true;
  } else {
    args.dq = Heads::in(harness.tensor({c.rows(), width}, c.dtype), 0, c.queries);
    const Tensor dkv = harness.tensor({c.queries == c.keys ? c.rows() : c.batch * c.keys, c.kv_columns()}, c.dtype);
    args.dk = Heads::in(dkv, 0, c.keys), args.dv = Heads::in(dkv, kv_width, c.keys);
  }
  args.delta = harness.tensor({c.batch, c.heads, c.queries}, DType::f32);
  if (c.relative > 0) args.drelative = harness.tensor(args.forward.relative.values.shape, DType::f32);
  return args;
}

void attention_case(Harness& harness, const AttentionCase& c) {
  double flops = 4.0 * c.scores() * static_cast<double>(c.heads * c.size);
  if (c.causal)  // only pairs that are not masked
    flops *= 0.5 * (1.0 + static_cast<double>(c.rows()) / c.scores());
  // Bytes of matrices of queries and of keys, and of the f32 log-sums.
  const int64_t kv_rows = c.queries == c.keys ? c.rows() : c.batch * c.keys;
  const double element = static_cast<double>(dtype_size(c.dtype)),
               q = element * static_cast<double>(c.rows() * c.heads * c.size),
               k = element / 2 * static_cast<double>(kv_rows * c.kv_columns()),
               lse = 4.0 * static_cast<double>(c.rows() * c.heads);
  const std::string shape = concat(c.name, " ", dims({c.batch, c.heads, c.queries, c.keys, c.size}),
                                   c.causal ? " causal" : "", c.p > 0 ? " dropout" : "",
                                   c.kv_heads ? concat(" kv heads ", c.kv_heads) : "",
                                   c.lengths.empty() ? "" : concat(" packed ", c.rows()),
                                   c.relative > 0 ? concat(" relative ", c.relative) : "",
                                   c.dtype == DType::f32 ? " f32" : "");
  // Other implementations are not timed at such shapes.
  const bool alone = c.kv_heads > 0 || !c.lengths.empty() || c.dtype != DType::bf16 || c.relative > 0;
  const std::string fields = alone ? "" :
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
  // The bias gradient is read and written. No JSON fields, because other implementations have no such output.
  const double bias = 2 * 2.0 * static_cast<double>(c.heads * c.size + c.kv_columns());
  harness.run("attention_backward", shape + " dbias", {backward.bytes + bias, backward.flops}, [&]() -> Harness::Work {
    return [&harness, args = make_backward(harness, c, true)] {
      harness.ops().attention_backward(args, harness.stream());
    };
  });
}

/// Times the expansion of a table of buckets for `heads` heads, 32 in each direction, to scores of 2 * 91 + 1 offsets,
/// and its gradient.
void relative_bias_cases(Harness& harness, int64_t heads) {
  const auto make = [&harness, heads] {
    RelativeBias args{.table = harness.tensor({32, heads}), .directed = 16, .distances = 16};
    for (int32_t k = 0; k < 16; ++k) args.first[k] = k < 8 ? k : (k - 7) * 11 + 3;
    args.scores = {harness.tensor({heads, 183}, DType::f32), 91, 91};
    return args;
  };
  const Cost cost{static_cast<double>(heads) * (32 * 2 + 183 * 4), 0};
  harness.run("relative_bias_forward", concat(heads, " heads"), cost, [&]() -> Harness::Work {
    return [&harness, args = make()] { harness.ops().relative_bias_forward(args, harness.stream()); };
  });
  harness.run("relative_bias_backward", concat(heads, " heads"), cost, [&]() -> Harness::Work {
    return [&harness, args = make()] { harness.ops().relative_bias_backward(args, harness.stream()); };
  });
}

/// Returns lengths of texts as in an instruction set such as Alpaca: most short, some long.
std::vector<int64_t> text_lengths(int64_t samples, int64_t rows) {
  std::vector<int64_t> lengths;
  for (int64_t b = 0; b + 1 < samples; ++b) lengths.push_back(40 + (b * 37 % 31) * (b * 37 % 31) * 7 / 60);
  lengths.push_back(rows - std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
  return lengths;
}

AttentionCase packed(const char* name, int64_t samples, int64_t rows, int64_t heads, int64_t kv_heads, int64_t size) {
  AttentionCase c{name, samples, heads, 0, 0, size, true};
  c.kv_heads = kv_heads == heads ? 0 : kv_heads, c.lengths = text_lengths(samples, rows);
  c.queries = c.keys = *std::max_element(c.lengths.begin(), c.lengths.end());
  return c;
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
  AttentionCase tiny{"tiny llama 512", 8, 32, 512, 512, 64, true};
  tiny.kv_heads = 4;
  AttentionCase tiny_f32 = tiny, tiny_texts_f32{"tiny llama texts", 8, 32, 500, 500, 64, true};
  tiny_texts_f32.kv_heads = 4;
  tiny_texts_f32.lengths = {50, 60, 70, 85, 95, 110, 130, 500};
  tiny_f32.dtype = tiny_texts_f32.dtype = DType::f32;
  AttentionCase t5_picture{"flan-t5-xl picture and prompt", 64, 32, 40, 40, 64}, t5_text{"flan-t5-xl 512", 8, 32, 512, 512, 64};
  t5_picture.relative = t5_text.relative = 91;
  for (const AttentionCase& c : {AttentionCase{"llama 256", 8, 32, 256, 256, 128, true},
                                 {"llama 512", 4, 32, 512, 512, 128, true},
                                 {"llama 2048", 4, 32, 2048, 2048, 128, true},
                                 {"llama 3b", 4, 32, 512, 512, 100, true}, {"head size 64", 16, 16, 257, 257, 64},
                                 {"head size 100", 16, 14, 257, 257, 100}, tiny,
                                 packed("llama texts", 4, 400, 32, 32, 128),
                                 packed("llama texts", 24, 2048, 32, 32, 128),
                                 packed("tiny llama texts", 24, 2048, 32, 4, 64),
                                 packed("llama 3b texts", 24, 2048, 32, 32, 100), tiny_texts_f32, tiny_f32, t5_picture,
                                 t5_text})
    attention_case(harness, c);
  relative_bias_cases(harness, 32);
}

}  // namespace blipft::bench
