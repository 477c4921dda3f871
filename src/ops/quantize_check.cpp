// Argument checks of block-wise quantisation, and of the updates that need more than AdamW's and SGD's.
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
