// Computes shards, sections and ranges; see layout.h.
#include "store/layout.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace blipft {

namespace {

constexpr int64_t kShardAlignment = 64;  // elements: 128 bytes in bf16, which suits NCCL and vector loads

// Blocks count from a parameter's start, so a parameter stored in blocks must begin at a multiple of the block.
void check_blocks(const Unit& unit, const Parameter& parameter, const Format& format) {
  BLIPFT_USER_CHECK(parameter.offset % format.block() == 0, unit.name(), ": tensor ", parameter.name, " cannot be ",
                    "stored as ", format.name(), ": it begins ", parameter.offset, " elements into its unit, which is no ",
                    "multiple of the format's block of ", format.block());
}

// Returns the number of elements at whose multiples the parameters of a section begin.
int64_t alignment(const Format& format) {
  return format.scaled() ? kFp8Alignment : std::lcm(format.block(), kParameterAlignment);
}

// Returns the offset of the matrix that contains `parameter`: parameters packed behind each other form one matrix.
int64_t matrix_of(const Unit& unit, const Parameter& parameter) {
  for (const WeightMatrix& matrix : unit.matrices())
    if (parameter.offset >= matrix.offset && parameter.offset < matrix.offset + matrix.in * matrix.out) return matrix.offset;
  return parameter.offset;
}

// Numbers the matrices of a section, each of which has a scale.
void number_matrices(const Unit& unit, ParameterStore::Section& section) {
  std::map<int64_t, int64_t> numbers;
  for (ParameterStore::Section::Piece& piece : section.pieces)
    piece.matrix = numbers.try_emplace(matrix_of(unit, *piece.parameter), static_cast<int64_t>(numbers.size())).first->second;
  section.matrices = static_cast<int64_t>(numbers.size());
}

bool alike(const std::vector<StateSpec>& a, const std::vector<StateSpec>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const StateSpec& x, const StateSpec& y) {
    return x.name == y.name && x.format == y.format && x.initial == y.initial && x.space == y.space;
  });
}

}  // namespace

Shard shard_of(int64_t elements, int64_t grain, int64_t shards, int64_t index) {
  const int64_t multiple = grain * shards;
  Shard shard;
  shard.padded = (elements + multiple - 1) / multiple * multiple;
  shard.count = shard.padded / shards;
  shard.first = index * shard.count;
  return shard;
}

std::vector<StateSpec> state_specs(const StoreContext& context, const Unit& unit, const Parameter& parameter) {
  std::vector<StateSpec> specs = context.optimizer->states(parameter, context.types.state);
  for (StateSpec& spec : specs) {
    spec = context.policy->state(unit, parameter, spec);
    check_blocks(unit, parameter, *spec.format);
  }
  return specs;
}

int64_t shard_grain(const StoreContext& context, const Unit& unit) {
  int64_t grain = kShardAlignment;
  if (unit.trainable)
    for (const Parameter& parameter : unit.parameters())
      for (const StateSpec& spec : state_specs(context, unit, parameter)) grain = std::lcm(grain, spec.format->block());
  return grain;
}

UnitSections cut_sections(const StoreContext& context, const Unit& unit) {
  UnitSections result;
  const Format* compute = &plain_format(context.types.compute);
  std::vector<const Format*> formats;      // in the order in which parameters use them
  std::map<const Format*, ParameterStore::Section> sections;
  std::map<const Format*, int64_t> sizes;
  for (const Parameter& parameter : unit.parameters()) {
    const Format* format = unit.trainable ? nullptr : context.policy->frozen_format(unit, parameter);
    if (!format) format = compute;
    result.flat = result.flat && format == compute;
    if (!sections.count(format)) formats.push_back(format), sections[format].format = format;
    // Within a section, parameters have separate offsets: every parameter begins with a whole block.
    const int64_t multiple = alignment(*format);
    int64_t& size = sizes[format];
    sections[format].pieces.push_back({&parameter, parameter.offset, size});
    size += (parameter.numel() + multiple - 1) / multiple * multiple;
  }
  if (result.flat) {
    ParameterStore::Section section;
    section.format = compute;
    for (const Parameter& parameter : unit.parameters())
      section.pieces.push_back({&parameter, parameter.offset, parameter.offset});
    section.shard = shard_of(unit.numel(), shard_grain(context, unit), context.shards, context.index);
    result.sections.push_back(std::move(section));
    return result;
  }
  for (const Format* format : formats) {
    ParameterStore::Section& section = sections[format];
    if (format->scaled()) number_matrices(unit, section);
    section.shard =
        shard_of(sizes[format], std::lcm(kShardAlignment, format->block()), context.shards, context.index);
    result.sections.push_back(std::move(section));
  }
  return result;
}

std::vector<SpecRange> spec_ranges(const StoreContext& context, const Unit& unit, const Shard& shard) {
  std::vector<SpecRange> ranges;
  const std::vector<Parameter>& parameters = unit.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    // The range includes the gap after the parameter, whose elements are and stay zero.
    const int64_t begin = i == 0 ? 0 : parameters[i].offset;
    const int64_t end = i + 1 < parameters.size() ? parameters[i + 1].offset : shard.padded;
    const int64_t first = std::max(begin, shard.first), last = std::min(end, shard.first + shard.count);
    if (first >= last) continue;
    std::vector<StateSpec> specs = state_specs(context, unit, parameters[i]);
    const bool decays = context.optimizer->decays(parameters[i]);
    if (!ranges.empty() && ranges.back().decays == decays && alike(ranges.back().specs, specs))
      ranges.back().count += last - first;
    else ranges.push_back({first - shard.first, last - first, decays, std::move(specs)});
  }
  return ranges;
}

}  // namespace blipft
