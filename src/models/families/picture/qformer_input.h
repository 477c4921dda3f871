// What the Q-Former's layers read: the learned queries, alone (BLIP-2), or with the embedded instruction of each sample
// behind them (InstructBLIP); normed.
//
// Dimension legend: B samples, Q queries of a sample, R rows in all (B * Q, and those of the instructions), D hidden
// size, V vocabulary.
#pragma once

#include "models/blocks/norm.h"
#include "models/blocks/sublayer.h"

namespace blipft {

/// Sizes of the tables that an instruction is embedded with.
struct InstructionShape {
  int64_t vocabulary = 0, positions = 512;   ///< vocabulary 0: there are no instructions
  int64_t padding_id = 0;                    ///< its row gets no gradient
  explicit operator bool() const { return vocabulary > 0; }
};

class QFormerInput {
 public:
  int64_t queries = 0, hidden = 0;
  InstructionShape instruction;
  DropoutSite dropout;

  /// Declares the parameters in `unit`, by the names of their families.
  void add(Unit& unit, float norm_eps, float init_std);
  /// [R, D], the caller's.
  Tensor forward(const StepContext& context, const MicroBatch& batch, const LayerCall& call) const;
  /// Changes dy [R, D], publishes the unit; only where it is trained.
  void backward(const StepContext& context, const MicroBatch& batch, const LayerCall& call, const Tensor& dy) const;
  const Unit& unit() const { return *unit_; }

 private:
  Tensor queries_of(const Tensor& flat) const { return flat.part(query_tokens_, {queries, hidden}); }
  TextEmbed table(const MicroBatch& batch, const Tensor& flat, bool places) const;
  Tensor rows(const StepContext& context, const MicroBatch& batch, const LayerCall& call, const Tensor& flat) const;
  void backward_of_rows(const StepContext& context, const MicroBatch& batch, const LayerCall& call, const Tensor& dx,
                        const UnitGradient& gradient) const;

  Unit* unit_ = nullptr;
  int64_t query_tokens_ = -1, words_ = -1, places_ = -1;  // offsets of [Q, D], [V, D], [positions, D]
  Norm norm_;
};

}  // namespace blipft
