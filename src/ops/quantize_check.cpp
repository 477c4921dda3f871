// Argument checks of quantization (block-wise and fp8) and of the AdamW8bit and Lion updates.
#include "ops/checker.h"
#include "ops/ops_check.h"

namespace blipft {

namespace {

void check_values(const Checker& check, const Tensor& values) {
  check.present(values, "values");
  if (!is_compute(values.dtype) && values.dtype != DType::f16) [[unlikely]]
    check.fail(concat("values has dtype ", dtype_name(values.dtype), ", expected f32, bf16 or f16"));
}

}  // namespace

void check_quantize(const Tensor& values, const Quantized& to) {
  const Checker check{"quantize"};
  check_values(check, values);
  check.quantized(to, "to", values.numel());
}

void check_dequantize(const Quantized& from, const Tensor& values) {
  const Checker check{"dequantize"};
  check_values(check, values);
  check.quantized(from, "from", values.numel());
}

void check_stored_fp8(const char* op, const Tensor& values, const Fp8Matrix& stored) {
  const Checker check{op};
  check_values(check, values);
  check.vector(stored.quantized, "codes", DType::f8e4m3, values.numel());
  check.vector(stored.scale, "scale", DType::f32, 1);
}

void check_raise_fp8_scale(const Tensor& x, const Tensor& largest, const Tensor& scale) {
  const Checker check{"raise_fp8_scale"};
  check_values(check, x);
  check.vector(largest, "largest", DType::f32, 1);
  check.vector(scale, "scale", DType::f32, 1);
}

void check_transpose_fp8(const Tensor& quantized, const Tensor& transposed) {
  const Checker check{"transpose_fp8"};
  check.present(quantized, "codes");
  check.require(is_fp8(quantized.dtype), "codes are neither f8e4m3 nor f8e5m2");
  check.require(quantized.shape.rank == 2 && quantized.cols() % kFp8Alignment == 0, "codes have columns that are no multiple of 16");
  check.matrix(transposed, "transposed", quantized.dtype, quantized.cols(), fp8_columns(quantized.rows()));
}

void check_args(const AdamW8bitUpdate& args) {
  const Checker check{"adamw8bit_update"};
  check.update(args);
  check.require(args.m.book == CodeBook::dynamic8, "m is not in dynamic8 codes");
  check.require(args.v.book == CodeBook::dynamic8_unsigned, "v is not in dynamic8_unsigned codes");
  check.require(!args.m.outer && !args.v.outer, "moments are not quantised doubly");
  check.quantized(args.m, "m", args.param.numel());
  check.quantized(args.v, "v", args.param.numel());
}

void check_args(const LionUpdate& args) {
  const Checker check{"lion_update"};
  check.update(args);
  check.gradient(args.m, "m", args.param.numel());
}

}  // namespace blipft
