// ParameterStore: the data that a rank holds of every unit, with its format and its memory (device or host): weights,
// master weights, gradients and optimizer states.
//
// A unit's flat buffer is padded and cut into equal shards, one for each rank. Trained units hold their weights in the
// compute dtype, so that the shard is a range of the flat buffer. A frozen unit may hold its parameters in several
// formats: the parameters of one format then form a section, which is padded and cut separately, and the flat buffer is
// assembled from the gathered sections. Shards begin and end at multiples of every format's block, so that no block
// straddles two ranks.
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
  bool master;                             ///< trained units have f32 master weights and weights in `compute`
};

/// Deviations from the storage that train.precision and the optimizer define.
class StoragePolicy {
 public:
  virtual ~StoragePolicy() = default;
  /// Returns the format of a parameter of a frozen unit; null: the compute dtype.
  virtual const Format* frozen_format(const Unit& unit, const Parameter& parameter) const {
    (void)unit, (void)parameter;
    return nullptr;
  }
  /// Returns `spec`, the state as the optimizer requests it, with the run's changes of its format and memory.
  virtual StateSpec state(const Unit& unit, const Parameter& parameter, StateSpec spec) const {
    (void)unit, (void)parameter;
    return spec;
  }
  /// Returns the memory of the weights from which units are gathered. In host memory: every use of a unit reads them.
  virtual MemorySpace weights_space() const { return MemorySpace::device; }
  /// Returns where master weights of trained units are stored.
  virtual MemorySpace master_space() const { return MemorySpace::device; }
  /// Returns true if each update consumes its gradient as soon as the gradient is final, so that gradients are never
  /// all held at the same time. `possible`: steps have one micro-batch and do not clip.
  virtual bool transient_gradients(bool possible) const { return possible; }
};

/// The part of a unit that this rank stores: elements [first, first + count) of the flat buffer padded to `padded`.
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
  const StoragePolicy* policy = nullptr;   ///< null: no deviations
  bool used_once = false;                  ///< steps have one micro-batch and do not wait for the gradient norm
  int64_t shards = 1, index = 0;           ///< number of ranks that a unit is sharded over, and the index of this one
  bool gradients_are_summed = false;       ///< gradients are summed over several ranks, which read each other's

  /// Peers read a rank's weights if they gather them, and its gradients if they sum them.
  Readers readers_of_weights() const { return shards > 1 ? Readers::peers : Readers::own_rank; }
  Readers readers_of_gradients() const { return gradients_are_summed ? Readers::peers : Readers::own_rank; }
};

class ParameterStore {
 public:
  /// Lays the units out and declares their memory in the arena. Throws UserError with the name of a parameter whose
  /// format does not fit it.
  explicit ParameterStore(StoreContext context);
  /// Called after Arena::commit(): resolves addresses, zeroes weights and gradients, initializes optimizer states.
  void bind();

  /// Some parameters of a unit, all of the same format.
  struct Section {
    struct Piece {
      const Parameter* parameter;
      int64_t flat, at;                    ///< its first element in the flat buffer, and in the section
      int64_t matrix = 0;                  ///< index of its matrix within the section, for formats with scales
    };
    const Format* format = nullptr;
    std::vector<Piece> pieces;
    Shard shard;                           ///< elements of the section
    Stored mine;                           ///< [shard.count]
    /// If the format has one scale for each matrix: f32 [matrices * kScaleWords] in device memory, equal on all ranks.
    /// Each matrix has its scale, then its largest magnitude.
    Tensor scales;
    int64_t matrices = 0;                  ///< number of matrices, for formats with scales
  };
  static constexpr int64_t kScaleWords = 4;  // aligns each scale to 16 bytes
  const std::vector<Section>& sections(const Unit& unit) const { return of(unit).sections; }
  /// Returns true if the unit's one section is its flat buffer in the compute dtype, so that nothing must be decoded.
  bool flat(const Unit& unit) const { return of(unit).flat; }
  /// Returns this rank's shard of the flat buffer. If flat() is false, only `padded` is meaningful.
  const Shard& shard(const Unit& unit) const { return of(unit).shard; }
  int64_t shards() const { return context_.shards; }
  const PrecisionTypes& types() const { return context_.types; }
  /// Returns where the shards of the sections are stored.
  MemorySpace weights_space() const { return context_.policy->weights_space(); }
  MemorySpace master_space() const { return context_.policy->master_space(); }
  /// Returns the bytes of this rank's shards, as they are stored.
  int64_t stored_bytes(const Unit& unit) const;
  /// Returns the bytes of all ranks' shards together.
  int64_t gathered_bytes(const Unit& unit) const;
  /// Decodes the unit's gathered sections, which are in section order, into the flat buffer [shard.padded]. `left`:
  /// leaves out the elements that quantized() and as_stored(), or fp8_values(), return.
  void decode(const Unit& unit, const std::vector<Stored>& gathered, const Tensor& flat, Stream stream,
              AcceptedEncodings left = AcceptedEncodings::none) const;
  /// Returns true if decode() with the same `left` has elements to decode.
  bool decodes(const Unit& unit, AcceptedEncodings left) const;
  /// Implements UnitAccess::quantized(): returns parameters quantized to nf4 or int8 with unquantized scales, whose rows
  /// are whole blocks.
  std::optional<Quantized> quantized(const Unit& unit, const std::vector<Stored>& gathered, int64_t first, int64_t count) const;
  /// Returns further parameters that decode() leaves out: with AcceptedEncodings::blocks, parameters in the compute dtype are
  /// read from their section. Empty for a unit that is flat().
  std::vector<UnitWeights::Range> as_stored(const Unit& unit, const std::vector<Stored>& gathered, AcceptedEncodings accepted) const;
  /// Implements UnitAccess::fp8_values().
  Fp8Matrix fp8_values(const Unit& unit, const std::vector<Stored>& gathered, int64_t first, int64_t count) const;
  /// Returns true if fp8_values() returns the matrix that begins with element `first`.
  bool in_fp8(const Unit& unit, int64_t first) const;

