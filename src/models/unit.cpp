// Layout of a unit's flat buffer.
#include "blipft/unit.h"

#include "blipft/error.h"

namespace blipft {

int64_t Parameter::numel() const {
  int64_t n = 1;
  for (int64_t size : shape) n *= size;
  return n;
}

int64_t Unit::add(const std::string& name, const std::vector<int64_t>& shape, Init init, bool packed,
                  ParameterKind kind) {
  Parameter parameter{name, shape, numel_, init, group_.source, {}, kind};
  const int64_t alignment = parameter.numel() < kBlockedParameter ? kParameterAlignment : kBlockAlignment;
  if (!packed) parameter.offset = (numel_ + alignment - 1) / alignment * alignment;
  parameters_.push_back(parameter);
  numel_ = parameter.offset + parameter.numel();
  return parameter.offset;
}

void Unit::add_alias(const std::string& name, const std::string& other) {
  for (Parameter& parameter : parameters_)
    if (parameter.name == name) return parameter.aliases.push_back(other);
  throw Error(concat("unit ", name_, " has no parameter ", name));
}

int64_t Unit::parameter_count() const {
  int64_t n = 0;
  for (const Parameter& parameter : parameters_) n += parameter.numel();
  return n;
}

std::vector<std::pair<int64_t, int64_t>> Unit::gaps(int64_t padded) const {
  std::vector<std::pair<int64_t, int64_t>> gaps;
  int64_t end = 0;
  for (const Parameter& parameter : parameters_) {
    if (parameter.offset > end) gaps.push_back({end, parameter.offset});
    end = parameter.offset + parameter.numel();
  }
  if (padded > end) gaps.push_back({end, padded});
  return gaps;
}

}  // namespace blipft
