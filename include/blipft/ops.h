// Ops: the interface to all computation. Its backends are src/cpu (slow and simple, the reference for tests), src/cuda,
// and a plan backend that checks shapes and computes nothing.
//
// Rules for every op:
//  - an op works on views, in `stream`, and allocates nothing; its scratch memory is the set_workspace() tensor;
//  - activations, weights, and their gradients have the compute dtype (f32 or bf16) unless said otherwise;
//  - parameter gradients ("d..." of a weight, bias, gamma, table) are f32 or of the compute dtype; they are overwritten
//    (accumulate = false) or added to (accumulate = true), which formulas write as (+)=;
//  - sums, norms, softmax and loss accumulate in f32; no op depends on the order of atomics: same input, same bits;
//  - a row is one token; the rows of a sample are contiguous; weights are [out, in] as in torch.nn.Linear.
#pragma once

#include <cstdint>
#include <memory>

#include "blipft/device.h"
#include "blipft/dropout.h"
#include "blipft/linear_ops.h"
#include "blipft/tensor.h"

namespace blipft {

/// Workspace size in bytes that suffices for the ops of every backend, including cuBLASLt.
constexpr int64_t kWorkspaceBytes = 48 << 20;

/// sum = residual + dropout(x); y = (sum - mean) * rstd * gamma + beta over each row (Ba et al. 2016).
/// If beta and mean are absent, this is RMSNorm (Zhang & Sennrich 2019): y = gamma * (sum * rstd) with rstd = 1 /
/// sqrt(mean of sum^2 + eps). As in transformers, sum * rstd is rounded to the compute dtype before gamma unless `rms`
/// says otherwise.
struct RmsForm {
  float offset = 0;             ///< y = (offset + gamma) * (sum * rstd): 1 for Gemma
  bool rounds_once = false;     ///< if true, only the product with gamma is rounded (Gemma, OLMo 2)
};
struct NormForward {
  Tensor x;                     ///< [M, N]
  Tensor residual;              ///< [M, N], optional
  Dropout dropout;              ///< applied to x, optional
  Tensor sum;                   ///< [M, N], out; required with residual or dropout, else absent (sum is x)
  Tensor gamma, beta;           ///< [N]; beta and mean are absent for RMSNorm
  float eps = 1e-5f;
  RmsForm rms;                  ///< RMSNorm only
  Tensor y;                     ///< [M, N], out
  Tensor amax;                  ///< f32 [1], in and out, optional: raised to the largest |y| (Fp8Magnitude)
  Tensor mean, rstd;            ///< f32 [M], out
};

/// dx = add + d(norm)/d(sum); dgamma (+)= ..., dbeta (+)= ...; dropped = dropout mask applied to dx; y = the norm's
/// output recomputed for the weight gradient of the layer that read it; for RMSNorm, y has the same bits as in forward.
/// If mean is absent, this is the backward of RMSNorm, which has no beta.
struct NormBackward {
  Tensor dy;                    ///< [M, N]
  Tensor x;                     ///< [M, N], the norm's input (NormForward::sum or x)
  Tensor mean, rstd;            ///< f32 [M]; no mean: RMSNorm
  Tensor gamma;                 ///< [N]
  Tensor beta;                  ///< [N], required with `y`; absent for RMSNorm
  Tensor y;                     ///< [M, N], out, optional
  Tensor add;                   ///< [M, N], optional, may be dx itself
  Tensor dgamma, dbeta;         ///< [N] parameter gradients, optional (both or none; RMSNorm: dgamma alone)
  bool accumulate = false;
  Dropout dropout;              ///< goes with `dropped`
  Tensor dropped;               ///< [M, N], out, optional: gradient of NormForward::x through its dropout
  Tensor dbias;                 ///< [N] parameter gradient, optional: column sums of `dropped`, or of dx if `dropped`
                                ///< is absent; the gradient of a bias that was added to NormForward::x
  bool accumulate_dbias = false;
  Tensor amax;                  ///< f32 [1], in and out, optional: raised to the largest |dropped|, or |dx| if
                                ///< `dropped` is absent
  RmsForm rms;                  ///< as in NormForward
  Tensor dx;                    ///< [M, N], out; may be dy itself
};

/// y = residual + dropout(x). Either may be absent (plain dropout, plain add); y may be x or residual.
struct DropoutAdd {
  Tensor x;                     ///< [M, N]
  Tensor residual;              ///< [M, N], optional
  Dropout dropout;              ///< optional
  Tensor y;                     ///< [M, N], out
};

/// Rotary position embedding (Su et al. 2021), in place. In each head of a row, the pair (x[i], x[i + D / 2]) is
/// rotated by the angle a = position * frequencies[i]: x[i] cos a - x[i + D / 2] sin a, x[i + D / 2] cos a + x[i] sin
/// a. It is computed in f32; the angle is one f32 product. `inverse` rotates by -a, which is the gradient. A row has one
/// position, or one on each of several axes (time, y and x of a picture's cell), of which axis[i] rotates pair i.
struct Rotary {
  MatrixView x;                 ///< [M, heads * D], in and out
  int64_t head_size = 0;        ///< D, even, at most 2 * kMaxFrequencies
  int64_t rotated = 0;          ///< even: number of leading elements of each head that are rotated, the others are
                                ///< unchanged; 0: all D
  float magnitude = 1;          ///< factor of cos and sin (long-context scaling)
  Tensor positions;             ///< i32 [axes, M]
  int64_t axes() const { return x.rows() > 0 ? positions.numel() / x.rows() : 1; }
  static constexpr int64_t kMaxFrequencies = 128;
  float frequencies[kMaxFrequencies] = {};  ///< [rotated / 2], radians from one position to the next
  uint8_t axis[kMaxFrequencies] = {};  ///< [rotated / 2], below axes(); not read if there is one axis
  bool inverse = false;
  Tensor amax;                  ///< f32 [1], in and out, optional, only if all D are rotated: raised to the largest |x|
                                ///< (Fp8Magnitude)
};

/// The activation of a gated MLP's gate: silu(g) = g / (1 + exp(-g)); gelu is the exact (erf) form, gelu_tanh the tanh
/// approximation.
enum class GateActivation { silu, gelu, gelu_tanh, relu };

/// Gated activation of an MLP (GLU variants, Shazeer 2020): y = act(gate) * up in f32, rounded once; SwiGLU if act is
/// silu. Backward computes dgate = dy up act'(gate) and dup = dy act(gate); its y has the same bits as in forward.
struct Swiglu {
  GateActivation activation = GateActivation::silu;
  Tensor gate_up;               ///< [M, 2F]: gate in the first F columns, up in the others
  Tensor y;                     ///< [M, F], out; optional in backward
  Tensor dy;                    ///< [M, F], backward only
  Tensor dgate_up;              ///< [M, 2F], backward only, out; may be gate_up itself
  Tensor amax;                  ///< f32 [1], in and out, optional: raised to the largest |y|, or |dgate_up| in backward
                                ///< (Fp8Magnitude)
};

/// Heads of queries, keys or values inside a [batch * tokens, row_stride] matrix: head h of token t of sample b starts
/// at data + (b * batch_stride + t * row_stride + h * head_size) elements. Strides count elements.
struct Heads {
  void* data = nullptr;
  int64_t row_stride = 0;
  int64_t batch_stride = 0;
  /// Heads in `matrix` viewed as [batch * tokens, cols], starting at element `column` of each row.
  static Heads in(const Tensor& matrix, int64_t column, int64_t tokens) {
    return {static_cast<char*>(matrix.data) + column * dtype_size(matrix.dtype), matrix.cols(), tokens * matrix.cols()};
  }
};

/// Bias added to the score of query i and key j (T5's relative positions): values[h, clamp(j - i, -behind, ahead) +
/// behind], the same for all samples. See relative_bias.h.
struct RelativeScores {
  Tensor values;                ///< f32 [heads, behind + 1 + ahead]
  int64_t behind = 0, ahead = 0;
  explicit operator bool() const { return static_cast<bool>(values); }
  int64_t columns() const { return behind + 1 + ahead; }
};

/// Numbering of attention probabilities for dropout: head h, query i, key j has number h * head + i * query + j.
struct ProbabilityNumbers {
  int64_t head = 0, query = 0;  ///< multiples of kDropoutBlock; 0: query_tokens * kv_tokens and kv_tokens
  /// A numbering that does not depend on query_tokens and kv_tokens, so that padding changes no mask. It holds for up
  /// to n queries and n keys, where n is the largest power of two whose numbers fit Dropout (16384 with 128 heads).
  static ProbabilityNumbers independent_of_padding(int64_t heads);
  explicit operator bool() const { return head > 0; }
};

/// out = dropout(softmax(scale q k^T + relative + mask)) v, computed without a score matrix (Dao et al. 2022).
/// Key j is visible to query i if j < kv_lengths[b] (if given) and, if causal, j <= i, or j <= last_keys[i] if given
/// (query_tokens == kv_tokens).
/// The output of a query that sees no key is zero.
/// Grouped-query attention (Ainslie et al. 2023): each of the kv_heads heads of k and v is shared by heads / kv_heads
/// consecutive query heads; dk and dv are sums over these query heads.
/// Packed: row t of sample b is row packing.starts[b] + t of every matrix, and query_tokens == kv_tokens is the maximum
/// number of rows of a sample. Rows t >= starts[b + 1] - starts[b] do not exist; lse and delta are not written there.
/// If key_packing is given, it describes the keys and values, kv_tokens is their maximum, and packing describes the
/// queries.
struct AttentionForward {
  DType dtype = DType::f32;
  int64_t batch = 0, heads = 0, head_size = 0, query_tokens = 0, kv_tokens = 0;
  int64_t kv_heads = 0;         ///< heads of k, v, dk and dv; divides heads; 0: equal to heads
  int64_t heads_of_kv() const { return kv_heads > 0 ? kv_heads : heads; }
  Heads q, k, v;
  float scale = 1;
  bool causal = false;
  int64_t window = 0;           ///< causal only: the number of latest keys, its own included, that a query sees; 0: all
  Tensor last_keys;             ///< i32 [rows of q], optional: last key of its sample that a query sees, never decreasing
  float cap = 0;                ///< a score s becomes cap tanh(s / cap) before the mask (Gemma 2); 0: no cap
  Tensor kv_lengths;            ///< i32 [batch], optional; if packed, at most the rows of the sample
  RelativeScores relative;      ///< optional; added before the mask; not allowed with cap or last_keys
  Packing packing;              ///< optional
  Packing key_packing;          ///< optional, with packing, not causal (cross-attention between packed samples)
  const Packing& packing_of_keys() const { return key_packing ? key_packing : packing; }
  Dropout dropout;              ///< applied to the probabilities
  ProbabilityNumbers numbers;   ///< optional numbering of the probabilities for dropout
  ProbabilityNumbers dropout_numbers() const {
    return numbers ? numbers : ProbabilityNumbers{query_tokens * kv_tokens, kv_tokens};
  }
  Heads out;                    ///< out
  Tensor lse;                   ///< f32 [batch, heads, query_tokens], out: log of the softmax denominator
};

struct AttentionBackward {
  AttentionForward forward;     ///< same views as in forward, with out and lse filled
  Heads dout;
  Heads dq, dk, dv;             ///< out
  Tensor delta;                 ///< f32 [batch, heads, query_tokens], scratch: row sums of dout * out
  Tensor drelative;             ///< f32, shape of relative.values, optional: the gradient is added to it
  /// [(heads + 2 kv_heads) * head_size] parameter gradient, optional: column sums of dq, dk and dv. It requires
  /// query_tokens == kv_tokens and dq, dk, dv to be, in this order, the columns of one matrix [batch * tokens, (heads +
  /// 2 kv_heads) * head_size].
  Tensor dbias;
  bool accumulate_dbias = false;
};

/// Input rows of the language model: `prefix` rows of image features, then embedded text, plus learned positions. Row t
/// of sample b gets position t + 2, or 1 if t >= prefix_rows + lengths[b] (OPT's offset and padding). Packed: a sample
/// has at most Q + T and at least Q + lengths[b] rows; ids without a row are ignored. With prefix_of_row the rows of image
/// features replace tokens anywhere in the text; the ids of these tokens are ignored.
struct TextEmbed {
  Tensor ids;                   ///< i32 [B, T]
  Tensor lengths;               ///< i32 [B], number of valid text tokens
  Tensor prefix;                ///< [B * Q, N] or [P, N], optional; in backward: gradient, out, optional
  int64_t prefix_rows = 0;      ///< Q
  Tensor prefix_of_row;         ///< i32 [rows of x], optional, with Q = 0: the row of prefix that stands there; -1: a token
  Tensor row_of_prefix;         ///< i32 [P], goes with it: the row of x where each row of prefix stands; -1: nowhere
  Tensor tokens;                ///< [V, N]; in backward: parameter gradient, optional
  Tensor positions;             ///< [rows, N], optional; in backward: parameter gradient, optional
  int64_t padding_id = -1;      ///< the token row of this id gets no gradient here (padding_idx of torch.nn.Embedding)
  Tensor row_positions;         ///< i32 [B], optional, with T = 1 and Q = 0, forward only: replaces t by the row's
                                ///< position in its text; negative: padding. `lengths` may then be absent
  float token_scale = 1;        ///< factor of token rows, rounded to the compute dtype like their product (Gemma)
  Packing packing;              ///< optional
  Tensor x;                     ///< [B * (Q + T), N] or, packed, [M, N], out; in backward: the incoming gradient
  bool accumulate_tokens = false, accumulate_positions = false;  ///< backward only
};

/// dst block b, row i = src block b, row (offset + i), for i < count: copies `count` rows out of each block of
/// `block_rows` rows. spread_rows is the adjoint: it writes those rows and zeroes the other rows of the block. Packed:
/// block_rows is the maximum number of rows of a block. With left_out = block_rows - offset - count, every block has at
/// least offset + left_out rows, and all but its first `offset` and last `left_out` rows are copied. Packed and
/// `fixed`: every block has at least offset + count rows, and the `count` rows from `offset` on are copied.
struct RowBlocks {
  Tensor blocks;                ///< [B * block_rows, N] or, packed, [M, N]
  Tensor rows;                  ///< [B * count, N] or, packed and not fixed, [M - B * (block_rows - count), N]
  int64_t block_rows = 0, offset = 0, count = 0;
  Packing packing;              ///< optional
  bool fixed = false;           ///< packed: copies `count` rows of each block, however many it has
  bool keep = false;            ///< spread_rows: the other rows of the blocks keep their values
};

/// Cross-entropy loss of each row; the gradient replaces the logits.
/// row_loss[r] = weight * (log sum exp(logits[r]) - logits[r, label]); logits[r] <- weight * (softmax - onehot).
/// Rows with label < 0 have loss 0 and gradient 0.
/// With `cap`, each logit l is replaced by cap tanh(l / cap), rounded to the compute dtype; the gradient is still that
/// of l.
struct CrossEntropy {
  float cap = 0;                ///< 0: no cap
  Tensor logits;                ///< [R, V], in and out; compute dtype
  Tensor labels;                ///< i32 [R]
  Tensor weight;                ///< f32 [1]
  Tensor row_loss;              ///< f32 [R], out
};

/// Scalars that change from step to step. They are in device memory so that a captured step reads current values. This
/// enum is the layout of the f32 tensor `scalars` [kStepScalars]. kStepNumber starts at 1. If kSkipUpdate is not 0,
/// updates write nothing: parameters, masters, states and squares keep their bits.
enum StepScalar {
  kLearningRate, kBiasCorrection1, kBiasCorrection2, kClipCoefficient, kGradNorm, kStepNumber, kSkipUpdate,
  kStepScalars = 8
};

/// Optimizer updates also compute sums of squares of the gradient before clipping, one for each span of this many
/// elements (the last span may be shorter).
constexpr int64_t kSquaresSpan = 2048;
constexpr int64_t squares_count(int64_t elements) { return (elements + kSquaresSpan - 1) / kSquaresSpan; }

/// Rounding of parameters that have only a bf16 copy. If `stochastic` is true, an update rounds up with a probability
/// equal to the discarded fraction of a bf16 step (in multiples of 2^-16) and down otherwise, so that small updates are
/// right on average. The random bits depend only on seed, step, unit and element (philox.h). If false, it rounds to
/// nearest even.
struct Rounding {
  bool stochastic = false;
  uint64_t seed = 0;
  uint32_t unit = 0;
  int64_t first = 0;            ///< offset in its unit of the update's first element
};

/// torch.optim.AdamW, one fused pass over a shard (decoupled weight decay, Loshchilov & Hutter 2019):
/// p -= lr wd p; m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p -= lr (m / bc1) / (sqrt(v / bc2) + eps),
/// with g = gradient * clip coefficient and bc = 1 - beta^step. If `master` is present, p is master (f32) and param its
/// copy.
struct AdamWUpdate {
  Tensor param;                 ///< [n] compute dtype, in and out
  Tensor master;                ///< f32 [n], optional, in and out
  Tensor grad;                  ///< [n] f32 or bf16
  Tensor m, v;                  ///< [n] f32 or bf16, in and out
  Tensor scalars;               ///< f32 [kStepScalars]
  Tensor squares;               ///< f32 [squares_count(n)], out, optional
  float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0.01f;
  Rounding rounding;            ///< stochastic only for bf16 without master
  int64_t link_bytes = 0;       ///< bytes per element that are read from host memory. If they are many, few thread
                                ///< blocks suffice to saturate the link, and the update uses only these
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

/// The values that a quantized block can represent. A block stores its largest magnitude as its scale. Each number is
/// stored as the index (code) of the value that is nearest to number / scale.
enum class CodeBook {
  nf4,                ///< blocks of 64, 4 bits, the first of two values in the high half of a byte: quantiles of a
                      ///< normal distribution (Dettmers et al. 2023)
  int8,               ///< blocks of 64, 8 bits: -127 / 127 to 127 / 127, two's complement
  dynamic8,           ///< blocks of 256, 8 bits: 7 decades of both signs, with more values in larger decades (Dettmers
                      ///< et al. 2022)
  dynamic8_unsigned,  ///< dynamic8 for non-negative numbers, with twice as many values a decade
};
constexpr int64_t code_block(CodeBook book) {
  return book == CodeBook::nf4 || book == CodeBook::int8 ? 64 : 256;
}
constexpr int64_t code_bits(CodeBook book) { return book == CodeBook::nf4 ? 4 : 8; }

/// Quantized numbers. If the last block is incomplete, its remaining values are those of zeros.
/// nf4 and dynamic8: the code is the number of midpoints between neighbouring values that lie below x * (1 / scale); it
/// decodes to value * scale, as in bitsandbytes. int8: x * (127 / scale) is rounded to the nearest integer, ties to
/// even; it decodes to integer * (scale / 127). All of this is computed in f32. A block whose scale is below 2^-119 is
/// stored as zeros; a non-finite number turns its block into NaN.
///
/// With `outer` the scales are quantized too (double quantization, Dettmers et al. 2023): as dynamic8_unsigned, in
/// blocks of 256 scales. The quantized values are padded to whole blocks of scales: `blocks` is then a multiple of
/// 256. A number is encoded with the exact scale of its block and decoded with the quantized scale. (The paper uses
/// signed values of the scales minus their mean over a tensor; an encoder that sees only a part of the tensor does not
/// know this mean.)
struct Quantized {
  CodeBook book = CodeBook::nf4;
  Tensor quantized;                 ///< u8 [blocks * block * bits / 8]
  Tensor scales;                ///< f32 [blocks]; with `outer`: u8 [blocks]
  Tensor outer;                 ///< optional: f32 [blocks / 256], the scales of the quantized scales
};
constexpr int64_t kScaleBlock = code_block(CodeBook::dynamic8_unsigned);  ///< scales that share an outer scale

/// AdamWUpdate with quantized moments, whose first block starts at the first parameter. They are decoded, updated in
/// f32 and encoded again in one pass.
struct AdamW8bitUpdate {
  Tensor param, master, grad;   ///< as in AdamWUpdate
  Quantized m;                  ///< dynamic8, of n numbers, in and out
  Quantized v;                  ///< dynamic8_unsigned, of n numbers, in and out
  Tensor scalars, squares;      ///< as in AdamWUpdate
  float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0.01f;
  Rounding rounding;            ///< as in AdamWUpdate
};

// The arguments of decoding ops are in blipft/decode_ops.h, of head norms in blipft/head_norm.h, of relative positions
// in blipft/relative_bias.h, of patches of pictures in blipft/patch_ops.h.
struct RelativeBias; struct BeginTexts; struct NextRows; struct CodedLinear; struct CacheWrite; struct AttentionDecode;
struct PickTokens; struct BeamStep; struct HeadNormForward; struct HeadNormBackward; struct PatchValues; struct PositionTable;
struct Patchify; struct VisionEmbed;

class Ops {
 public:
  virtual ~Ops() = default;
  /// `workspace` has at least kWorkspaceBytes; ops may then run in one stream at a time. With twice as many bytes they
  /// may run in one stream and in Device::side_stream() at the same time.
  virtual void set_workspace(Tensor workspace) = 0;  // u8 [bytes]

