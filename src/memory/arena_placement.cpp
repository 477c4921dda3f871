// Computes the offsets of all takes in the arena's passes.
#include <algorithm>
#include <functional>
#include <limits>

#include "blipft/arena.h"
#include "memory/arena_alignment.h"

namespace blipft {

// Places takes greedily in several orders and keeps the result with the smallest extent. Each take gets the lowest
// offset at which it overlaps no take that is live at the same time; takes with separate lifetimes may share memory.
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
  // Communication grows from the top and everything else from the bottom, so that long-lived gathers do not split the
  // memory of activations.
  for (int64_t percent : {100, 101, 102, 104, 107})
    for (const auto& before : earlier) attempt(before, arena_aligned(pass.peak_live / 100 * percent));
  for (size_t i = 0; i < best.size(); ++i) pass.takes[i].offset = best[i];
}

// Peer takes of a pass are placed first, from offset 0. Other takes may then use the memory between them.
void Arena::place_peer_takes(Pass& pass) const {
  Pass peers;
  peers.events = pass.events;
  std::vector<size_t> indices;
  for (size_t i = 0; i < pass.takes.size(); ++i) {
    if (pass.takes[i].readers != Readers::peers) continue;
    indices.push_back(i);
    peers.takes.push_back(pass.takes[i]);
    peers.takes.back().readers = Readers::own_rank;
  }
  measure(peers);
  place(peers, 0);
  for (size_t i = 0; i < indices.size(); ++i) pass.takes[indices[i]].offset = peers.takes[i].offset;
}

// Kept takes are the first of their pass: they get consecutive offsets from the start of the private block.
void Arena::place_kept_takes(Pass& pass) const {
  int64_t offset = peer_transient_bytes_;
  for (Take& take : pass.takes) {
    if (!take.kept) return;
    take.offset = offset;
    offset += take.bytes;
  }
}

// With `top`, communication goes to the highest free offset below it, if there is one. Kept takes and takes that peers
// read keep their offsets.
int64_t Arena::place_in_order(const Pass& pass, const std::vector<size_t>& order, int64_t top,
                              std::vector<int64_t>& offsets) const {
  offsets.assign(pass.takes.size(), 0);
  std::vector<size_t> placed;  // sorted by offset
  placed.reserve(order.size());
  int64_t bytes = peer_transient_bytes_;
  const auto given = [](const Take& take) { return take.kept || take.readers == Readers::peers; };
  for (size_t i = 0; i < pass.takes.size(); ++i) {
    if (!given(pass.takes[i])) continue;
    offsets[i] = pass.takes[i].offset;
    bytes = std::max(bytes, offsets[i] + pass.takes[i].bytes);
    placed.push_back(i);
  }
  std::stable_sort(placed.begin(), placed.end(), [&](size_t a, size_t b) { return offsets[a] < offsets[b]; });
  for (size_t index : order) {
    const Take& take = pass.takes[index];
    if (given(take)) continue;
    const bool from_top = top > 0 && take.owner == Owner::communication;
    int64_t end = 0, lowest = -1, highest = -1;  // end of the takes below; lowest and highest free offsets
    const auto see = [&](int64_t begin, int64_t limit) {  // [begin, limit) is free
      if (limit - begin < take.bytes) return;
      if (lowest < 0) lowest = begin;
      if (std::min(limit, top) - begin >= take.bytes) highest = std::min(limit, top) - take.bytes;
    };
    const auto see_gap = [&](int64_t limit) {    // [end, limit) is free; the blocks meet at peer_transient_bytes_
      see(end, end < peer_transient_bytes_ ? std::min(limit, peer_transient_bytes_) : limit);
      if (end < peer_transient_bytes_ && limit > peer_transient_bytes_) see(peer_transient_bytes_, limit);
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

bool Arena::adopt_offsets(const Pass& larger, Pass& pass) {
  const auto fits = [](const Take& take, const Take& other) {
    return take.begin == other.begin && take.end == other.end && take.kept == other.kept && take.readers == other.readers &&
           (take.kept ? take.bytes == other.bytes : take.bytes <= other.bytes);
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

void Arena::plan(int64_t scratch_bytes) {
  std::vector<Pass*> largest_first;
  peer_transient_bytes_ = 0;
  int64_t peer_bytes = 0;
  for (auto& [name, pass] : passes_) {
    measure(pass);
    place_peer_takes(pass);
    for (const Take& take : pass.takes)
      if (take.readers == Readers::peers) peer_bytes = std::max(peer_bytes, take.offset + take.bytes);
    largest_first.push_back(&pass);
  }
  peer_transient_bytes_ = peer_bytes;
  transient_bytes_ = peer_transient_bytes_ + arena_aligned(scratch_bytes);
  for (Pass* pass : largest_first) place_kept_takes(*pass);
  // The largest pass determines the size; the other passes should fit into it.
  std::stable_sort(largest_first.begin(), largest_first.end(),
                   [](const Pass* a, const Pass* b) { return a->peak_live > b->peak_live; });
  std::vector<const Pass*> placed;
  for (Pass* pass : largest_first) {
    const auto serves = [&](const Pass* larger) { return adopt_offsets(*larger, *pass); };
    if (std::none_of(placed.begin(), placed.end(), serves)) {
      place(*pass, transient_bytes_);
      placed.push_back(pass);
    }
    transient_bytes_ = std::max(transient_bytes_, pass->bytes);
  }
}

}  // namespace blipft
