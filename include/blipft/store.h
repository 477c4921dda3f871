// ParameterStore: what a rank holds of every unit, and in which format and place: weights, master weights, gradients,
// optimizer states.
//
// A unit's flat buffer, padded, is cut into equal shards, one a rank. Trained units hold their weights in the compute
// dtype, so that the shard is a range of the flat buffer. A frozen unit may hold its parameters in several formats: then
// those of each format are a section, padded and cut by itself, and the flat buffer is made of the gathered sections.
// Shards begin and end at multiples of every format's block, so that no block straddles two ranks.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "blipft/arena.h"
#include "blipft/format.h"
#include "blipft/optimizer.h"
#include "blipft/unit.h"

namespace blipft {

/// Dtypes of a run's products, gradients and optimizer states.
struct PrecisionTypes {
  DType compute, gradient, state;
  bool master;                             ///< f32 master weights beside the compute weights
};

/// What is stored otherwise than train.precision and the optimizer say.
class StoragePolicy {
 public:
  virtual ~StoragePolicy() = default;
  /// Of a parameter of a frozen unit; null: the compute dtype.
  virtual const Format* frozen_format(const Unit& unit, const Parameter& parameter) const {
    (void)unit, (void)parameter;
    return nullptr;
  }
  /// A state as the optimizer wants it, changed as the run wants it (format, place).
  virtual StateSpec state(const Unit& unit, const Parameter& parameter, StateSpec spec) const {
    (void)unit, (void)parameter;
    return spec;
  }
  /// Where the weights lie that units are made of when they are used. In the host: each use of a unit reads them.
  virtual Place weights_place() const { return Place::device; }
  /// Where master weights of trained units lie.
  virtual Place master_place() const { return Place::device; }
  /// Whether gradients are consumed by the update as soon as they are final, and never held together. `possible`: steps
  /// have one micro-batch and clip nothing.
  virtual bool transient_gradients(bool possible) const { return possible; }
};

/// What this rank keeps of a unit: elements [first, first + count) of the flat buffer padded to `padded`.
struct Shard {
  int64_t first = 0, count = 0, padded = 0;
};

struct StoreContext {
  Device* device = nullptr;
  Ops* ops = nullptr;
  Arena* arena = nullptr;
  std::vector<const Unit*> units;
  PrecisionTypes types{};
  const Optimizer* optimizer = nullptr;
  const StoragePolicy* policy = nullptr;   ///< null: nothing is stored otherwise
  bool used_once = false;                  ///< gradients: steps have one micro-batch and do not wait for the norm
  int64_t shards = 1, index = 0;           ///< ranks that a unit is cut over, and which of them this is
  bool gradients_are_summed = false;       ///< over several ranks, which then read each other's

  /// A rank's weights are read by peers that gather them, its gradients by peers that sum them.
  Readers readers_of_weights() const { return shards > 1 ? Readers::peers : Readers::own_rank; }
  Readers readers_of_gradients() const { return gradients_are_summed ? Readers::peers : Readers::own_rank; }
};

class ParameterStore {
 public:
  /// Lays the units out and declares their memory in the arena. Throws UserError naming the parameter that a format
  /// does not fit.
  explicit ParameterStore(StoreContext context);
  /// After Arena::commit: real addresses, zeros where weights and gradients will be, initial optimizer states.
  void bind();

