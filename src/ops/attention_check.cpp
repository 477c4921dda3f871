// Argument checks of attention, rotary embeddings, head norms and relative positions (see ops_check.h).
#include <algorithm>
#include <utility>

#include "blipft/head_norm.h"
#include "blipft/philox.h"
#include "blipft/relative_bias.h"
#include "ops/checker.h"
#include "ops/ops_check.h"

namespace blipft {

ProbabilityNumbers ProbabilityNumbers::independent_of_padding(int64_t heads) {
  int64_t keys = kDropoutBlock;
  while (heads * (2 * keys) * (2 * keys) <= kMaxDropoutElements) keys *= 2;
  return {keys, heads * keys};
}

namespace {

// Checks that two probabilities of a sample never have the same number, whichever of heads and queries is the outer
// index.
void check_probability_numbers(const Checker& check, const AttentionForward& args) {
  if (!args.dropout) return check.dropout(args.dropout, args.batch, 0);
  const ProbabilityNumbers& own = args.numbers;
  const ProbabilityNumbers n = args.dropout_numbers();
  const int64_t inner = std::min(n.head, n.query), outer = std::max(n.head, n.query);
  const int64_t inner_count = n.head < n.query ? args.heads : args.query_tokens;
  if (args.kv_tokens > inner || inner_count * inner > outer) [[unlikely]]
    check.fail(concat("numbers.head ", n.head, " and numbers.query ", n.query, " are too small for ", args.heads,
                      " heads, ", args.query_tokens, " queries and ", args.kv_tokens, " keys"));
  check.require(own.head % kDropoutBlock == 0 && own.query % kDropoutBlock == 0, "numbers are not multiples of a dropout block");
  check.dropout(args.dropout, args.batch, (args.heads - 1) * n.head + (args.query_tokens - 1) * n.query + args.kv_tokens);
}

void check_attention(const Checker& check, const AttentionForward& args) {
  check.require(is_compute(args.dtype), "dtype must be f32 or bf16");
  if (args.batch < 1 || args.heads < 1 || args.head_size < 1 || args.query_tokens < 1 || args.kv_tokens < 1)
    check.fail(concat("sizes must be positive: batch ", args.batch, ", heads ", args.heads, ", head_size ",
                      args.head_size, ", query_tokens ", args.query_tokens, ", kv_tokens ", args.kv_tokens));
  const int64_t kv_heads = args.heads_of_kv();
  if (kv_heads < 1 || args.heads % kv_heads != 0) [[unlikely]]
    check.fail(concat("kv_heads ", kv_heads, " does not divide ", args.heads, " heads"));
  check.heads(args.q, "q", args.heads, args.head_size);
  check.heads(args.k, "k", kv_heads, args.head_size);
  check.heads(args.v, "v", kv_heads, args.head_size);
  check.heads(args.out, "out", args.heads, args.head_size);
  check.require(!args.causal || args.query_tokens == args.kv_tokens, "causal needs query_tokens == kv_tokens");
  check.require(args.window >= 0 && (args.window == 0 || args.causal), "a window is positive, and of causal attention");
  check.require(args.cap >= 0, "cap is negative");
  if (args.last_keys) {
    check.vector(args.last_keys, "last_keys", DType::i32,
                 args.packing ? args.packing.padded_rows.numel() : args.batch * args.query_tokens);
    check.require(args.causal && !args.relative, "last_keys are for causal attention without relative positions");
  }
  if (args.kv_lengths) check.vector(args.kv_lengths, "kv_lengths", DType::i32, args.batch);
  check.packing(args.packing, args.batch, args.query_tokens, args.packing.padded_rows.numel());
  check.packing(args.key_packing, args.batch, args.kv_tokens, args.key_packing.padded_rows.numel());
  if (args.key_packing)
    check.require(args.packing && !args.causal, "key_packing goes with packing, and is not for causal attention");
  else
    check.require(!args.packing || args.query_tokens == args.kv_tokens, "packing needs query_tokens == kv_tokens");
  check.relative(args.relative, args.heads);
  check.require(!args.relative || args.cap == 0, "relative goes without a cap");
  check.require(!args.dropout || !args.dropout.packing, "dropout.packing is for rows, not for probabilities");
  check_probability_numbers(check, args);
  check.vector(args.lse, "lse", DType::f32, args.batch * args.heads * args.query_tokens);
}

/// Checks that dq, dk and dv are the columns of one matrix, as dbias requires.
void check_attention_bias(const Checker& check, const AttentionBackward& args) {
  const AttentionForward& a = args.forward;
  const int64_t kv_width = a.heads_of_kv() * a.head_size, columns = a.heads * a.head_size + 2 * kv_width;
  check.parameter_gradient(args.dbias, "dbias", a.dtype, columns);
  if (a.query_tokens != a.kv_tokens) [[unlikely]]
    check.fail(concat("dbias needs as many queries as keys, got ", a.query_tokens, " and ", a.kv_tokens));
  const std::pair<const Heads*, const char*> parts[] = {{&args.dq, "dq"}, {&args.dk, "dk"}, {&args.dv, "dv"}};
  int64_t width = 0;                       // of the preceding part
  const char* expected = static_cast<const char*>(args.dq.data);
  for (const auto& [heads, name] : parts) {
    const bool apart = !a.packing && heads->batch_stride != columns * a.query_tokens;  // packed: no batch stride
    if (heads->row_stride != columns || apart) [[unlikely]]
      check.fail(concat("dbias needs dq, dk and dv in one matrix: ", name, " has row stride ", heads->row_stride,
                        " and batch stride ", heads->batch_stride, ", expected ", columns, " and ",
                        columns * a.query_tokens));
    if (heads->data != expected) [[unlikely]]
      check.fail(concat("dbias needs dq, dk and dv in one matrix: ", name, " does not start ", width,
                        " columns after the one before it"));
    width = heads == &args.dq ? a.heads * a.head_size : kv_width;
    expected += width * dtype_size(a.dtype);
  }
}

}  // namespace

void check_args(const Rotary& args) {
  const Checker check{"rotary"};
  check.floating(args.x, "x");
  check.layout(args.x, "x");
  const int64_t d = args.head_size;
  if (d < 2 || d % 2 != 0 || d > 2 * Rotary::kMaxFrequencies || args.x.cols() % d != 0) [[unlikely]]
    check.fail(concat("head_size ", d, " is not an even number of at most ", 2 * Rotary::kMaxFrequencies,
                      " that divides ", args.x.cols(), " columns"));
  if (args.rotated < 0 || args.rotated % 2 != 0 || args.rotated > d) [[unlikely]]
    check.fail(concat("rotated ", args.rotated, " is not an even number of at most the head size, ", d));
  const int64_t pairs = (args.rotated > 0 ? args.rotated : d) / 2;
  check.vector(args.positions, "positions", DType::i32, args.axes() * args.x.rows());
  check.require(args.axes() == 1 || *std::max_element(args.axis, args.axis + pairs) < args.axes(),
                "a pair is rotated by an axis without positions");
  if (!args.amax) return;
  check.vector(args.amax, "amax", DType::f32, 1);
  check.require(args.rotated == 0 || args.rotated == d, "amax is that of heads that turn as a whole");
}

namespace {

/// Returns the number of groups; x is [M, groups * size].
int64_t check_groups(const Checker& check, const MatrixView& x, int64_t size, const Tensor& gamma) {
  check.floating(x, "x");
  check.layout(x, "x");
  if (size < 1 || x.cols() % size != 0) [[unlikely]]
    check.fail(concat("size ", size, " does not divide ", x.cols(), " columns"));
  check.vector(gamma, "gamma", x.dtype, size);
  return x.cols() / size;
}

void check_turn(const Checker& check, const std::optional<Rotary>& rotary, const MatrixView& of, bool inverse) {
  if (!rotary) return;
  check_args(*rotary);
  check.require(rotary->x.data == of.data && rotary->x.shape == of.shape && rotary->x.row_stride == of.row_stride,
                "rotary of another matrix");
  check.require(rotary->inverse == inverse, "rotary in the wrong direction");
}

}  // namespace

void check_args(const HeadNormForward& args) {
  const Checker check{"head_norm_forward"};
  const int64_t groups = check_groups(check, args.x, args.size, args.gamma);
  check.matrix(args.y, "y", args.x.dtype, args.x.rows(), args.x.cols());
  check.vector(args.rstd, "rstd", DType::f32, args.x.rows() * groups);
  check_turn(check, args.rotary, args.y, false);
}

void check_args(const HeadNormBackward& args) {
  const Checker check{"head_norm_backward"};
  const int64_t groups = check_groups(check, args.x, args.size, args.gamma), m = args.x.rows(), n = args.x.cols();
  check.matrix(args.dy, "dy", args.x.dtype, m, n);
  check.matrix(args.dx, "dx", args.x.dtype, m, n);
  check.vector(args.rstd, "rstd", DType::f32, m * groups);
  check_turn(check, args.rotary, args.dy, true);
  check.require(!args.rotary || args.dx.data == args.dy.data, "rotary where dx is not dy");
  if (args.dgamma) check.parameter_gradient(args.dgamma, "dgamma", args.x.dtype, args.size);
}

void check_args(const AttentionForward& args) { check_attention({"attention_forward"}, args); }

void check_args(const AttentionBackward& args) {
  const Checker check{"attention_backward"};
  check_attention(check, args.forward);
  const AttentionForward& a = args.forward;
  check.heads(args.dout, "dout", a.heads, a.head_size);
  check.heads(args.dq, "dq", a.heads, a.head_size);
  check.heads(args.dk, "dk", a.heads_of_kv(), a.head_size);
  check.heads(args.dv, "dv", a.heads_of_kv(), a.head_size);
  check.vector(args.delta, "delta", DType::f32, a.batch * a.heads * a.query_tokens);
  if (args.drelative) {
    check.require(static_cast<bool>(a.relative), "drelative without relative");
    check.matrix(args.drelative, "drelative", DType::f32, a.heads, a.relative.columns());
  }
  if (args.dbias) check_attention_bias(check, args);
}

namespace {

void check_relative_bias(const Checker& check, const RelativeBias& args) {
  if (args.distances < 1 || args.distances > RelativeBias::kMaxBuckets || args.first[0] != 0 ||
      (args.directed != 0 && args.directed != args.distances)) [[unlikely]]
    check.fail(concat("distances is ", args.distances, " and directed ", args.directed, ", expected 1 to ",
                      RelativeBias::kMaxBuckets, " buckets from distance 0 on, and as many of keys ahead or none"));
  for (int64_t i = 1; i < args.distances; ++i)
    check.require(args.first[i] >= args.first[i - 1], "first descends");
  check.relative(args.scores, args.table.cols());
  check.require(static_cast<bool>(args.scores), "scores.values is missing");
  check.matrix(args.table, "table", args.buckets(), args.table.cols());
}

}  // namespace

void check_args(const RelativeBias& args) {
  const Checker check{"relative_bias_forward"};
  check.floating(args.table, "table");
  check_relative_bias(check, args);
}

void check_backward_args(const RelativeBias& args) {
  const Checker check{"relative_bias_backward"};
  check.parameter_gradient(args.table, "table", DType::bf16);
  check_relative_bias(check, args);
}

}  // namespace blipft
