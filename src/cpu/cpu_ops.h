// The CPU backend: slow and simple, the reference for tests of the CUDA backend.
#pragma once

#include "blipft/ops.h"
#include "cpu/element.h"
#include "ops/ops_check.h"

namespace blipft::cpu {

class CpuOps final : public Ops {
 public:
  CpuOps();
  void set_workspace(Tensor workspace) override;

  // linear.cpp
  void linear_forward(const LinearForward&, Stream) override;
  void linear_backward_input(const LinearBackwardInput&, Stream) override;
  void linear_backward_weight(const LinearBackwardWeight&, Stream) override;
  bool has_fp8() const override { return true; }  // emulated, for tests
  void cast_fp8(const Fp8Cast&, Stream) override;
  void raise_amax(const MatrixView& x, const Tensor& amax, Stream) override;
  // norm.cpp
  void norm_forward(const NormForward&, Stream) override;
  void norm_backward(const NormBackward&, Stream) override;
  // attention.cpp
  void rotary(const Rotary&, Stream) override;
  void attention_forward(const AttentionForward&, Stream) override;
  void attention_backward(const AttentionBackward&, Stream) override;
  void head_norm_forward(const HeadNormForward&, Stream) override;
  void head_norm_backward(const HeadNormBackward&, Stream) override;
  void relative_bias_forward(const RelativeBias&, Stream) override;
  void relative_bias_backward(const RelativeBias&, Stream) override;
  // decode.cpp
  void begin_texts(const BeginTexts&, Stream) override;
  void next_rows(const NextRows&, Stream) override;
  int64_t coded_rows(DType) const override { return 8; }  // not 0 so that tests of models cover coded_linear
  void coded_linear(const CodedLinear&, Stream) override;
  void cache_write(const CacheWrite&, Stream) override;
  void attention_decode(const AttentionDecode&, Stream) override;
  // pick_tokens.cpp
  void pick_tokens(const PickTokens&, Stream) override;
  // beam_step.cpp
  void beam_step(const BeamStep&, Stream) override;
  // embed.cpp
  void patchify(const Patchify&, Stream) override;
  void patch_values(const PatchValues&, Stream) override;
  void position_table_forward(const PositionTable&, Stream) override;
  void position_table_backward(const PositionTable&, Stream) override;
  void vision_embed_forward(const VisionEmbed&, Stream) override;
  void vision_embed_backward(const VisionEmbed&, Stream) override;
  void text_embed_forward(const TextEmbed&, Stream) override;
  void text_embed_backward(const TextEmbed&, Stream) override;
  void gather_rows(const Tensor& table, const Tensor& numbers, const Tensor& rows, Stream) override;
  void add_rows(const Tensor& rows, const Tensor& numbers, const Tensor& x, Stream) override;
  void tile_rows(const Tensor& rows, const Tensor& tiled, Stream) override;
  void sum_tiles(const Tensor& tiled, const Tensor& rows, bool accumulate, Stream) override;
  void mean_rows(const Tensor& x, const Tensor& means, Stream) override;
  void mean_rows_backward(const Tensor& means, const Tensor& x, Stream) override;
  void pick_rows(const RowBlocks&, Stream) override;
  void spread_rows(const RowBlocks&, Stream) override;
  // loss.cpp
  void cross_entropy(const CrossEntropy&, Stream) override;
  void loss_weights(const Tensor& denominators, const Tensor& weights, float scale, Stream) override;
  // elementwise.cpp
  void activate(const Tensor& x, const Tensor& y, Activation, Stream) override;
  void pack_signs(const Tensor& x, const Tensor& signs, Stream) override;
  void swiglu_forward(const Swiglu&, Stream) override;
  void swiglu_backward(const Swiglu&, Stream) override;
  void dropout_add(const DropoutAdd&, Stream) override;
  void sum(const Tensor& x, const Tensor& out, bool accumulate, Stream) override;
  void sum_squares(const Tensor& x, const Tensor& out, bool accumulate, Stream) override;
  void cast(const Tensor& from, const Tensor& to, Stream) override;
  void cap(const Tensor& x, float cap, Stream) override;
  void scale(const Tensor& x, float factor, Stream) override;
  void add(const Tensor& from, const Tensor& to, Stream) override;
  void fill_normal(const Tensor& x, uint64_t seed, uint32_t stream_id, int64_t first, float mean, float std,
                   Stream) override;
  void fill_uniform(const Tensor& x, uint64_t seed, uint32_t stream_id, int64_t first, float bound, Stream) override;
  void fill(const Tensor& x, float value, Stream) override;
  void fill_i32(const Tensor& x, int32_t value, Stream) override;
  // update.cpp
  void clip_coefficient(const Tensor& sum_of_squares, const Tensor& scalars, float max_norm, Stream) override;
  void adamw_update(const AdamWUpdate&, Stream) override;
  void sgd_update(const SgdUpdate&, Stream) override;
  void lion_update(const LionUpdate&, Stream) override;
  void adamw8bit_update(const AdamW8bitUpdate&, Stream) override;
  // quantize.cpp
  void quantize(const Tensor& values, const Quantized& to, Stream) override;
  void dequantize(const Quantized& from, const Tensor& values, Stream) override;
  // stored_fp8.cpp
  void encode_fp8(const Tensor& values, const Fp8Matrix& to, Stream) override;
  void decode_fp8(const Fp8Matrix& from, const Tensor& values, Stream) override;
  void raise_fp8_scale(const Tensor& x, const Tensor& largest, const Tensor& scale, Stream) override;
  void transpose_fp8(const Tensor& quantized, const Tensor& transposed, Stream) override;

 private:
  /// f32 copies of the operands and the result of a matrix product (for operands that are not f32).
  Scratch left_, right_, product_;
};

}  // namespace blipft::cpu