  /// Chooses, by timing, the algorithms of matrix products whose ops were captured before they could be timed. Returns
  /// true if there were any: the captured graphs then use a default algorithm and must be captured again. The device
  /// must have no other work.
  virtual bool tune_deferred_products() { return false; }

  virtual void linear_forward(const LinearForward&, Stream) = 0;
  virtual void linear_backward_input(const LinearBackwardInput&, Stream) = 0;
  virtual void linear_backward_weight(const LinearBackwardWeight&, Stream) = 0;
  /// True if matrix products accept fp8 factors on this device.
  virtual bool has_fp8() const = 0;
  virtual void cast_fp8(const Fp8Cast&, Stream) = 0;
  /// amax f32 [1], in and out: raised to the largest |x| (Fp8Magnitude). x is [M, N], f32 or bf16; N is a multiple of
  /// 8.
  virtual void raise_amax(const MatrixView& x, const Tensor& amax, Stream) = 0;
  /// y = act(x), element-wise, used for recomputation in backward.
  virtual void activate(const Tensor& x, const Tensor& y, Activation, Stream) = 0;
  /// Bit i % 8 of signs[i / 8] is 1 if x[i] > 0 (the derivative of relu). x is f32 or bf16 [n], signs u8 [ceil(n / 8)].
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
  /// Maximum number of rows of dtype `compute` for which coded_linear() is the faster way; 0: there is no such op.
  virtual int64_t coded_rows(DType compute) const = 0;
  virtual void coded_linear(const CodedLinear&, Stream) = 0;
  virtual void cache_write(const CacheWrite&, Stream) = 0;
  virtual void attention_decode(const AttentionDecode&, Stream) = 0;
  virtual void pick_tokens(const PickTokens&, Stream) = 0;
  virtual void beam_step(const BeamStep&, Stream) = 0;