  /// Some parameters of a unit, all in one format.
  struct Section {
    struct Piece {
      const Parameter* parameter;
      int64_t flat, at;                    ///< where it begins in the flat buffer, and in the section
      int64_t matrix = 0;                  ///< with scales: the place of its matrix among the section's
    };
    const Format* format = nullptr;
    std::vector<Piece> pieces;
    Shard shard;                           ///< elements of the section
    Stored mine;                           ///< [shard.count]
    /// Of a format with a scale for each matrix, the same on all ranks, in the device: f32 [matrices * kScaleWords], the
    /// scale and the largest magnitude.
    Tensor scales;
    int64_t matrices = 0;                  ///< with scales
  };
  static constexpr int64_t kScaleWords = 4;  // a scale lies at a multiple of 16 bytes
  const std::vector<Section>& sections(const Unit& unit) const { return of(unit).sections; }
  /// Whether the unit's one section is its flat buffer in the compute dtype, so that nothing must be decoded.
  bool flat(const Unit& unit) const { return of(unit).flat; }
  /// Of the flat buffer. Where flat() is false, only `padded` means anything.
  const Shard& shard(const Unit& unit) const { return of(unit).shard; }
  int64_t shards() const { return context_.shards; }
  const PrecisionTypes& types() const { return context_.types; }
  /// Where the sections' own shards lie.
  Place weights_place() const { return context_.policy->weights_place(); }
  Place master_place() const { return context_.policy->master_place(); }
  /// Bytes of this rank's shards, as they are stored.
  int64_t stored_bytes(const Unit& unit) const;
  /// Bytes of all ranks' shards together.
  int64_t gathered_bytes(const Unit& unit) const;
  /// The flat buffer [shard.padded] out of the unit's gathered sections, in their order.
  /// `left`: without the elements that codes() and as_stored(), or fp8_codes(), give.
  void decode(const Unit& unit, const std::vector<Stored>& gathered, const Tensor& flat, Stream stream,
              CodesTaken left = CodesTaken::none) const;
  /// Whether it has elements to decode.
  bool decodes(const Unit& unit, CodesTaken left) const;
  /// What UnitAccess::codes() gives of a unit: parameters in codes of nf4 or int8 with plain scales, whose rows are whole
  /// blocks.
  std::optional<Quantized> codes(const Unit& unit, const std::vector<Stored>& gathered, int64_t first, int64_t count) const;
  /// What decode() leaves beside codes: whoever takes those of blocks reads parameters in the compute dtype where they are
  /// stored. Of a unit that is flat() nothing.
  std::vector<UnitWeights::Range> as_stored(const Unit& unit, const std::vector<Stored>& gathered, CodesTaken taken) const;
  /// What UnitAccess::fp8_codes() gives.
  Fp8Matrix fp8_codes(const Unit& unit, const std::vector<Stored>& gathered, int64_t first, int64_t count) const;
  /// Whether it gives the matrix that begins with element `first`.
  bool in_fp8(const Unit& unit, int64_t first) const;

  /// Whether the format of `parameter` has a scale for each matrix. Then reset_scale() of all parameters of the matrix, after
  /// these measure() of all its numbers, in any parts and on every rank, come before write(), in its stream.
  bool scaled(const Unit& unit, const Parameter& parameter) const;
  void reset_scale(const Unit& unit, const Parameter& parameter, Stream stream);
  void measure(const Unit& unit, const Parameter& parameter, const Tensor& values, Stream stream);

  /// This rank's part of a unit that is flat(): [shard.count], compute dtype; and f32 master, or absent.
  Tensor weights(const Unit& unit) const;
  Tensor masters(const Unit& unit) const { return of(unit).master; }
  /// Dtype of the unit's most exact weights: f32 where there are masters, else the compute dtype.
  DType weight_dtype(const Unit& unit) const;

  /// Calls body(parameter, first, count) for each range of elements of a parameter that this rank stores.
  void for_each_range(const Unit& unit,
                      const std::function<void(const Parameter&, int64_t first, int64_t count)>& body) const;
  /// Stores `values` (f32, bf16 or f16) as elements of `parameter` from `first` on, inside of one of these ranges:
  /// weights and masters. `first` is a multiple of the format's block.
  void write(const Unit& unit, const Parameter& parameter, int64_t first, const Tensor& values, Stream stream);

