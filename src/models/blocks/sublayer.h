// Sublayer: a block in a branch of the residual stream, with its norms, its dropout and the addition.
//
//   norm before                 x + drop(block(norm(x)))              LLaMA, ViT, OPT
//   norm after the sum          norm(x + drop(block(x)))              Q-Former, BERT
//   norms around the branch     x + drop(norm'(block(norm(x))))       Gemma 2 and 3
//   norm after the branch       x + drop(norm'(block(x)))             OLMo 2
//
// Neighbouring sublayers share work in both directions. Forward: the residual and the dropout of a branch may be left
// to the next norm of the same unit, which adds them in its own pass over the rows. Backward: the writer of the
// residual stream's gradient also applies the dropout mask and computes the bias gradient for the sublayer below.
//
// A sublayer may process a range of each sample's rows (InstructBLIP: cross attention only of the queries, separate
// MLPs for queries and text): it picks these rows from the stream and puts them back.
//
// Dimension legend: as in block.h.
#pragma once

#include <memory>
#include <optional>

#include "models/blocks/block.h"
#include "models/blocks/norm.h"

namespace blipft {

/// The residual stream between sublayers: x, or x + dropout(branch) if the addition is still to be done.
struct ResidualStream {
  Tensor x;                                ///< [M, H]
  Tensor branch;                           ///< [M, H], optional
  Dropout dropout;                         ///< dropout of the branch
  bool saved = false;                      ///< backward needs x: it must not be given back
};

/// The gradient of the residual stream in backward, and further results of its last writer for the linear layer whose
/// output was added to the stream.
struct ResidualGradient {
  Tensor dy;                               ///< [M, H]
  Tensor dropped;                          ///< [M, H], optional: dy through the dropout of that layer's output
  BiasGradient bias;                       ///< of that layer, as the writer got it
  Tensor amax;                             ///< LinearLayer::gradient_amax() of that layer, as the writer got it
};

/// A range of each sample's rows: the first `count`, which every sample has, or the rows after them.
struct RowRange {
  int64_t count = 0;
  bool behind = false;
  bool operator==(const RowRange&) const = default;
  /// Describes these rows of `all` as `rows`. `tokens`: maximum rows of a sample. spread_rows() keeps other rows.
  RowBlocks of(const Tensor& all, const Tensor& rows, int64_t tokens, const Packing& packing) const;
  /// Returns how many of a sample's `tokens` rows are in the range.
  double inside(double tokens) const {
    const auto first = static_cast<double>(count);
    return behind ? tokens - first : first;
  }
};

class Sublayer {
 public:
  std::shared_ptr<const Block> block;
  std::optional<Norm> before;              ///< norm of the block's input
  std::optional<Norm> after;               ///< norm of the sum, or of the branch
  bool after_sum = false;                  ///< `after` normalizes the sum; else the branch, before it is added
  DropoutSite dropout;                     ///< dropout of the branch
  std::optional<RowRange> range;           ///< the rows to process; absent: all. Not for a layer's first sublayer

  /// The tensors that backward needs. A norm's output is never saved.
  struct Saved {
    Tensor x;                              // [M, H], the input; absent if the sublayer below recomputes it
    NormResult before, after;              // only the statistics
    Tensor normed;                         // [M, H], the input of `after`
    SavedBlock block;
  };
  /// The position of a sublayer in its layer.
  struct Placement {
    bool last = false;                     ///< its output is the layer's: no addition may be left to do
    bool makes_input_again = false;        ///< the sublayer below can recompute its input, which is not saved
  };

  /// Returns the stream after this sublayer. Takes ownership of `in`.
  ResidualStream forward(const UnitPass& pass, const LayerCall& call, ResidualStream in, Placement placement, Saved& saved,
                         bool save) const;
  /// Fills `saved` again for the last sublayer of a layer, as far as backward needs it. Takes ownership of `in`.
  void recompute(const UnitPass& pass, const LayerCall& call, ResidualStream in, Placement placement, Saved& saved) const;
  /// Recomputes the output of an `after` norm of the sum from `saved`.
  Tensor output_again(const UnitPass& pass, const Saved& saved) const;
  /// The sublayer that computed the input: its backward uses the results of this sublayer's backward.
  struct Below {
    const Sublayer* sublayer = nullptr;    ///< null: none, or one that needs no results
    const Unit* unit = nullptr;            ///< unit of another layer; null: this one's unit
  };
  /// Takes ownership of `incoming` and `saved`; `input` [M, H] replaces saved.x if that was not saved. Returns the
  /// gradient of the input.
  ResidualGradient backward(UnitBackward& pass, const LayerCall& call, const ResidualGradient& incoming, Saved& saved,
                            Tensor input, const Below& below) const;

 private:
  // The public functions, for the rows of `range` only.
  ResidualStream forward_rows(const UnitPass& pass, const LayerCall& call, ResidualStream in, Placement placement, Saved& saved,
                              bool save) const;
  void recompute_rows(const UnitPass& pass, const LayerCall& call, ResidualStream in, Placement placement, Saved& saved) const;
  ResidualGradient backward_rows(UnitBackward& pass, const LayerCall& call, const ResidualGradient& incoming,
                                 Saved& saved, Tensor input, const Below& below) const;
  LayerCall call_of_range(const LayerCall& call) const;
  Tensor take_range(const StepContext& context, const LayerCall& call, const Tensor& x) const;
  void put_range(const StepContext& context, const LayerCall& call, Tensor rows, const Tensor& x) const;
  Block::Input block_input(const UnitPass& pass, ResidualStream& in, bool makes_input_again, Saved& saved, bool save) const;
  ResidualStream add(const UnitPass& pass, const LayerCall& call, ResidualStream in, Tensor branch, Placement placement,
                     Saved& saved, bool save) const;
  ResidualGradient branch_gradient(UnitBackward& pass, const LayerCall& call, const ResidualGradient& incoming,
                                   Saved& saved) const;
  ResidualGradient hand(UnitBackward& pass, const Tensor& like, const Below& below) const;
};
void give(const StepContext& context, Sublayer::Saved& saved);

}  // namespace blipft
