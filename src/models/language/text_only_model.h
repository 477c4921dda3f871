// Base class of models that read only texts: it runs their Language. A family adds the construction, the description
// and the inputs.
#pragma once

#include "blipft/model.h"
#include "models/language/language.h"

namespace blipft {

/// `L`: a Language class. The family's constructor fills the object.
template <class L>
class TextOnlyModel : public Model {
 public:
  void forward_backward(const StepContext& context, const MicroBatch& batch) override {
    const Tensor x = forward(context, batch, language_.trains_below_head(false));
    language_.loss_and_backward(context, batch, x, false);
    context.arena.mark("after_backward");
  }
  void forward_loss(const StepContext& context, const MicroBatch& batch) override {
    StepContext evaluation = context;
    evaluation.training = false;
    language_.loss(evaluation, batch, forward(evaluation, batch, false));
  }
  std::vector<int64_t> cache_widths() const override { return language_.cache_widths(); }
  std::vector<int64_t> memory_widths() const override { return language_.memory_widths(); }
  Tensor read_prompts(const StepContext& context, const MicroBatch& batch, const CacheCall& cache) override {
    return language_.read_prompts(context, batch, compute_, {}, cache);
  }
  Tensor decode(const StepContext& context, const CacheCall& cache) override {
    return language_.decode(context, compute_, cache);
  }
  double unit_flops(const Unit& unit, Phase phase, int64_t batch_size, const TextRows& text_rows) const override {
    return language_.unit_flops(unit, phase, batch_size, text_rows, false).value_or(0);
  }

 protected:
  explicit TextOnlyModel(const ModelSettings& settings) : compute_(settings.compute) {}

  L language_;

 private:
  // Returns the head's input; `save` keeps what backward needs.
  Tensor forward(const StepContext& context, const MicroBatch& batch, bool save) {
    context.arena.mark("before_forward");
    const Tensor x = language_.forward(context, batch, compute_, {}, save);
    context.arena.mark("after_forward");
    return x;
  }

  DType compute_;
};

}  // namespace blipft
