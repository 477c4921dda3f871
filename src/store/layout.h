// Layout: how a unit is cut into sections and shards, and which ranges of a shard have states that are stored alike.
#pragma once

#include "blipft/store.h"

namespace blipft {

/// The shard of `index` of `shards` that `elements` are cut into, each a multiple of `grain`.
Shard shard_of(int64_t elements, int64_t grain, int64_t shards, int64_t index);

/// The formats and places of the states of `parameter`.
std::vector<StateSpec> state_specs(const StoreContext& context, const Unit& unit, const Parameter& parameter);

/// Elements that a shard of `unit` is a multiple of: of every block of its states.
int64_t shard_grain(const StoreContext& context, const Unit& unit);

/// A frozen unit's sections, laid out but without memory; one with all of the flat buffer where nothing asks for
/// another format.
struct UnitSections {
  std::vector<ParameterStore::Section> sections;
  bool flat = true;
};
UnitSections cut_sections(const StoreContext& context, const Unit& unit);

/// Ranges of elements of a trained unit's flat buffer between `first` and `first` + `count`, each updated in one way: with
/// specs of its own, with weight decay or without.
struct SpecRange {
  int64_t first, count;                    ///< counted from the shard's start
  bool decays;                             ///< Optimizer::decays() of its parameters
  std::vector<StateSpec> specs;
};
std::vector<SpecRange> spec_ranges(const StoreContext& context, const Unit& unit, const Shard& shard);

}  // namespace blipft
