// Argument checks of every op (see ops_check.h).
#include "ops/ops_check.h"

#include <initializer_list>
#include <utility>

namespace blipft {
namespace {

bool is_compute(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

/// Asks questions about the arguments of one op; every "no" is an Error that begins with the op's name.
struct Checker {
  const char* op;

  void fail(const std::string& what) const { throw Error(concat(op, ": ", what)); }
  void require(bool condition, const char* what) const {
    if (!condition) [[unlikely]] fail(what);
  }
  void present(const Tensor& t, const char* name) const {
    if (!t || t.shape.rank < 1) [[unlikely]] fail(concat(name, " is missing"));
  }
  void dtype(const Tensor& t, const char* name, DType expected) const {
    present(t, name);
    if (t.dtype != expected) [[unlikely]]
      fail(concat(name, " has dtype ", dtype_name(t.dtype), ", expected ", dtype_name(expected)));
  }
  /// f32 or bf16, as the compute dtype of the whole op.
  void floating(const Tensor& t, const char* name) const {
    present(t, name);
    if (!is_compute(t.dtype)) [[unlikely]]
      fail(concat(name, " has dtype ", dtype_name(t.dtype), ", expected f32 or bf16"));
  }
  void present(const MatrixView& view, const char* name) const {
    if (!view || view.shape.rank != 2) [[unlikely]] fail(concat(name, " is missing"));
  }
  /// Elements lie at multiples of their size, and rows do not overlap.
  void layout(const MatrixView& view, const char* name) const {
    if (reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(dtype_size(view.dtype)) != 0) [[unlikely]]
      fail(concat(name, " does not start at a multiple of its elements' size"));
    if (!view.contiguous() && view.row_stride < view.cols()) [[unlikely]]
      fail(concat(name, " has row stride ", view.row_stride, ", less than its ", view.cols(), " columns"));
  }
  void dtype(const MatrixView& view, const char* name, DType expected) const {
    present(view, name);
    if (view.dtype != expected) [[unlikely]]
      fail(concat(name, " has dtype ", dtype_name(view.dtype), ", expected ", dtype_name(expected)));
  }
  void floating(const MatrixView& view, const char* name) const {
    present(view, name);
    if (!is_compute(view.dtype)) [[unlikely]]
      fail(concat(name, " has dtype ", dtype_name(view.dtype), ", expected f32 or bf16"));
  }
  void matrix(const MatrixView& view, const char* name, DType expected, int64_t rows, int64_t cols) const {
    dtype(view, name, expected);
    if (view.cols() != cols || view.rows() != rows) [[unlikely]]
      fail(concat(name, " has shape ", view.shape.str(), ", expected ", rows, " rows of ", cols));
    layout(view, name);
  }
  /// What is added to an output may be that output, but may not overlap it otherwise.
  void addend(const MatrixView& view, const char* name, const MatrixView& out) const {
    matrix(view, name, out.dtype, out.rows(), out.cols());
    if (view.data == out.data && view.row_stride != out.row_stride) [[unlikely]]
      fail(concat(name, " starts where the output does, but its row stride is ", view.row_stride, " instead of ",
                  out.row_stride));
  }
  void contiguous(const MatrixView& view, const char* name, const char* why) const {
    if (!view.contiguous()) [[unlikely]]
      fail(concat(name, " has rows of ", view.cols(), " that lie ", view.row_stride, " elements apart, but ", why,
                  " needs them one behind the other"));
  }
  void count(const Tensor& t, const char* name, int64_t n) const {
    if (t.numel() != n) [[unlikely]]
      fail(concat(name, " has shape ", t.shape.str(), ", expected ", n, " elements"));
  }
  void matrix(const Tensor& t, const char* name, int64_t rows, int64_t cols) const {
    if (t.cols() != cols || t.numel() != rows * cols) [[unlikely]]
      fail(concat(name, " has shape ", t.shape.str(), ", expected ", rows, " rows of ", cols));
  }
  void matrix(const Tensor& t, const char* name, DType expected, int64_t rows, int64_t cols) const {
    dtype(t, name, expected);
    matrix(t, name, rows, cols);
  }
  void vector(const Tensor& t, const char* name, DType expected, int64_t n) const {
    dtype(t, name, expected);
    count(t, name, n);
  }
  void gradient(const Tensor& t, const char* name, int64_t n) const {
    floating(t, name);
    count(t, name, n);
  }
  /// A parameter's gradient: f32 or the op's compute dtype.
  void parameter_gradient(const Tensor& t, const char* name, DType compute) const {
    present(t, name);
    if (t.dtype != DType::f32 && t.dtype != compute) [[unlikely]]
      fail(concat(name, " has dtype ", dtype_name(t.dtype), ", expected f32 or the compute dtype ",
                  dtype_name(compute)));
  }
  void parameter_gradient(const Tensor& t, const char* name, DType compute, int64_t n) const {
    parameter_gradient(t, name, compute);
    count(t, name, n);
  }
  void dropout(const Dropout& d, int64_t samples, int64_t elements_per_sample) const {
    if (!(d.p >= 0 && d.p < 1)) [[unlikely]] fail(concat("dropout p is ", d.p, ", expected 0 <= p < 1"));
    if (!d) return;
    vector(d.sample_keys, "dropout.sample_keys", DType::i64, samples);
    require(elements_per_sample <= (int64_t{1} << 35), "dropout: more elements of one sample than 32-bit blocks count");
  }
  /// Samples of at most `most` rows each, `rows` altogether.
  void packing(const Packing& p, int64_t samples, int64_t most, int64_t rows) const {
    require(bool(p.starts) == bool(p.padded_rows), "packing.starts and packing.padded_rows come both or not at all");
    if (!p) return;
    vector(p.starts, "packing.starts", DType::i32, samples + 1);
    vector(p.padded_rows, "packing.padded_rows", DType::i32, rows);
    require(samples * most < (int64_t{1} << 31), "packing: more rows than 32-bit numbers count");
    if (rows > samples * most) [[unlikely]]
      fail(concat(rows, " packed rows are more than ", samples, " samples of at most ", most, " have"));
  }
  /// The number of packed samples, where nothing else tells it.
  int64_t samples(const Packing& p) const {
    dtype(p.starts, "packing.starts", DType::i32);
    return p.starts.numel() - 1;
  }
  void dropout_rows(const Dropout& d, int64_t rows, int64_t cols) const {
    if (!d) return dropout(d, 0, 0);
    if (d.packing || d.packing.padded_rows) {
      require(d.rows_per_sample > 0, "dropout.rows_per_sample is not positive");
      packing(d.packing, samples(d.packing), d.rows_per_sample, rows);
      return dropout(d, samples(d.packing), d.rows_per_sample * cols);
    }
    if (d.rows_per_sample < 1 || rows % d.rows_per_sample != 0) [[unlikely]]
      fail(concat("dropout.rows_per_sample is ", d.rows_per_sample, ", which does not divide ", rows, " rows"));
    dropout(d, rows / d.rows_per_sample, d.rows_per_sample * cols);
  }
  void heads(const Heads& h, const char* name, const AttentionForward& a) const {
    if (h.data == nullptr) [[unlikely]] fail(concat(name, " is missing"));
    if (h.row_stride < a.heads * a.head_size || h.batch_stride < 0) [[unlikely]]
      fail(concat(name, " has row stride ", h.row_stride, " and batch stride ", h.batch_stride, " for ", a.heads,
                  " heads of ", a.head_size));
  }
};

void check_attention(const Checker& check, const AttentionForward& args) {
  check.require(is_compute(args.dtype), "dtype must be f32 or bf16");
  if (args.batch < 1 || args.heads < 1 || args.head_size < 1 || args.query_tokens < 1 || args.kv_tokens < 1)
    check.fail(concat("sizes must be positive: batch ", args.batch, ", heads ", args.heads, ", head_size ",
                      args.head_size, ", query_tokens ", args.query_tokens, ", kv_tokens ", args.kv_tokens));
  check.heads(args.q, "q", args);
  check.heads(args.k, "k", args);
  check.heads(args.v, "v", args);
  check.heads(args.out, "out", args);
  check.require(!args.causal || args.query_tokens == args.kv_tokens, "causal needs query_tokens == kv_tokens");
  if (args.kv_lengths) check.vector(args.kv_lengths, "kv_lengths", DType::i32, args.batch);
  check.packing(args.packing, args.batch, args.query_tokens, args.packing.padded_rows.numel());
  if (args.packing) {
    check.require(args.query_tokens == args.kv_tokens, "packing needs query_tokens == kv_tokens");
    check.require(!args.dropout, "packing goes without dropout only");
  }
  check.require(!args.dropout || !args.dropout.packing, "dropout.packing is for rows, not for probabilities");
  check.dropout(args.dropout, args.batch, args.heads * args.query_tokens * args.kv_tokens);
  check.vector(args.lse, "lse", DType::f32, args.batch * args.heads * args.query_tokens);
}

/// dbias wants dq, dk and dv as the columns of one matrix.
void check_attention_bias(const Checker& check, const AttentionBackward& args) {
  const AttentionForward& a = args.forward;
  const int64_t width = a.heads * a.head_size;
  check.parameter_gradient(args.dbias, "dbias", a.dtype, 3 * width);
  if (a.query_tokens != a.kv_tokens) [[unlikely]]
    check.fail(concat("dbias needs as many queries as keys, got ", a.query_tokens, " and ", a.kv_tokens));
  const std::pair<const Heads*, const char*> parts[] = {{&args.dq, "dq"}, {&args.dk, "dk"}, {&args.dv, "dv"}};
  const char* expected = static_cast<const char*>(args.dq.data);
  for (const auto& [heads, name] : parts) {
    const bool apart = !a.packing && heads->batch_stride != 3 * width * a.query_tokens;  // packed: no such stride
    if (heads->row_stride != 3 * width || apart) [[unlikely]]
      check.fail(concat("dbias needs dq, dk and dv in one matrix: ", name, " has row stride ", heads->row_stride,
                        " and batch stride ", heads->batch_stride, ", expected ", 3 * width, " and ",
                        3 * width * a.query_tokens));
    if (heads->data != expected) [[unlikely]]
      check.fail(concat("dbias needs dq, dk and dv in one matrix: ", name, " does not start ", width,
                        " columns after the one before it"));
    expected += width * dtype_size(a.dtype);
  }
}

/// VisionEmbed's shapes; the tables' dtypes differ between forward and backward.
void check_vision(const Checker& check, const VisionEmbed& args) {
  check.floating(args.x, "x");
  check.dtype(args.patches, "patches", args.x.dtype);
  const int64_t n = args.x.cols();
  check.require(args.patches.cols() == n, "patches and x have different row sizes");
  // x has one row more per sample than patches: their difference is the number of samples.
  const int64_t samples = args.x.rows() - args.patches.rows();
  if (samples < 1 || args.patches.rows() % samples != 0) [[unlikely]]
    check.fail(concat("x has ", args.x.rows(), " rows for ", args.patches.rows(), " patches: not one more per sample"));
  const int64_t positions = args.patches.rows() / samples + 1;
  if (args.class_embedding) check.count(args.class_embedding, "class_embedding", n);
  if (args.positions) check.matrix(args.positions, "positions", positions, n);
}

void check_text(const Checker& check, const TextEmbed& args) {
  check.floating(args.x, "x");
  check.dtype(args.ids, "ids", DType::i32);
  const int64_t n = args.x.cols(), samples = args.ids.rows(), tokens = args.ids.cols();
  check.require(args.prefix_rows >= 0, "prefix_rows is negative");
  check.vector(args.lengths, "lengths", DType::i32, samples);
  const int64_t rows = args.packing ? args.x.rows() : samples * (args.prefix_rows + tokens);
  check.matrix(args.x, "x", rows, n);
  check.packing(args.packing, samples, args.prefix_rows + tokens, rows);
  if (rows < samples * args.prefix_rows) [[unlikely]]
    check.fail(concat("x has ", rows, " rows, fewer than ", samples, " samples with ", args.prefix_rows,
                      " prefix rows each"));
  if (args.prefix) check.matrix(args.prefix, "prefix", args.x.dtype, samples * args.prefix_rows, n);
  if (args.tokens) check.require(args.tokens.cols() == n, "tokens and x have different row sizes");
  if (args.positions) {
    check.require(args.positions.cols() == n, "positions and x have different row sizes");
    if (args.positions.rows() < args.prefix_rows + tokens + 2) [[unlikely]]
      check.fail(concat("positions has ", args.positions.rows(), " rows, but ", args.prefix_rows + tokens,
                        " tokens need ", args.prefix_rows + tokens + 2));
  }
}

void check_update(const Checker& check, const Tensor& param, const Tensor& master, const Tensor& grad,
                  const Tensor& scalars, const Tensor& squares) {
  check.floating(param, "param");
  if (master) check.vector(master, "master", DType::f32, param.numel());
  check.gradient(grad, "grad", param.numel());
  check.vector(scalars, "scalars", DType::f32, kStepScalars);
  if (squares) check.vector(squares, "squares", DType::f32, squares_count(param.numel()));
}

}  // namespace

void check_args(const LinearForward& args) {
  const Checker check{"linear_forward"};
  check.floating(args.x, "x");
  check.layout(args.x, "x");
  const DType t = args.x.dtype;
  check.dtype(args.w, "w", t);
  const int64_t m = args.x.rows(), k = args.x.cols(), n = args.w.rows();
  check.matrix(args.w, "w", n, k);
  check.matrix(args.y, "y", t, m, n);
  if (args.bias) check.vector(args.bias, "bias", t, n);
  if (args.residual) {
    check.addend(args.residual, "residual", args.y);
    check.require(args.activation == Activation::none, "residual goes with Activation::none only");
  }
  check.require((args.activation == Activation::gelu) == bool(args.pre_activation),
                "pre_activation is required for gelu and absent otherwise");
  if (args.pre_activation) {
    check.matrix(args.pre_activation, "pre_activation", t, m, n);
    check.contiguous(args.y, "y", "gelu");
  }
}

void check_args(const LinearBackwardInput& args) {
  const Checker check{"linear_backward_input"};
  check.floating(args.dy, "dy");
  check.layout(args.dy, "dy");
  const DType t = args.dy.dtype;
  check.dtype(args.w, "w", t);
  const int64_t m = args.dy.rows(), n = args.dy.cols(), k = args.w.cols();
  check.matrix(args.w, "w", n, k);
  check.matrix(args.dx, "dx", t, m, k);
  if (args.add) check.addend(args.add, "add", args.dx);
  if (args.activation != Activation::none) check.contiguous(args.dx, "dx", "the derivative of an activation");
  if (args.dbias) check.contiguous(args.dx, "dx", "dbias");
  check.require((args.activation == Activation::none) != bool(args.saved),
                "saved is required with an activation and absent otherwise");
  if (args.saved) check.matrix(args.saved, "saved", t, m, k);
  if (args.activated) {
    check.require(args.activation == Activation::gelu, "activated goes with gelu only");
    check.matrix(args.activated, "activated", t, m, k);
  }
  if (args.dbias) check.parameter_gradient(args.dbias, "dbias", t, k);
}

void check_args(const LinearBackwardWeight& args) {
  const Checker check{"linear_backward_weight"};
  check.floating(args.dy, "dy");
  check.layout(args.dy, "dy");
  const int64_t m = args.dy.rows(), n = args.dy.cols();
  check.matrix(args.x, "x", args.dy.dtype, m, args.x.cols());
  check.parameter_gradient(args.dw, "dw", args.dy.dtype);
  check.matrix(args.dw, "dw", n, args.x.cols());
  if (args.dbias) check.parameter_gradient(args.dbias, "dbias", args.dy.dtype, n);
}

void check_args(const NormForward& args) {
  const Checker check{"norm_forward"};
  check.floating(args.x, "x");
  const DType t = args.x.dtype;
  const int64_t m = args.x.rows(), n = args.x.cols();
  check.matrix(args.y, "y", t, m, n);
  if (args.residual) check.matrix(args.residual, "residual", t, m, n);
  check.dropout_rows(args.dropout, m, n);
  check.require((args.residual || args.dropout) == bool(args.sum),
                "sum is required with residual or dropout and absent otherwise");
  if (args.sum) check.matrix(args.sum, "sum", t, m, n);
  check.vector(args.gamma, "gamma", t, n);
  check.vector(args.beta, "beta", t, n);
  check.vector(args.mean, "mean", DType::f32, m);
  check.vector(args.rstd, "rstd", DType::f32, m);
}

void check_args(const NormBackward& args) {
  const Checker check{"norm_backward"};
  check.floating(args.dy, "dy");
  const DType t = args.dy.dtype;
  const int64_t m = args.dy.rows(), n = args.dy.cols();
  check.matrix(args.x, "x", t, m, n);
  check.matrix(args.dx, "dx", t, m, n);
  check.vector(args.mean, "mean", DType::f32, m);
  check.vector(args.rstd, "rstd", DType::f32, m);
  check.vector(args.gamma, "gamma", t, n);
  check.require(bool(args.beta) == bool(args.y), "beta and y come both or not at all");
  if (args.y) {
    check.vector(args.beta, "beta", t, n);
    check.matrix(args.y, "y", t, m, n);
  }
  if (args.add) check.matrix(args.add, "add", t, m, n);
  check.require(bool(args.dgamma) == bool(args.dbeta), "dgamma and dbeta come both or not at all");
  if (args.dgamma) check.parameter_gradient(args.dgamma, "dgamma", t, n);
  if (args.dbeta) check.parameter_gradient(args.dbeta, "dbeta", t, n);
  if (args.dbias) check.parameter_gradient(args.dbias, "dbias", t, n);
  check.dropout_rows(args.dropout, m, n);
  check.require(bool(args.dropout) == bool(args.dropped), "dropout and dropped come both or not at all");
  if (args.dropped) check.matrix(args.dropped, "dropped", t, m, n);
}

void check_args(const DropoutAdd& args) {
  const Checker check{"dropout_add"};
  check.floating(args.x, "x");
  const int64_t m = args.x.rows(), n = args.x.cols();
  if (args.residual) check.matrix(args.residual, "residual", args.x.dtype, m, n);
  check.matrix(args.y, "y", args.x.dtype, m, n);
  check.dropout_rows(args.dropout, m, n);
}

void check_args(const AttentionForward& args) { check_attention({"attention_forward"}, args); }

void check_args(const AttentionBackward& args) {
  const Checker check{"attention_backward"};
  check_attention(check, args.forward);
  check.heads(args.dout, "dout", args.forward);
  check.heads(args.dq, "dq", args.forward);
  check.heads(args.dk, "dk", args.forward);
  check.heads(args.dv, "dv", args.forward);
  check.vector(args.delta, "delta", DType::f32, args.forward.batch * args.forward.heads * args.forward.query_tokens);
  if (args.dbias) check_attention_bias(check, args);
}

void check_args(const Patchify& args) {
  const Checker check{"patchify"};
  check.dtype(args.pixels, "pixels", DType::u8);
  check.floating(args.patches, "patches");
  const Shape& s = args.pixels.shape;
  if (s.rank != 4 || s[1] != s[2] || s[3] != 3) [[unlikely]]
    check.fail(concat("pixels has shape ", s.str(), ", expected [B, S, S, 3]"));
  if (args.patch < 1 || args.patch > s[1]) [[unlikely]]
    check.fail(concat("patch ", args.patch, " does not fit into the image size ", s[1]));
  const int64_t side = s[1] / args.patch;
  check.matrix(args.patches, "patches", s[0] * side * side, 3 * args.patch * args.patch);
  for (float deviation : args.std) check.require(deviation != 0, "std is 0");
}

void check_args(const VisionEmbed& args) {
  const Checker check{"vision_embed_forward"};
  check_vision(check, args);
  check.dtype(args.class_embedding, "class_embedding", args.x.dtype);
  check.dtype(args.positions, "positions", args.x.dtype);
}

void check_backward_args(const VisionEmbed& args) {
  const Checker check{"vision_embed_backward"};
  check_vision(check, args);
  if (!args.parameters) return;
  check.parameter_gradient(args.class_embedding, "class_embedding", args.x.dtype);
  check.parameter_gradient(args.positions, "positions", args.x.dtype);
}

void check_args(const TextEmbed& args) {
  const Checker check{"text_embed_forward"};
  check_text(check, args);
  check.require(args.prefix_rows == 0 || args.prefix, "prefix is missing");
  check.dtype(args.tokens, "tokens", args.x.dtype);
  if (args.positions) check.dtype(args.positions, "positions", args.x.dtype);
}

void check_backward_args(const TextEmbed& args) {
  const Checker check{"text_embed_backward"};
  check_text(check, args);
  if (args.tokens) check.parameter_gradient(args.tokens, "tokens", args.x.dtype);
  if (args.positions) check.parameter_gradient(args.positions, "positions", args.x.dtype);
}

void check_args(const RowBlocks& args) {
  const Checker check{"pick_rows/spread_rows"};
  check.floating(args.blocks, "blocks");
  check.dtype(args.rows, "rows", args.blocks.dtype);
  if (args.count < 1 || args.offset < 0 || args.offset + args.count > args.block_rows) [[unlikely]]
    check.fail(concat("rows [", args.offset, ", ", args.offset + args.count, ") do not lie in a block of ",
                      args.block_rows));
  const int64_t m = args.blocks.rows();
  if (args.packing || args.packing.padded_rows) {
    const int64_t samples = check.samples(args.packing), left = m - samples * (args.block_rows - args.count);
    check.packing(args.packing, samples, args.block_rows, m);
    if (left < 0) [[unlikely]]
      check.fail(concat("blocks has ", m, " rows, but ", args.block_rows - args.count, " are left out of each of ",
                        samples, " blocks"));
    return check.matrix(args.rows, "rows", left, args.blocks.cols());
  }
  if (m % args.block_rows != 0) [[unlikely]]
    check.fail(concat("blocks has ", m, " rows, not a multiple of ", args.block_rows));
  check.matrix(args.rows, "rows", m / args.block_rows * args.count, args.blocks.cols());
}

void check_args(const CrossEntropy& args) {
  const Checker check{"cross_entropy"};
  check.floating(args.logits, "logits");
  check.vector(args.labels, "labels", DType::i32, args.logits.rows());
  check.vector(args.weight, "weight", DType::f32, 1);
  check.vector(args.row_loss, "row_loss", DType::f32, args.logits.rows());
}

void check_args(const AdamWUpdate& args) {
  const Checker check{"adamw_update"};
  check_update(check, args.param, args.master, args.grad, args.scalars, args.squares);
  check.gradient(args.m, "m", args.param.numel());
  check.gradient(args.v, "v", args.param.numel());
}

void check_args(const SgdUpdate& args) {
  const Checker check{"sgd_update"};
  check_update(check, args.param, args.master, args.grad, args.scalars, args.squares);
  if (args.momentum_buffer) check.gradient(args.momentum_buffer, "momentum_buffer", args.param.numel());
  check.require(args.momentum == 0 || args.momentum_buffer, "momentum_buffer is missing");
}

void check_workspace(const Tensor& workspace) {
  const Checker check{"set_workspace"};
  check.dtype(workspace, "workspace", DType::u8);
  if (workspace.bytes() < kWorkspaceBytes) [[unlikely]]
    check.fail(concat("workspace has ", workspace.bytes(), " bytes, expected at least ", kWorkspaceBytes));
}

void check_activate(const Tensor& x, const Tensor& y, Activation) {
  const Checker check{"activate"};
  check.floating(x, "x");
  check.vector(y, "y", x.dtype, x.numel());
}

void check_tile_rows(const Tensor& rows, const Tensor& tiled) {
  const Checker check{"tile_rows"};
  check.floating(rows, "rows");
  check.dtype(tiled, "tiled", rows.dtype);
  check.require(tiled.cols() == rows.cols() && rows.rows() > 0 && tiled.rows() % rows.rows() == 0,
                "tiled must hold whole copies of rows");
}

void check_sum_tiles(const Tensor& tiled, const Tensor& rows) {
  const Checker check{"sum_tiles"};
  check.floating(tiled, "tiled");
  check.parameter_gradient(rows, "rows", tiled.dtype);
  check.require(tiled.cols() == rows.cols() && rows.rows() > 0 && tiled.rows() % rows.rows() == 0,
                "tiled must hold whole copies of rows");
}

void check_sum(const Tensor& x, const Tensor& out) {
  const Checker check{"sum"};
  check.dtype(x, "x", DType::f32);
  check.vector(out, "out", DType::f32, 1);
}

void check_sum_squares(const Tensor& x, const Tensor& out) {
  const Checker check{"sum_squares"};
  check.floating(x, "x");
  check.vector(out, "out", DType::f32, 1);
}

void check_cast(const Tensor& from, const Tensor& to) {
  const Checker check{"cast"};
  for (const Tensor* t : {&from, &to}) {
    const char* name = t == &from ? "from" : "to";
    check.present(*t, name);
    if (!is_compute(t->dtype) && t->dtype != DType::f16) [[unlikely]]
      check.fail(concat(name, " has dtype ", dtype_name(t->dtype), ", expected f32, bf16 or f16"));
  }
  check.count(to, "to", from.numel());
}

void check_add(const Tensor& from, const Tensor& to) {
  const Checker check{"add"};
  check.floating(from, "from");
  check.gradient(to, "to", from.numel());
}

void check_fill_normal(const Tensor& x, int64_t first) {
  const Checker check{"fill_normal"};
  check.floating(x, "x");
  check.require(first >= 0, "first is negative");
}

void check_fill(const Tensor& x) { Checker{"fill"}.floating(x, "x"); }

void check_loss_weights(const Tensor& denominators, const Tensor& weights, float scale) {
  const Checker check{"loss_weights"};
  check.dtype(denominators, "denominators", DType::f32);
  check.vector(weights, "weights", DType::f32, denominators.numel());
  check.require(scale != 0, "scale is 0");
}

void check_clip_coefficient(const Tensor& sum_of_squares, const Tensor& scalars) {
  const Checker check{"clip_coefficient"};
  check.vector(sum_of_squares, "sum_of_squares", DType::f32, 1);
  check.vector(scalars, "scalars", DType::f32, kStepScalars);
}

}  // namespace blipft
