// Block: the computation in a branch of the residual stream: attention, or an MLP.
//
// A block begins with a linear layer that reads its input and ends with one that writes its output. Backward goes from
// the output to the input. The weight gradient of the first layer can be a separate second part, which the caller
// requests: if a norm precedes the block, the backward of the norm recomputes that layer's input.
//
// Dimension legend: B samples, T tokens of a sample (packed: the maximum), M rows in total, B * T unless packed,
// H hidden size, P memory tokens of a sample, E hidden size of the memory.
#pragma once

#include "models/blocks/linear_layer.h"
#include "models/blocks/scoped_tensor.h"

namespace blipft {

/// The gradient of a stack's memory, to which all cross attentions add.
struct MemoryGradient {
  Tensor sum;                              ///< [B * P, E]; absent: not needed
  bool started = false;                    ///< false: `sum` has not been written yet
};

/// Groups of consecutive rows.
struct RowGroups {
  int64_t count = 0, max_rows = 0;
  Packing packing;
};

/// Rows that are added to the stream after each of a stack's first layers (DeepStack).
struct AddedRows {
  Tensor at;                               ///< i32 [N], row of the stream to which each row is added; negative: none
  std::vector<Tensor> of_layer;            ///< [N, H] each; forward gives them back. In backward: their gradients, out, which
                                           ///< the caller must give back
};

/// The inputs that all layers of a stack share in one micro-batch.
struct LayerCall {
  int64_t batch = 0, tokens = 0;           ///< B, T
  Tensor sample_keys;                      ///< i64 [B], keys of samples for dropout
  Tensor kv_lengths;                       ///< i32 [B], optional: rows of a sample that are not padding
  Tensor positions;                        ///< i32 [axes, M], if attention is rotary
  Tensor last_keys;                        ///< i32 [M], optional, for causal self attention: see AttentionForward
  Packing packing;                         ///< optional
  Packing rest_packing;                    ///< with it: for the rows of each sample after a RowRange from 0 on
  RowGroups windows;                       ///< for attention in windows
  AddedRows* added = nullptr;              ///< optional
  Tensor memory;                           ///< [B * P, E], for cross attention; packed: its rows
  int64_t memory_tokens = 0;               ///< P; packed: the maximum
  Tensor memory_lengths;                   ///< i32 [B], optional: rows of a sample's memory that are not padding
  Packing memory_packing;                  ///< optional
  RelativeScores relative;                 ///< optional, for self attention
  Tensor relative_gradient;                ///< f32, in backward, optional: layers add the gradient of relative.values
  MemoryGradient* memory_gradient = nullptr;  ///< in backward
  const CacheCall* decoding = nullptr;     ///< optional: writes the cache, and reads it in decode steps
  const KvCache* cache = nullptr;          ///< cache of this layer, with `decoding`
  const KvCache* memory_cache = nullptr;   ///< cache of this layer's cross attention, with `decoding`
};

/// Returns the call of a stack whose rows are those of a stream.
inline LayerCall call_of(const StreamRows& rows) {
  return {.batch = rows.samples, .tokens = rows.max_rows, .sample_keys = rows.sample_keys, .kv_lengths = rows.key_lengths,
          .positions = rows.positions, .last_keys = rows.last_keys, .packing = rows.packing, .rest_packing = rows.text_packing,
          .windows = {rows.windows, rows.max_window_rows, rows.window_packing}};
}

/// A dropout of a stack's rows: its probability, its number in the model, and a factor for all values.
struct DropoutSite {
  float p = 0;
  uint32_t site = 0;
  float scale = 1;
  explicit operator bool() const { return p > 0 || scale != 1; }
  Dropout of(const StepContext& context, const LayerCall& call) const {
    if (p == 0 || !context.training) return {.scale = scale};
    return {.p = p, .site = site, .seed = context.seed, .sample_keys = call.sample_keys, .rows_per_sample = call.tokens,
            .packing = call.packing, .scale = scale};
  }
};

/// The tensors that a block saves for its backward; those that it does not need are absent.
struct SavedBlock {
  Tensor qkv, kv;                          ///< attention: projections of its input, and of the memory
  Tensor attention, lse;                   ///< attention's output, and f32 log-sum-exp
  Tensor inner;                            ///< of an MLP: see mlp.h
};
void give(const StepContext& context, SavedBlock& saved);

class Block {
 public:
  explicit Block(const Unit& unit) : unit_(&unit) {}
  virtual ~Block() = default;
  /// The linear layer that reads the block's input, and the one that writes its output.
  virtual const LinearLayer& first() const = 0;
  virtual const LinearLayer& last() const = 0;

