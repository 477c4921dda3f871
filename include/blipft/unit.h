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

/// The initial values of a parameter that is not read from a checkpoint.
struct Init {
  enum class Kind { normal, uniform, constant } kind = Kind::constant;
  float value = 0;                         ///< standard deviation of normal, bound of uniform, or the constant
  static Init normal(float std) { return {Kind::normal, std}; }
  static Init uniform(float bound) { return {Kind::uniform, bound}; }
  static Init constant(float value) { return {Kind::constant, value}; }
};

/// The source of a parameter's initial values. `checkpoint`: the checkpoint if model.init is pretrained, else its Init;
/// `adapter`: the folder adapter.path; `fresh`: always its Init, even if the checkpoint contains the parameter.
enum class Source { checkpoint, adapter, fresh };

/// Parameters that are trained or frozen together. A model declares its groups; model.freeze names some of them.
struct ParameterGroup {
  std::string name;
  bool trained = true;
  Source source = Source::checkpoint;
};

/// The kind of a parameter, for code that stores it: model.quantize quantizes weights of layers; block-wise optimizer
/// states keep f32 for embeddings, whose rows get few gradients; weight decay may exclude norms and biases. `other`:
/// heads and everything else.
enum class ParameterKind { other, layer_weight, embedding, norm_or_bias };

/// The order of a parameter's rows in files, if it differs from the order in memory. Rotary embeddings rotate pairs of
/// elements of each head. In memory a pair is elements i and i + rotated / 2; in files of some families it is elements
/// 2 i and 2 i + 1. The rows themselves are equal.
struct RowOrder {
  int64_t head_size = 0, rotated = 0;      ///< rotated 0: both orders are equal
  explicit operator bool() const { return rotated > 0; }
  /// Returns the row in the file for row `row` in memory.
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
  Source source = Source::checkpoint;      ///< equal to the source of its unit's group
  /// Other keys under which a checkpoint may hold this very tensor, because the model ties them. One of the keys is
  /// enough; if several are present, their tensors must be equal.
  std::vector<std::string> aliases;
  ParameterKind kind = ParameterKind::other;
  RowOrder rows = {};
  int64_t numel() const;
};

/// A weight matrix of a linear layer: the weights of one module, or of several modules with one input, in sequence.
struct WeightMatrix {
  int64_t offset = 0, in = 0, out = 0;     ///< [out, in], elements from the start of the flat buffer
  std::vector<std::string> modules;        ///< "model.layers.0.mlp.gate_proj"
};

/// Parameters start at multiples of this number of elements: 16 bytes in bf16, as vector loads and cuBLASLt require.
constexpr int64_t kParameterAlignment = 8;
/// Parameters of at least kBlockedParameter elements start at multiples of kBlockAlignment, which is a multiple of the
/// block of every format, because blocks count from a parameter's start.
constexpr int64_t kBlockAlignment = 256, kBlockedParameter = 4096;

class Unit {
 public:
  /// All parameters of a unit belong to one group, because the flat buffer is updated as a whole. Other parameters of a
  /// layer (an adapter) belong to a separate unit. The group must outlive the unit.
  Unit(std::string name, const ParameterGroup& group)
      : trainable(group.trained), name_(std::move(name)), group_(group) {}

  /// Appends a parameter; returns its offset. A `packed` parameter starts right behind the previous one, without
  /// alignment, so that several checkpoint tensors form one matrix (q, k, v).
  int64_t add(const std::string& name, const std::vector<int64_t>& shape, Init init, bool packed = false,
              ParameterKind kind = ParameterKind::other);

  /// Allows a checkpoint to hold the parameter `name` under the key `other`, as well or instead.
  void add_alias(const std::string& name, const std::string& other);

  /// Sets the order in which files hold the rows of the parameter `name`.
  void order_rows(const std::string& name, RowOrder rows);

  void add_matrix(WeightMatrix matrix) { matrices_.push_back(std::move(matrix)); }

