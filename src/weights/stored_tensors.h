// Which tensor of a checkpoint gives a parameter its first value.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "blipft/checkpoint.h"
#include "blipft/unit.h"

namespace blipft {

/// Key and place of a stored tensor.
using NamedTensor = std::pair<const std::string, StoredTensor>;

/// Of the keys under which `reader` may hold `parameter` (its name, its aliases) the one with the most exact dtype, the
/// name before the aliases; null when there is none.
const NamedTensor* find_stored(const SafetensorsReader& reader, const Parameter& parameter);

/// Reads elements [first, first + count) of `parameter`, in the order that they have here, out of `tensor`, in its dtype.
void read_parameter(const SafetensorsReader& reader, const NamedTensor& tensor, const Parameter& parameter, int64_t first,
                    int64_t count, void* to);
/// Brings all elements of `parameter`, which lie at `data`, into the order of files (RowOrder).
void order_for_files(const Parameter& parameter, int64_t element_size, char* data);

/// Whether the numbers of `exact`, in the dtype of `other`, are those of `other`. Shapes are equal.
bool same_numbers(const SafetensorsReader& reader, const NamedTensor& exact, const SafetensorsReader& others,
                  const NamedTensor& other);

using Units = std::vector<const Unit*>;

/// Checks that every parameter whose first value comes from `source` is in `reader`, under its name or an alias, with its shape
/// and a floating dtype. Throws UserError naming file, tensor, found and expected shape.
void check_weights(const Units& units, const SafetensorsReader& reader, Source source = Source::checkpoint);

/// Checks that all keys of a parameter hold the same numbers, where dtypes differ after conversion to the less exact
/// one: training them as one tensor would lose the others' values. Reads only where several keys are there. Throws
/// UserError.
void check_aliases(const Units& units, const SafetensorsReader& reader);

}  // namespace blipft
