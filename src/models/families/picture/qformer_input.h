// The normalized input of the Q-Former's layers: the learned queries (BLIP-2), or the queries followed by the embedded
// instruction of each sample (InstructBLIP).
//
// Dimension legend: B samples, Q queries of a sample, R rows in total (B * Q, plus those of the instructions), D hidden
// size, V vocabulary.
#pragma once

#include "models/blocks/norm.h"
#include "models/blocks/sublayer.h"

namespace blipft {

/// Sizes of the tables for the embedding of instructions.
struct InstructionShape {
  int64_t vocabulary = 0, positions = 512;   ///< vocabulary 0: no instructions
  int64_t padding_id = 0;                    ///< token without gradient
  explicit operator bool() const { return vocabulary > 0; }
};

class QFormerInput {
 public:
  int64_t queries = 0, hidden = 0;
  InstructionShape instruction;
  DropoutSite dropout;

  /// Declares the parameters in `unit`, with the names that the families' checkpoints use.
  void add(Unit& unit, float norm_eps, float init_std);
  /// Returns [R, D], owned by the caller.
  Tensor forward(const StepContext& context, const MicroBatch& batch, const LayerCall& call) const;
  /// Overwrites dy [R, D], publishes the unit. Only for a trained unit.
  void backward(const StepContext& context, const MicroBatch& batch, const LayerCall& call, const Tensor& dy) const;
  const Unit& unit() const { return *unit_; }

 private:
  Tensor queries_of(const Tensor& flat) const { return flat.part(query_tokens_, {queries, hidden}); }
  TextEmbed table(const MicroBatch& batch, const Tensor& flat, bool of_positions) const;
  Tensor rows(const StepContext& context, const MicroBatch& batch, const LayerCall& call, const Tensor& flat) const;
  void backward_of_rows(const StepContext& context, const MicroBatch& batch, const LayerCall& call, const Tensor& dx,
                        const UnitGradient& gradient) const;

  Unit* unit_ = nullptr;
  int64_t query_tokens_ = -1, words_ = -1, positions_ = -1;  // offsets of [Q, D], [V, D], [positions, D]
  Norm norm_;
};

}  // namespace blipft
