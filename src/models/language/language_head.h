// Final norm, language-model head and loss. Forward and backward run together, in chunks of rows, so that the logits of
// a whole batch never exist at the same time.
#pragma once

#include <functional>

#include "models/blocks/block.h"
#include "models/blocks/norm.h"

namespace blipft {

class LanguageHead {
 public:
  Unit* unit = nullptr;                    // final norm, and the head's own weight unless it is tied
  Norm norm;
  const Unit* weight_unit = nullptr;       // the unit with the head's weight: `unit`, or the embeddings (tied)
  LinearLayer output;                      // [V, H], no bias
  float cap = 0;                           // cap of the logits, see CrossEntropy; 0: none
  DropoutSite dropout;                     // of the norm's output
  float scale = 1;                         // factor of the weight's input

  /// Declares "<name>.weight" [V, H]: the parameter `tied_to` of `embeddings`, or a new one of `unit` if that is empty.
  void add_output(Unit& embeddings, const std::string& tied_to, const std::string& name, int64_t hidden,
                  int64_t vocabulary, float init_std);

  /// Takes ownership of x [M, H], rows of batch.text: each row of a token predicts the next one, except the last row of a
  /// sample. Adds the weighted loss to batch.loss; returns dx [M, H]. Does not publish a tied weight's unit.
  Tensor forward_backward(const StepContext& context, Tensor x, const MicroBatch& batch) const;
  /// Computes only the loss: takes ownership of x, adds to batch.loss.
  void forward_loss(const StepContext& context, Tensor x, const MicroBatch& batch) const;
  /// Returns logits [R, V], which the caller must give back, of the rows in `picked`, i32 [R, 1], or of all rows if
  /// `picked` is absent. Takes ownership of x [M, H].
  Tensor logits(const StepContext& context, Tensor x, const Tensor& picked) const;
  /// Returns the operations of loss and backward; `text_rows`: rows of a text (their mean).
  double flops(int64_t batch_size, double text_rows) const;
  /// Returns the rows of logits that exist at a time: at most 64 Mi elements. If each chunk rounds a gradient to bf16
  /// (`rounded`), the rows may be more, so that there are at most 16 chunks.
  int64_t chunk_rows(int64_t rows, bool rounded) const;

 private:
  struct Opened {
    UnitWeights flat;                      // of `unit`
    UnitPass weight;                       // of weight_unit, with the adapters of `unit`
  };
  struct Input {
    Tensor picked;                         // [R, H], the rows that predict a label
    NormResult normed;
  };
  void drop_and_scale(const StepContext& context, const Tensor& rows, const MicroBatch& batch) const;
  bool tied() const { return weight_unit != unit; }
  Opened open(const StepContext& context, const MicroBatch& batch) const;
  Input input(const StepContext& context, const UnitWeights& flat, Tensor x, const MicroBatch& batch) const;
  void loss_in_chunks(const UnitPass& pass, const Tensor& normed, const MicroBatch& batch, bool rounded,
                      const std::function<void(const UnitPass&, const Tensor&, int64_t)>& backward) const;
  void pause_tied_gradient(const StepContext& context, const UnitGradient& gradient) const;
};

}  // namespace blipft
