// LinearLayer: the one block through which models multiply, y = act(W x + b) + residual. Nothing else in models/ calls
// the linear ops.
//
//   forward()          one op, with bias, activation and residual fused as the caller asks
//   input_gradient()   one op, with an addend, the derivative of the activation that made x, and the bias gradient of
//                      the layer before it fused as the caller asks
//   weight_gradient()  dW and, where nobody has summed them yet, db
//
// Weight gradients: nothing later in backward reads them, so they run in the side stream, beside the chain of input
// gradients. They may be asked for before or after the same layer's input gradient: before lets both run at once.
//
// Bias gradients are column sums of dy, and cost least where dy is written. So whoever writes dy (the layer above, a
// norm, attention) is handed the layer's BiasGradient, and weight_gradient() is told what it was: nothing (it sums
// itself), the unit's own gradient (nothing is left to do), or sums made ahead of it (it moves them there).
//
// Packed layers over one input (q, k, v; gate, up) are one weight whose rows are the parts, one behind the other, of
// any widths; y and dy have the parts as ranges of columns.
//
// Products in fp8 (Fp8Products): the layer casts x, dy and the weight right before it multiplies, dy once for both of its
// gradients; a weight that is stored in fp8 is taken as it is. Adapters stay in the compute dtype, and whatever else reads x and dy.
//
// Adapters (LinearAdapter) add to the product of the whole layer or of one part, before the activation. In backward
// they write dx first and the layer adds to it, so that what is fused into input_gradient() stays as it is; in forward
// an activation becomes an op of its own. They take x from the caller, not from memory of their own: recomputation and
// chunks of rows need no thought. A frozen layer without adapters does not read x: see needs_input().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "blipft/fp8_products.h"
#include "blipft/model.h"

namespace blipft {

/// One use of a unit, and of the adapters beside it.
struct UnitPass {
  const StepContext& context;
  UnitWeights flat;                        ///< the unit's parameters
  Tensor adapter;                          ///< those of the unit beside it; absent: none
  Dropout rows;                            ///< how rows belong to samples, for adapters: a Dropout without p and site
  const Unit* unit = nullptr;
  const Unit* coded = nullptr;             ///< the unit, where matrices that are stored as codes are multiplied so
  bool again = false;                      ///< what forward has computed is computed again
  bool keeps = false;                      ///< its backward comes: codes of inputs may stay for it
};

/// Brackets of a unit together with the adapters beside it. `rows`: of what its layers will multiply in forward, where that
/// is known and nothing else reads their weights: few enough are multiplied with codes as they are stored.
UnitPass acquire(const StepContext& context, const Unit& unit, int64_t rows = 0);
void release(const StepContext& context, const Unit& unit);

/// Where the gradients of a unit, and of the adapters beside it, go; those of what is frozen are absent.
struct UnitGradients {
  std::optional<UnitGradient> own, adapter;
};
UnitGradients gradients(const StepContext& context, const Unit& unit);
void publish(const StepContext& context, const Unit& unit);

/// A request to whoever writes the gradient dy [M, out] of a linear layer's output: to sum its columns into this too.
/// Absent where the layer has no bias or is frozen.
struct BiasGradient {
  Tensor sums;                             ///< [out]
  bool accumulate = false;                 ///< the sums are added to what is there
  bool ahead = false;                      ///< f32 memory of its own, made before the unit's gradient can be asked for
  explicit operator bool() const { return static_cast<bool>(sums); }
};

class LinearAdapter;

/// Backward of one use of a unit: where its gradients go, and the side stream in which weights' are computed. What they
/// read stays until join().
class UnitBackward : public UnitPass {
 public:
  /// main: in the compute stream, for callers that write dy or x anew before a join.
  enum class WeightStream { side, main };

  /// `later_rows`: earlier rows of the same use have had their backward; this one adds to their gradients.
  UnitBackward(const UnitPass& pass, const UnitGradients& gradients, WeightStream weight_stream = WeightStream::side,
               bool later_rows = false)
      : UnitPass(pass), gradients_(gradients), weight_stream_(weight_stream), later_rows_(later_rows) {}
  UnitBackward(const UnitBackward&) = delete;
  UnitBackward& operator=(const UnitBackward&) = delete;

