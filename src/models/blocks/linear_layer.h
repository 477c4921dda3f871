// LinearLayer: the product through which models multiply by weights, y = act(W x + b) + residual. In models/, only it
// and its adapters call the linear ops.
//
//   forward()          one op, with bias, activation and residual fused as the caller requests
//   input_gradient()   one op, optionally fused with an addend, the derivative of the activation that computed x,
//                      and the bias gradient of the layer before this one
//   weight_gradient()  dW, and db unless it has been summed already
//
// Weight gradients run in the side stream, in parallel to the chain of input gradients, because nothing later in
// backward reads them. Callers may request them before the same layer's input gradient, which lets both overlap, or
// after it.
//
// Bias gradients are column sums of dy, and cost least in the kernel that writes dy. So the writer of dy (the next
// layer, a norm, attention) gets the layer's BiasGradient, and weight_gradient() gets the same object: absent (it
// computes the sums), the unit's own gradient (nothing is left to do), or sums in separate memory (it moves them).
//
// Packed layers over one input (q, k, v; gate, up) are one weight whose rows are the parts, in sequence, of any widths;
// y and dy have the parts as ranges of columns.
//
// Products in fp8 (Fp8Products): the layer casts x, dy and the weight right before it multiplies; one cast of dy serves
// both gradients. A weight that is stored in fp8 is used as it is. Adapters, and everything else that reads x and dy,
// use the compute dtype.
//
// Adapters (LinearAdapter) add to the product of the whole layer or of one part, before the activation. In backward
// they write dx first and the layer adds to it, so that input_gradient() keeps its fused operations; in forward the
// activation becomes a separate op. They get x from the caller and do not save it, so recomputation and chunks of rows
// need no special code. A frozen layer without adapters does not read x: see needs_input().
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

/// One use of a unit, together with the separate unit of its adapters.
struct UnitPass {
  const StepContext& context;
  UnitWeights flat;                        ///< the unit's parameters
  Tensor adapter;                          ///< parameters of its adapters; absent: no adapters
  Dropout rows;                            ///< assigns rows to samples, for adapters: a Dropout without p and site
  const Unit* unit = nullptr;
  const Unit* coded = nullptr;             ///< equals `unit` if its quantized matrices are multiplied as stored
  bool again = false;                      ///< true in a recomputation
  bool keeps = false;                      ///< its backward follows: quantized inputs may be kept for it
};

/// Acquire and release a unit together with its adapters. `rows`: number of rows that its layers multiply in forward,
/// if known and if nothing else reads their weights. Few rows are multiplied by quantized weights as they are stored.
UnitPass acquire(const StepContext& context, const Unit& unit, int64_t rows = 0);
void release(const StepContext& context, const Unit& unit);

/// The gradient buffers of a unit and of its adapters; absent if frozen.
struct UnitGradients {
  std::optional<UnitGradient> own, adapter;
};
UnitGradients gradients(const StepContext& context, const Unit& unit);
void publish(const StepContext& context, const Unit& unit);

/// A request to the writer of the gradient dy [M, out] of a linear layer's output: also sum the columns of dy into
/// `sums`. Absent if the layer has no bias or is frozen.
struct BiasGradient {
  Tensor sums;                             ///< [out]
  bool accumulate = false;                 ///< add to the existing sums
  bool ahead = false;                      ///< separate f32 memory, used before the unit's gradient can be requested
  explicit operator bool() const { return static_cast<bool>(sums); }
};

class LinearAdapter;

/// The backward of one use of a unit: its gradients, and the side stream that computes weight gradients. Tensors that
/// these read stay until join().
class UnitBackward : public UnitPass {
 public:
  /// main: the compute stream, for callers that overwrite dy or x before a join.
  enum class WeightStream { side, main };

  /// `later_rows`: earlier rows of the same use had their backward; this one adds to their gradients.
  UnitBackward(const UnitPass& pass, const UnitGradients& gradients, WeightStream weight_stream = WeightStream::side,
               bool later_rows = false)
      : UnitPass(pass), gradients_(gradients), weight_stream_(weight_stream), later_rows_(later_rows) {}
  UnitBackward(const UnitBackward&) = delete;
  UnitBackward& operator=(const UnitBackward&) = delete;

