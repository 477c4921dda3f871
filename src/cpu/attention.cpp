// Attention, computed for one head of one sample and one row of scores at a time; rotary position embedding.
#include <cmath>
#include <limits>

#include "cpu/cpu_ops.h"
#include "ops/ops_check.h"

namespace blipft::cpu {
namespace {

/// Returns the element offset of head h of token t of sample b. `packing` is that of the matrix that contains `heads`.
int64_t offset(const Heads& heads, const Packing& packing, const AttentionForward& a, int64_t b, int64_t h, int64_t t) {
  const int64_t sample = packing ? first_row(packing, b, 0) * heads.row_stride : b * heads.batch_stride;
  return sample + t * heads.row_stride + h * a.head_size;
}

int64_t queries_of(const AttentionForward& a, int64_t b) { return rows_of(a.packing, b, a.query_tokens); }
int64_t keys_of(const AttentionForward& a, int64_t b) { return rows_of(a.packing_of_keys(), b, a.kv_tokens); }

/// Loads one head's [tokens, head_size] as f32.
void load_head(const Heads& heads, const Packing& packing, const AttentionForward& a, int64_t b, int64_t h,
               int64_t tokens, float* out) {
  for (int64_t t = 0; t < tokens; ++t)
    load(heads.data, a.dtype, offset(heads, packing, a, b, h, t), a.head_size, out + t * a.head_size);
}

void store_head(const float* in, const Heads& heads, const Packing& packing, const AttentionForward& a, int64_t b,
                int64_t h, int64_t tokens) {
  for (int64_t t = 0; t < tokens; ++t)
    store(in + t * a.head_size, heads.data, a.dtype, offset(heads, packing, a, b, h, t), a.head_size);
}

/// Computes sums[c] = sum over t of head[t, c]; head is [tokens, head_size].
void sum_tokens(const float* head, int64_t tokens, int64_t head_size, float* sums) {
  for (int64_t c = 0; c < head_size; ++c) {
    double total = 0;
    for (int64_t t = 0; t < tokens; ++t) total += static_cast<double>(head[t * head_size + c]);
    sums[c] = static_cast<float>(total);
  }
}

/// Returns the last keys of the queries of sample b.
const int32_t* last_keys(const AttentionForward& a, int64_t b) {
  return a.last_keys.as<const int32_t>() + (a.packing ? first_row(a.packing, b, 0) : b * a.query_tokens);
}

/// The range [first, end) of keys that a query sees.
struct Visible {
  int64_t first, end;
};

/// Returns the keys that query i of sample b sees.
Visible visible_keys(const AttentionForward& a, int64_t b, int64_t i) {
  int64_t end = keys_of(a, b);
  if (a.kv_lengths) end = std::min<int64_t>(end, std::max(0, a.kv_lengths.as<const int32_t>()[b]));
  if (a.causal) end = std::min(end, 1 + (a.last_keys ? last_keys(a, b)[i] : i));
  return {a.window > 0 ? std::min(end, std::max<int64_t>(0, i + 1 - a.window)) : 0, end};
}

void drop_probabilities(const AttentionForward& a, int64_t b, int64_t h, int64_t i, Visible keys, float* p) {
  if (!a.dropout) return;
  const ProbabilityNumbers numbers = a.dropout_numbers();
  apply_dropout(a.dropout, b, h * numbers.head + i * numbers.query + keys.first, keys.end - keys.first, p + keys.first);
}

/// Returns the column of RelativeScores::values for query i and key j.
int64_t relative_column(const RelativeScores& relative, int64_t i, int64_t j) {
  return std::clamp(j - i, -relative.behind, relative.ahead) + relative.behind;
}

/// Returns the relative bias of query i and key j in head h, or 0 if there is none.
float relative_score(const AttentionForward& a, int64_t h, int64_t i, int64_t j) {
  if (!a.relative) return 0;
  return a.relative.values.as<const float>()[h * a.relative.columns() + relative_column(a.relative, i, j)];
}

/// Returns the score of a query and a key before the mask and without relative bias.
float score(const AttentionForward& a, const float* q, const float* k) {
  const float scaled = a.scale * dot(q, k, a.head_size);
  return a.cap > 0 ? a.cap * std::tanh(scaled / a.cap) : scaled;
}

/// Calls f(b, h) for each of `heads` heads of every sample, in parallel.
template <class F>
void for_heads(int64_t batch, int64_t heads, F f) {
#pragma omp parallel for schedule(dynamic)
  for (int64_t bh = 0; bh < batch * heads; ++bh) f(bh / heads, bh % heads);
}

/// Throws if the packings are invalid, if the kv_lengths of a packed sample exceed its rows, or if last_keys decrease
/// or are outside of their sample.
void check_numbers(const AttentionForward& a) {
  check_packing(a.packing, a.query_tokens);
  check_packing(a.key_packing, a.kv_tokens);
  for (int64_t b = 0; a.packing && a.kv_lengths && b < a.batch; ++b)
    BLIPFT_CHECK(a.kv_lengths.as<const int32_t>()[b] <= keys_of(a, b), "packed sample ", b, " has kv_lengths ",
                 a.kv_lengths.as<const int32_t>()[b], ", but ", keys_of(a, b), " rows");
  for (int64_t b = 0; a.last_keys && b < a.batch; ++b)
    for (int64_t i = 0, rows = queries_of(a, b); i < rows; ++i) {
      const int64_t last = last_keys(a, b)[i], before = i > 0 ? last_keys(a, b)[i - 1] : 0;
      BLIPFT_CHECK(last >= i && last < rows && last >= before, "last_keys of query ", i, " of ", rows, " is ", last,
                   ", and of the query before it ", before);
    }
}

/// Returns the head of keys and values that query head h uses.
int64_t kv_head(const AttentionForward& a, int64_t h) { return h / (a.heads / a.heads_of_kv()); }

/// One head's q, k and v as f32 and buffers for its output and for a row of scores, in the first five thread buffers.
struct Head {
  int64_t nq, nk;
  float *q, *k, *v, *out, *p;               // [nq, d], [nk, d], [nk, d]; uninitialized: [nq, d], [nk]