  bool trained() const { return gradients_.own.has_value(); }
  bool later_rows() const { return later_rows_; }
  bool accumulate() const { return later_rows_ || (gradients_.own && gradients_.own->accumulate); }
  bool accumulate_adapter() const { return later_rows_ || (gradients_.adapter && gradients_.adapter->accumulate); }
  /// Of the parameter at `offset`; absent when frozen.
  Tensor gradient(int64_t offset, const Shape& shape) const {
    return gradients_.own ? gradients_.own->flat.part(offset, shape) : Tensor{};
  }
  /// Of the adapter's parameter at `offset` of the unit beside.
  Tensor adapter_gradient(int64_t offset, const Shape& shape) const {
    return gradients_.adapter ? gradients_.adapter->flat.part(offset, shape) : Tensor{};
  }
  /// Where weight gradients run. What the main stream holds by now comes before what is enqueued there next.
  Stream weight_stream();
  /// Gives `tensor` back at join(); absent tensors are fine.
  void keep(Tensor tensor);
  /// The main stream waits for the weight gradients; what was kept is given back. Called before the object ends.
  void join();

  /// LinearAdapter::reduce() of this backward, called at the first request.
  Tensor reduced(const LinearAdapter& adapter, const MatrixView& dy);
  /// The gradient of the output of the trained layer whose weight is at `weight` in fp8, in both layouts, made at the first
  /// request in the main stream. dy stays as it is until join().
  const Fp8Codes& in_fp8(const MatrixView& dy, int64_t weight);
  void keep(const Fp8Codes& codes) {
    each_taken(codes, [&](const Tensor& tensor) { keep(tensor); });
  }

 private:
  UnitGradients gradients_;
  WeightStream weight_stream_;
  bool later_rows_;
  bool forked_ = false;
  std::vector<Tensor> kept_;
  std::vector<std::pair<const LinearAdapter*, Tensor>> reduced_;
  std::vector<std::pair<MatrixView, Fp8Codes>> in_fp8_;
};

/// What is added to a linear layer's product, such as a product of low rank: y += B (A x), A [r, in], B [part, r].
/// Columns of y and dy are those of the part that the adapter is attached to, and lie in wider matrices.
class LinearAdapter {
 public:
  virtual ~LinearAdapter() = default;
  /// Whether f has all of so many columns; those that it lacks are zero.
  virtual bool covers(int64_t columns) const = 0;
  /// y [M, part] = add + f(x), x [M, in], in the main stream. `add` is y, or absent where f covers the part.
  virtual void forward(const UnitPass& pass, const MatrixView& x, const MatrixView& add, const MatrixView& y) const = 0;
  /// What the gradients of the input and of the parameters share, such as dy B [M, r]: computed once in the main
  /// stream, taken from the arena, given back by the pass. May be absent.
  virtual Tensor reduce(UnitBackward& pass, const MatrixView& dy) const = 0;
  /// dx [M, in] = add + the adapter's part of the input's gradient, in the main stream. `add` is absent, dx or another.
  virtual void input_gradient(UnitBackward& pass, const MatrixView& dy, const Tensor& reduced, const MatrixView& add,
                              const MatrixView& dx) const = 0;
  /// Gradients of the adapter's own parameters, in pass.weight_stream().
  virtual void weight_gradient(UnitBackward& pass, const MatrixView& dy, const Tensor& reduced,
                               const MatrixView& x) const = 0;
};

/// Outputs of a packed layer that belong together: rows of its weight, columns of y and dy.
struct LinearPart {
  int64_t first = 0, count = 0;
  RowOrder rows = {};                      ///< of its weight in files
};

class LinearLayer {
 public:
  int64_t in = 0, out = 0;
  int64_t weight = -1, bias = -1;          ///< offsets in the unit's flat buffer of [out, in] and [out]; -1: no bias
  std::vector<LinearPart> parts;           ///< of a packed layer

  /// Adds `adapter` to all outputs, or to those of one part.
  void attach(std::shared_ptr<const LinearAdapter> adapter) { attach(std::move(adapter), {0, out}); }
  void attach(std::shared_ptr<const LinearAdapter> adapter, LinearPart to);

  /// `args` without w and bias. `later`: what weight_gradient() will be told of args.x.
  void forward(const UnitPass& pass, LinearForward args, Fp8Seen later = Fp8Seen::alike) const;