  bool trained() const { return gradients_.own.has_value(); }
  bool later_rows() const { return later_rows_; }
  bool accumulate() const { return later_rows_ || (gradients_.own && gradients_.own->accumulate); }
  bool accumulate_adapter() const { return later_rows_ || (gradients_.adapter && gradients_.adapter->accumulate); }
  /// Returns the gradient of the parameter at `offset`; absent if frozen.
  Tensor gradient(int64_t offset, const Shape& shape) const {
    return gradients_.own ? gradients_.own->flat.part(offset, shape) : Tensor{};
  }
  /// Returns the gradient of the parameter at `offset` in the adapters' unit; absent if frozen.
  Tensor adapter_gradient(int64_t offset, const Shape& shape) const {
    return gradients_.adapter ? gradients_.adapter->flat.part(offset, shape) : Tensor{};
  }
  /// Returns the stream of weight gradients, after making it wait for all work enqueued in the main stream so far.
  Stream weight_stream();
  /// Gives `tensor` back at join(); ignores absent tensors.
  void keep(Tensor tensor);
  /// Makes the main stream wait for the weight gradients, and gives kept tensors back. Call it before destruction.
  void join();

  /// Returns LinearAdapter::reduce() of this backward, computed at the first request.
  Tensor reduced(const LinearAdapter& adapter, const MatrixView& dy);
  /// Returns dy, the output's gradient of the trained layer with its weight at `weight`, in fp8 in both layouts. The
  /// first request casts it in the main stream. dy must stay unchanged until join().
  const Fp8Values& in_fp8(const MatrixView& dy, int64_t weight);
  void keep(const Fp8Values& quantized) {
    each_owned(quantized, [&](const Tensor& tensor) { keep(tensor); });
  }

 private:
  UnitGradients gradients_;
  WeightStream weight_stream_;
  bool later_rows_;
  bool forked_ = false;
  std::vector<Tensor> kept_;
  std::vector<std::pair<const LinearAdapter*, Tensor>> reduced_;
  std::vector<std::pair<MatrixView, Fp8Values>> in_fp8_;
};

/// An addition f to a linear layer's product, such as a low-rank product: y += B (A x), A [r, in], B [part, r].
/// Columns of y and dy are the columns of the part with the adapter, in wider matrices.
class LinearAdapter {
 public:
  virtual ~LinearAdapter() = default;
  /// Returns true if f computes all of `columns` columns; the columns that it does not compute are zero.
  virtual bool covers(int64_t columns) const = 0;
  /// y [M, part] = add + f(x), x [M, in], in the main stream. `add` is y, or absent if f covers the part.
  virtual void forward(const UnitPass& pass, const MatrixView& x, const MatrixView& add, const MatrixView& y) const = 0;
  /// Returns the intermediate result that the gradients of input and parameters share, such as dy B [M, r]. It is
  /// computed once in the main stream; the pass gives it back to the arena. May be absent.
  virtual Tensor reduce(UnitBackward& pass, const MatrixView& dy) const = 0;
  /// dx [M, in] = add + the adapter's share of the input's gradient, in the main stream. `add`: absent, dx or another.
  virtual void input_gradient(UnitBackward& pass, const MatrixView& dy, const Tensor& reduced, const MatrixView& add,
                              const MatrixView& dx) const = 0;
  /// Computes gradients of the adapter's own parameters, in pass.weight_stream().
  virtual void weight_gradient(UnitBackward& pass, const MatrixView& dy, const Tensor& reduced,
                               const MatrixView& x) const = 0;
};

/// Outputs of one module in a packed layer: rows of its weight, columns of y and dy.
struct LinearPart {
  int64_t first = 0, count = 0;
  RowOrder rows = {};                      ///< order of the weight's rows in files
};

class LinearLayer {
 public:
  int64_t in = 0, out = 0;
  int64_t weight = -1, bias = -1;          ///< offsets of [out, in] and [out] in the unit's flat buffer; -1: no bias
  std::vector<LinearPart> parts;           ///< parts of a packed layer

  /// Adds `adapter` to all outputs, or to those of one part.
  void attach(std::shared_ptr<const LinearAdapter> adapter) { attach(std::move(adapter), {0, out}); }
  void attach(std::shared_ptr<const LinearAdapter> adapter, LinearPart to);

