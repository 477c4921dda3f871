// Unit: a block of the model that is gathered, run and released as one, with one flat parameter buffer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "blipft/ops.h"
#include "blipft/tensor.h"

namespace blipft {

/// How a parameter that comes from no checkpoint is filled.
struct Init {
  enum class Kind { normal, uniform, constant } kind = Kind::constant;
  float value = 0;                         ///< standard deviation of normal, bound of uniform, or the constant
  static Init normal(float std) { return {Kind::normal, std}; }
  static Init uniform(float bound) { return {Kind::uniform, bound}; }
  static Init constant(float value) { return {Kind::constant, value}; }
};

/// Where a parameter's first value comes from. `checkpoint`: with model.init pretrained from there, else by its Init;
/// `adapter`: from the folder adapter.path; `fresh`: always by its Init, whatever a checkpoint holds.
enum class Source { checkpoint, adapter, fresh };

/// Parameters that are trained or frozen together. A model declares its groups; model.freeze names some of them.
struct ParameterGroup {
  std::string name;
  bool trained = true;
  Source source = Source::checkpoint;
};

/// What a parameter is to those who store it: model.quantize takes the weights of layers; block-wise optimizer states
/// leave embeddings, whose rows see few gradients, in f32; weight decay may leave out norms and biases. `other`: heads and
/// whatever else there is.
enum class ParameterKind { other, layer_weight, embedding, norm_or_bias };

/// The order in which files hold the rows of a parameter, if it is another than here. Rotary positions turn pairs of elements of
/// each head. Here the pairs are elements i and i + rotated / 2; files of some families have elements 2 i and 2 i + 1. Only
/// the order differs, no number.
struct RowOrder {
  int64_t head_size = 0, rotated = 0;      ///< rotated 0: the order is the same
  explicit operator bool() const { return rotated > 0; }
  /// The row of the file that is row `row` here.
  int64_t in_file(int64_t row) const {
    const int64_t element = row % head_size, half = rotated / 2;
    if (element >= rotated) return row;
    return row - element + (element < half ? 2 * element : 2 * (element - half) + 1);
  }
};

/// A named, shaped range of a unit's flat buffer. The name is the Hugging Face state-dict key.
struct Parameter {
  std::string name;
  std::vector<int64_t> shape;              ///< as in the checkpoint; may have more than four dimensions
  int64_t offset = 0;                      ///< elements from the start of the flat buffer
  Init init;
  Source source = Source::checkpoint;      ///< that of its unit's group
  /// Other keys under which a checkpoint may hold this very tensor, because the model ties them: one of them is enough,
  /// and all that are there must be equal.
  std::vector<std::string> aliases;
  ParameterKind kind = ParameterKind::other;
  RowOrder rows = {};
  int64_t numel() const;
};

/// A matrix by which a linear layer multiplies: the weights of one module or of several over one input, one behind the other.
struct WeightMatrix {
  int64_t offset = 0, in = 0, out = 0;     ///< [out, in], elements from the start of the flat buffer
  std::vector<std::string> modules;        ///< "model.layers.0.mlp.gate_proj"
};

/// Elements between whose multiples parameters start: 16 bytes in bf16, what vector loads and cuBLASLt want.
constexpr int64_t kParameterAlignment = 8;
/// The same for parameters of at least kBlockedParameter elements: a multiple of the blocks of formats, which count
/// from a parameter's start.
constexpr int64_t kBlockAlignment = 256, kBlockedParameter = 4096;

class Unit {
 public:
  /// All parameters of a unit belong to one group, because the flat buffer is updated as one; what else a layer has
  /// (an adapter) is a unit beside it. The group outlives the unit.
  Unit(std::string name, const ParameterGroup& group)
      : trainable(group.trained), name_(std::move(name)), group_(group) {}

  /// Appends a parameter; returns its offset. `packed` starts right behind the one before, without alignment, so that
  /// several checkpoint tensors form one matrix (q, k, v).
  int64_t add(const std::string& name, const std::vector<int64_t>& shape, Init init, bool packed = false,
              ParameterKind kind = ParameterKind::other);

  /// A checkpoint may hold the parameter `name` under the key `other` too, or under that alone.
  void add_alias(const std::string& name, const std::string& other);

  /// Files hold the rows of the parameter `name` in this order.
  void order_rows(const std::string& name, RowOrder rows);