  /// x [M, H]; `owned`: the block gives x back as soon as it has read it.
  struct Input {
    Tensor x;
    bool owned = false;
    Fp8Seen later = Fp8Seen::alike;        ///< relation of x to the x that weight_gradient() will get
  };
  /// The output: a new tensor with this name, to which `residual` [M, H] (optional) is added.
  struct Output {
    const char* name;
    Tensor residual;
  };
  /// Returns the output [M, H], which the caller must give back. Fills `saved` if `save` is true.
  virtual Tensor forward(const UnitPass& pass, const LayerCall& call, Input input, const Output& output,
                         SavedBlock& saved, bool save) const = 0;
  /// Fills `saved` again. Skips the last linear layer, because backward does not need its output.
  virtual void recompute(const UnitPass& pass, const LayerCall& call, Input input, SavedBlock& saved) const = 0;

  struct OutputGradient {
    Tensor dy;                             ///< [M, H], the caller keeps it
    BiasGradient bias;                     ///< of last(), as bias_gradient() returned it to the writer of dy
    Tensor input;                          ///< [M, H], optional: the block's input; else for weight_gradient() later
    Fp8Seen input_seen = Fp8Seen::alike;   ///< of `input`, as in LinearLayer::weight_gradient()
    Tensor add;                            ///< [M, H], optional: added to the gradient of the input
  };
  struct InputGradient {
    Tensor dx;                             ///< [M, H], the caller must give it back
    Tensor of_first;                       ///< gradient of first()'s output; absent if its weight gradient is done
    BiasGradient bias;                     ///< of first(), as its writer got it
  };
  /// Computes gradients; takes ownership of `saved`.
  virtual InputGradient backward(UnitBackward& pass, const LayerCall& call, const OutputGradient& incoming,
                                 SavedBlock& saved) const = 0;
  /// The second part, if backward() got no input: takes ownership of `gradient.of_first` and of x [M, H], which is
  /// absent if first() does not read it. `seen` as in LinearLayer::weight_gradient().
  void weight_gradient(UnitBackward& pass, InputGradient& gradient, Tensor x, Fp8Seen seen) const;

  /// Operations of a forward over B samples of T tokens (their mean) with P memory tokens, 2 per multiply-add: products
  /// of input and output, products of the memory, and attention.
  struct Flops {
    double products = 0, memory_products = 0, attention = 0;
    double all() const { return products + memory_products + attention; }
  };
  virtual Flops forward_flops(int64_t batch, double tokens, double memory_tokens) const = 0;
  /// Returns the width of the keys, and of the values, that a row stores in a cache; 0: none.
  virtual int64_t cache_width() const { return 0; }
  /// Returns the width of the keys, and of the values, that a row of the memory stores in a cache; 0: none.
  virtual int64_t memory_width() const { return 0; }

 protected:
  const Unit& unit() const { return *unit_; }
  /// Completes the first part: computes the input's gradient, after first()'s weight gradient if the input is known.
  InputGradient input_gradient(UnitBackward& pass, const OutputGradient& incoming, Tensor of_first,
                               const BiasGradient& bias) const;

 private:
  const Unit* unit_;
};

/// Keeps a tensor until join() if `reader`'s weight gradient reads it; else gives it back at once.
void leave(UnitBackward& pass, const LinearLayer& reader, Tensor tensor);

}  // namespace blipft
