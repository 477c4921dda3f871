// Block: what stands in a branch of the residual stream: attention, or an MLP.
//
// A block begins with a product that reads its input and ends with one that writes its output; backward is the way
// between them. Its second part, the weight gradient of the first product, is the caller's to ask for: where a norm stands
// before the block, the norm's backward makes that product's input anew.
//
// Dimension legend: B samples, T tokens of a sample (packed samples: at most), M rows in all, B * T unless packed,
// H hidden size, P memory tokens of a sample, E hidden size of the memory.
#pragma once

#include "models/blocks/linear_layer.h"
#include "models/blocks/scoped_tensor.h"

namespace blipft {

/// The gradient of a stack's memory, which the products of all cross attentions add up in.
struct MemoryGradient {
  Tensor sum;                              ///< [B * P, E]; absent: nobody wants it
  bool started = false;                    ///< else it has yet to be written
};

/// What the layers of a stack are called with in one micro-batch.
struct LayerCall {
  int64_t batch = 0, tokens = 0;           ///< B, T
  Tensor sample_keys;                      ///< i64 [B], of dropout
  Tensor kv_lengths;                       ///< i32 [B], optional: rows of a sample that are not padding
  Tensor positions;                        ///< i32 [M], where attention turns by them
  Packing packing;                         ///< optional
  Packing rest_packing;                    ///< with it, of what is left of each sample behind a RowRange from 0 on
  Tensor memory;                           ///< [B * P, E], of cross attention; packed: its rows
  int64_t memory_tokens = 0;               ///< P; packed: the most
  Tensor memory_lengths;                   ///< i32 [B], optional: rows of a sample's memory that are not padding
  Packing memory_packing;                  ///< optional
  RelativeScores relative;                 ///< optional, of self attention
  Tensor relative_gradient;                ///< f32, in backward, optional: that of relative.values adds up here
  MemoryGradient* memory_gradient = nullptr;  ///< in backward
  const CacheCall* decoding = nullptr;     ///< optional: keys and values of self attention are kept, and read in its steps
  const KvCache* cache = nullptr;          ///< of the layer, with `decoding`
  const KvCache* memory_cache = nullptr;   ///< the same, of its cross attention
};

/// A dropout of a stack's rows: its probability and its place in the model, and a factor of what it keeps.
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

/// What a block keeps for its backward; what it has no use for is absent.
struct SavedBlock {
  Tensor qkv, kv;                          ///< attention: products of its input, and of the memory
  Tensor attention, lse;                   ///< attention's output, and f32 log-sum-exp
  Tensor inner;                            ///< of an MLP: see mlp.h
};
void give(const StepContext& context, SavedBlock& saved);

class Block {
 public:
  explicit Block(const Unit& unit) : unit_(&unit) {}
  virtual ~Block() = default;
  /// The product that reads the block's input, and the one that writes its output.
  virtual const LinearLayer& first() const = 0;
  virtual const LinearLayer& last() const = 0;

  /// x [M, H]; `owned`: it is given back as soon as it has been read.
  struct Input {
    Tensor x;
    bool owned = false;
    Fp8Seen later = Fp8Seen::alike;        ///< what weight_gradient() will be told of it
  };
  /// Where the output goes: a fresh tensor of this name, to which `residual` [M, H] (optional) is added.
  struct Output {
    const char* name;
    Tensor residual;
  };
  /// Returns the output [M, H], which is the caller's. Fills `saved` when `save` is true.
  virtual Tensor forward(const UnitPass& pass, const LayerCall& call, Input input, const Output& output,
                         SavedBlock& saved, bool save) const = 0;
  /// Fills `saved` again. The output is not among what backward needs: its product is left out.
  virtual void recompute(const UnitPass& pass, const LayerCall& call, Input input, SavedBlock& saved) const = 0;

  struct OutputGradient {
    Tensor dy;                             ///< [M, H], stays the caller's
    BiasGradient bias;                     ///< of last(), as the writer of dy was handed it
    Tensor input;                          ///< [M, H], optional: the block's input; else weight_gradient() gets it later
    Fp8Seen input_seen = Fp8Seen::alike;   ///< of `input`, as LinearLayer::weight_gradient() has it
    Tensor add;                            ///< [M, H], optional: added to the gradient of the input
  };
  struct InputGradient {
    Tensor dx;                             ///< [M, H], the caller's
    Tensor of_first;                       ///< gradient of first()'s output; absent where its weight has had its gradient
    BiasGradient bias;                     ///< of first(), as its writer was handed it
  };
  /// Takes what was saved over.
  virtual InputGradient backward(UnitBackward& pass, const LayerCall& call, const OutputGradient& incoming,
                                 SavedBlock& saved) const = 0;
  /// The second part, where backward() had no input: takes `gradient.of_first` and x over, x [M, H] absent where first()
  /// does not read it, `seen` as LinearLayer::weight_gradient() has it.
  void weight_gradient(UnitBackward& pass, InputGradient& gradient, Tensor x, Fp8Seen seen) const;

  /// Operations of a forward over B samples of T tokens (their mean), with P memory tokens: of products of input and
  /// output, of those of the memory, and of attention; 2 a multiply-add.
  struct Flops {
    double products = 0, memory_products = 0, attention = 0;
    double all() const { return products + memory_products + attention; }
  };
  virtual Flops forward_flops(int64_t batch, double tokens, double memory_tokens) const = 0;
  /// Width of the keys, and of the values, that a row leaves in a cache; 0: none.
  virtual int64_t cache_width() const { return 0; }
  /// The same of a row of the memory.
  virtual int64_t memory_width() const { return 0; }

 protected:
  const Unit& unit() const { return *unit_; }
  /// The first part's end: the input's gradient, after the first product's weight gradient where the input is there.
  InputGradient input_gradient(UnitBackward& pass, const OutputGradient& incoming, Tensor of_first,
                               const BiasGradient& bias) const;

 private:
  const Unit* unit_;
};

/// What the weight gradient of `reader` reads stays until join(); where there is none, it goes at once.
void leave(UnitBackward& pass, const LinearLayer& reader, Tensor tensor);

}  // namespace blipft