  /// This rank's part of a trained unit's gradient, [shard.count]. Transient ones begin to live with the first call
  /// after they were consumed, between operations of the compute stream.
  Tensor gradient(const Unit& unit);
  bool transient_gradients() const { return context_.policy->transient_gradients(context_.used_once); }
  /// All held gradients as one tensor; absent when they are transient or nothing is trained.
  const Tensor& held_gradients() const { return gradients_; }
  /// Optimizer state `i` of this rank's part, cut into ranges that are stored alike.
  struct StateRange {
    int64_t first, count;                  ///< elements of the shard
    Stored state;
  };
  std::vector<StateRange> state(const Unit& unit, size_t i) const;

  /// A range of a tensor that steps change: of a parameter's weights, or of an optimizer state as it is stored.
  struct Part {
    std::string name;                      ///< weight | master | exp_avg | exp_avg.dynamic8.codes
    const Parameter* parameter = nullptr;
    std::vector<int64_t> shape;            ///< of the whole tensor: the parameter's, or [elements] of a plane of blocks
    int64_t first = 0;                     ///< of the tensor's elements
    Tensor data;                           ///< [count], this rank's memory
    std::string key() const { return name + "/" + parameter->name; }
  };
  /// All that goes on from one step to the next of this rank's part of a trained unit. Weights in the compute dtype are
  /// not among them where there are masters: they follow from these.
  std::vector<Part> parts(const Unit& unit) const;
  /// The weights in the compute dtype anew from the masters, if there are any.
  void round_masters(const Unit& unit, Stream stream);

  /// Bytes that the update of a trained unit reads and writes, in the device's memory and in the host's.
  struct UpdateTraffic {
    int64_t device = 0, host_read = 0, host_written = 0;
  };
  UpdateTraffic update_traffic(const Unit& unit) const;

  /// Updates a trained unit and consumes its gradient. The sums of squares of gradients are left in squares().
  void update(const Unit& unit, const Tensor& scalars, Stream stream);
  const Tensor& squares() const { return squares_; }
  /// The compute stream has waited for all updates: transient gradients are given back.
  void give_gradients();
  bool trains() const { return trains_; }

 private:
  // A range of a trained unit's shard that is updated in one way.
  struct Range {
    int64_t first, count;
    int64_t squares;                       // where its sums of squares start among those of all
    bool decoded;                          // for the update, which does not take all states as they are stored
    bool decays;                           // Optimizer::decays() of its parameters
    std::vector<StateSpec> specs;
    std::vector<Stored> states;
  };
  struct Held {
    Shard shard;
    bool flat = true;
    std::vector<Section> sections;
    Tensor master, gradient;               // gradient: held, or alive
    std::vector<Range> ranges;
    Event consumed;                        // the update has read the transient gradient
  };
  struct Consumed {
    Tensor gradient;
    Event done;
  };
  class Pools;                             // contiguous buffers that many units share
  Held& of(const Unit& unit) { return held_[static_cast<size_t>(unit.index)]; }
  const Held& of(const Unit& unit) const { return held_[static_cast<size_t>(unit.index)]; }
  void lay_out(const Unit& unit);
  void request_weights(Pools& pools, const Unit& unit);
  void request_states(Pools& pools, const Unit& unit, int64_t& squares);
  void update_part(const Unit& unit, const Range& range, int64_t first, int64_t count, const Tensor& scalars,
                   Stream stream);
  void fill_state(const Stored& state, float value, Stream stream);
  void for_scale(const Unit& unit, const Parameter& parameter, const std::function<void(const Tensor& words)>& body) const;
  bool read_as_stored(const Section& section, CodesTaken taken) const;
  static Stored with_scale(const Section& section, const Section::Piece& piece, Stored part);

  StoreContext context_;
  std::vector<Held> held_;                 // per unit
  std::vector<Tensor*> tensors_;           // into held_: what bind() resolves
  Tensor gradients_, squares_;
  Tensor staging_;                         // f32, states while they are decoded
  std::deque<Consumed> consumed_;
  int64_t consumed_bytes_ = 0, most_consumed_bytes_ = 0;
  size_t most_decoded_ = 0;                // states of a range that must be decoded, or encoded to begin with
  bool trains_ = false;
};

}  // namespace blipft
