// The cases of attention: every head size and kernel, masks, dropout, bias gradients, packed samples, grouped queries.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "ops/op_case.h"

namespace blipft::test {

struct Attend {
  int64_t batch, heads, head_size, query_tokens, kv_tokens;
  bool causal = false, lengths = false, empty = false;
  float dropout = 0;
  int bias = 0;                            // dbias: 0 none, 1 written, 2 added to
  DType gradient = kF32;
  bool packed = false;                     // samples of uneven rows, query_tokens at most; empty: the third has none
  int64_t kv_heads = 0;                    // 0: as many as heads
  std::vector<int64_t> rows{};             // packed: of each sample; empty: uneven_rows
  int64_t window = 0;
  float cap = 0;
  int64_t behind = -1, ahead = 0;          // relative positions; -1: none
  bool texts = false;                      // dropout's elements have numbers that do not depend on padding
  std::vector<int64_t> key_rows{};         // packed by themselves: of each sample, kv_tokens at most
  int64_t pictures = 0;                    // rows of the longest picture, whose rows see each other; 0: none

  std::vector<int64_t> packed_rows() const {
    return rows.empty() ? uneven_rows(batch, empty ? 0 : 1, query_tokens) : rows;
  }
};

/// Keys that the queries of each sample may see, of `keys` keys. Packed: all of every second sample's.
inline std::vector<double> visible_keys(const Attend& v, const std::vector<int64_t>& keys) {
  std::vector<double> lengths;
  for (int64_t b = 0; b < v.batch; ++b) {
    const int64_t all = keys[static_cast<size_t>(b)], fewer = std::min(all, std::max<int64_t>(1, all - b * 5 - 1));
    lengths.push_back(static_cast<double>(v.empty && b == 0 ? 0 : v.packed && b % 2 ? all : fewer));
  }
  return lengths;
}

/// AttentionForward::last_keys: pictures of 1 to v.pictures rows between texts of 0 to 3 rows.
inline std::vector<double> last_keys(const Attend& v, const std::vector<int64_t>& samples) {
  std::vector<double> last;
  int64_t pictures = 0;
  for (const int64_t rows : samples)
    for (int64_t t = 0; t < rows;) {
      for (int64_t text = pictures % 4; text > 0 && t < rows; --text) last.push_back(static_cast<double>(t++));
      const int64_t end = std::min(rows, t + 1 + (++pictures * 7 + v.pictures - 8) % v.pictures);
      for (; t < end; ++t) last.push_back(static_cast<double>(end - 1));
    }
  return last;
}

/// One relative position for all pairs: softmax does not see it, and its gradient, the sum of all scores' gradients, cancels
/// to the error of delta, the sum over out * dout in each row. Each of those rows * head_size products errs by 2^-8 of
/// itself at most, an element of out being rounded to bf16. The numbers that the sum is added to are of dout's size, and
/// out's is about half of theirs: outputs are means of values of size 1.
inline double cancelled_sum(int64_t rows, int64_t head_size) {
  return std::ldexp(std::sqrt(static_cast<double>(rows * head_size)), -8) / 2;
}

inline void add_attention(Cases& cases, DType t, const Attend& v) {
  const int64_t query_rows = v.packed ? total_rows(v.packed_rows()) : v.batch * v.query_tokens;
  cases.push_back({title(t, "attention ", v.batch, "x", v.heads, "x", v.head_size, " tokens ", v.query_tokens, "x",
                         v.kv_tokens, v.causal ? " causal" : "", v.lengths ? " lengths" : "", v.empty ? " empty" : "",
                         " dropout ", v.dropout, " bias ", v.bias, " ", dtype_name(v.gradient),
                         v.packed ? " packed" : "", v.kv_heads ? concat(" kv ", v.kv_heads) : "",
                         v.rows.empty() ? "" : concat(" rows ", total_rows(v.rows)),
                         v.window ? concat(" window ", v.window) : "", v.cap > 0 ? concat(" cap ", v.cap) : "",
                         v.behind >= 0 ? concat(" relative ", v.behind, " ", v.ahead) : "",
                         v.texts ? " texts" : "", v.pictures ? concat(" pictures ", v.pictures) : "",
                         v.key_rows.empty() ? "" : concat(" keys ", total_rows(v.key_rows))), t,
                             false,
                   [=](OpContext& c) {
    const auto packed = v.packed_rows();
    const int64_t width = v.heads * v.head_size, kv_width = (v.kv_heads ? v.kv_heads : v.heads) * v.head_size;
    const int64_t rows = v.packed ? total_rows(packed) : v.batch * v.query_tokens;
    const bool own_keys = !v.key_rows.empty(), self = v.query_tokens == v.kv_tokens && !own_keys;
    const int64_t kv_rows = own_keys ? total_rows(v.key_rows) : v.packed ? rows : v.batch * v.kv_tokens;
    AttentionForward f;
    f.dtype = t, f.batch = v.batch, f.heads = v.heads, f.kv_heads = v.kv_heads, f.head_size = v.head_size;
    f.query_tokens = v.query_tokens, f.kv_tokens = v.kv_tokens, f.causal = v.causal;
    f.window = v.window, f.cap = v.cap;
    if (v.packed) f.packing = make_packing(c, packed, v.query_tokens);
    if (own_keys) f.key_packing = make_packing(c, v.key_rows, v.kv_tokens);
    const Shape relative_shape{v.heads, v.behind + 1 + v.ahead};
    if (v.behind >= 0) f.relative = {c.input("relative", kF32, relative_shape, -2, 2), v.behind, v.ahead};
    f.scale = 1 / std::sqrt(static_cast<float>(v.head_size));
    const int64_t before = self ? width : 0, columns = before + 2 * kv_width;  // queries are in the same matrix or not
    const Tensor kv = c.input("kv", t, {kv_rows, columns}, -2, 2);
    f.q = Heads::in(self ? kv : c.input("q", t, {rows, width}, -2, 2), 0, v.query_tokens);
    f.k = Heads::in(kv, before, v.kv_tokens);
    f.v = Heads::in(kv, before + kv_width, v.kv_tokens);
    f.out = Heads::in(c.output("out", t, {rows, width}), 0, v.query_tokens);
    const Shape lse_shape{v.batch, v.heads, v.query_tokens};
    // Packed: what queries that do not exist have there stays as it was; where that is NaN, backward must not read it.
    if (v.empty || (v.packed && v.bias == 2)) f.lse = c.scratch("lse", kF32, lse_shape);
    else f.lse = v.packed ? c.inout("lse", kF32, lse_shape) : c.output("lse", kF32, lse_shape);
    const std::vector<int64_t> keys =
        own_keys ? v.key_rows : v.packed ? packed : std::vector<int64_t>(static_cast<size_t>(v.batch), v.kv_tokens);
    if (v.pictures) f.last_keys = c.values("last_keys", DType::i32, last_keys(v, keys));
    if (v.lengths) f.kv_lengths = c.values("kv_lengths", DType::i32, visible_keys(v, keys));
    if (v.dropout > 0) f.dropout = make_dropout(c, v.dropout, v.batch, v.query_tokens);
    if (v.texts) f.numbers = ProbabilityNumbers::independent_of_padding(v.heads);
    AttentionBackward b;
    const Tensor dkv = c.output("dkv", t, {kv_rows, columns});
    b.dout = Heads::in(c.input("dout", t, {rows, width}), 0, v.query_tokens);
    b.dq = Heads::in(self ? dkv : c.output("dq", t, {rows, width}), 0, v.query_tokens);
    b.dk = Heads::in(dkv, before, v.kv_tokens);
    b.dv = Heads::in(dkv, before + kv_width, v.kv_tokens);
    b.delta = c.scratch("delta", kF32, lse_shape);
    if (v.behind >= 0) b.drelative = c.inout("drelative", kF32, relative_shape);
    b.accumulate_dbias = v.bias == 2;
    if (v.bias == 1) b.dbias = c.output("dbias", v.gradient, {columns});
    if (v.bias == 2) b.dbias = c.inout("dbias", v.gradient, {columns});
    b.forward = f;
    c.run([&](Ops& ops, Stream s) {
      ops.attention_forward(f, s);
      ops.attention_backward(b, s);
    });
  }, v.behind + v.ahead == 0 ? cancelled_sum(query_rows, v.head_size) : 0});
}

/// Packed samples on every kernel: short and long ones, the general one (head sizes 6 and 100, f32), and the sizes at
/// which dense samples go to the warpgroup kernels.
inline void add_packed_attentions(Cases& cases, DType t) {
  int rotate = 0;
  const auto add = [&](Attend v) {
    v.packed = true;
    v.gradient = rotate++ % 2 ? t : kF32;
    add_attention(cases, t, v);
  };
  for (int64_t d : {6, 64, 72, 80, 88, 100, 128})
    for (int64_t maximum : {1, 7, 33, 82, 97, 300})
      for (int bias : {0, 1, 2}) {
        if (bias == rotate % 3 && maximum < 82) continue;
        add({5, 3, d, maximum, maximum, true, true, false, 0, bias});
      }
  for (int64_t d : {64, 88, 96})
    for (int64_t maximum : {256, 257, 272}) add({5, 3, d, maximum, maximum, false, d == 88, false, 0, rotate % 3});
  for (int bias : {0, 1, 2}) {
    add({5, 3, 80, 82, 82, true, false, false, 0, bias});
    add({5, 3, 80, 82, 82, false, false, false, 0, bias});
    add({5, 3, 64, 300, 300, true, false, false, 0, bias});
    add({5, 3, 80, 82, 82, true, true, true, 0, bias});
    add({5, 3, 24, 300, 300, true, true, true, 0, bias});
    add({3, 1, 16, 20, 20, true, true, false, 0, bias});
    add({4, 1, 16, 20, 20, true, true, true, 0, bias});
    add({16, 32, 80, 82, 82, true, true, false, 0, bias});  // OPT-2.7b
    for (int64_t d : {6, 64, 80})
      for (int64_t maximum : {33, 64, 160}) add({5, 3, d, maximum, maximum, false, true, false, 0.1f, bias});  // with dropout
  }
}

/// Fewer heads of keys and values than of queries, on every kernel that takes them.
inline void add_grouped_attentions(Cases& cases, DType t) {
  int rotate = 0;
  for (int64_t d : {6, 64, 80, 100, 128})
    for (auto [heads, kv_heads] : {std::pair<int64_t, int64_t>{4, 2}, {4, 1}, {6, 2}, {3, 3}})
      for (int64_t maximum : {1, 33, 97, 150, 300}) {
        if ((rotate++ + maximum) % 2) continue;
        Attend v{3, heads, d, maximum, maximum};
        v.causal = rotate % 3 != 1, v.lengths = rotate % 4 < 2, v.empty = rotate % 8 == 1;
        v.bias = rotate / 2 % 3, v.gradient = rotate % 5 ? kF32 : t;
        v.packed = rotate % 7 < 4, v.kv_heads = kv_heads;
        add_attention(cases, t, v);
      }
  const auto add = [&](Attend v, int64_t kv_heads) {
    v.kv_heads = kv_heads;
    add_attention(cases, t, v);
  };
  add({2, 4, 64, 32, 257}, 2);                                    // queries and keys of their own numbers
  add({2, 4, 80, 300, 70, false, true}, 1);
  add({2, 4, 64, 70, 70, true, false, false, 0.25f, 1}, 2);       // with dropout
  add({2, 2, 88, 257, 257, false, false, false, 0, 1}, 1);        // dense samples go to other kernels without groups
  add({2, 4, 64, 82, 82, true, false, false, 0, 2}, 2);
}

/// Packed samples and grouped queries at the tiles of the long warpgroup kernels: rows at and around multiples of 64
/// and 128, empty samples, one long among short ones, more tiles than multiprocessors, heads that are not all taken at
/// once.
inline void add_tiled_attentions(Cases& cases) {
  using Rows = std::vector<int64_t>;
  const auto add = [&](const Rows& rows, int64_t heads, int64_t kv_heads, int64_t d, bool causal, bool lengths = false,
                       int bias = 0) {
    const int64_t maximum = *std::max_element(rows.begin(), rows.end());
    Attend v{static_cast<int64_t>(rows.size()), heads, d, maximum, maximum, causal, lengths};
    v.bias = bias, v.gradient = bias == 1 ? kBf16 : kF32;
    v.packed = true, v.kv_heads = kv_heads, v.rows = rows;
    add_attention(cases, kBf16, v);
  };
  const Rows around{64, 128, 1, 65, 127, 129, 63, 256, 0, 192, 193, 600}, ends{0, 100, 0, 0, 192, 191, 0};
  Rows short_ones, many, long_list;
  for (int64_t b = 0; b < 70; ++b) short_ones.push_back(40 + b * 37 % 90);
  for (int64_t b = 0; b < 40; ++b) many.push_back(1 + b * 61 % 300);
  for (int64_t b = 0; b < 160; ++b) long_list.push_back(50 + b * 29 % 110);
  for (int64_t d : {64, 128})
    for (bool causal : {true, false}) {
      add(around, 2, 2, d, causal);
      add(around, 2, 1, d, causal, true);
      add(ends, 6, 2, d, causal, !causal, causal ? 1 : 2);
      add({70}, 4, 4, d, causal, causal);
      add({64}, 3, 1, d, causal);
    }
  add(short_ones, 4, 1, 64, true, true);
  add(short_ones, 2, 2, 128, true, false, 2);
  add(many, 16, 2, 64, true);
  add(many, 8, 8, 128, false, true);
  add({700, 30, 0, 511, 40}, 6, 2, 128, true, true);
  add({1100, 20, 20, 20}, 2, 1, 64, true);
  add(long_list, 5, 5, 128, true);  // 17,000 rows: three heads at once
  add(long_list, 6, 2, 64, true);
  // Groups of samples of equally many rows take the same kernels.
  for (int64_t d : {64, 128})
    for (int64_t n : {64, 128, 129, 300}) {
      Attend v{3, 4, d, n, n, n != 129, n == 300, n == 300};
      v.kv_heads = n == 64 ? 1 : 2, v.bias = n == 128 ? 2 : 0;
      add_attention(cases, kBf16, v);
    }
}

inline void add_attentions(Cases& cases, DType t) {
  int rotate = 0;
  for (int64_t d : {16, 24, 64, 72, 80, 88, 100, 128})
    for (auto [tq, tk] : {std::pair<int64_t, int64_t>{1, 1}, {7, 7}, {32, 32}, {33, 33}, {32, 257}, {82, 82}, {1, 300},
                          {300, 7}, {257, 257}, {300, 300}}) {
      // Every size plain; masks and dropout take turns over the sizes.
      add_attention(cases, t, {2, 2, d, tq, tk});
      Attend v{3, 1, d, tq, tk};
      v.causal = tq == tk && rotate % 3 != 1;
      v.lengths = rotate % 3 != 0;
      v.dropout = rotate % 2 ? 0.25f : 0.0f;
      add_attention(cases, t, v);
      ++rotate;
    }
  add_attention(cases, t, {3, 2, 80, 33, 33, true, true, true, 0});
  add_attention(cases, t, {3, 2, 64, 32, 82, false, true, true, 0.1f});
  add_attention(cases, t, {2, 16, 88, 257, 257});                          // ViT-g
  add_attention(cases, t, {2, 12, 64, 32, 32, false, false, false, 0.1f});  // Q-Former, self
  add_attention(cases, t, {2, 12, 64, 32, 257, false, false, false, 0.1f}); // Q-Former, cross
  add_attention(cases, t, {2, 32, 80, 82, 82, true, true});                 // OPT-2.7b
  for (auto [tq, tk] : {std::pair<int64_t, int64_t>{33, 33}, {32, 257}, {82, 82}, {300, 300}})  // T5, without relative positions
    for (int64_t d : {64, 100, 128}) {
      Attend v{2, 3, d, tq, tk, tq == 82, true, false, 0.25f};
      v.texts = true;
      add_attention(cases, t, v);
    }
  // Few queries over many keys: an odd key, lengths, two rounds of keys a warp, rows aligned to 8 bytes only.
  add_attention(cases, t, {16, 12, 64, 32, 257, false, false, false, 0.1f});
  add_attention(cases, t, {3, 2, 64, 32, 257, false, true});
  add_attention(cases, t, {3, 2, 64, 32, 257, false, true, true, 0.1f});
  add_attention(cases, t, {5, 3, 64, 7, 100});
  add_attention(cases, t, {2, 2, 64, 32, 64});
  add_attention(cases, t, {2, 2, 64, 17, 576});
  for (int64_t d : {20, 32, 64, 80, 88, 96, 100, 128})
    for (int64_t keys : {257, 288, 289, 400})
      add_attention(cases, t, {2, 3, d, 31, keys, false, keys == 289, false, 0.1f});
  // Long sequences: several tiles, tails, a sample without keys, several tiles a multiprocessor.
  if (t == DType::bf16) {
    add_tiled_attentions(cases);
    add_attention(cases, t, {2, 3, 128, 512, 512, true});
    add_attention(cases, t, {1, 2, 128, 700, 700, true, true});
    add_attention(cases, t, {1, 2, 64, 700, 700, false, true, false, 0, 2, kF32});
    add_attention(cases, t, {2, 2, 128, 129, 129});
    add_attention(cases, t, {1, 1, 128, 2048, 2048, true});
    add_attention(cases, t, {3, 2, 128, 64, 64});
    add_attention(cases, t, {3, 2, 128, 200, 200, true, true, true});
    add_attention(cases, t, {3, 2, 128, 400, 400, true, true, true, 0, 1, t});
    add_attention(cases, t, {40, 2, 64, 193, 193, false, true, false, 0, 1, t});
    add_attention(cases, t, {9, 16, 128, 320, 320, true});
  }
  // With the bias gradient. Tokens: one, several and many tiles and key blocks of the short kernels, a last key block
  // of up to 16 keys, 1 to 16 tail rows; 256 and 257 are the warpgroup kernels' too; 300 are the long kernel's; head
  // size 6 and f32 are the general one's.
  for (int64_t d : {64, 80, 88})
    for (int64_t n : {1, 7, 33, 82, 96, 97, 129, 241, 256, 257, 272}) {
      const DType gradient = rotate % 2 ? t : kF32;
      add_attention(cases, t, {2, 2, d, n, n, false, false, false, 0, 1 + rotate % 2, gradient});
      add_attention(cases, t, {3, 2, d, n, n, rotate % 3 != 0, true, rotate % 3 == 1, 0, 2 - rotate % 2, gradient});
      ++rotate;
    }
  // More heads than multiprocessors, up to six times.
  add_attention(cases, t, {9, 32, 88, 257, 257, false, false, false, 0, 1, t});
  if (t == DType::bf16) {  // f32 has no kernels of its own for these, and would need twice the memory
    add_attention(cases, t, {45, 16, 64, 256, 256});
    add_attention(cases, t, {23, 32, 96, 257, 257});
  }
  for (int bias : {1, 2}) {
    add_attention(cases, t, {2, 16, 88, 257, 257, false, false, false, 0, bias, t});
    add_attention(cases, t, {2, 3, 96, 257, 257, false, false, false, 0, bias, kF32});
    add_attention(cases, t, {3, 2, 96, 256, 256, false, false, false, 0, bias, t});
    add_attention(cases, t, {16, 2, 80, 82, 82, true, true, false, 0, bias, kF32});
    add_attention(cases, t, {2, 12, 64, 32, 32, false, false, false, 0.1f, bias, t});
    add_attention(cases, t, {2, 2, 24, 70, 70, true, false, false, 0, bias, kF32});
    add_attention(cases, t, {2, 2, 96, 272, 272, false, true, false, 0, bias, t});
    add_attention(cases, t, {2, 2, 100, 90, 90, true, true, false, 0.25f, bias, kF32});
    add_attention(cases, t, {2, 2, 128, 60, 60, true, true, false, 0, bias, t});
    add_attention(cases, t, {2, 3, 88, 300, 300, false, true, false, 0, bias, t});
    add_attention(cases, t, {2, 3, 64, 300, 300, true, false, false, 0, bias, kF32});
    add_attention(cases, t, {2, 3, 6, 41, 41, true, true, false, 0, bias, t});
  }
}

}  // namespace blipft::test
