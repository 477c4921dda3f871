// Ops: the one narrow compute interface. Backends: src/cpu (slow, obvious, the oracle), src/cuda, and a plan backend
// that checks shapes and computes nothing.
//
// Rules for every op:
//  - works on views, in `stream`, allocates nothing; scratch memory is the workspace given to set_workspace();
//  - activations, weights, and their gradients have the compute dtype (f32 or bf16) unless said otherwise;
//  - gradients of parameters ("d..." of a weight, bias, gamma, table) have f32 or the compute dtype, and are written
//    (accumulate = false) or added to (accumulate = true);
//  - sums, norms, softmax and loss accumulate in f32; no op depends on the order of atomics: same input, same bits;
//  - a row is one token; M rows of one sample are contiguous; weights are [out, in] as torch.nn.Linear stores them.
#pragma once

#include <cstdint>
#include <memory>

#include "blipft/device.h"
#include "blipft/dropout.h"
#include "blipft/linear_ops.h"
#include "blipft/tensor.h"

namespace blipft {

/// Scratch bytes that every backend's ops get along with (cuBLASLt's share included).
constexpr int64_t kWorkspaceBytes = 48 << 20;

/// sum = residual + dropout(x); y = (sum - mean) * rstd * gamma + beta over each row (Ba et al. 2016).
/// Without beta and mean: y = gamma * (sum * rstd), with rstd = 1 / sqrt(mean of sum^2 + eps) (RMSNorm, Zhang & Sennrich
/// 2019); sum * rstd is rounded to the compute dtype before gamma, as in transformers, unless `rms` says otherwise.
struct RmsForm {
  float offset = 0;             ///< y = (offset + gamma) * (sum * rstd): 1 for Gemma
  bool rounds_once = false;     ///< only the product with gamma is rounded (Gemma, OLMo 2)
};
struct NormForward {
  Tensor x;                     ///< [M, N]
  Tensor residual;              ///< [M, N], optional
  Dropout dropout;              ///< of x, optional
  Tensor sum;                   ///< [M, N], out; required with residual or dropout, else absent (sum is x)
  Tensor gamma, beta;           ///< [N]; beta and mean are absent for RMSNorm
  float eps = 1e-5f;
  RmsForm rms;                  ///< of RMSNorm
  Tensor y;                     ///< [M, N], out
  Tensor amax;                  ///< f32 [1], in and out, optional: raised to the largest |y| (Fp8Magnitude)
  Tensor mean, rstd;            ///< f32 [M], out
};

/// dx = add + d(norm)/d(sum); dgamma (+)= ..., dbeta (+)= ...; dropped = dropout mask applied to dx; y = the norm's
/// output again, for the weight gradient of the layer that read it: of RMSNorm with the bits that forward gave. Without mean:
/// of RMSNorm, which has no beta.
struct NormBackward {
  Tensor dy;                    ///< [M, N]
  Tensor x;                     ///< [M, N], the norm's input (NormForward::sum or x)
  Tensor mean, rstd;            ///< f32 [M]; no mean: RMSNorm
  Tensor gamma;                 ///< [N]
  Tensor beta;                  ///< [N], with `y` (not of RMSNorm)
  Tensor y;                     ///< [M, N], out, optional
  Tensor add;                   ///< [M, N], optional, may be dx itself
  Tensor dgamma, dbeta;         ///< [N] parameter gradients, optional (both or none; RMSNorm: dgamma alone)
  bool accumulate = false;
  Dropout dropout;              ///< with `dropped`
  Tensor dropped;               ///< [M, N], out, optional: gradient of NormForward::x through its dropout
  Tensor dbias;                 ///< [N] parameter gradient, optional: column sums of `dropped`, or of dx where that is
                                ///< absent: the gradient of a bias that was added to NormForward::x
  bool accumulate_dbias = false;
  Tensor amax;                  ///< f32 [1], in and out, optional: raised to the largest |dropped|, or |dx| where that is absent
  RmsForm rms;                  ///< as in NormForward
  Tensor dx;                    ///< [M, N], out; may be dy itself
};

/// y = residual + dropout(x) (either may be absent: a plain dropout, a plain add). In place allowed.
struct DropoutAdd {
  Tensor x;                     ///< [M, N]
  Tensor residual;              ///< [M, N], optional
  Dropout dropout;              ///< optional
  Tensor y;                     ///< [M, N], out
};

/// Rotary positions (Su et al. 2021), in place: of each head of a row, the pair x[i], x[i + D / 2] turns by the angle
/// a = position * frequencies[i]: x[i] cos a - x[i + D / 2] sin a, x[i + D / 2] cos a + x[i] sin a. Computed in f32, the
/// angle as one f32 product. `inverse` turns back: the gradient.
struct Rotary {
  MatrixView x;                 ///< [M, heads * D], in and out
  int64_t head_size = 0;        ///< D, even, at most 2 * kMostFrequencies
  int64_t rotated = 0;          ///< even: of each head the first so many elements turn, the others stay; 0: all D
  float magnitude = 1;          ///< cos and sin are multiplied by it (long-context scaling)
  Tensor positions;             ///< i32 [M]
  static constexpr int64_t kMostFrequencies = 128;
  float frequencies[kMostFrequencies] = {};  ///< [rotated / 2], radians from one position to the next
  bool inverse = false;
  Tensor amax;                  ///< f32 [1], in and out, optional, where all D turn: raised to the largest |x| (Fp8Magnitude)
};

/// What the gate of a gated MLP goes through: silu(g) = g / (1 + exp(-g)); gelu in the exact (erf) form, gelu_tanh in the
/// form with tanh.
enum class GateActivation { silu, gelu, gelu_tanh, relu };

/// The gated inner values of an MLP (GLU variants, Shazeer 2020): y = act(gate) * up, in f32, rounded once; of silu
/// SwiGLU. Backward: of dy into both halves, dgate = dy up act'(gate), dup = dy act(gate); y has forward's bits.
struct Swiglu {
  GateActivation activation = GateActivation::silu;
  Tensor gate_up;               ///< [M, 2F]: gate in the first F columns, up in the others
  Tensor y;                     ///< [M, F], out; in backward optional
  Tensor dy;                    ///< [M, F], backward only
  Tensor dgate_up;              ///< [M, 2F], backward only, out; may be gate_up itself
  Tensor amax;                  ///< f32 [1], in and out, optional: raised to the largest |y|, in backward |dgate_up| (Fp8Magnitude)
};

/// Heads of queries, keys or values inside a [batch * tokens, row_stride] matrix: head h of token t of sample b starts
/// at data + (b * batch_stride + t * row_stride + h * head_size) elements. Strides count elements.
struct Heads {
  void* data = nullptr;
  int64_t row_stride = 0;
  int64_t batch_stride = 0;
  /// The heads that start `column` elements into each row of `matrix`, seen as [batch * tokens, cols].
  static Heads in(const Tensor& matrix, int64_t column, int64_t tokens) {
    return {static_cast<char*>(matrix.data) + column * dtype_size(matrix.dtype), matrix.cols(), tokens * matrix.cols()};
  }
};

/// What is added to the score of query i and key j (T5's relative positions): values[h, clamp(j - i, -behind, ahead) +
/// behind], of every sample the same. See relative_bias.h.
struct RelativeScores {
  Tensor values;                ///< f32 [heads, behind + 1 + ahead]
  int64_t behind = 0, ahead = 0;
  explicit operator bool() const { return static_cast<bool>(values); }
  int64_t columns() const { return behind + 1 + ahead; }
};

/// Numbers of attention's probabilities, for dropout: that of head h, query i, key j is h * head + i * query + j.
struct ProbabilityNumbers {
  int64_t head = 0, query = 0;  ///< multiples of kDropoutBlock; 0: query_tokens * kv_tokens and kv_tokens
  /// Numbers that do not depend on query_tokens and kv_tokens: padding then changes no mask. For up to n queries and n keys,
  /// where n is the largest power of two for which all numbers fit Dropout (16384 with 128 heads).
  static ProbabilityNumbers independent_of_padding(int64_t heads);
  explicit operator bool() const { return head > 0; }
};

/// out = dropout(softmax(scale q k^T + relative + mask)) v, without a score matrix in memory (Dao et al. 2022).
/// Key j is visible to query i when j < kv_lengths[b] (if given) and, if causal, j <= i (query_tokens == kv_tokens).
/// A query that sees no key gives zeros.
/// Grouped queries (Ainslie et al. 2023): fewer heads of keys and values, each read by heads / kv_heads heads of queries
/// that lie one after the other; dk and dv are sums over these.
/// Packed: row t of sample b is row packing.starts[b] + t of every matrix, query_tokens == kv_tokens are the most rows
/// of a sample, keys and queries at and after starts[b + 1] - starts[b] do not exist: lse and delta are not written
/// there. With key_packing it says this of keys and values, kv_tokens are their most rows, and packing is of the queries.
struct AttentionForward {
  DType dtype = DType::f32;
  int64_t batch = 0, heads = 0, head_size = 0, query_tokens = 0, kv_tokens = 0;
  int64_t kv_heads = 0;         ///< heads of k, v, dk and dv; divides heads; 0: as many
  int64_t heads_of_kv() const { return kv_heads > 0 ? kv_heads : heads; }
  Heads q, k, v;
  float scale = 1;
  bool causal = false;
  int64_t window = 0;           ///< causal only: a query sees at most so many keys, its own and those before; 0: all
  float cap = 0;                ///< scores s become cap tanh(s / cap) before the mask (Gemma 2); 0: as they are
  Tensor kv_lengths;            ///< i32 [batch], optional; packed: at most the sample's rows
  RelativeScores relative;      ///< optional; added before the mask, not together with cap
  Packing packing;              ///< optional
  Packing key_packing;          ///< optional, with packing, not causal (cross attention between packed samples)
  const Packing& packing_of_keys() const { return key_packing ? key_packing : packing; }
  Dropout dropout;              ///< of the probabilities
  ProbabilityNumbers numbers;   ///< of dropout's elements; optional
  ProbabilityNumbers dropout_numbers() const {
    return numbers ? numbers : ProbabilityNumbers{query_tokens * kv_tokens, kv_tokens};
  }
  Heads out;                    ///< out
  Tensor lse;                   ///< f32 [batch, heads, query_tokens], out: log of the softmax's denominator
};

struct AttentionBackward {
  AttentionForward forward;     ///< the same views as in forward, out and lse filled
  Heads dout;
  Heads dq, dk, dv;             ///< out
  Tensor delta;                 ///< f32 [batch, heads, query_tokens], scratch: row sums of dout * out
  Tensor drelative;             ///< f32, as relative.values, optional: its gradient is added to it
  /// [(heads + 2 kv_heads) * head_size] parameter gradient, optional: column sums of dq, dk and dv, which are then the
  /// columns of one matrix [batch * tokens, (heads + 2 kv_heads) * head_size] in this order, with as many queries as
  /// keys.
  Tensor dbias;
  bool accumulate_dbias = false;
};

/// patches[b * P + p, (c * patch + y) * patch + x] = (pixel / 255 - mean[c]) / std[c], p counted row by row from the
/// top left. Pixels right of the last whole patch and below it do not count, as in a convolution of this stride.
struct Patchify {
  Tensor pixels;                ///< u8 [B, S, S, 3]
  int64_t patch = 14;
  float mean[3], std[3];
  Tensor patches;               ///< [B * P, 3 * patch * patch], out; P = floor(S / patch)^2
};

/// x[b, 0] = class_embedding + positions[0]; x[b, 1 + p] = patch[b, p] + positions[1 + p]
struct VisionEmbed {
  Tensor patches;               ///< [B * P, N]; in backward: gradient, out
  Tensor class_embedding;       ///< [N]; in backward: parameter gradient
  Tensor positions;             ///< [1 + P, N]; in backward: parameter gradient
  Tensor x;                     ///< [B * (1 + P), N], out; in backward: the incoming gradient
  bool accumulate = false;      ///< backward only
  bool parameters = true;       ///< backward only: whether parameter gradients are wanted
};

/// Rows of the language model's input: `prefix` rows of image features, then embedded text; learned positions.
/// Row t of sample b gets position t + 2, or 1 at and after prefix_rows + lengths[b] (OPT's offset and padding).
/// Packed: the most rows of a sample are Q + T; it has at least Q + lengths[b]; ids without a row do not count.
struct TextEmbed {
  Tensor ids;                   ///< i32 [B, T]
  Tensor lengths;               ///< i32 [B], valid text tokens
  Tensor prefix;                ///< [B * Q, N], optional; in backward: gradient, out, optional
  int64_t prefix_rows = 0;      ///< Q
  Tensor tokens;                ///< [V, N]; in backward: parameter gradient, optional
  Tensor positions;             ///< [rows, N], optional; in backward: parameter gradient, optional
  int64_t padding_id = -1;      ///< this id's token row gets no gradient here (torch.nn.Embedding's padding_idx)
  Tensor row_positions;         ///< i32 [B], optional, with T = 1 and Q = 0, forward only: the row's place in its text in place
                                ///< of t; negative: padding. `lengths` may then be absent
  float token_scale = 1;        ///< of token rows, rounded to the compute dtype as the product is (Gemma)
  Packing packing;              ///< optional
  Tensor x;                     ///< [B * (Q + T), N] or, packed, [M, N], out; in backward: the incoming gradient
  bool accumulate_tokens = false, accumulate_positions = false;  ///< backward only
};

/// dst block b, row i = src block b, row (offset + i), for i < count: picks `count` rows out of each block of
/// `block_rows`. spread_rows is its adjoint: writes those rows and zeroes the others of the block.
/// Packed: block_rows are the most; every block has at least offset + left_out rows, left_out = block_rows - offset -
/// count, and gives all but its first `offset` and its last `left_out`; with `fixed` at least offset + count, and gives
/// these.
struct RowBlocks {
  Tensor blocks;                ///< [B * block_rows, N] or, packed, [M, N]
  Tensor rows;                  ///< [B * count, N] or, packed and not fixed, [M - B * (block_rows - count), N]
  int64_t block_rows = 0, offset = 0, count = 0;
  Packing packing;              ///< optional
  bool fixed = false;           ///< packed: `count` rows of each block, however many it has
  bool keep = false;            ///< spread_rows: the other rows of the blocks stay as they are
};

/// Cross-entropy of each row, and its gradient over the logits in place.
/// row_loss[r] = weight * (log sum exp(logits[r]) - logits[r, label]); logits[r] <- weight * (softmax - onehot).
/// Rows with label < 0 get loss 0 and gradient 0.
/// With `cap` the logits l count as cap tanh(l / cap), rounded to the compute dtype, and the gradient is that of l.
struct CrossEntropy {
  float cap = 0;                ///< 0: none
  Tensor logits;                ///< [R, V], in and out; compute dtype
  Tensor labels;                ///< i32 [R]
  Tensor weight;                ///< f32 [1]
  Tensor row_loss;              ///< f32 [R], out
};

/// Numbers that change from step to step; they live in device memory so that a captured step sees them.
/// Layout of the f32 tensor `scalars` [kStepScalars].
/// kStepNumber counts from 1. Where kSkipUpdate is not 0, updates write nothing at all: parameters, masters, states and
/// squares keep their bits.
enum StepScalar {
  kLearningRate, kBiasCorrection1, kBiasCorrection2, kClipCoefficient, kGradNorm, kStepNumber, kSkipUpdate,
  kStepScalars = 8
};

/// Optimizer updates tell the squares of their gradient by the way: sums over so many elements each (the last: what is
/// left), before clipping.
constexpr int64_t kSquaresSpan = 2048;
constexpr int64_t squares_count(int64_t elements) { return (elements + kSquaresSpan - 1) / kSquaresSpan; }

/// How an update rounds parameters that are kept in bf16 alone. `stochastic`: down or up, up with the probability that
/// is the part of a bf16 step by which the number lies above, in steps of 2^-16: small updates add up in the mean. The
/// random bits depend on seed, step, unit and element alone (philox.h); else to nearest even.
struct Rounding {
  bool stochastic = false;
  uint64_t seed = 0;
  uint32_t unit = 0;
  int64_t first = 0;            ///< the number of the update's first element in its unit
};

/// torch.optim.AdamW, one fused pass over a shard (decoupled weight decay, Loshchilov & Hutter 2019):
/// p -= lr wd p; m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p -= lr (m / bc1) / (sqrt(v / bc2) + eps),
/// with g = gradient * clip coefficient and bc = 1 - beta^step. With `master`, p is master (f32) and param its copy.
struct AdamWUpdate {
  Tensor param;                 ///< [n] compute dtype, in and out
  Tensor master;                ///< f32 [n], optional, in and out
  Tensor grad;                  ///< [n] f32 or bf16
  Tensor m, v;                  ///< [n] f32 or bf16, in and out
  Tensor scalars;               ///< f32 [kStepScalars]
  Tensor squares;               ///< f32 [squares_count(n)], out, optional
  float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0.01f;
  Rounding rounding;            ///< stochastic only of bf16 without master
  int64_t link_bytes = 0;       ///< of an element that are read from the host's memory: where they are many, few processors
                                ///< keep the link busy and do it
};

/// torch.optim.SGD: g += wd p; buf = momentum buf + g (buf = g at step 1); p -= lr buf.
struct SgdUpdate {
  Tensor param, master, grad;   ///< as in AdamWUpdate
  Tensor momentum_buffer;       ///< [n], optional (momentum 0), zeros before the first step
  Tensor scalars, squares;      ///< as in AdamWUpdate
  float momentum = 0, weight_decay = 0;
  Rounding rounding;            ///< as in AdamWUpdate
  int64_t link_bytes = 0;       ///< as in AdamWUpdate
};

/// Lion (Chen et al. 2023): p -= lr wd p; p -= lr sign(b1 m + (1 - b1) g); m = b2 m + (1 - b2) g.
struct LionUpdate {
  Tensor param, master, grad;   ///< as in AdamWUpdate
  Tensor m;                     ///< [n] f32 or bf16, in and out
  Tensor scalars, squares;      ///< as in AdamWUpdate
  float beta1 = 0.9f, beta2 = 0.99f, weight_decay = 0;
  Rounding rounding;            ///< as in AdamWUpdate
  int64_t link_bytes = 0;       ///< as in AdamWUpdate
};

/// What the codes of a block of numbers stand for. A block keeps its largest magnitude as its scale; each number is
/// stored as the code whose value is nearest to number / scale.
enum class CodeBook {
  nf4,                ///< blocks of 64, 4 bits, the first of two codes in the high half of a byte: quantiles of a
                      ///< normal distribution (Dettmers et al. 2023)
  int8,               ///< blocks of 64, 8 bits: -127 / 127 to 127 / 127, two's complement
  dynamic8,           ///< blocks of 256, 8 bits: 7 decades of both signs, finer from decade to decade (Dettmers et al.
                      ///< 2022)
  dynamic8_unsigned,  ///< the same, twice as fine, of numbers that are not negative
};
constexpr int64_t code_block(CodeBook book) {
  return book == CodeBook::nf4 || book == CodeBook::int8 ? 64 : 256;
}
constexpr int64_t code_bits(CodeBook book) { return book == CodeBook::nf4 ? 4 : 8; }

/// Numbers as codes. The last block may be cut: codes behind the last number are those of zeros.
/// nf4 and dynamic8: the code is how many midpoints between neighbouring values lie below x * (1 / scale), and stands
/// for value * scale, as in bitsandbytes; int8: x * (127 / scale) to the nearest integer, ties to even, which stands
/// for integer * (scale / 127). All in f32. A block whose scale is below 2^-119 counts as zeros; an infinity or a NaN
/// in a block makes NaNs of it.
///
/// With `outer` the scales themselves are codes (double quantisation, Dettmers et al. 2023): dynamic8_unsigned, 256 of
/// them a block, which ends the numbers' codes too: `blocks` is then a multiple of 256. A number's code is found with
/// its block's exact scale, and stands for value * decoded scale. (The paper's codes are signed, of scales less their
/// mean over a tensor, which whoever encodes a part of it does not know.)
struct Quantized {
  CodeBook book = CodeBook::nf4;
  Tensor codes;                 ///< u8 [blocks * block * bits / 8]
  Tensor scales;                ///< f32 [blocks]; with `outer`: u8 [blocks]
  Tensor outer;                 ///< optional: f32 [blocks / 256], the scales of the scales
};
constexpr int64_t kScaleBlock = code_block(CodeBook::dynamic8_unsigned);  ///< scales that are encoded together

/// AdamWUpdate with moments in blocks of codes, which begin with the first parameter: decoded, updated in f32 and
/// encoded again in one pass.
struct AdamW8bitUpdate {
  Tensor param, master, grad;   ///< as in AdamWUpdate
  Quantized m;                  ///< dynamic8, of n numbers, in and out
  Quantized v;                  ///< dynamic8_unsigned, of n numbers, in and out
  Tensor scalars, squares;      ///< as in AdamWUpdate
  float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0.01f;
  Rounding rounding;            ///< as in AdamWUpdate
};

// Of decoding, in blipft/decode_ops.h; of norms of heads, in blipft/head_norm.h; of relative positions, in
// blipft/relative_bias.h.
struct RelativeBias; struct BeginTexts; struct NextRows; struct CodedLinear; struct CacheWrite; struct AttentionDecode;
struct PickTokens; struct BeamStep; struct HeadNormForward; struct HeadNormBackward;

class Ops {
 public:
  virtual ~Ops() = default;
  /// Scratch memory of at least kWorkspaceBytes: ops then run in one stream at a time. With twice as much they may run
  /// in one stream and in Device::side_stream() at the same time.
  virtual void set_workspace(Tensor workspace) = 0;  // u8 [bytes]

