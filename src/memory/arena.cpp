// The arena: recording of takes and gives, placement, replay.
#include "blipft/arena.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <set>
#include <utility>

#include "base/memory_text.h"
#include "ops/quietly.h"

namespace blipft {

namespace {
constexpr int64_t kAlignment = 256;
// Planned addresses start here: never null, never dereferenced.
char* const kFictitiousBase = reinterpret_cast<char*>(int64_t{1} << 44);
char* const kFictitiousHostBase = reinterpret_cast<char*>(int64_t{1} << 46);
constexpr int64_t kFictitiousTransients = int64_t{1} << 42;  // behind either base

int64_t aligned(int64_t bytes) {
  return std::max<int64_t>(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
}
}  // namespace

const char* owner_name(Owner owner) {
  static const char* const names[kOwners] = {"parameters", "gradients", "optimizer", "activations",
                                             "communication", "workspace", "data"};
  return names[static_cast<size_t>(owner)];
}

int64_t MemoryUse::total() const {
  int64_t sum = 0;
  for (int64_t bytes : by_owner) sum += bytes;
  return sum;
}

Arena::Arena(Device& device) : device_(device), base_(kFictitiousBase), host_base_(kFictitiousHostBase) {}

Arena::Arena(Device& device, const Arena& blueprint)
    : device_(device), passes_(blueprint.passes_), transient_bytes_(blueprint.transient_bytes_),
      host_transient_bytes_(blueprint.host_transient_bytes_), most_in_host_(blueprint.most_in_host_),
      expected_persistent_bytes_(blueprint.persistent_bytes_), base_(kFictitiousBase),
      host_base_(kFictitiousHostBase) {}

Arena::~Arena() {
  if (block_) quietly([&] { device_.free(block_); });
  if (committed_ && host_bytes() > 0) quietly([&] { device_.free_host(host_base_); });
}

Tensor Arena::persistent(Owner owner, std::string_view name, DType dtype, const Shape& shape, Place place) {
  BLIPFT_CHECK(!committed_, "persistent memory must be declared before commit(): ", name);
  const int64_t bytes = shape.numel() * dtype_size(dtype);
  int64_t& sum = place == Place::host ? host_persistent_bytes_ : persistent_bytes_;
  persistents_.push_back({{owner, std::string(name), bytes, place}, sum});
  const Tensor tensor{(place == Place::host ? kFictitiousHostBase : kFictitiousBase) + sum, dtype, shape};
  sum += aligned(bytes);
  return tensor;
}

Tensor Arena::resolve(const Tensor& planned) const {
  if (!planned) return planned;
  const int64_t host_offset = static_cast<char*>(planned.data) - kFictitiousHostBase;
  if (host_offset >= 0 && host_offset < host_persistent_bytes_) return {host_base_ + host_offset, planned.dtype, planned.shape};
  const int64_t offset = static_cast<char*>(planned.data) - kFictitiousBase;
  if (offset < 0 || offset >= persistent_bytes_) return planned;
  return {base_ + offset, planned.dtype, planned.shape};
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
    peak_beside_communication_ = 0;
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

Tensor Arena::take(Owner owner, std::string_view name, DType dtype, const Shape& shape) {
  BLIPFT_CHECK(current_, "take outside of a pass: ", name);
  const int64_t bytes = aligned(shape.numel() * dtype_size(dtype));
  Pass& pass = *current_;
  if (!committed_) {
    // While recording, every take gets an address of its own, so that give() can tell them apart.
    Take take{owner, std::string(name), bytes, pass.events++, -1, 0};
    pass.takes.push_back(std::move(take));
    live_.by_owner[static_cast<size_t>(owner)] += bytes;
    if (live_.total() > peak_since_mark_.total()) peak_since_mark_ = live_;
    peak_beside_communication_ = std::max(peak_beside_communication_, live_.total() - live_.of(Owner::communication));
    char* address = kFictitiousBase + kFictitiousTransients + static_cast<int64_t>(cursor_) * (int64_t{1} << 24);
    held_[address] = cursor_++;
    return {address, dtype, shape};
  }
  BLIPFT_CHECK(cursor_ < pass.takes.size(), "pass takes more than planned: ", name);
  const Take& take = pass.takes[cursor_];
  BLIPFT_CHECK(take.bytes == bytes && take.name == name, "pass departs from its plan at take ", cursor_, ": ", name,
               " of ", bytes, " bytes, planned was ", take.name, " of ", take.bytes);
  // Every take and give before this one, counted as while recording. A give at another moment would break the places.
  const int64_t event = 2 * static_cast<int64_t>(cursor_) - static_cast<int64_t>(held_.size());
  BLIPFT_CHECK(take.begin == event, "pass departs from its plan: ", name, " is taken at event ", event,
               ", planned was ", take.begin, "; a tensor was given back earlier or later than planned");
  char* address = base_ + persistent_bytes_ + take.offset;
  const bool inserted = held_.emplace(address, cursor_++).second;
  BLIPFT_CHECK(inserted, "the plan gives ", name, " a place that is still in use");
  return {address, dtype, shape};
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

// A stack: places follow from the order alone.
Tensor Arena::take_in_host(Owner owner, std::string_view name, DType dtype, const Shape& shape) {
  BLIPFT_CHECK(current_, "take outside of a pass: ", name);
  const int64_t bytes = aligned(shape.numel() * dtype_size(dtype));
  char* base = host_base_ + (committed_ ? host_persistent_bytes_ : kFictitiousTransients);
  const Tensor tensor{base + host_top_, dtype, shape};
  host_stack_.push_back({owner, std::string(name), bytes, Place::host});
  host_top_ += bytes;
  if (committed_) {
    BLIPFT_CHECK(host_top_ <= host_transient_bytes_, "pass takes more host memory than planned: ", name);
    return tensor;
  }
  current_->taken_in_host += bytes;
  if (host_top_ <= host_transient_bytes_) return tensor;
  host_transient_bytes_ = host_top_;
  most_in_host_ = host_stack_;
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
    if (entry.place == Place::host) continue;
    use.now.by_owner[static_cast<size_t>(entry.owner)] += entry.bytes;
    use.peak.by_owner[static_cast<size_t>(entry.owner)] += entry.bytes;
  }
  current_->phases.push_back(use);
  peak_since_mark_ = live_;
}

// Greedy placement in several orders, of which the tightest is kept. Each take goes to the lowest offset where no take
// that lives at the same time lies; takes that live at different times share a place.
void Arena::place(Pass& pass, int64_t enough) const {
  std::vector<size_t> order(pass.takes.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto& takes = pass.takes;
  const auto length = [&](size_t i) { return takes[i].end - takes[i].begin; };
  const std::vector<std::function<bool(size_t, size_t)>> earlier = {
      [&](size_t a, size_t b) { return takes[a].bytes > takes[b].bytes; },
      [&](size_t a, size_t b) { return length(a) > length(b); },
      [&](size_t a, size_t b) { return static_cast<double>(length(a)) * static_cast<double>(takes[a].bytes) >
                                       static_cast<double>(length(b)) * static_cast<double>(takes[b].bytes); },
      [&](size_t a, size_t b) { return takes[a].begin < takes[b].begin; }};
  std::vector<int64_t> best;
  pass.bytes = std::numeric_limits<int64_t>::max();
  const auto attempt = [&](const std::function<bool(size_t, size_t)>& before, int64_t top) {
    if (pass.bytes <= std::max(enough, pass.peak_live + pass.peak_live / 200)) return;  // as good as gapless
    std::vector<size_t> sorted = order;
    std::stable_sort(sorted.begin(), sorted.end(), before);
    std::vector<int64_t> offsets;
    const int64_t bytes = place_in_order(pass, sorted, top, offsets);
    if (bytes < pass.bytes) pass.bytes = bytes, best = offsets;
  };
  for (const auto& before : earlier) attempt(before, 0);
  // Communication from the top, everything else from the bottom:
  // gathers that live long do not cut the activations' room.
  for (int64_t percent : {100, 101, 102, 104, 107})
    for (const auto& before : earlier) attempt(before, aligned(pass.peak_live / 100 * percent));
  for (size_t i = 0; i < best.size(); ++i) pass.takes[i].offset = best[i];
}

// With `top`, communication goes to the highest free place below it, if there is one.
int64_t Arena::place_in_order(const Pass& pass, const std::vector<size_t>& order, int64_t top,
                              std::vector<int64_t>& offsets) {
  offsets.assign(pass.takes.size(), 0);
  std::vector<size_t> placed;  // sorted by offset
  placed.reserve(order.size());
  int64_t bytes = 0;
  for (size_t index : order) {
    const Take& take = pass.takes[index];
    const bool from_top = top > 0 && take.owner == Owner::communication;
    int64_t end = 0, lowest = -1, highest = -1;  // end of what lies below; free places found
    const auto see_gap = [&](int64_t limit) {    // [end, limit) is free
      if (limit - end < take.bytes) return;
      if (lowest < 0) lowest = end;
      if (std::min(limit, top) - end >= take.bytes) highest = std::min(limit, top) - take.bytes;
    };
    for (size_t other_index : placed) {
      const Take& other = pass.takes[other_index];
      if (other.begin > take.end || other.end < take.begin) continue;
      see_gap(offsets[other_index]);
      if (!from_top && lowest >= 0) break;
      end = std::max(end, offsets[other_index] + other.bytes);
    }
    see_gap(std::numeric_limits<int64_t>::max());
    const int64_t offset = from_top && highest >= 0 ? highest : lowest;
    offsets[index] = offset;
    bytes = std::max(bytes, offset + take.bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), offset,
                                   [&](int64_t value, size_t i) { return value < offsets[i]; }), index);
  }
  return bytes;
}

bool Arena::adopt_places(const Pass& larger, Pass& pass) {
  const auto fits = [](const Take& take, const Take& other) {
    return take.begin == other.begin && take.end == other.end && take.bytes <= other.bytes;
  };
  if (!std::equal(pass.takes.begin(), pass.takes.end(), larger.takes.begin(), larger.takes.end(), fits)) return false;
  pass.bytes = 0;
  for (size_t i = 0; i < pass.takes.size(); ++i) {
    pass.takes[i].offset = larger.takes[i].offset;
    pass.bytes = std::max(pass.bytes, pass.takes[i].offset + pass.takes[i].bytes);
  }
  return true;
}

void Arena::measure(Pass& pass) const {
  std::vector<int64_t> change(static_cast<size_t>(pass.events) + 1, 0);
  std::vector<const Take*> begins(change.size(), nullptr), ends(change.size(), nullptr);
  for (const Take& take : pass.takes) {
    begins[static_cast<size_t>(take.begin)] = &take;
    ends[static_cast<size_t>(take.end)] = &take;
  }
  MemoryUse use;
  int64_t live = 0;
  pass.peak_live = 0;
  for (size_t event = 0; event < change.size(); ++event) {
    if (const Take* take = begins[event]) {
      use.by_owner[static_cast<size_t>(take->owner)] += take->bytes;
      live += take->bytes;
      if (live > pass.peak_live) {
        pass.peak_live = live;
        pass.peak_use = use;
      }
    }
    if (const Take* take = ends[event]) {
      use.by_owner[static_cast<size_t>(take->owner)] -= take->bytes;
      live -= take->bytes;
    }
  }
}

int64_t Arena::take_peak_beside_communication() {
  const int64_t now = live_.total() - live_.of(Owner::communication);
  return std::max(now, std::exchange(peak_beside_communication_, now));
}

int64_t Arena::peak_transient(const std::string& name) const {
  auto found = passes_.find(name);
  BLIPFT_CHECK(found != passes_.end(), "no pass ", name);
  Pass pass = found->second;
  measure(pass);
  return pass.peak_live;
}

int64_t Arena::taken_bytes(const std::string& name, Owner owner) const {
  auto found = passes_.find(name);
  BLIPFT_CHECK(found != passes_.end(), "no pass ", name);
  int64_t sum = 0;
  for (const Take& take : found->second.takes)
    if (take.owner == owner) sum += take.bytes;
  return sum;
}

int64_t Arena::taken_in_host_bytes(const std::string& name) const {
  auto found = passes_.find(name);
  BLIPFT_CHECK(found != passes_.end(), "no pass ", name);
  return found->second.taken_in_host;
}

int64_t Arena::peak_live_bytes() const {
  int64_t most = 0;
  for (const auto& [name, pass] : passes_) most = std::max(most, peak_transient(name));
  return persistent_bytes_ + most;
}

void Arena::plan(int64_t scratch_bytes) {
  transient_bytes_ = aligned(scratch_bytes);
  std::vector<Pass*> largest_first;
  for (auto& [name, pass] : passes_) {
    measure(pass);
    largest_first.push_back(&pass);
  }
  // The largest pass decides; the others only have to fit into what it takes.
  std::stable_sort(largest_first.begin(), largest_first.end(),
                   [](const Pass* a, const Pass* b) { return a->peak_live > b->peak_live; });
  std::vector<const Pass*> placed;
  for (Pass* pass : largest_first) {
    const auto serves = [&](const Pass* larger) { return adopt_places(*larger, *pass); };
    if (std::none_of(placed.begin(), placed.end(), serves)) {
      place(*pass, transient_bytes_);
      placed.push_back(pass);
    }
    transient_bytes_ = std::max(transient_bytes_, pass->bytes);
  }
}

void Arena::commit() {
  BLIPFT_CHECK(!committed_, "commit() is called once");
  BLIPFT_CHECK(expected_persistent_bytes_ < 0 || expected_persistent_bytes_ == persistent_bytes_, "the run declares ",
               persistent_bytes_, " persistent bytes, its plan ", expected_persistent_bytes_);
  const MemoryInfo memory = device_.memory();
  if (device_.kind() == DeviceKind::cuda && total_bytes() > memory.free) {
    std::string largest;
    std::map<std::string, int64_t> owners;
    for (const PlanEntry& entry : peak_entries())
      if (entry.place == Place::device) owners[owner_name(entry.owner)] += entry.bytes;
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
  block_ = device_.allocate(std::max<int64_t>(total_bytes(), kAlignment));
  base_ = static_cast<char*>(block_);
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
    if (entry.place == Place::device) use.by_owner[static_cast<size_t>(entry.owner)] += entry.bytes;
  return use;
}

MemoryUse Arena::peak(const std::string& pass) const {
  auto found = passes_.find(pass);
  BLIPFT_CHECK(found != passes_.end(), "no pass ", pass);
  MemoryUse use = found->second.peak_use;
  for (const auto& [entry, offset] : persistents_)
    if (entry.place == Place::device) use.by_owner[static_cast<size_t>(entry.owner)] += entry.bytes;
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
  for (const auto& [name, pass] : passes_)  // passes with the places of a larger one take as many bytes
    if (!largest || std::pair(pass.bytes, pass.peak_live) > std::pair(largest->bytes, largest->peak_live))
      largest = &pass;
  std::map<std::pair<int, std::string>, int64_t> sums, in_host;
  for (const auto& [entry, offset] : persistents_)
    (entry.place == Place::host ? in_host : sums)[{static_cast<int>(entry.owner), entry.name}] += entry.bytes;
  for (const PlanEntry& entry : most_in_host_) in_host[{static_cast<int>(entry.owner), entry.name}] += entry.bytes;
  if (largest) {
    // The moment of the peak: the first event at which the live sum reaches it.
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
    entries.push_back({static_cast<Owner>(key.first), key.second, bytes, Place::host});
  std::stable_sort(entries.begin(), entries.end(),
                   [](const PlanEntry& a, const PlanEntry& b) { return a.bytes > b.bytes; });
  return entries;
}

Tensor Arena::block() const {
  BLIPFT_CHECK(committed_, "the block exists after commit()");
  return {block_, DType::u8, {std::max<int64_t>(total_bytes(), kAlignment)}};
}

int64_t Arena::planned_takes() const {
  int64_t takes = 0;
  for (const auto& [name, pass] : passes_) takes += static_cast<int64_t>(pass.takes.size());
  return takes;
}

Tensor Arena::scratch() const {
  BLIPFT_CHECK(committed_ && !current_, "scratch memory exists after commit() and outside of a pass");
  return {base_ + persistent_bytes_, DType::u8, {transient_bytes_}};
}

}  // namespace blipft
