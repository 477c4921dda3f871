// Argument checks of every op, called by the CPU, CUDA and plan backends at the beginning of each op.
//
// Each function throws an Error that names the op, the argument, the found and the expected value. The checks only read
// shapes, dtypes, addresses and whether arguments are present, never the memory behind an address.
#pragma once

#include "blipft/ops.h"

namespace blipft {

void check_args(const LinearForward& args);
void check_args(const LinearBackwardInput& args);
void check_args(const LinearBackwardWeight& args);
void check_args(const Fp8Cast& args);
void check_args(const NormForward& args);
void check_args(const NormBackward& args);
void check_args(const DropoutAdd& args);
void check_args(const Rotary& args);
void check_args(const AttentionForward& args);
void check_args(const AttentionBackward& args);
void check_args(const HeadNormForward& args);
void check_args(const HeadNormBackward& args);
void check_args(const BeginTexts& args);
void check_args(const NextRows& args);
void check_args(const CodedLinear& args);
void check_args(const CacheWrite& args);
void check_args(const AttentionDecode& args);
void check_args(const PickTokens& args);
void check_args(const BeamStep& args);
void check_args(const Patchify& args);
void check_args(const PatchValues& args);
void check_args(const RowBlocks& args);
void check_args(const CrossEntropy& args);
void check_args(const AdamWUpdate& args);
void check_args(const SgdUpdate& args);
void check_args(const LionUpdate& args);
void check_args(const AdamW8bitUpdate& args);

/// These structs are used in forward and backward; in backward the tables of embeddings are parameter gradients.
void check_args(const Swiglu& args);
void check_backward_args(const Swiglu& args);
void check_args(const RelativeBias& args);
void check_backward_args(const RelativeBias& args);
void check_args(const PositionTable& args);
void check_backward_args(const PositionTable& args);
void check_args(const VisionEmbed& args);
void check_args(const TextEmbed& args);
void check_backward_args(const VisionEmbed& args);
void check_backward_args(const TextEmbed& args);

// Checks of the ops that have plain tensors as arguments.
void check_workspace(const Tensor& workspace);
void check_activate(const Tensor& x, const Tensor& y, Activation activation);
void check_pack_signs(const Tensor& x, const Tensor& signs);
void check_gather_rows(const Tensor& table, const Tensor& numbers, const Tensor& rows);
void check_add_rows(const Tensor& rows, const Tensor& numbers, const Tensor& x);
void check_tile_rows(const Tensor& rows, const Tensor& tiled);
void check_sum_tiles(const Tensor& tiled, const Tensor& rows);
void check_mean_rows(const Tensor& x, const Tensor& means);
void check_sum(const Tensor& x, const Tensor& out);
void check_sum_squares(const Tensor& x, const Tensor& out);
void check_cast(const Tensor& from, const Tensor& to);
void check_cap(const Tensor& x, float cap);
void check_scale(const Tensor& x);
void check_add(const Tensor& from, const Tensor& to);
void check_fill_normal(const Tensor& x, int64_t first);
void check_fill(const Tensor& x);
void check_fill_i32(const Tensor& x);
void check_loss_weights(const Tensor& denominators, const Tensor& weights, float scale);
void check_clip_coefficient(const Tensor& sum_of_squares, const Tensor& scalars);
void check_quantize(const Tensor& values, const Quantized& to);
void check_dequantize(const Quantized& from, const Tensor& values);
void check_stored_fp8(const char* op, const Tensor& values, const Fp8Matrix& stored);
void check_raise_amax(const MatrixView& x, const Tensor& amax);
void check_raise_fp8_scale(const Tensor& x, const Tensor& largest, const Tensor& scale);
void check_transpose_fp8(const Tensor& quantized, const Tensor& transposed);

}  // namespace blipft