  /// Catches up on choices that were left open because ops were captured rather than run (which algorithm a matrix
  /// product takes is found by timing it). True when there were any: what was captured holds a makeshift choice, and is
  /// to be captured again. Needs the device for itself.
  virtual bool settle() { return false; }

  virtual void linear_forward(const LinearForward&, Stream) = 0;
  virtual void linear_backward_input(const LinearBackwardInput&, Stream) = 0;
  virtual void linear_backward_weight(const LinearBackwardWeight&, Stream) = 0;
  /// Whether products take factors in fp8 here.
  virtual bool has_fp8() const = 0;
  virtual void cast_fp8(const Fp8Cast&, Stream) = 0;
  /// amax f32 [1], in and out: raised to the largest |x| (Fp8Magnitude). x [M, N] f32 or bf16, N a multiple of 8.
  virtual void raise_amax(const MatrixView& x, const Tensor& amax, Stream) = 0;
  /// y = act(x), element-wise; for recomputation in backward.
  virtual void activate(const Tensor& x, const Tensor& y, Activation, Stream) = 0;
  /// Bit i % 8 of signs[i / 8] = x[i] > 0, else 0: what relu's derivative needs. x f32 or bf16 [n], signs u8 [ceil(n / 8)].
  virtual void pack_signs(const Tensor& x, const Tensor& signs, Stream) = 0;
  virtual void norm_forward(const NormForward&, Stream) = 0;
  virtual void norm_backward(const NormBackward&, Stream) = 0;
  virtual void dropout_add(const DropoutAdd&, Stream) = 0;
  virtual void rotary(const Rotary&, Stream) = 0;
  virtual void swiglu_forward(const Swiglu&, Stream) = 0;
  virtual void swiglu_backward(const Swiglu&, Stream) = 0;
  virtual void attention_forward(const AttentionForward&, Stream) = 0;
  virtual void attention_backward(const AttentionBackward&, Stream) = 0;
  virtual void head_norm_forward(const HeadNormForward&, Stream) = 0;
  virtual void head_norm_backward(const HeadNormBackward&, Stream) = 0;
  virtual void relative_bias_forward(const RelativeBias&, Stream) = 0;
  virtual void relative_bias_backward(const RelativeBias&, Stream) = 0;
  virtual void begin_texts(const BeginTexts&, Stream) = 0;
  virtual void next_rows(const NextRows&, Stream) = 0;
  /// The most rows of `compute` for which coded_linear() is the faster way; 0: there is none.
  virtual int64_t coded_rows(DType compute) const = 0;
  virtual void coded_linear(const CodedLinear&, Stream) = 0;
  virtual void cache_write(const CacheWrite&, Stream) = 0;
  virtual void attention_decode(const AttentionDecode&, Stream) = 0;
  virtual void pick_tokens(const PickTokens&, Stream) = 0;
  virtual void beam_step(const BeamStep&, Stream) = 0;

