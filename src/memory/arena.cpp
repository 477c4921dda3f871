// The arena records takes and gives, and replays them. arena_placement.cpp computes the offsets.
#include "blipft/arena.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <set>
#include <utility>

#include "base/memory_text.h"
#include "memory/arena_alignment.h"
#include "ops/quietly.h"

namespace blipft {

namespace {
// Fictitious addresses start here: they are never null and never dereferenced.
char* const kFictitiousBase = reinterpret_cast<char*>(int64_t{1} << 44);
char* const kFictitiousPeerBase = reinterpret_cast<char*>(int64_t{1} << 45);
char* const kFictitiousHostBase = reinterpret_cast<char*>(int64_t{1} << 46);
constexpr int64_t kFictitiousTransients = int64_t{1} << 42;  // offset from either base
}  // namespace

const char* owner_name(Owner owner) {
  static const char* const names[kOwners] = {"parameters", "gradients", "optimizer", "activations",
                                             "communication", "workspace", "data", "cache"};
  return names[static_cast<size_t>(owner)];
}

int64_t MemoryUse::total() const {
  int64_t sum = 0;
  for (int64_t bytes : by_owner) sum += bytes;
  return sum;
}

Arena::Arena(Device& device)
    : device_(device), private_{.base = kFictitiousBase}, peer_{.base = kFictitiousPeerBase},
      host_base_(kFictitiousHostBase) {}

Arena::Arena(Device& device, const Arena& blueprint) : Arena(device) {
  passes_ = blueprint.passes_;
  transient_bytes_ = blueprint.transient_bytes_;
  peer_transient_bytes_ = blueprint.peer_transient_bytes_;
  host_transient_bytes_ = blueprint.host_transient_bytes_;
  max_in_host_ = blueprint.max_in_host_;
  expected_persistent_bytes_ = blueprint.persistent_bytes();
}

Arena::~Arena() {
  for (const Region* region : {&private_, &peer_})
    if (region->allocation) quietly([&] { device_.free(region->allocation); });
  if (committed_ && host_bytes() > 0) quietly([&] { device_.free_host(host_base_); });
}

Tensor Arena::persistent(Owner owner, std::string_view name, DType dtype, const Shape& shape, MemorySpace space, Readers readers) {
  BLIPFT_CHECK(!committed_, "persistent memory must be declared before commit(): ", name);
  const int64_t bytes = shape.numel() * dtype_size(dtype);
  int64_t& sum = space == MemorySpace::host ? host_persistent_bytes_ : region(readers).persistent_bytes;
  persistents_.push_back({{owner, std::string(name), bytes, space}, sum});
  const Tensor tensor{(space == MemorySpace::host ? host_base_ : region(readers).base) + sum, dtype, shape};
  sum += arena_aligned(bytes);
  return tensor;
}

Tensor Arena::resolve(const Tensor& planned) const {
  if (!planned) return planned;
  struct Range {
    const char* fictitious;
    int64_t bytes;
    char* real;
  };
  for (const Range& range : {Range{kFictitiousHostBase, host_persistent_bytes_, host_base_},
                             Range{kFictitiousBase, private_.persistent_bytes, private_.base},
                             Range{kFictitiousPeerBase, peer_.persistent_bytes, peer_.base}}) {
    const int64_t offset = static_cast<char*>(planned.data) - range.fictitious;
    if (offset >= 0 && offset < range.bytes) return {range.real + offset, planned.dtype, planned.shape};
  }
  return planned;
}

void Arena::begin_pass(const std::string& name) {
  BLIPFT_CHECK(!current_, "a pass is already open");
  if (committed_) {
    auto found = passes_.find(name);
    BLIPFT_CHECK(found != passes_.end(), "pass ", name, " was not planned");
    current_ = &found->second;
  } else {
    current_ = &(passes_[name] = Pass{});
    live_ = peak_since_mark_ = {};
    peak_without_communication_ = 0;
  }
  cursor_ = 0;
  held_.clear();
}

void Arena::end_pass() {
  BLIPFT_CHECK(current_, "no pass is open");
  BLIPFT_CHECK(held_.empty(), "pass ends with ", held_.size(), " tensors not given back, the first is ",
               current_->takes[held_.begin()->second].name);
  BLIPFT_CHECK(host_stack_.empty(), "pass ends with ", host_stack_.size(), " tensors in the host not given back");
  BLIPFT_CHECK(cursor_ == current_->takes.size(), "pass took ", cursor_, " tensors, planned were ",
               current_->takes.size());
  current_ = nullptr;
}

Tensor Arena::take(Owner owner, std::string_view name, DType dtype, const Shape& shape, Readers readers) {
  Take wanted{owner, std::string(name)};
  wanted.readers = readers;
  return take(std::move(wanted), dtype, shape);
}

Tensor Arena::take_kept(Owner owner, std::string_view name, DType dtype, const Shape& shape) {
  Take kept{owner, std::string(name)};
  kept.kept = true;
  BLIPFT_CHECK(!current_ || committed_ || cursor_ == 0 || (current_->takes.back().kept && current_->takes.back().end < 0),
               "tensors that a pass keeps are taken before all others: ", name);
  return take(std::move(kept), dtype, shape);
}

Tensor Arena::take(Take wanted, DType dtype, const Shape& shape) {
  const std::string name = wanted.name;
  BLIPFT_CHECK(current_, "take outside of a pass: ", name);
  const int64_t bytes = arena_aligned(shape.numel() * dtype_size(dtype));
  Pass& pass = *current_;
  if (!committed_) {
    // While recording, every take gets a unique address, by which give() finds it.
    const Owner owner = wanted.owner;
    wanted.bytes = bytes, wanted.begin = pass.events++;
    pass.takes.push_back(std::move(wanted));
    live_.by_owner[static_cast<size_t>(owner)] += bytes;
    if (live_.total() > peak_since_mark_.total()) peak_since_mark_ = live_;
    peak_without_communication_ = std::max(peak_without_communication_, live_.total() - live_.of(Owner::communication));
    char* address = kFictitiousBase + kFictitiousTransients + static_cast<int64_t>(cursor_) * (int64_t{1} << 24);
    held_[address] = cursor_++;
    return {address, dtype, shape};
  }
  BLIPFT_CHECK(cursor_ < pass.takes.size(), "pass takes more than planned: ", name);
  const Take& take = pass.takes[cursor_];
  BLIPFT_CHECK(take.bytes == bytes && take.name == name, "pass departs from its plan at take ", cursor_, ": ", name,
               " of ", bytes, " bytes, planned was ", take.name, " of ", take.bytes);
  // The number of takes and gives before this one, counted as while recording. If a give moves, tensors may overlap.
  const int64_t event = 2 * static_cast<int64_t>(cursor_) - static_cast<int64_t>(held_.size());
  BLIPFT_CHECK(take.begin == event, "pass departs from its plan: ", name, " is taken at event ", event,
               ", planned was ", take.begin, "; a tensor was given back earlier or later than planned");
  char* address = transient_address(take.offset);
  const bool inserted = held_.emplace(address, cursor_++).second;
  BLIPFT_CHECK(inserted, "the plan gives ", name, " a place that is still in use");
  return {address, dtype, shape};
}

char* Arena::transient_address(int64_t offset) const {
  if (offset < peer_transient_bytes_) return peer_.base + peer_.persistent_bytes + offset;
  return private_.base + private_.persistent_bytes + offset - peer_transient_bytes_;
}

void Arena::give(const Tensor& tensor) {
  if (!tensor) return;
  auto found = held_.find(tensor.data);
  BLIPFT_CHECK(found != held_.end(), "a tensor ", tensor.shape.str(), " is given back that was not taken");
  if (!committed_) {
    Take& take = current_->takes[found->second];
    take.end = current_->events++;
    live_.by_owner[static_cast<size_t>(take.owner)] -= take.bytes;
  }
  held_.erase(found);
}

// Host tensors form a stack, so that addresses follow from the order of calls.
Tensor Arena::take_in_host(Owner owner, std::string_view name, DType dtype, const Shape& shape) {
  BLIPFT_CHECK(current_, "take outside of a pass: ", name);
  const int64_t bytes = arena_aligned(shape.numel() * dtype_size(dtype));
  char* base = host_base_ + (committed_ ? host_persistent_bytes_ : kFictitiousTransients);
  const Tensor tensor{base + host_top_, dtype, shape};
  host_stack_.push_back({owner, std::string(name), bytes, MemorySpace::host});
  host_top_ += bytes;
  if (committed_) {
    BLIPFT_CHECK(host_top_ <= host_transient_bytes_, "pass takes more host memory than planned: ", name);
    return tensor;
  }
  current_->host_take_bytes += bytes;
  if (host_top_ <= host_transient_bytes_) return tensor;
  host_transient_bytes_ = host_top_;
  max_in_host_ = host_stack_;
  return tensor;
}

void Arena::give_in_host(const Tensor& tensor) {
  BLIPFT_CHECK(!host_stack_.empty(), "a tensor ", tensor.shape.str(), " is given back that was not taken");
  const int64_t at = host_top_ - host_stack_.back().bytes;
  const char* base = host_base_ + (committed_ ? host_persistent_bytes_ : kFictitiousTransients);
  BLIPFT_CHECK(tensor.data == base + at, "a tensor ", tensor.shape.str(), " is given back before ",
               host_stack_.back().name, ", which was taken after it");
  host_stack_.pop_back();
  host_top_ = at;
}

void Arena::mark(const std::string& phase) {
  if (!current_ || committed_) return;
  PhaseUse use{phase, live_, peak_since_mark_};
  for (const auto& [entry, offset] : persistents_) {
    if (entry.space == MemorySpace::host) continue;
    use.now.by_owner[static_cast<size_t>(entry.owner)] += entry.bytes;
    use.peak.by_owner[static_cast<size_t>(entry.owner)] += entry.bytes;
  }
  current_->phases.push_back(use);
  peak_since_mark_ = live_;
}

int64_t Arena::take_peak_without_communication() {
  const int64_t now = live_.total() - live_.of(Owner::communication);
  return std::max(now, std::exchange(peak_without_communication_, now));
}

int64_t Arena::peak_transient(const std::string& name) const {
  auto found = passes_.find(name);
  BLIPFT_CHECK(found != passes_.end(), "no pass ", name);
  Pass pass = found->second;
  measure(pass);
  return pass.peak_live;
}

int64_t Arena::bytes_of_takes(const std::string& name, Owner owner) const {
  auto found = passes_.find(name);
  BLIPFT_CHECK(found != passes_.end(), "no pass ", name);
  int64_t sum = 0;
  for (const Take& take : found->second.takes)
    if (take.owner == owner) sum += take.bytes;
  return sum;
}

int64_t Arena::bytes_of_host_takes(const std::string& name) const {
  auto found = passes_.find(name);
  BLIPFT_CHECK(found != passes_.end(), "no pass ", name);
  return found->second.host_take_bytes;
}

int64_t Arena::peak_live_bytes() const {
  int64_t maximum = 0;
  for (const auto& [name, pass] : passes_) maximum = std::max(maximum, peak_transient(name));
  return persistent_bytes() + maximum;
}

void Arena::commit() {
  BLIPFT_CHECK(!committed_, "commit() is called once");
  BLIPFT_CHECK(expected_persistent_bytes_ < 0 || expected_persistent_bytes_ == persistent_bytes(), "the run declares ",
               persistent_bytes(), " persistent bytes, its plan ", expected_persistent_bytes_);
  const MemoryInfo memory = device_.memory();
  if (device_.kind() == DeviceKind::cuda && total_bytes() > memory.free) {
    std::string largest;
    std::map<std::string, int64_t> owners;
    for (const PlanEntry& entry : peak_entries())
      if (entry.space == MemorySpace::device) owners[owner_name(entry.owner)] += entry.bytes;
    std::vector<std::pair<int64_t, std::string>> sorted;
    for (const auto& [owner, bytes] : owners) sorted.push_back({bytes, owner});
    std::sort(sorted.rbegin(), sorted.rend());
    for (size_t i = 0; i < sorted.size() && i < 3; ++i)
      largest += concat(i ? ", " : "", sorted[i].second, " ", memory_text(sorted[i].first));
    throw UserError(concat("the run needs ", memory_text(total_bytes()), " of GPU memory and ",
                           memory_text(memory.free), " of ", memory_text(memory.total), " is free on ", device_.name(),
                           ". Largest: ", largest,
                           ". What helps: a smaller train.batch_size with more train.accumulate_grad_batches, "
                           "train.act_ckpt=full, parallel.offload=[optimizer], parallel.strategy=fsdp on more GPUs, or "
                           "train.precision=bf16-true. `blipft --plan` prints the whole table, with --fit what fits."));
  }
  const int64_t peer_bytes = peer_.persistent_bytes + peer_transient_bytes_;
  const auto allocate = [&](Region& region, int64_t bytes) {
    region.allocation = device_.allocate(bytes);
    region.base = static_cast<char*>(region.allocation);
  };
  if (peer_bytes > 0) allocate(peer_, peer_bytes);
  allocate(private_, std::max<int64_t>(total_bytes() - peer_bytes, kArenaAlignment));
  if (host_bytes() > 0) host_base_ = static_cast<char*>(device_.allocate_host(host_bytes()));
  committed_ = true;
}

const std::vector<Arena::PhaseUse>& Arena::phases(const std::string& pass) const {
  auto found = passes_.find(pass);
  BLIPFT_CHECK(found != passes_.end(), "no pass ", pass);
  return found->second.phases;
}

MemoryUse Arena::persistent_use() const {
  MemoryUse use;
  for (const auto& [entry, offset] : persistents_)
    if (entry.space == MemorySpace::device) use.by_owner[static_cast<size_t>(entry.owner)] += entry.bytes;
  return use;
}

MemoryUse Arena::peak(const std::string& pass) const {
  auto found = passes_.find(pass);
  BLIPFT_CHECK(found != passes_.end(), "no pass ", pass);
  MemoryUse use = found->second.peak_use;
  for (const auto& [entry, offset] : persistents_)
    if (entry.space == MemorySpace::device) use.by_owner[static_cast<size_t>(entry.owner)] += entry.bytes;
  return use;
}

int64_t Arena::gap_bytes(const std::string& pass) const {
  auto found = passes_.find(pass);
  BLIPFT_CHECK(found != passes_.end(), "no pass ", pass);
  return found->second.bytes - found->second.peak_live;
}

std::vector<std::string> Arena::passes() const {
  std::vector<std::string> names;
  for (const auto& [name, pass] : passes_) names.push_back(name);
  return names;
}

std::vector<PlanEntry> Arena::peak_entries() const {
  const Pass* largest = nullptr;
  for (const auto& [name, pass] : passes_)  // passes that adopted the offsets of a larger one have the same size
    if (!largest || std::pair(pass.bytes, pass.peak_live) > std::pair(largest->bytes, largest->peak_live))
      largest = &pass;
  std::map<std::pair<int, std::string>, int64_t> sums, in_host;
  for (const auto& [entry, offset] : persistents_)
    (entry.space == MemorySpace::host ? in_host : sums)[{static_cast<int>(entry.owner), entry.name}] += entry.bytes;
  for (const PlanEntry& entry : max_in_host_) in_host[{static_cast<int>(entry.owner), entry.name}] += entry.bytes;
  if (largest) {
    // The peak is the first event at which the sum of live bytes is largest.
    std::vector<int64_t> change(static_cast<size_t>(largest->events) + 1, 0);
    for (const Take& take : largest->takes) {
      change[static_cast<size_t>(take.begin)] += take.bytes;
      change[static_cast<size_t>(take.end)] -= take.bytes;
    }
    int64_t live = 0, peak_event = 0, peak = -1;
    for (size_t event = 0; event < change.size(); ++event) {
      live += change[event];
      if (live > peak) peak = live, peak_event = static_cast<int64_t>(event);
    }
    for (const Take& take : largest->takes)
      if (take.begin <= peak_event && take.end > peak_event)
        sums[{static_cast<int>(take.owner), take.name}] += take.bytes;
    if (largest->bytes > largest->peak_live)
      sums[{static_cast<int>(Owner::workspace), "gaps between transient tensors"}] +=
          largest->bytes - largest->peak_live;
  }
  if (const int64_t more = transient_bytes_ - (largest ? largest->bytes : 0); more > 0)
    sums[{static_cast<int>(Owner::workspace), "room to load and save weights, more than a step takes"}] += more;
  std::vector<PlanEntry> entries;
  for (const auto& [key, bytes] : sums) entries.push_back({static_cast<Owner>(key.first), key.second, bytes});
  for (const auto& [key, bytes] : in_host)
    entries.push_back({static_cast<Owner>(key.first), key.second, bytes, MemorySpace::host});
  std::stable_sort(entries.begin(), entries.end(),
                   [](const PlanEntry& a, const PlanEntry& b) { return a.bytes > b.bytes; });
  return entries;
}

Tensor Arena::peer_block() const {
  BLIPFT_CHECK(committed_, "the block exists after commit()");
  if (!peer_.allocation) return {};
  return {peer_.allocation, DType::u8, {peer_.persistent_bytes + peer_transient_bytes_}};
}

int64_t Arena::planned_takes() const {
  int64_t takes = 0;
  for (const auto& [name, pass] : passes_) takes += static_cast<int64_t>(pass.takes.size());
  return takes;
}

Tensor Arena::kept(const std::string& name, size_t i) const {
  const auto found = passes_.find(name);
  BLIPFT_CHECK(committed_ && found != passes_.end(), "kept memory exists after commit(), of a planned pass: ", name);
  const Take& take = found->second.takes.at(i);
  BLIPFT_CHECK(take.kept, "pass ", name, " does not keep ", take.name);
  return {transient_address(take.offset), DType::u8, {take.bytes}};
}

Tensor Arena::scratch() const {
  BLIPFT_CHECK(committed_ && !current_, "scratch memory exists after commit() and outside of a pass");
  return {private_.base + private_.persistent_bytes, DType::u8, {transient_bytes_ - peer_transient_bytes_}};
}

Tensor Arena::peer_scratch() const {
  BLIPFT_CHECK(committed_ && !current_, "scratch memory exists after commit() and outside of a pass");
  return {peer_.base + peer_.persistent_bytes, DType::u8, {peer_transient_bytes_}};
}

}  // namespace blipft