  /// Computes y; sets w and bias of `args`. `later`: relation of args.x to the x that weight_gradient() will get.
  void forward(const UnitPass& pass, LinearForward args, Fp8Seen later = Fp8Seen::alike) const;

  /// Returns true if weight_gradient() will read x. If not, a caller that needs x for nothing else need not keep or
  /// recompute it.
  bool needs_input(const UnitBackward& pass) const { return has_weight_gradient(pass) && !keeps_input(pass); }
  /// needs_input() for use in forward, after forward().
  bool needs_input(const UnitPass& pass) const {
    return (pass.unit->trainable || !adapters.empty()) && !keeps_input(pass);
  }
  /// Returns true if weight_gradient() will read dy.
  bool has_weight_gradient(const UnitBackward& pass) const { return trained(pass) || !adapters.empty(); }
  /// Returns f32 [1], which the writer of x in forward, or of dy in backward, must raise to the largest magnitude that
  /// it writes. Absent if the layer does not cast that tensor unchanged to fp8. See Fp8Products::amax().
  Tensor input_amax(const UnitPass& pass) const { return amax(pass.context, *pass.unit, Fp8Factor::x); }
  Tensor gradient_amax(const UnitPass& pass) const { return gradient_amax(pass.context, *pass.unit); }
  /// gradient_amax() for a writer in the backward of another unit, which precedes `unit`'s backward.
  Tensor gradient_amax(const StepContext& context, const Unit& unit) const { return amax(context, unit, Fp8Factor::dy); }
  /// Returns the request to the writer of dy, within this unit's backward.
  BiasGradient bias_gradient(const UnitBackward& pass) const;
  /// bias_gradient() for a writer in the backward of another unit, which precedes `unit`'s backward. Takes memory that
  /// weight_gradient() gives back.
  BiasGradient bias_gradient_ahead(const StepContext& context, const Unit& unit) const;
  /// Computes dx; sets w of `args`. dx must differ from dy.
  void input_gradient(UnitBackward& pass, LinearBackwardInput args) const;
  /// Computes the gradients of weight and bias from dy [M, out] and x [M, in], which must be written in the main stream
  /// already and stay unchanged until join(). `summed` is the request that the writer of dy got. x may be absent if
  /// needs_input() returns false. `seen`: tells if x has the same bits as in forward().
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
  /// Returns true if the products of this layer run in fp8.
  bool in_fp8(const UnitPass& pass) const {
    return pass.context.fp8 && pass.unit && pass.context.fp8->takes(*pass.unit, weight);
  }
  Tensor amax(const StepContext& context, const Unit& unit, Fp8Factor factor) const {
    return context.fp8 && context.fp8->takes(unit, weight) ? context.fp8->amax(unit, weight, factor) : Tensor{};
  }
  /// Returns the weight as it is stored in fp8, [out, in], if the unit was acquired so, in a step with fp8 products.
  Fp8Matrix stored_values(const UnitPass& pass) const;
  /// Calls `product` with the weight in the compute dtype, which is valid until `product` returns.
  template <class Product>
  void in_compute_dtype(const UnitPass& pass, Product product) const;
  Tensor w(const UnitWeights& flat) const { return flat.part(weight, {out, in}); }
  Tensor b(const UnitWeights& flat) const { return bias < 0 ? Tensor{} : flat.part(bias, {out}); }
};

/// Adds "<name>.weight" and, if `bias` is true, "<name>.bias" to the unit.
LinearLayer add_linear(Unit& unit, const std::string& name, int64_t in, int64_t out, bool bias, float init_std);
/// One of several linear layers with the same input.
struct PackedLinear {
  std::string name;
  int64_t out = 0;
  float init_std = 0;                      ///< 0: use the common init_std
  RowOrder rows = {};                      ///< order of the rows of weight and bias in files
};
/// Adds the weights of several linear layers with the same input as one matrix, then their biases as one vector.
LinearLayer add_packed_linear(Unit& unit, const std::vector<PackedLinear>& layers, int64_t in, bool bias,
                              float init_std);
/// add_packed_linear() for layers of equal width.
LinearLayer add_packed_linear(Unit& unit, const std::vector<std::string>& names, int64_t in, int64_t out_each,
                              bool bias, float init_std);

}  // namespace blipft
