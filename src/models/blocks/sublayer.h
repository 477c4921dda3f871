// Sublayer: a block in a branch of the residual stream, with its norms, its dropout and the addition.
//
//   norm before                 x + drop(block(norm(x)))              LLaMA, ViT, OPT
//   norm after the sum          norm(x + drop(block(x)))              Q-Former, BERT
//   norms around the branch     x + drop(norm'(block(norm(x))))       Gemma 2 and 3
//   norm after the branch       x + drop(norm'(block(x)))             OLMo 2
//
// Neighbours hand over in both directions. Forward: a branch's output may come with its residual and dropout still to be
// added, which the next norm of the same unit does in its own pass over the rows. Backward: whoever writes the gradient of
// the residual stream is handed the dropout mask and the bias gradient of the product that was added there.
//
// A sublayer may work on a range of each sample's rows (InstructBLIP: cross attention of the queries alone, MLPs of
// their own for queries and text): its rows are picked out of the stream, and put back.
//
// Dimension legend: as in block.h.
#pragma once

#include <memory>
#include <optional>

#include "models/blocks/block.h"
#include "models/blocks/norm.h"

namespace blipft {

/// The residual stream between sublayers: x, or x + dropout(branch), still to be added.
struct ResidualStream {
  Tensor x;                                ///< [M, H]
  Tensor branch;                           ///< [M, H], optional
  Dropout dropout;                         ///< of the branch
  bool saved = false;                      ///< x is among what backward needs: not to be given back
};

/// The gradient of the residual stream on its way down, and what its last writer made of it for the product whose output
/// was added there.
struct ResidualGradient {
  Tensor dy;                               ///< [M, H]
  Tensor dropped;                          ///< [M, H], optional: dy through the dropout of that product's output
  BiasGradient bias;                       ///< of that product, as the writer was handed it
  Tensor amax;                             ///< of its gradient, likewise: LinearLayer::gradient_amax()
};

/// Rows of each sample: the first `count`, which every sample has, or those behind them.
struct RowRange {
  int64_t count = 0;
  bool behind = false;
  bool operator==(const RowRange&) const = default;
  /// These rows, `rows`, of a matrix of all, `all`; spread_rows() leaves the others. Of `tokens` rows a sample at most.
  RowBlocks of(const Tensor& all, const Tensor& rows, int64_t tokens, const Packing& packing) const;
  /// Of a sample's `tokens` rows, those inside.
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
  bool after_sum = false;                  ///< `after` norms the sum; else the branch, before it is added
  DropoutSite dropout;                     ///< of the branch
  std::optional<RowRange> range;           ///< the rows that it works on; absent: all. Not of a layer's first sublayer

  /// What backward needs. A norm's output is never saved.
  struct Saved {
    Tensor x;                              // [M, H], the input; absent where the sublayer below makes it again
    NormResult before, after;              // the statistics alone
    Tensor normed;                         // [M, H], what `after` read
    SavedBlock block;
  };
  /// Where a sublayer stands in its layer.
  struct Place {
    bool last = false;                     ///< its output is the layer's: nothing may be left to be added
    bool makes_input_again = false;        ///< the sublayer below can make its input again: it need not be saved
  };

  /// Takes `in` over.
  ResidualStream forward(const UnitPass& pass, const LayerCall& call, ResidualStream in, Place place, Saved& saved,
                         bool save) const;
  /// Fills `saved` again as far as backward needs it, as the last of its layer. Takes `in` over.
  void recompute(const UnitPass& pass, const LayerCall& call, ResidualStream in, Place place, Saved& saved) const;
  /// The output of an `after` norm of the sum, made again from what was saved.
  Tensor output_again(const UnitPass& pass, const Saved& saved) const;
  /// The sublayer that made the input: it is handed what its own backward begins with.
  struct Below {
    const Sublayer* sublayer = nullptr;    ///< null: none, or none that wants anything
    const Unit* unit = nullptr;            ///< of another unit; null: of this one
  };
  /// Takes `incoming` and what was saved over; `input` [M, H] stands for saved.x where that was not saved. The result is
  /// the gradient of the input.
  ResidualGradient backward(UnitBackward& pass, const LayerCall& call, const ResidualGradient& incoming, Saved& saved,
                            Tensor input, const Below& below) const;

 private:
  // The public ones of what `range` leaves.
  ResidualStream forward_rows(const UnitPass& pass, const LayerCall& call, ResidualStream in, Place place, Saved& saved,
                              bool save) const;
  void recompute_rows(const UnitPass& pass, const LayerCall& call, ResidualStream in, Place place, Saved& saved) const;
  ResidualGradient backward_rows(UnitBackward& pass, const LayerCall& call, const ResidualGradient& incoming,
                                 Saved& saved, Tensor input, const Below& below) const;
  LayerCall call_of_range(const LayerCall& call) const;
  Tensor take_range(const StepContext& context, const LayerCall& call, const Tensor& x) const;
  void put_range(const StepContext& context, const LayerCall& call, Tensor rows, const Tensor& x) const;
  Block::Input block_input(const UnitPass& pass, ResidualStream& in, bool makes_input_again, Saved& saved, bool save) const;
  ResidualStream add(const UnitPass& pass, const LayerCall& call, ResidualStream in, Tensor branch, Place place,
                     Saved& saved, bool save) const;
  ResidualGradient branch_gradient(UnitBackward& pass, const LayerCall& call, const ResidualGradient& incoming,
                                   Saved& saved) const;
  ResidualGradient hand(UnitBackward& pass, const Tensor& like, const Below& below) const;
};
void give(const StepContext& context, Sublayer::Saved& saved);

}  // namespace blipft
