// Arena: all device memory of a rank, and what it keeps in page-locked host memory, planned before it is taken.
//
// Two kinds of memory. Persistent tensors (parameters, gradients, optimizer state, batches) live as long as the run.
// Transient ones (activations, gathered units, scratch) are taken and given back in the course of a step. The step is
// first run dry, with operations that compute nothing: the arena notes every take and give, and plan() finds a place
// for each. The real step then replays exactly the same takes, and gets those places: nothing is searched or allocated.
//
// A pass is one recorded program (one step of one text shape). All passes share the same transient memory.
//
// Device memory is two allocations. The peer block holds the tensors that other ranks of this machine read directly
// (weights that are gathered, gradients that are summed), and is the only one that they map; the private block holds the
// rest. Transient tensors that nobody else reads may lie in either, but never across both.
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

/// Who reads a tensor: its own rank alone, or also the other ranks of the machine, in its memory.
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
  std::string name;             ///< takes of one name are summed
  int64_t bytes = 0;            ///< at the moment of the peak
  Place place = Place::device;
};

class Arena {
 public:
  /// Memory comes from `device` in commit(); until then addresses are fictitious.
  explicit Arena(Device& device);
  /// An arena on another device that follows the plan of `blueprint`: the same persistent tensors must be declared in
  /// the same order before commit().
  Arena(Device& device, const Arena& blueprint);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// A tensor for the whole run. Before commit() its address is fictitious: ask resolve() for the real one afterwards.
  /// Host memory has no readers but its rank.
  Tensor persistent(Owner owner, std::string_view name, DType dtype, const Shape& shape, Place place = Place::device,
                    Readers readers = Readers::own_rank);
  /// The real tensor behind one that persistent() returned before commit(); identity for later ones.
  Tensor resolve(const Tensor& planned) const;

  /// Starts recording (before commit) or replaying (after it) the pass `name`.
  void begin_pass(const std::string& name);
  void end_pass();
  /// While recording: the pass `name`, if there is one, is not part of the plan.
  void forget_pass(const std::string& name) { passes_.erase(name); }
  /// A transient tensor; must be given back before the pass ends. 256-byte aligned.
  Tensor take(Owner owner, std::string_view name, DType dtype, const Shape& shape, Readers readers = Readers::own_rank);
  void give(const Tensor& tensor);
  /// A transient tensor that keeps its contents from pass to pass: where several passes take the same ones before anything
  /// else, in the same order, and give them back last, they lie at the same places in each. Passes that do not take them
  /// write over them.
  Tensor take_kept(Owner owner, std::string_view name, DType dtype, const Shape& shape);
  /// The same in page-locked host memory. What was taken last is given back first.
  Tensor take_in_host(Owner owner, std::string_view name, DType dtype, const Shape& shape);
  void give_in_host(const Tensor& tensor);
  /// Names the current moment of the pass (before_forward, ...): memory in use there is part of the plan.
  void mark(const std::string& phase);

  /// While recording: the most transient bytes of all owners but communication since the last call.
  int64_t take_peak_beside_communication();
  /// Live bytes at the peak of a recorded pass, without gaps.
  int64_t peak_transient(const std::string& pass) const;
  /// Bytes of all that `owner` takes in the course of a recorded pass.
  int64_t taken_bytes(const std::string& pass, Owner owner) const;
  /// The same of what it takes in the host.
  int64_t taken_in_host_bytes(const std::string& pass) const;

  /// Finds a place for every take of every recorded pass. scratch() has at least `scratch_bytes`.
  void plan(int64_t scratch_bytes = 0);
  /// Allocates both blocks. Throws UserError with the three largest owners when it cannot.
  void commit();