  const std::string& name() const { return name_; }
  const ParameterGroup& group() const { return group_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  /// Returns the weight matrices of the unit's linear layers.
  const std::vector<WeightMatrix>& matrices() const { return matrices_; }
  /// Returns the number of elements of the flat buffer, alignment gaps included.
  int64_t numel() const { return numel_; }
  /// Returns the number of elements of the parameters alone.
  int64_t parameter_count() const;
  /// Returns the ranges [first, second) of the flat buffer, up to `padded` elements, that belong to no parameter.
  std::vector<std::pair<int64_t, int64_t>> gaps(int64_t padded) const;

  const bool trainable;                    ///< equal to the group's `trained`
  Unit* adapter = nullptr;                 ///< the separate unit with the adapters of this unit's layers, or null
  int64_t index = -1;                      ///< index in the model's list of units

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
  /// True if the buffer already holds contributions (of other micro-batches or uses of the unit), to which this use
  /// must add. If false, this use must write every parameter of the unit, with zeros if it contributes nothing.
  bool accumulate = false;
};

/// A unit's parameters while it is acquired: the flat buffer, except for parameters that are read from their section.
class UnitWeights {
 public:
  /// Elements of the flat buffer from `first` on: `stored` [count] in the compute dtype.
  struct Range {
    int64_t first;
    Tensor stored;
  };
  UnitWeights() = default;
  UnitWeights(const Tensor& flat, std::vector<Range> stored = {}) : flat_(flat), stored_(std::move(stored)) {}

  DType dtype() const { return flat_.dtype; }
  /// Returns elements of one parameter, or of several parameters that are consecutive in the flat buffer, as `shape`.
  Tensor part(int64_t first, const Shape& shape) const {
    for (const Range& range : stored_)
      if (first >= range.first && first < range.first + range.stored.numel()) return range.stored.part(first - range.first, shape);
    return flat_.part(first, shape);
  }

 private:
  Tensor flat_;
  std::vector<Range> stored_;
};

/// The quantized values that a caller of acquire_quantized() multiplies by directly: none, blocks (Quantized), or fp8.
enum class AcceptedEncodings { none, blocks, fp8 };

/// The strategy as a model sees it: calls before and after each use of a unit, all ordered in the compute stream.
class UnitAccess {
 public:
  virtual ~UnitAccess() = default;
  /// Returns the unit's parameters, [>= unit.numel()] in the compute dtype, readable until release().
  virtual Tensor acquire(const Unit& unit) = 0;
  virtual void release(const Unit& unit) = 0;
  /// Like acquire(), for callers that multiply by quantized values of kind `accepted` as they are stored. quantized() or
  /// fp8_values() returns those matrices, and their elements of the flat buffer are undefined.
  virtual UnitWeights acquire_quantized(const Unit& unit, AcceptedEncodings accepted) {
    (void)accepted;
    return acquire(unit);
  }
  /// Returns the quantized values of `count` elements from `first` on of the flat buffer, for a unit acquired with
  /// acquire_quantized(). Rows of the parameters must be whole blocks. None: the elements are in the flat buffer.
  virtual std::optional<Quantized> quantized(const Unit& unit, int64_t first, int64_t count) const {
    (void)unit, (void)first, (void)count;
    return std::nullopt;
  }
  /// Like quantized() for fp8: a matrix [count] with rows of a multiple of kFp8Alignment. Absent: in the flat buffer.
  virtual Fp8Matrix fp8_values(const Unit& unit, int64_t first, int64_t count) const {
    (void)unit, (void)first, (void)count;
    return {};
  }
  /// Returns the buffer for the unit's gradient. May be called for several uses of a unit within one backward. Only for
  /// trainable units.
  virtual UnitGradient gradient(const Unit& unit) = 0;
  /// The gradient holds the contribution of one use, and the next use is far away: the strategy may reduce and free the
  /// buffer until then. The next gradient() may return another buffer.
  virtual void pause(const Unit& unit) { (void)unit; }
  /// The gradient of this micro-batch is complete.
  virtual void publish(const Unit& unit) = 0;
};

}  // namespace blipft
