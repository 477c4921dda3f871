// AdamW with moments in 8 bits (Dettmers et al. 2022): dynamic quantization in blocks of 256. Moments of small tensors
// and of embeddings stay in f32, as in bitsandbytes' optimizers with its stable embedding. So do those of a tensor that
// begins inside of a block.
#include "optimizers/optimizers.h"

namespace blipft {

namespace {

class AdamW8bit : public DecayingOptimizer {
 public:
  explicit AdamW8bit(const OptimizerSettings& settings, int64_t seed) : DecayingOptimizer(settings, seed), plain_(make_adamw(settings, seed)) {}
  std::vector<StateSpec> states(const Parameter& parameter, DType) const override {
    const bool small = parameter.numel() < kMinElements || parameter.kind == ParameterKind::embedding ||
                       parameter.offset % code_block(CodeBook::dynamic8) != 0;
    const Format* const f32 = &plain_format(DType::f32);
    return {{"exp_avg", small ? f32 : &mean_format()}, {"exp_avg_sq", small ? f32 : &square_format()}};
  }
  bool takes(const std::vector<StateSpec>& specs) const override {
    return (specs[0].format == &mean_format() && specs[1].format == &square_format()) || plain_->takes(specs);
  }
  void scalars(int64_t step, double lr, float* values) const override { plain_->scalars(step, lr, values); }
  void update(Ops& ops, const Operands& of, const Tensor& scalars, Stream stream) const override {
    if (of.state[0].plain()) return plain_->update(ops, of, scalars, stream);
    const auto quantized = [&](CodeBook book, const Stored& state) {
      return Quantized{book, state.planes[0], state.planes[1]};
    };
    ops.adamw8bit_update({.param = of.param, .master = of.master, .grad = of.grad,
                          .m = quantized(CodeBook::dynamic8, of.state[0]),
                          .v = quantized(CodeBook::dynamic8_unsigned, of.state[1]), .scalars = scalars,
                          .squares = of.squares,
                          .beta1 = static_cast<float>(settings_.beta1), .beta2 = static_cast<float>(settings_.beta2),
                          .eps = static_cast<float>(settings_.eps),
                          .weight_decay = weight_decay(of),
                          .rounding = rounding(of)},
                         stream);
  }

 private:
  static constexpr int64_t kMinElements = 4096;
  static const Format& mean_format() { return quantized_format(CodeBook::dynamic8); }
  static const Format& square_format() { return quantized_format(CodeBook::dynamic8_unsigned); }

  std::unique_ptr<Optimizer> plain_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw8bit(const OptimizerSettings& settings, int64_t seed) { return std::make_unique<AdamW8bit>(settings, seed); }

}  // namespace blipft