  int64_t persistent_bytes() const { return private_.persistent_bytes + peer_.persistent_bytes; }
  int64_t transient_bytes() const { return transient_bytes_; }   ///< of the largest pass, gaps included
  int64_t total_bytes() const { return persistent_bytes() + transient_bytes_; }
  /// Page-locked host memory, in none of the others.
  int64_t host_bytes() const { return host_persistent_bytes_ + host_transient_bytes_; }
  /// Live bytes at the peak of the largest recorded pass, without gaps: no plan takes less.
  int64_t peak_live_bytes() const;
  /// Use at the named phases of pass `name`: the state at the mark,
  /// and the moment of the largest sum since the mark before.
  struct PhaseUse {
    std::string phase;
    MemoryUse now;
    MemoryUse peak;
  };
  const std::vector<PhaseUse>& phases(const std::string& pass) const;
  /// What the owners hold between passes, on the device.
  MemoryUse persistent_use() const;
  /// The owners at the moment at which a planned pass holds most; and the bytes between its tensors that nobody holds.
  MemoryUse peak(const std::string& pass) const;
  int64_t gap_bytes(const std::string& pass) const;
  std::vector<std::string> passes() const;
  /// The table: what is alive at the peak, largest first; what lies in the host with it.
  std::vector<PlanEntry> peak_entries() const;

  /// The peer block, after commit(): u8 [bytes], at the start of a device allocation; absent if peers read nothing.
  Tensor peer_block() const;
  /// Memory of a kept tensor of a planned pass, the `i`-th it takes, for use between passes: u8 [bytes], after commit().
  Tensor kept(const std::string& pass, size_t i) const;
  /// The transient memory of the private block as one u8 tensor, for use outside of any pass (loading, saving).
  Tensor scratch() const;
  /// The same of the peer block (for a first call of each reduction); it may be empty.
  Tensor peer_scratch() const;

  /// How many tensors all planned passes take: grows with the kernels of their graphs.
  int64_t planned_takes() const;

 private:
  struct Take {
    Owner owner;
    std::string name;
    int64_t bytes = 0;
    int64_t begin = 0, end = -1;      // event numbers; end -1: still held
    int64_t offset = 0;
    bool kept = false;                // its offset is given, not found
    Readers readers = Readers::own_rank;
  };
  // One of the two allocations: persistent tensors, then transient ones.
  struct Region {
    int64_t persistent_bytes = 0;
    char* base = nullptr;             // fictitious until commit()
    void* allocation = nullptr;
  };
  struct Pass {
    std::vector<Take> takes;          // in the order they were taken
    std::vector<PhaseUse> phases;
    int64_t events = 0;
    int64_t bytes = 0;                // planned extent
    int64_t taken_in_host = 0;
    int64_t peak_live = 0;
    MemoryUse peak_use;
  };
  Region& region(Readers readers) { return readers == Readers::peers ? peer_ : private_; }
  /// Address of a transient offset: offsets below peer_transient_bytes_ lie in the peer block, the others in the private one.
  char* transient_address(int64_t offset) const;
  /// Gives takes that peers read their offsets, as low as possible.
  void place_peer_takes(Pass& pass) const;
  /// Gives kept takes their offsets, from the start of the private block.
  void place_kept_takes(Pass& pass) const;
  /// Gives `pass` the places of `larger` if it takes and gives alike, nothing larger; else false.
  static bool adopt_places(const Pass& larger, Pass& pass);
  Tensor take(Take take, DType dtype, const Shape& shape);
  /// Any placement within `enough` bytes is as good as another.
  void place(Pass& pass, int64_t enough) const;
  int64_t place_in_order(const Pass& pass, const std::vector<size_t>& order, int64_t top, std::vector<int64_t>& offsets) const;
  void measure(Pass& pass) const;

  Device& device_;
  std::map<std::string, Pass> passes_;
  Pass* current_ = nullptr;
  bool committed_ = false;
  size_t cursor_ = 0;                        // next take of the replay
  MemoryUse live_, peak_since_mark_;         // transient, while recording
  int64_t peak_beside_communication_ = 0;
  std::map<const void*, size_t> held_;       // address -> index into current_->takes
  std::vector<std::pair<PlanEntry, int64_t>> persistents_;  // with offset
  int64_t transient_bytes_ = 0;              // of both blocks
  int64_t peer_transient_bytes_ = 0;         // of the peer block
  int64_t host_persistent_bytes_ = 0, host_transient_bytes_ = 0;
  std::vector<PlanEntry> host_stack_, most_in_host_;  // taken now; at the moment of the most
  int64_t host_top_ = 0;                     // bytes of host_stack_
  int64_t expected_persistent_bytes_ = -1;   // of the blueprint
  Region private_, peer_;
  char* host_base_ = nullptr;
};

}  // namespace blipft