  virtual void patchify(const Patchify&, Stream) = 0;
  virtual void patch_values(const PatchValues&, Stream) = 0;
  virtual void position_table_forward(const PositionTable&, Stream) = 0;
  virtual void position_table_backward(const PositionTable&, Stream) = 0;
  virtual void vision_embed_forward(const VisionEmbed&, Stream) = 0;
  virtual void vision_embed_backward(const VisionEmbed&, Stream) = 0;
  virtual void text_embed_forward(const TextEmbed&, Stream) = 0;
  virtual void text_embed_backward(const TextEmbed&, Stream) = 0;
  /// rows[i] = table[numbers[i]], or zeros if numbers[i] is negative. table [V, N], numbers i32 [R], rows [R, N].
  virtual void gather_rows(const Tensor& table, const Tensor& numbers, const Tensor& rows, Stream) = 0;
  /// x[numbers[i]] += rows[i], unless numbers[i] is negative. x [M, N], numbers i32 [R], without duplicates, rows [R, N].
  virtual void add_rows(const Tensor& rows, const Tensor& numbers, const Tensor& x, Stream) = 0;
  /// tiled[b * R + i] = rows[i] for every b. rows [R, N], tiled [B * R, N].
  virtual void tile_rows(const Tensor& rows, const Tensor& tiled, Stream) = 0;
  /// rows[i] (+)= sum over b of tiled[b * R + i]; rows is a parameter gradient.
  virtual void sum_tiles(const Tensor& tiled, const Tensor& rows, bool accumulate, Stream) = 0;
  /// means[i] = mean of rows i * n to i * n + n - 1 of x. means [R, N], x [R * n, N]. Its gradient: x[r] = means[r / n] / n.
  virtual void mean_rows(const Tensor& x, const Tensor& means, Stream) = 0;
  virtual void mean_rows_backward(const Tensor& means, const Tensor& x, Stream) = 0;
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
  /// x[i] = mean + std * normal(seed, stream_id, first + i); the numbers do not depend on how a tensor is split.
  virtual void fill_normal(const Tensor& x, uint64_t seed, uint32_t stream_id, int64_t first, float mean, float std,
                           Stream) = 0;
  /// x[i] is uniform in (-bound, bound), numbered in the same way as in fill_normal().
  virtual void fill_uniform(const Tensor& x, uint64_t seed, uint32_t stream_id, int64_t first, float bound, Stream) = 0;
  virtual void fill(const Tensor& x, float value, Stream) = 0;
  virtual void fill_i32(const Tensor& x, int32_t value, Stream) = 0;
  /// weights[i] = 1 / (denominators[i] * scale), or 0 if denominators[i] is 0. f32 [n].
  virtual void loss_weights(const Tensor& denominators, const Tensor& weights, float scale, Stream) = 0;
  /// scalars[kGradNorm] = sqrt(sum_of_squares[0]); scalars[kClipCoefficient] = max_norm > 0 ? min(1, max_norm / (norm +
  /// 1e-6)) : 1 (torch.nn.utils.clip_grad_norm_); scalars[kSkipUpdate] = 1 if the norm is not finite, else 0. An
  /// infinite max_norm clips nothing.
  virtual void clip_coefficient(const Tensor& sum_of_squares, const Tensor& scalars, float max_norm, Stream) = 0;
  virtual void adamw_update(const AdamWUpdate&, Stream) = 0;
  virtual void sgd_update(const SgdUpdate&, Stream) = 0;
  virtual void lion_update(const LionUpdate&, Stream) = 0;
  virtual void adamw8bit_update(const AdamW8bitUpdate&, Stream) = 0;
  /// Quantizes `values` [n] (f32, bf16 or f16); dequantize() converts back to f32, bf16 or f16.
  virtual void quantize(const Tensor& values, const Quantized& to, Stream) = 0;
  virtual void dequantize(const Quantized& from, const Tensor& values, Stream) = 0;
  /// For a part, quantized [n], of a matrix that is stored in f8e4m3. encode_fp8() writes quantized = values / scale, rounded
  /// as by Fp8Cast, with a given scale; decode_fp8() writes values = quantized * scale. values is [n], f32, bf16 or f16.
  virtual void encode_fp8(const Tensor& values, const Fp8Matrix& to, Stream) = 0;
  virtual void decode_fp8(const Fp8Matrix& from, const Tensor& values, Stream) = 0;
  /// Computes the scale of such a matrix, f32 [1], from successive parts x. largest[0], 0 before the first part, is
  /// raised to the largest |x| (Fp8Magnitude); scale[0] is set to the scale of largest[0], as Fp8Cast::scale. x: f32,
  /// bf16 or f16.
  virtual void raise_fp8_scale(const Tensor& x, const Tensor& largest, const Tensor& scale, Stream) = 0;
  /// transposed [N, fp8_columns(M)] of quantized [M, N], N a multiple of kFp8Alignment; both have the same fp8 dtype.
  virtual void transpose_fp8(const Tensor& quantized, const Tensor& transposed, Stream) = 0;
};

/// The timing of a matrix product that is not in the tables. none: cuBLASLt's heuristic chooses the algorithm; quick: a
/// few candidates are timed; thorough: hundreds are timed (about a second for each product).
enum class ProductSearch { none, quick, thorough };

/// Algorithm choice and precision of the matrix products on a GPU.
struct ProductSettings {
  ProductSearch search = ProductSearch::quick;
  bool tf32 = false;                       ///< f32 products, also in attention, round their factors to TF32 (10 bits)
};

std::unique_ptr<Ops> make_cpu_ops();
/// `cache_path` is the file of chosen cuBLASLt algorithms ("": none is kept). A product that is neither in this file
/// nor in the shipped table (share/gemm_algorithms.txt) is timed at its first use.
std::unique_ptr<Ops> make_cuda_ops(Device& device, const std::string& cache_path,
                                   const ProductSettings& products = {});
std::unique_ptr<Ops> make_plan_ops();

}  // namespace blipft
