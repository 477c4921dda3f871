// CudaOps: the CUDA backend of Ops. Each method checks its arguments and launches kernels. The kernels are in one .cu
// file per topic (gemm, activation, norm, elementwise, reduce, embed, text_embed, loss, update, quantize, attention,
// decode).
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "blipft/ops.h"
#include "cuda/gemm/planner.h"
#include "cuda/kernels.h"
#include "ops/ops_check.h"

namespace blipft {

class CudaOps : public Ops {
 public:
  CudaOps(Device& device, const std::string& cache_path, GemmEffort effort, bool tf32 = false);

  void set_workspace(Tensor workspace) override;
  bool tune_deferred_products() override { return planner_.tune_deferred_products(); }

  void linear_forward(const LinearForward& args, Stream stream) override;
  void linear_backward_input(const LinearBackwardInput& args, Stream stream) override;
  void linear_backward_weight(const LinearBackwardWeight& args, Stream stream) override;
  bool has_fp8() const override;
  void cast_fp8(const Fp8Cast& args, Stream stream) override;
  void raise_amax(const MatrixView& x, const Tensor& amax, Stream stream) override;
  void activate(const Tensor& x, const Tensor& y, Activation activation, Stream stream) override;
  void pack_signs(const Tensor& x, const Tensor& signs, Stream stream) override;
  void norm_forward(const NormForward& args, Stream stream) override;
  void norm_backward(const NormBackward& args, Stream stream) override;
  void dropout_add(const DropoutAdd& args, Stream stream) override;
  void rotary(const Rotary& args, Stream stream) override;
  void swiglu_forward(const Swiglu& args, Stream stream) override;
  void swiglu_backward(const Swiglu& args, Stream stream) override;
  void attention_forward(const AttentionForward& args, Stream stream) override;
  void attention_backward(const AttentionBackward& args, Stream stream) override;
  void head_norm_forward(const HeadNormForward& args, Stream stream) override;
  void head_norm_backward(const HeadNormBackward& args, Stream stream) override;
  void relative_bias_forward(const RelativeBias& args, Stream stream) override;
  void relative_bias_backward(const RelativeBias& args, Stream stream) override;
  void begin_texts(const BeginTexts& args, Stream stream) override;
  void next_rows(const NextRows& args, Stream stream) override;
  int64_t coded_rows(DType compute) const override;
  void coded_linear(const CodedLinear& args, Stream stream) override;
  void cache_write(const CacheWrite& args, Stream stream) override;
  void attention_decode(const AttentionDecode& args, Stream stream) override;
  void pick_tokens(const PickTokens& args, Stream stream) override;
  void beam_step(const BeamStep& args, Stream stream) override;

  void patchify(const Patchify& args, Stream stream) override;
  void patch_values(const PatchValues&, Stream) override;
  void position_table_forward(const PositionTable&, Stream) override;
  void position_table_backward(const PositionTable&, Stream) override;
  void vision_embed_forward(const VisionEmbed& args, Stream stream) override;
  void vision_embed_backward(const VisionEmbed& args, Stream stream) override;
  void text_embed_forward(const TextEmbed& args, Stream stream) override;
  void text_embed_backward(const TextEmbed& args, Stream stream) override;
  void gather_rows(const Tensor& table, const Tensor& numbers, const Tensor& rows, Stream stream) override;
  void add_rows(const Tensor& rows, const Tensor& numbers, const Tensor& x, Stream) override;
  void tile_rows(const Tensor& rows, const Tensor& tiled, Stream stream) override;
  void sum_tiles(const Tensor& tiled, const Tensor& rows, bool accumulate, Stream stream) override;
  void mean_rows(const Tensor& x, const Tensor& means, Stream stream) override;
  void mean_rows_backward(const Tensor& means, const Tensor& x, Stream stream) override;
  void pick_rows(const RowBlocks& args, Stream stream) override;
  void spread_rows(const RowBlocks& args, Stream stream) override;
  void cross_entropy(const CrossEntropy& args, Stream stream) override;

  void sum(const Tensor& x, const Tensor& out, bool accumulate, Stream stream) override;
  void sum_squares(const Tensor& x, const Tensor& out, bool accumulate, Stream stream) override;
  void cast(const Tensor& from, const Tensor& to, Stream stream) override;
  void cap(const Tensor& x, float cap, Stream stream) override;
  void scale(const Tensor& x, float factor, Stream stream) override;
  void add(const Tensor& from, const Tensor& to, Stream stream) override;
  void fill_normal(const Tensor& x, uint64_t seed, uint32_t stream_id, int64_t first, float mean, float std,
                   Stream stream) override;
  void fill_uniform(const Tensor& x, uint64_t seed, uint32_t stream_id, int64_t first, float bound,
                    Stream stream) override;
  void fill(const Tensor& x, float value, Stream stream) override;
  void fill_i32(const Tensor& x, int32_t value, Stream stream) override;
  void loss_weights(const Tensor& denominators, const Tensor& weights, float scale, Stream stream) override;
  void clip_coefficient(const Tensor& sum_of_squares, const Tensor& scalars, float max_norm, Stream stream) override;
  void adamw_update(const AdamWUpdate& args, Stream stream) override;
  void sgd_update(const SgdUpdate& args, Stream stream) override;
  void lion_update(const LionUpdate& args, Stream stream) override;
  void adamw8bit_update(const AdamW8bitUpdate& args, Stream stream) override;
  void quantize(const Tensor& values, const Quantized& to, Stream stream) override;
  void dequantize(const Quantized& from, const Tensor& values, Stream stream) override;
  void encode_fp8(const Tensor& values, const Fp8Matrix& to, Stream stream) override;
  void decode_fp8(const Fp8Matrix& from, const Tensor& values, Stream stream) override;
  void raise_fp8_scale(const Tensor& x, const Tensor& largest, const Tensor& scale, Stream stream) override;
  void transpose_fp8(const Tensor& quantized, const Tensor& transposed, Stream stream) override;

 protected:
  int sm_count_ = 1, shared_bytes_ = 0;                   ///< as in LaunchContext
  bool wgmma_ = false;
  int capability_ = 0;                                     ///< 10 * major + minor compute capability: 89 is 8.9

 private:
  /// Returns the workspace of `stream`: the side stream has its own half.
  char* workspace_of(Stream stream) const;
  /// Returns the launch context for `stream`, with the part of its workspace that cuBLASLt does not use.
  LaunchContext context(Stream stream) const;
  /// Runs one planned matrix product in `stream` with cuBLASLt's part of the workspace.
  bool multiply(const GemmProblem& problem, const GemmBuffers& buffers, Stream stream);

  struct FreeDeviceMemory {
    void operator()(void* memory) const noexcept { (void)cudaFree(memory); }
  };

  bool tf32_ = false;                                     ///< f32 products use TF32
  Stream side_;
  std::unique_ptr<unsigned, FreeDeviceMemory> counters_;  ///< LaunchContext::counters
  GemmPlanner planner_;
  Tensor workspace_;
};

}  // namespace blipft