  virtual void patchify(const Patchify&, Stream) = 0;
  virtual void vision_embed_forward(const VisionEmbed&, Stream) = 0;
  virtual void vision_embed_backward(const VisionEmbed&, Stream) = 0;
  virtual void text_embed_forward(const TextEmbed&, Stream) = 0;
  virtual void text_embed_backward(const TextEmbed&, Stream) = 0;
  /// rows[i] = table[numbers[i]]. table [V, N], numbers i32 [R], rows [R, N].
  virtual void gather_rows(const Tensor& table, const Tensor& numbers, const Tensor& rows, Stream) = 0;
  /// tiled[b * R + i] = rows[i] for every b. rows [R, N], tiled [B * R, N].
  virtual void tile_rows(const Tensor& rows, const Tensor& tiled, Stream) = 0;
  /// rows[i] (+)= sum over b of tiled[b * R + i]; rows is a parameter gradient.
  virtual void sum_tiles(const Tensor& tiled, const Tensor& rows, bool accumulate, Stream) = 0;
  virtual void pick_rows(const RowBlocks&, Stream) = 0;
  virtual void spread_rows(const RowBlocks&, Stream) = 0;
  virtual void cross_entropy(const CrossEntropy&, Stream) = 0;

  /// out[0] (+)= sum of x (f32); x f32.
  virtual void sum(const Tensor& x, const Tensor& out, bool accumulate, Stream) = 0;
  /// out[0] (+)= sum of squares of x (f32 or bf16), in f32.
  virtual void sum_squares(const Tensor& x, const Tensor& out, bool accumulate, Stream) = 0;
  /// Element-wise casts among f32, bf16 and f16 (round to nearest even).
  virtual void cast(const Tensor& from, const Tensor& to, Stream) = 0;
  /// x <- cap tanh(x / cap) in f32, element-wise (Gemma 2's logits); cap > 0.
  virtual void cap(const Tensor& x, float cap, Stream) = 0;
  /// x <- factor x, element-wise.
  virtual void scale(const Tensor& x, float factor, Stream) = 0;
  /// to += from; each f32 or bf16, added in f32.
  virtual void add(const Tensor& from, const Tensor& to, Stream) = 0;
  /// x[i] = mean + std * normal(seed, stream_id, first + i), the same numbers however a tensor is cut into parts.
  virtual void fill_normal(const Tensor& x, uint64_t seed, uint32_t stream_id, int64_t first, float mean, float std,
                           Stream) = 0;
  /// x[i] uniform in (-bound, bound), by the same rule.
  virtual void fill_uniform(const Tensor& x, uint64_t seed, uint32_t stream_id, int64_t first, float bound, Stream) = 0;
  virtual void fill(const Tensor& x, float value, Stream) = 0;
  virtual void fill_i32(const Tensor& x, int32_t value, Stream) = 0;
  /// weights[i] = 1 / (denominators[i] * scale), or 0 where a denominator is 0. f32 [n].
  virtual void loss_weights(const Tensor& denominators, const Tensor& weights, float scale, Stream) = 0;
  /// scalars[kGradNorm] = sqrt(sum_of_squares[0]); scalars[kClipCoefficient] = max_norm > 0 ?
  /// min(1, max_norm / (norm + 1e-6)) : 1 (torch.nn.utils.clip_grad_norm_); scalars[kSkipUpdate] = 1 where the norm is
  /// not finite, else 0. An infinite max_norm scales nothing.
  virtual void clip_coefficient(const Tensor& sum_of_squares, const Tensor& scalars, float max_norm, Stream) = 0;
  virtual void adamw_update(const AdamWUpdate&, Stream) = 0;
  virtual void sgd_update(const SgdUpdate&, Stream) = 0;
  virtual void lion_update(const LionUpdate&, Stream) = 0;
  virtual void adamw8bit_update(const AdamW8bitUpdate&, Stream) = 0;
  /// values [n] f32, bf16 or f16 into the codes of n numbers; and back, into f32, bf16 or f16.
  virtual void quantize(const Tensor& values, const Quantized& to, Stream) = 0;
  virtual void dequantize(const Quantized& from, const Tensor& values, Stream) = 0;
  /// Parts of a matrix that is stored in f8e4m3, codes [n]: to codes = values / scale, rounded as by Fp8Cast, with a scale
  /// that is there; and back, values = codes * scale. values [n] f32, bf16 or f16.
  virtual void encode_fp8(const Tensor& values, const Fp8Matrix& to, Stream) = 0;
  virtual void decode_fp8(const Fp8Matrix& from, const Tensor& values, Stream) = 0;
  /// Such a scale, f32 [1], from one part after the other: largest[0], 0 before the first part, becomes the greater of itself
  /// and the largest |x|, as Fp8Cast::amax; scale[0] that of it, as Fp8Cast::scale. x f32, bf16 or f16.
  virtual void raise_fp8_scale(const Tensor& x, const Tensor& largest, const Tensor& scale, Stream) = 0;
  /// transposed [N, fp8_columns(M)] of codes [M, N], N a multiple of kFp8Alignment; both of one of fp8's dtypes.
  virtual void transpose_fp8(const Tensor& codes, const Tensor& transposed, Stream) = 0;
};

/// What is timed of a matrix product that no table knows: nothing, cuBLASLt then says which algorithm is best; a few
/// candidates; hundreds (about a second a product).
enum class ProductSearch { none, quick, thorough };

/// How a GPU's matrix products are chosen and computed.
struct ProductSettings {
  ProductSearch search = ProductSearch::quick;
  bool tf32 = false;                       ///< f32 products, attention's too, round their factors to TF32 (10 bits)
};

std::unique_ptr<Ops> make_cpu_ops();
/// `cache_path` keeps the chosen cuBLASLt algorithms ("" keeps none). A product that neither this file nor the table
/// that comes with the program (share/gemm_algorithms.txt) knows is timed at its first use.
std::unique_ptr<Ops> make_cuda_ops(Device& device, const std::string& cache_path,
                                   const ProductSettings& products = {});
std::unique_ptr<Ops> make_plan_ops();

}  // namespace blipft