  void add_matrix(WeightMatrix matrix) { matrices_.push_back(std::move(matrix)); }

  const std::string& name() const { return name_; }
  const ParameterGroup& group() const { return group_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  /// What linear layers multiply by.
  const std::vector<WeightMatrix>& matrices() const { return matrices_; }
  /// Elements of the flat buffer, alignment gaps included.
  int64_t numel() const { return numel_; }
  /// Elements of the parameters alone.
  int64_t parameter_count() const;
  /// Ranges [first, second) of the flat buffer, up to `padded` elements, that belong to no parameter.
  std::vector<std::pair<int64_t, int64_t>> gaps(int64_t padded) const;

  const bool trainable;                    ///< as its group
  Unit* adapter = nullptr;                 ///< the unit beside it that holds its layers' adapters, if they have any
  int64_t index = -1;                      ///< place in the model's list

 private:
  std::string name_;
  const ParameterGroup& group_;
  std::vector<Parameter> parameters_;
  std::vector<WeightMatrix> matrices_;
  int64_t numel_ = 0;
};

/// A unit's gradient buffer while the model fills it.
struct UnitGradient {
  Tensor flat;                             ///< [>= unit.numel()] of the gradient dtype
  /// Whether the buffer holds earlier contributions (micro-batches, uses of the unit) to be added to. Else this use
  /// must write every parameter of the unit, with zeros where it contributes nothing.
  bool accumulate = false;
};

/// A unit's parameters while it is acquired: the flat buffer, but for those that are read where they are stored.
class UnitWeights {
 public:
  /// Elements of the flat buffer from `first` on, [count] in the compute dtype.
  struct Range {
    int64_t first;
    Tensor stored;
  };
  UnitWeights() = default;
  UnitWeights(const Tensor& flat, std::vector<Range> stored = {}) : flat_(flat), stored_(std::move(stored)) {}

  DType dtype() const { return flat_.dtype; }
  /// `shape` elements of one parameter, or of several that lie one behind the other in the flat buffer.
  Tensor part(int64_t first, const Shape& shape) const {
    for (const Range& range : stored_)
      if (first >= range.first && first < range.first + range.stored.numel()) return range.stored.part(first - range.first, shape);
    return flat_.part(first, shape);
  }

 private:
  Tensor flat_;
  std::vector<Range> stored_;
};

/// What whoever acquires a unit multiplies as it is stored: no codes, those of blocks (Quantized), or fp8.
enum class CodesTaken { none, blocks, fp8 };

/// What a model sees of the strategy: brackets around each use of a unit. All calls are ordered in the compute stream.
class UnitAccess {
 public:
  virtual ~UnitAccess() = default;
  /// The unit's parameters, [>= unit.numel()] in the compute dtype, readable until release().
  virtual Tensor acquire(const Unit& unit) = 0;
  virtual void release(const Unit& unit) = 0;
  /// As acquire(), for whoever multiplies matrices that are stored as codes `taken` as they are: codes() or fp8_codes()
  /// then gives these, and their elements of the flat buffer mean nothing.
  virtual UnitWeights acquire_codes(const Unit& unit, CodesTaken taken) {
    (void)taken;
    return acquire(unit);
  }
  /// Of a unit acquired so: the codes of `count` elements of the flat buffer from `first` on, parameters whose rows are
  /// whole blocks. None: they are in the flat buffer.
  virtual std::optional<Quantized> codes(const Unit& unit, int64_t first, int64_t count) const {
    (void)unit, (void)first, (void)count;
    return std::nullopt;
  }
  /// Likewise of a matrix whose rows are multiples of kFp8Alignment: codes [count]. Absent: it is in the flat buffer.
  virtual Fp8Matrix fp8_codes(const Unit& unit, int64_t first, int64_t count) const {
    (void)unit, (void)first, (void)count;
    return {};
  }
  /// Where the unit's gradient goes. May be called for several uses of a unit within one backward. Only for trainable
  /// units.
  virtual UnitGradient gradient(const Unit& unit) = 0;
  /// The gradient holds the contribution of one use, and the next use is far away: the strategy may put it aside until
  /// then. The next gradient() may give another buffer.
  virtual void pause(const Unit& unit) { (void)unit; }
  /// The gradient of this micro-batch is complete.
  virtual void publish(const Unit& unit) = 0;
};

}  // namespace blipft
