// The tensors of a checkpoint that contain the initial values of parameters.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "blipft/checkpoint.h"
#include "blipft/unit.h"

namespace blipft {

/// Name of a stored tensor, and its file position.
using NamedTensor = std::pair<const std::string, StoredTensor>;

/// Returns the stored tensor of `parameter` under its name or an alias. If there are several, returns the one with the
/// most precise dtype, and the name before the aliases. Returns null if there is none.
const NamedTensor* find_stored(const SafetensorsReader& reader, const Parameter& parameter);

/// Reads elements [first, first + count) of `parameter` from `tensor` into `to`, in the order of memory (not of the
/// file, see RowOrder) and in the dtype of `tensor`.
void read_parameter(const SafetensorsReader& reader, const NamedTensor& tensor, const Parameter& parameter, int64_t first,
                    int64_t count, void* to);
/// Reorders all elements of `parameter` at `data` from the order of memory to the order of files (RowOrder).
void order_for_files(const Parameter& parameter, int64_t element_size, char* data);

/// Returns true if `exact`, converted to the dtype of `other`, has the same values as `other`. The shapes must be
/// equal.
bool same_numbers(const SafetensorsReader& reader, const NamedTensor& exact, const SafetensorsReader& others,
                  const NamedTensor& other);

using Units = std::vector<const Unit*>;

/// Checks that every parameter whose initial value comes from `source` is in `reader`, under its name or an alias, with
/// its shape and a floating-point dtype. Throws UserError with file, tensor, found and expected shape.
void check_weights(const Units& units, const SafetensorsReader& reader, Source source = Source::checkpoint);

/// Throws UserError if the stored tensors under the name and the aliases of a parameter have different values, compared
/// in the less precise dtype: training them as one tensor would lose the other values. Reads only parameters with
/// several stored tensors.
void check_aliases(const Units& units, const SafetensorsReader& reader);

}  // namespace blipft