  /// Returns true if the format of `parameter` has a scale for each matrix. Before write(), in its stream, all
  /// parameters of the matrix then need reset_scale(), and after these measure() of all their values, in any parts and
  /// on every rank.
  bool scaled(const Unit& unit, const Parameter& parameter) const;
  void reset_scale(const Unit& unit, const Parameter& parameter, Stream stream);
  void measure(const Unit& unit, const Parameter& parameter, const Tensor& values, Stream stream);

  /// This rank's part of a unit that is flat(): weights [shard.count] in the compute dtype; f32 masters, absent if
  /// unused.
  Tensor weights(const Unit& unit) const;
  Tensor masters(const Unit& unit) const { return of(unit).master; }
  /// Returns the dtype of the unit's most precise weights: f32 if there are masters, else the compute dtype.
  DType weight_dtype(const Unit& unit) const;

  /// Calls body(parameter, first, count) for each range of elements of a parameter that this rank stores.
  void for_each_range(const Unit& unit,
                      const std::function<void(const Parameter&, int64_t first, int64_t count)>& body) const;
  /// Stores `values` (f32, bf16 or f16) as elements of `parameter` from `first` on, in its weights and masters. The
  /// elements must lie in one of these ranges, and `first` must be a multiple of the format's block.
  void write(const Unit& unit, const Parameter& parameter, int64_t first, const Tensor& values, Stream stream);

  /// Returns this rank's part of a trained unit's gradient, [shard.count]. A transient gradient is allocated by the
  /// first call after its last update, between operations of the compute stream.
  Tensor gradient(const Unit& unit);
  bool transient_gradients() const { return context_.policy->transient_gradients(context_.used_once); }
  /// Returns all held gradients as one tensor; absent if they are transient or nothing is trained.
  const Tensor& held_gradients() const { return gradients_; }
  /// Optimizer state `i` of this rank's part, cut into ranges that are stored in one way each.
  struct StateRange {
    int64_t first, count;                  ///< elements of the shard
    Stored state;
  };
  std::vector<StateRange> state(const Unit& unit, size_t i) const;

  /// A range of a tensor that steps change: weights of a parameter, or an optimizer state as it is stored.
  struct Part {
    std::string name;                      ///< weight | master | exp_avg | exp_avg.dynamic8.codes
    const Parameter* parameter = nullptr;
    std::vector<int64_t> shape;            ///< of the whole tensor: the parameter's, or [elements] of a block plane
    int64_t first = 0;                     ///< first element of the range in the tensor
    Tensor data;                           ///< [count], this rank's memory
    std::string key() const { return name + "/" + parameter->name; }
  };
  /// Returns this rank's part of all data of a trained unit that must survive from step to step. Weights in the compute
  /// dtype are left out if there are masters, because they are computed from these.
  std::vector<Part> parts(const Unit& unit) const;
  /// Recomputes the weights in the compute dtype from the masters, if there are any.
  void round_masters(const Unit& unit, Stream stream);

  /// Bytes that the update of a trained unit reads and writes, in device memory and in host memory.
  struct UpdateTraffic {
    int64_t device = 0, host_read = 0, host_written = 0;
  };
  UpdateTraffic update_traffic(const Unit& unit) const;

  /// Updates a trained unit and consumes its gradient. Writes the sums of squares of its gradients to squares().
  void update(const Unit& unit, const Tensor& scalars, Stream stream);
  const Tensor& squares() const { return squares_; }
  /// Frees transient gradients. The compute stream must have waited for all updates.
  void give_gradients();
  bool trains() const { return trains_; }

 private:
  // A range of a trained unit's shard whose elements are all updated in the same way.
  struct Range {
    int64_t first, count;
    int64_t squares;                       // offset of its sums of squares in squares_
    bool decoded;                          // decode states for the update: the optimizer cannot read all formats
    bool decays;                           // Optimizer::decays() of its parameters
    std::vector<StateSpec> specs;
    std::vector<Stored> states;
  };
  struct Held {
    Shard shard;
    bool flat = true;
    std::vector<Section> sections;
    Tensor master, gradient;               // gradient: held for the run, or transient and allocated now
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
  bool read_as_stored(const Section& section, AcceptedEncodings accepted) const;
  static Stored with_scale(const Section& section, const Section::Piece& piece, Stored part);

  StoreContext context_;
  std::vector<Held> held_;                 // per unit
  std::vector<Tensor*> tensors_;           // pointers into held_ that bind() resolves
  Tensor gradients_, squares_;
  Tensor staging_;                         // f32, states while they are decoded for an update
  std::deque<Consumed> consumed_;
  int64_t consumed_bytes_ = 0, max_consumed_bytes_ = 0;
  size_t max_decoded_ = 0;                // maximum number of states of a range in staging_
  bool trains_ = false;
};

}  // namespace blipft
