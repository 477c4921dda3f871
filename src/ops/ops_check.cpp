// Argument checks of most ops (see ops_check.h).
#include "ops/ops_check.h"

#include "ops/checker.h"

namespace blipft {
namespace {

struct Factor {
  const Fp8Matrix& given;
  const char* name;
  int64_t rows, cols;
};

/// Checks the two fp8 factors of a product: both must be present or both absent, and both have `cols` summed elements.
void check_factors(const Checker& check, const Factor& left, const Factor& right) {
  check.require(bool(left.given) == bool(right.given), "a product takes both of its factors in fp8, or neither");
  if (!left.given) return;
  for (const Factor* each : {&left, &right}) {
    const Factor& factor = *each;
    const Tensor& quantized = factor.given.quantized;
    if (!is_fp8(quantized.dtype)) [[unlikely]]
      check.fail(concat(factor.name, " has dtype ", dtype_name(quantized.dtype), ", expected f8e4m3 or f8e5m2"));
    check.matrix(quantized, factor.name, quantized.dtype, factor.rows, factor.cols);
    check.require(factor.cols % kFp8Alignment == 0, "a product in fp8 runs over a multiple of 16");
    check.vector(factor.given.scale, concat(factor.name, ".scale").c_str(), DType::f32, 1);
    check.require(reinterpret_cast<uintptr_t>(factor.given.scale.data) % 16 == 0, "a scale starts at no multiple of 16 bytes");
  }
  check.require(left.given.quantized.dtype != DType::f8e5m2 || right.given.quantized.dtype != DType::f8e5m2,
                "no GPU multiplies f8e5m2 with f8e5m2");
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
  check.require(is_gelu(args.activation) == bool(args.pre_activation),
                "pre_activation is required for gelu and absent otherwise");
  if (args.pre_activation) {
    check.matrix(args.pre_activation, "pre_activation", t, m, n);
    check.contiguous(args.y, "y", "gelu");
  }
  check_factors(check, {args.x8, "x8", m, k}, {args.w8, "w8", n, k});
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
  if (args.activation == Activation::relu && args.saved.dtype == DType::u8)
    check.vector(args.saved, "saved", DType::u8, (m * k + 7) / 8);
  else if (args.saved)
    check.matrix(args.saved, "saved", t, m, k);
  if (args.activated) {
    check.require(is_gelu(args.activation), "activated goes with gelu only");
    check.matrix(args.activated, "activated", t, m, k);
  }
  if (args.dbias) check.parameter_gradient(args.dbias, "dbias", t, k);
  check.require(!args.amax || args.activation != Activation::none, "amax goes with an activation");
  if (args.amax) check.vector(args.amax, "amax", DType::f32, 1);
  check_factors(check, {args.dy8, "dy8", m, n}, {args.wt8, "wt8", k, n});
}

void check_args(const LinearBackwardWeight& args) {
  const Checker check{"linear_backward_weight"};
  check.floating(args.dy, "dy");
  check.layout(args.dy, "dy");
  const int64_t m = args.dy.rows(), n = args.dy.cols(), k = args.inputs();
  if (args.x || !args.xt8) check.matrix(args.x, "x", args.dy.dtype, m, k);
  check.parameter_gradient(args.dw, "dw", args.dy.dtype);
  check.matrix(args.dw, "dw", n, k);
  if (args.dbias) check.parameter_gradient(args.dbias, "dbias", args.dy.dtype, n);
  check_factors(check, {args.dyt8, "dyt8", n, fp8_columns(m)}, {args.xt8, "xt8", k, fp8_columns(m)});
}

void check_args(const Fp8Cast& args) {
  const Checker check{"cast_fp8"};
  check.floating(args.x, "x");
  check.layout(args.x, "x");
  check.vector(args.amax, "amax", DType::f32, 1);
  check.vector(args.scale, "scale", DType::f32, 1);
  if (args.largest) check.vector(args.largest, "largest", DType::f32, 1);
  if (args.counts) check.vector(args.counts, "counts", DType::i64, kFp8Counts);
  check.require(args.largest || !args.counts, "counts come without largest");
  check.require(args.quantized || args.transposed, "codes and transposed are both missing");
  const DType dtype = args.quantized ? args.quantized.dtype : args.transposed.dtype;
  check.require(is_fp8(dtype), "codes are neither f8e4m3 nor f8e5m2");
  check.require(args.x.cols() % kFp8Alignment == 0, "x has columns that are no multiple of 16");
  if (args.quantized) check.matrix(args.quantized, "codes", dtype, args.x.rows(), args.x.cols());
  if (args.transposed) check.matrix(args.transposed, "transposed", dtype, args.x.cols(), fp8_columns(args.x.rows()));
}

void check_raise_amax(const MatrixView& x, const Tensor& amax) {
  const Checker check{"raise_amax"};
  check.floating(x, "x");
  check.layout(x, "x");
  check.require(x.cols() % 8 == 0, "x has columns that are no multiple of 8");
  check.vector(amax, "amax", DType::f32, 1);
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
  check.require(bool(args.beta) == bool(args.mean), "beta and mean come both or, for RMSNorm, not at all");
  check.require(!args.mean || (args.rms.offset == 0 && !args.rms.rounds_once), "rms is RMSNorm's alone");
  if (args.beta) check.vector(args.beta, "beta", t, n);
  if (args.mean) check.vector(args.mean, "mean", DType::f32, m);
  check.vector(args.rstd, "rstd", DType::f32, m);
  if (args.amax) check.vector(args.amax, "amax", DType::f32, 1);
}

void check_args(const NormBackward& args) {
  const Checker check{"norm_backward"};
  check.floating(args.dy, "dy");
  const DType t = args.dy.dtype;
  const int64_t m = args.dy.rows(), n = args.dy.cols();
  check.matrix(args.x, "x", t, m, n);
  check.matrix(args.dx, "dx", t, m, n);
  if (args.mean) check.vector(args.mean, "mean", DType::f32, m);
  check.vector(args.rstd, "rstd", DType::f32, m);
  check.vector(args.gamma, "gamma", t, n);
  check.require(bool(args.beta) == (args.y && args.mean), "beta comes with y, and not with RMSNorm");
  check.require(!args.mean || (args.rms.offset == 0 && !args.rms.rounds_once), "rms is RMSNorm's alone");
  if (args.beta) check.vector(args.beta, "beta", t, n);
  if (args.y) check.matrix(args.y, "y", t, m, n);
  if (args.add) check.matrix(args.add, "add", t, m, n);
  check.require(bool(args.dbeta) == (args.dgamma && args.mean),
                "dgamma and dbeta come both or not at all; RMSNorm has no dbeta");
  if (args.dgamma) check.parameter_gradient(args.dgamma, "dgamma", t, n);
  if (args.dbeta) check.parameter_gradient(args.dbeta, "dbeta", t, n);
  if (args.dbias) check.parameter_gradient(args.dbias, "dbias", t, n);
  check.dropout_rows(args.dropout, m, n);
  check.require(bool(args.dropout) == bool(args.dropped), "dropout and dropped come both or not at all");
  if (args.dropped) check.matrix(args.dropped, "dropped", t, m, n);
  if (args.amax) check.vector(args.amax, "amax", DType::f32, 1);
}

void check_args(const Swiglu& args) {
  const Checker check{"swiglu_forward"};
  check.floating(args.gate_up, "gate_up");
  check.matrix(args.gate_up, "gate_up", args.gate_up.rows(), 2 * args.y.cols());
  check.matrix(args.y, "y", args.gate_up.dtype, args.gate_up.rows(), args.y.cols());
  if (args.amax) check.vector(args.amax, "amax", DType::f32, 1);
}

void check_backward_args(const Swiglu& args) {
  const Checker check{"swiglu_backward"};
  check.floating(args.gate_up, "gate_up");
  check.matrix(args.dy, "dy", args.gate_up.dtype, args.gate_up.rows(), args.dy.cols());
  check.matrix(args.gate_up, "gate_up", args.dy.rows(), 2 * args.dy.cols());
  check.matrix(args.dgate_up, "dgate_up", args.dy.dtype, args.dy.rows(), 2 * args.dy.cols());
  if (args.y) check.matrix(args.y, "y", args.dy.dtype, args.dy.rows(), args.dy.cols());
  if (args.amax) check.vector(args.amax, "amax", DType::f32, 1);
}

void check_args(const DropoutAdd& args) {
  const Checker check{"dropout_add"};
  check.floating(args.x, "x");
  const int64_t m = args.x.rows(), n = args.x.cols();
  if (args.residual) check.matrix(args.residual, "residual", args.x.dtype, m, n);
  check.matrix(args.y, "y", args.x.dtype, m, n);
  check.dropout_rows(args.dropout, m, n);
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
    const int64_t samples = check.samples(args.packing);
    check.packing(args.packing, samples, args.block_rows, m);
    if (args.fixed) {
      if (m < samples * (args.offset + args.count)) [[unlikely]]
        check.fail(concat("blocks has ", m, " rows, fewer than ", samples, " blocks of at least ",
                          args.offset + args.count));
      return check.matrix(args.rows, "rows", samples * args.count, args.blocks.cols());
    }
    const int64_t left = m - samples * (args.block_rows - args.count);
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
  check.require(args.cap >= 0, "cap is negative");
}

void check_args(const AdamWUpdate& args) {
  const Checker check{"adamw_update"};
  check.update(args);
  check.gradient(args.m, "m", args.param.numel());
  check.gradient(args.v, "v", args.param.numel());
}

void check_args(const SgdUpdate& args) {
  const Checker check{"sgd_update"};
  check.update(args);
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

void check_pack_signs(const Tensor& x, const Tensor& signs) {
  const Checker check{"pack_signs"};
  check.floating(x, "x");
  check.vector(signs, "signs", DType::u8, (x.numel() + 7) / 8);
}

void check_gather_rows(const Tensor& table, const Tensor& numbers, const Tensor& rows) {
  const Checker check{"gather_rows"};
  check.floating(table, "table");
  check.vector(numbers, "numbers", DType::i32, numbers.numel());
  check.matrix(rows, "rows", table.dtype, numbers.numel(), table.cols());
}

void check_add_rows(const Tensor& rows, const Tensor& numbers, const Tensor& x) {
  const Checker check{"add_rows"};
  check.floating(x, "x");
  check.vector(numbers, "numbers", DType::i32, numbers.numel());
  check.matrix(rows, "rows", x.dtype, numbers.numel(), x.cols());
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

void check_mean_rows(const Tensor& x, const Tensor& means) {
  const Checker check{"mean_rows"};
  check.floating(x, "x");
  check.require(means.rows() > 0 && x.rows() % means.rows() == 0, "the rows of x are no multiple of the means");
  check.matrix(means, "means", x.dtype, means.rows(), x.cols());
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

void check_scale(const Tensor& x) { Checker{"scale"}.floating(x, "x"); }

void check_cap(const Tensor& x, float cap) {
  const Checker check{"cap"};
  check.floating(x, "x");
  check.require(cap > 0, "the cap is not positive");
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

void check_fill_i32(const Tensor& x) { Checker{"fill_i32"}.dtype(x, "x", DType::i32); }

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