  Head(const AttentionForward& a, int64_t b, int64_t h)
      : nq(queries_of(a, b)), nk(keys_of(a, b)), q(thread_buffer(0, nq * a.head_size)),
        k(thread_buffer(1, nk * a.head_size)), v(thread_buffer(2, nk * a.head_size)),
        out(thread_buffer(3, nq * a.head_size)), p(thread_buffer(4, nk)) {
    load_head(a.q, a.packing, a, b, h, nq, q);
    load_head(a.k, a.packing_of_keys(), a, b, kv_head(a, h), nk, k);
    load_head(a.v, a.packing_of_keys(), a, b, kv_head(a, h), nk, v);
  }
};

void forward_head(const AttentionForward& a, int64_t b, int64_t h) {
  const int64_t d = a.head_size;
  const auto [nq, nk, q, k, v, out, p] = Head(a, b, h);
  float* lse = a.lse.as<float>() + (b * a.heads + h) * a.query_tokens;
  for (int64_t i = 0; i < nq; ++i) {
    const Visible keys = visible_keys(a, b, i);
    float* out_row = out + i * d;
    std::fill_n(out_row, d, 0.0f);
    lse[i] = -std::numeric_limits<float>::infinity();
    if (keys.first == keys.end) continue;
    float highest = -std::numeric_limits<float>::infinity(), total = 0;
    for (int64_t j = keys.first; j < keys.end; ++j) p[j] = score(a, q + i * d, k + j * d) + relative_score(a, h, i, j);
    for (int64_t j = keys.first; j < keys.end; ++j) highest = std::max(highest, p[j]);
    for (int64_t j = keys.first; j < keys.end; ++j) total += p[j] = std::exp(p[j] - highest);
    lse[i] = highest + std::log(total);
    for (int64_t j = keys.first; j < keys.end; ++j) p[j] /= total;
    drop_probabilities(a, b, h, i, keys, p);
    for (int64_t j = keys.first; j < keys.end; ++j) add_scaled(out_row, p[j], v + j * d, d);
  }
  store_head(out, a.out, a.packing, a, b, h, nq);
}

// With probabilities p, dropout factors m and output o: dv += (m p)^T do, dp = m (do v^T), ds = p (dp - rowsum(do o))
// (times the slope of the cap), dq = scale ds k, dk += scale ds^T q. dq, dk and dv are [tokens, head_size]. drelative
// [columns] (optional) is set to the sums of this head's and sample's ds.
void backward_head(const AttentionBackward& args, int64_t b, int64_t h, float* dq, float* dk, float* dv,
                   float* drelative) {
  const AttentionForward& a = args.forward;
  const int64_t d = a.head_size;
  const auto [nq, nk, q, k, v, out, p] = Head(a, b, h);
  float* dropped = thread_buffer(5, nk);  // m p
  float* dp = thread_buffer(6, nk);
  float* slope = thread_buffer(11, nk);    // d(score) / d(scaled product)
  float* dout = thread_buffer(7, nq * d);
  load_head(a.out, a.packing, a, b, h, nq, out);
  load_head(args.dout, a.packing, a, b, h, nq, dout);
  if (drelative) std::fill_n(drelative, a.relative.columns(), 0.0f);
  std::fill_n(dq, nq * d, 0.0f);
  const float* lse = a.lse.as<const float>() + (b * a.heads + h) * a.query_tokens;
  float* delta = args.delta.as<float>() + (b * a.heads + h) * a.query_tokens;
  for (int64_t i = 0; i < nq; ++i) {
    const Visible keys = visible_keys(a, b, i);
    delta[i] = dot(dout + i * d, out + i * d, d);
    for (int64_t j = keys.first; j < keys.end; ++j) {
      if (a.cap > 0) {
        const float s = score(a, q + i * d, k + j * d);
        p[j] = std::exp(s - lse[i]);
        slope[j] = 1 - (s / a.cap) * (s / a.cap);
      } else {
        p[j] = std::exp(a.scale * dot(q + i * d, k + j * d, d) + relative_score(a, h, i, j) - lse[i]);
        slope[j] = 1;
      }
      dp[j] = dot(dout + i * d, v + j * d, d);
    }
    std::copy(p + keys.first, p + keys.end, dropped + keys.first);
    drop_probabilities(a, b, h, i, keys, dropped);
    drop_probabilities(a, b, h, i, keys, dp);
    for (int64_t j = keys.first; j < keys.end; ++j) {
      const float gradient = p[j] * (dp[j] - delta[i]) * slope[j], ds = a.scale * gradient;
      if (drelative) drelative[relative_column(a.relative, i, j)] += gradient;
      add_scaled(dq + i * d, ds, k + j * d, d);
      add_scaled(dk + j * d, ds, q + i * d, d);
      add_scaled(dv + j * d, dropped[j], dout + i * d, d);
    }
  }
}

// Backward of key/value head g of sample b and of the query heads that use it. `sums` [(heads + 2 kv_heads) *
// head_size], if given, gets this sample's column sums of dq, dk and dv; `relative` [heads, columns], if given, gets
// this sample's gradient of the relative bias.
void backward_group(const AttentionBackward& args, int64_t b, int64_t g, float* sums, float* relative) {
  const AttentionForward& a = args.forward;
  const int64_t d = a.head_size, nq = queries_of(a, b), nk = keys_of(a, b), kv_heads = a.heads_of_kv();
  const int64_t of_group = a.heads / kv_heads;
  float* dq = thread_buffer(8, nq * d);
  float* dk = thread_buffer(9, nk * d);
  float* dv = thread_buffer(10, nk * d);
  std::fill_n(dk, nk * d, 0.0f);
  std::fill_n(dv, nk * d, 0.0f);
  for (int64_t h = g * of_group; h < (g + 1) * of_group; ++h) {
    backward_head(args, b, h, dq, dk, dv, relative ? relative + h * a.relative.columns() : nullptr);
    store_head(dq, args.dq, a.packing, a, b, h, nq);
    if (sums) sum_tokens(dq, nq, d, sums + h * d);
  }
  store_head(dk, args.dk, a.packing_of_keys(), a, b, g, nk);
  store_head(dv, args.dv, a.packing_of_keys(), a, b, g, nk);
  if (!sums) return;
  sum_tokens(dk, nk, d, sums + (a.heads + g) * d);
  sum_tokens(dv, nk, d, sums + (a.heads + kv_heads + g) * d);
}

}  // namespace

void CpuOps::attention_forward(const AttentionForward& args, Stream) {
  check_args(args);
  check_numbers(args);
  for_heads(args.batch, args.heads, [&](int64_t b, int64_t h) { forward_head(args, b, h); });
}

void CpuOps::attention_backward(const AttentionBackward& args, Stream) {
  check_args(args);
  const AttentionForward& a = args.forward;
  check_numbers(a);
  const int64_t columns = (a.heads + 2 * a.heads_of_kv()) * a.head_size;
  const int64_t of_relative = args.drelative.numel();
  float* sums = args.dbias ? product_.floats(a.batch * columns) : nullptr;              // [batch, columns]
  float* relative = args.drelative ? left_.floats(a.batch * of_relative) : nullptr;     // [batch, heads, columns]
  for_heads(a.batch, a.heads_of_kv(), [&](int64_t b, int64_t g) {
    backward_group(args, b, g, sums ? sums + b * columns : nullptr, relative ? relative + b * of_relative : nullptr);
  });
  if (sums) column_sums(sums, a.batch, args.dbias, args.accumulate_dbias);
  if (relative) column_sums(relative, a.batch, args.drelative, true);
}

void CpuOps::rotary(const Rotary& args, Stream) {
  check_args(args);
  const int64_t n = args.x.cols(), d = args.head_size, half = (args.rotated > 0 ? args.rotated : d) / 2;
  const int64_t rows = args.x.rows(), axes = args.axes();
  for_each(rows, [&](int64_t r) {
    float* x = thread_buffer(0, n);
    load_row(args.x, r, x);
    for (int64_t i = 0; i < half; ++i) {
      const int64_t axis = axes > 1 ? args.axis[i] : 0;
      const auto position = static_cast<float>(args.positions.as<const int32_t>()[axis * rows + r]);
      const float angle = position * args.frequencies[i], c = std::cos(angle) * args.magnitude;
      const float s = (args.inverse ? -std::sin(angle) : std::sin(angle)) * args.magnitude;
      for (float* head = x; head < x + n; head += d) {
        const float a = head[i], b = head[i + half];
        head[i] = a * c - b * s;
        head[i + half] = b * c + a * s;
      }
    }
    store_row(x, args.x, r);
  });
  raise_magnitude(args.amax, args.x);
}

}  // namespace blipft::cpu