  /// Whether weight_gradient() will read x. A caller that holds x for nothing else need not keep it, or compute it
  /// again, when not.
  bool needs_input(const UnitBackward& pass) const { return has_weight_gradient(pass) && !keeps_input(pass); }
  /// The same during forward, after forward().
  bool needs_input(const UnitPass& pass) const {
    return (pass.unit->trainable || !adapters.empty()) && !keeps_input(pass);
  }
  /// Whether weight_gradient() will read dy.
  bool has_weight_gradient(const UnitBackward& pass) const { return trained(pass) || !adapters.empty(); }
  /// What the producers of x in forward, and of dy in backward, are handed where the layer casts what they write, as they write
  /// it: f32 [1], to raise to the largest magnitude; absent: not wanted. See Fp8Products::amax().
  Tensor input_amax(const UnitPass& pass) const { return amax(pass.context, *pass.unit, Fp8Factor::x); }
  Tensor gradient_amax(const UnitPass& pass) const { return gradient_amax(pass.context, *pass.unit); }
  /// The same for a producer in the backward of another unit, which comes before `unit`'s.
  Tensor gradient_amax(const StepContext& context, const Unit& unit) const { return amax(context, unit, Fp8Factor::dy); }
  /// What the producer of dy is handed, within this unit's backward.
  BiasGradient bias_gradient(const UnitBackward& pass) const;
  /// The same for a producer in the backward of another unit, which comes before `unit`'s. Takes memory that
  /// weight_gradient() gives back.
  BiasGradient bias_gradient_ahead(const StepContext& context, const Unit& unit) const;
  /// `args` without w. dx must not be dy.
  void input_gradient(UnitBackward& pass, LinearBackwardInput args) const;
  /// dy [M, out] and x [M, in], both written in the main stream by now and unchanged until join(). `summed` is what the
  /// producer of dy was handed. x may be absent where needs_input() says no. `seen`: whether it has the bits that forward()
  /// multiplied.
  void weight_gradient(UnitBackward& pass, const MatrixView& dy, const MatrixView& x, const BiasGradient& summed = {},
                       Fp8Seen seen = Fp8Seen::alike) const;

  struct Attached {
    std::shared_ptr<const LinearAdapter> adapter;
    LinearPart part;
  };
  std::vector<Attached> adapters;

 private:
  void multiply(const UnitPass& pass, LinearForward args, Fp8Seen later) const;
  bool keeps_input(const UnitPass& pass) const {
    return in_fp8(pass) && pass.context.fp8->keeps_input(*pass.unit, weight) && adapters.empty();
  }
  bool trained(const UnitBackward& pass) const { return pass.trained(); }
  /// Whether the products of this layer take their factors in fp8.
  bool in_fp8(const UnitPass& pass) const {
    return pass.context.fp8 && pass.unit && pass.context.fp8->takes(*pass.unit, weight);
  }
  Tensor amax(const StepContext& context, const Unit& unit, Fp8Factor factor) const {
    return context.fp8 && context.fp8->takes(unit, weight) ? context.fp8->amax(unit, weight, factor) : Tensor{};
  }
  /// The weight as it is stored, [out, in], where the unit was acquired so: in a step with products in fp8.
  Fp8Matrix stored_codes(const UnitPass& pass) const;
  /// Calls `product` with the weight in the compute dtype, which is there until it returns.
  template <class Product>
  void in_compute_dtype(const UnitPass& pass, Product product) const;
  Tensor w(const UnitWeights& flat) const { return flat.part(weight, {out, in}); }
  Tensor b(const UnitWeights& flat) const { return bias < 0 ? Tensor{} : flat.part(bias, {out}); }
};

/// Adds "<name>.weight" and, if wanted, "<name>.bias" to the unit.
LinearLayer add_linear(Unit& unit, const std::string& name, int64_t in, int64_t out, bool bias, float init_std);
/// One of several linear layers over one input.
struct PackedLinear {
  std::string name;
  int64_t out = 0;
  float init_std = 0;                      ///< 0: that of all of them
  RowOrder rows = {};                      ///< of weight and bias in files
};
/// Adds the weights of several linear layers over one input as one matrix, then their biases as one vector.
LinearLayer add_packed_linear(Unit& unit, const std::vector<PackedLinear>& layers, int64_t in, bool bias,
                              float init_std);
/// The same for layers of equal width.
LinearLayer add_packed_linear(Unit& unit, const std::vector<std::string>& names, int64_t in, int64_t out_each,
                              bool bias, float init_std);

}  // namespace blipft
