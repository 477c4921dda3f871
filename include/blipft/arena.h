// Arena: all device memory of a rank, and its page-locked host memory, planned before it is allocated.
//
// There are two kinds of memory. Persistent tensors (parameters, gradients, optimizer state, batches) live as long as
// the run. Transient tensors (activations, gathered units, scratch) are taken and given back during a step. The step is
// first run dry, with operations that compute nothing: the arena records every take and give, and plan() assigns an
// offset to each take. The real step then repeats exactly these takes and gets these offsets, without searching or
// allocating.
//
// A pass is one recorded program (one step of one text shape). All passes share the same transient memory.
//
// Device memory is two allocations. The peer block holds the tensors that other ranks of this machine read directly
// (weights that are gathered, gradients that are summed), and is the only one that these ranks map; the private block
// holds the rest. Transient tensors that only this rank reads may lie in either block, but never across both.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "blipft/device.h"
#include "blipft/tensor.h"

namespace blipft {

enum class Owner { parameters, gradients, optimizer, activations, communication, workspace, data, cache };
constexpr int kOwners = 8;
const char* owner_name(Owner owner);

/// The readers of a tensor: its own rank alone, or also other ranks of the machine, which map this rank's memory.
enum class Readers { own_rank, peers };

/// Bytes in use by owner.
struct MemoryUse {
  std::array<int64_t, kOwners> by_owner{};
  int64_t total() const;
  int64_t of(Owner owner) const { return by_owner[static_cast<size_t>(owner)]; }
};

/// One row of the plan table.
struct PlanEntry {
  Owner owner;
  std::string name;             ///< all takes with one name are summed
  int64_t bytes = 0;            ///< bytes in use at the moment of the peak
  MemorySpace space = MemorySpace::device;
};

class Arena {
 public:
  /// Memory comes from `device` in commit(); until then addresses are fictitious.
  explicit Arena(Device& device);
  /// Creates an arena on another device that follows the plan of `blueprint`. Callers must declare the
  /// blueprint's persistent tensors in the same order before commit().
  Arena(Device& device, const Arena& blueprint);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Returns a tensor that lives for the whole run. Before commit() its address is fictitious; resolve() then returns
  /// the real one. Host memory must have Readers::own_rank.
  Tensor persistent(Owner owner, std::string_view name, DType dtype, const Shape& shape, MemorySpace space = MemorySpace::device,
                    Readers readers = Readers::own_rank);
  /// Returns the real tensor for one that persistent() returned before commit(); other tensors are returned unchanged.
  Tensor resolve(const Tensor& planned) const;

  /// Starts recording (before commit) or replaying (after it) the pass `name`.
  void begin_pass(const std::string& name);
  void end_pass();
  /// While recording: removes the pass `name` from the plan, if it was recorded.
  void forget_pass(const std::string& name) { passes_.erase(name); }
  /// Returns a transient tensor, 256-byte aligned, which must be given back before the pass ends.
  Tensor take(Owner owner, std::string_view name, DType dtype, const Shape& shape, Readers readers = Readers::own_rank);
  void give(const Tensor& tensor);
  /// Returns a transient tensor that keeps its contents from pass to pass. Several passes must take the same kept
  /// tensors, in the same order, before all other tensors, and give them back last: then each kept tensor has the same
  /// offset in all these passes. Passes that do not take kept tensors overwrite them.
  Tensor take_kept(Owner owner, std::string_view name, DType dtype, const Shape& shape);
  /// Returns a transient tensor in page-locked host memory. These tensors form a stack: last taken, first given back.
  Tensor take_in_host(Owner owner, std::string_view name, DType dtype, const Shape& shape);
  void give_in_host(const Tensor& tensor);
  /// Names the current moment of the pass (before_forward, ...): the plan reports the memory in use there.
  void mark(const std::string& phase);

  /// While recording: returns the peak of transient bytes of all owners except communication since the previous call.
  int64_t take_peak_without_communication();
  /// Returns the bytes in use at the peak of a recorded pass, without gaps.
  int64_t peak_transient(const std::string& pass) const;
  /// Returns the sum of the bytes of all takes of `owner` in a recorded pass.
  int64_t bytes_of_takes(const std::string& pass, Owner owner) const;
  /// Returns the sum of the bytes of all takes in host memory in a recorded pass.
  int64_t bytes_of_host_takes(const std::string& pass) const;

  /// Assigns an offset to every take of every recorded pass. scratch() will have at least `scratch_bytes`.
  void plan(int64_t scratch_bytes = 0);
  /// Allocates both blocks. Throws UserError with the three largest owners if they do not fit.
  void commit();

