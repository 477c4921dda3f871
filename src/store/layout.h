// Layout: cuts units into sections and shards, and shards into ranges whose states are stored in one way.
#pragma once

#include "blipft/store.h"

namespace blipft {

/// Returns shard `index` of `shards` equal shards of `elements` elements; each shard is a multiple of `grain`.
Shard shard_of(int64_t elements, int64_t grain, int64_t shards, int64_t index);

/// Returns the formats and memory (device or host) of the states of `parameter`.
std::vector<StateSpec> state_specs(const StoreContext& context, const Unit& unit, const Parameter& parameter);

/// Returns the number of elements of which every shard of `unit` is a multiple, a multiple of all blocks of its states.
int64_t shard_grain(const StoreContext& context, const Unit& unit);

/// The sections of a unit, without memory. If all parameters use the compute dtype, the flat buffer is the
/// only section.
struct UnitSections {
  std::vector<ParameterStore::Section> sections;
  bool flat = true;
};
UnitSections cut_sections(const StoreContext& context, const Unit& unit);

/// A range of elements of a trained unit's shard with one kind of update: with one list of state specs, and with weight
/// decay or without.
struct SpecRange {
  int64_t first, count;                    ///< counted from the shard's start
  bool decays;                             ///< Optimizer::decays() of its parameters
  std::vector<StateSpec> specs;
};
std::vector<SpecRange> spec_ranges(const StoreContext& context, const Unit& unit, const Shard& shard);

}  // namespace blipft
