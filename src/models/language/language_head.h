// Final norm, language-model head and loss, forward and backward together, in chunks of rows, so that the logits of a
// whole batch never exist.
#pragma once

#include <functional>

#include "models/blocks/block.h"
#include "models/blocks/norm.h"

namespace blipft {

class LanguageHead {
 public:
  Unit* unit = nullptr;                    // final norm, and the head's own weight when it is not tied
  Norm norm;
  const Unit* weight_unit = nullptr;       // where the head's weight is: `unit`, or the embeddings (tied)
  LinearLayer output;                      // [V, H], no bias
  float cap = 0;                           // of the logits, see CrossEntropy; 0: none
  DropoutSite dropout;                     // of the norm's output
  float scale = 1;                         // of what the weight reads

  /// Declares "<name>.weight" [V, H]: the parameter `tied_to` of `embeddings`, or, where that is empty, one of `unit`.
  void add_output(Unit& embeddings, const std::string& tied_to, const std::string& name, int64_t hidden,
                  int64_t vocabulary, float init_std);

  /// x [M, H] is taken over. `predicting` (without its tensors) says which of its rows predict the batch's labels, one
  /// each. Adds the weighted loss to batch.loss; returns dx of the same shape. Does not publish a tied weight's unit.
  Tensor forward_backward(const StepContext& context, Tensor x, RowBlocks predicting, const MicroBatch& batch) const;
  /// The loss alone: takes x over, adds to batch.loss.
  void forward_loss(const StepContext& context, Tensor x, RowBlocks predicting, const MicroBatch& batch) const;
  /// Logits [R, V], the caller's, of the rows that `picked` i32 [R, 1] names; absent: of all rows. Takes x [M, H] over.
  Tensor logits(const StepContext& context, Tensor x, const Tensor& picked) const;
  /// Operations of loss and backward, of texts of so many rows (their mean).
  double flops(int64_t batch_size, double text_rows) const;
  /// Rows of logits that exist at a time: 64 Mi elements at most; where a gradient is `rounded` to bf16 once a chunk, what
  /// 16 chunks take where that is more.
  int64_t chunk_rows(int64_t rows, bool rounded) const;

 private:
  struct Opened {
    UnitWeights flat;                      // of `unit`
    UnitPass weight;                       // of weight_unit, with the adapters beside `unit`
  };
  struct Input {
    Tensor picked;                         // [R, H], the rows that predict
    NormResult normed;
  };
  void drop_and_scale(const StepContext& context, const Tensor& rows, const MicroBatch& batch) const;
  bool tied() const { return weight_unit != unit; }
  Opened open(const StepContext& context, const MicroBatch& batch) const;
  Input input(const StepContext& context, const UnitWeights& flat, Tensor x, RowBlocks predicting,
              const MicroBatch& batch) const;
  void loss_in_chunks(const UnitPass& pass, const Tensor& normed, const MicroBatch& batch, bool rounded,
                      const std::function<void(const UnitPass&, const Tensor&, int64_t)>& backward) const;
  void pause_tied_gradient(const StepContext& context, const UnitGradient& gradient) const;
};

}  // namespace blipft