  int64_t persistent_bytes() const { return private_.persistent_bytes + peer_.persistent_bytes; }
  int64_t transient_bytes() const { return transient_bytes_; }   ///< of the largest pass, gaps included
  int64_t peer_transient_bytes() const { return peer_transient_bytes_; }  ///< the part of it in the peer block
  int64_t total_bytes() const { return persistent_bytes() + transient_bytes_; }
  /// Returns the bytes of page-locked host memory, which the other functions do not include.
  int64_t host_bytes() const { return host_persistent_bytes_ + host_transient_bytes_; }
  /// Returns the bytes in use at the peak of the largest recorded pass, without gaps: no plan needs fewer.
  int64_t peak_live_bytes() const;
  /// Memory use at the named phases of a pass: at the mark, and at the largest sum since the previous mark.
  struct PhaseUse {
    std::string phase;
    MemoryUse now;
    MemoryUse peak;
  };
  const std::vector<PhaseUse>& phases(const std::string& pass) const;
  /// Returns the device memory that owners use between passes.
  MemoryUse persistent_use() const;
  /// Returns the memory of each owner at the peak of a planned pass.
  MemoryUse peak(const std::string& pass) const;
  int64_t gap_bytes(const std::string& pass) const;
  std::vector<std::string> passes() const;
  /// Returns the rows of the plan table: tensors in use at the peak of device memory, and those in host memory.
  std::vector<PlanEntry> peak_entries() const;

  /// Returns the peer block after commit(): u8 [bytes], a whole device allocation; absent if peers read nothing.
  Tensor peer_block() const;
  /// Returns the memory of the `i`-th kept tensor of a planned pass after commit(), for use between passes: u8 [bytes].
  Tensor kept(const std::string& pass, size_t i) const;
  /// Returns the transient memory of the private block as one u8 tensor, for use outside of passes (loading, saving).
  Tensor scratch() const;
  /// Returns the transient memory of the peer block as one u8 tensor (for the warm-up of reductions); it may be empty.
  Tensor peer_scratch() const;

  /// Returns the number of takes of all planned passes, which grows with the number of kernels of their graphs.
  int64_t planned_takes() const;

 private:
  struct Take {
    Owner owner;
    std::string name;
    int64_t bytes = 0;
    int64_t begin = 0, end = -1;      // event numbers; end -1: not given back yet
    int64_t offset = 0;
    bool kept = false;                // take_kept(): place_kept_takes() sets the offset
    Readers readers = Readers::own_rank;
  };
  // One of the two allocations: persistent tensors, then transient ones.
  struct Region {
    int64_t persistent_bytes = 0;
    char* base = nullptr;             // fictitious until commit()
    void* allocation = nullptr;
  };
  struct Pass {
    std::vector<Take> takes;          // in the order in which they were taken
    std::vector<PhaseUse> phases;
    int64_t events = 0;
    int64_t bytes = 0;                // planned extent
    int64_t host_take_bytes = 0;
    int64_t peak_live = 0;
    MemoryUse peak_use;
  };
  Region& region(Readers readers) { return readers == Readers::peers ? peer_ : private_; }
  /// Returns the address of a transient offset: in the peer block below peer_transient_bytes_, else in the private one.
  char* transient_address(int64_t offset) const;
  /// Assigns offsets, as low as possible, to takes that peers read.
  void place_peer_takes(Pass& pass) const;
  /// Assigns offsets from the start of the private block to kept takes.
  void place_kept_takes(Pass& pass) const;
  /// Copies the offsets of `larger` to `pass` if both have the same takes, none larger in `pass`; else returns false.
  static bool adopt_offsets(const Pass& larger, Pass& pass);
  Tensor take(Take take, DType dtype, const Shape& shape);
  /// Assigns offsets to the other takes of `pass`. All placements within `enough` bytes count as equally good.
  void place(Pass& pass, int64_t enough) const;
  int64_t place_in_order(const Pass& pass, const std::vector<size_t>& order, int64_t top, std::vector<int64_t>& offsets) const;
  void measure(Pass& pass) const;

  Device& device_;
  std::map<std::string, Pass> passes_;
  Pass* current_ = nullptr;
  bool committed_ = false;
  size_t cursor_ = 0;                        // next take of the replay
  MemoryUse live_, peak_since_mark_;         // transient bytes, while recording
  int64_t peak_without_communication_ = 0;
  std::map<const void*, size_t> held_;       // address -> index in current_->takes
  std::vector<std::pair<PlanEntry, int64_t>> persistents_;  // with their offsets
  int64_t transient_bytes_ = 0;              // of both blocks
  int64_t peer_transient_bytes_ = 0;         // of the peer block
  int64_t host_persistent_bytes_ = 0, host_transient_bytes_ = 0;
  std::vector<PlanEntry> host_stack_, max_in_host_;  // takes in use now; those at the peak
  int64_t host_top_ = 0;                     // bytes of host_stack_
  int64_t expected_persistent_bytes_ = -1;   // persistent bytes of the blueprint; -1: no blueprint
  Region private_, peer_;
  char* host_base_ = nullptr;
};

}  // namespace blipft
