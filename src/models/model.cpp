// Implements the layout of a unit's flat buffer, and the groups, units and counts of a model.
#include "blipft/model.h"

#include <algorithm>

#include "blipft/error.h"

namespace blipft {

int64_t Parameter::numel() const {
  int64_t n = 1;
  for (int64_t size : shape) n *= size;
  return n;
}

int64_t Unit::add(const std::string& name, const std::vector<int64_t>& shape, Init init, bool packed,
                  ParameterKind kind) {
  Parameter parameter{.name = name, .shape = shape, .offset = numel_, .init = init, .source = group_.source,
                      .aliases = {}, .kind = kind};
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

void Unit::order_rows(const std::string& name, RowOrder rows) {
  if (!rows) return;
  for (Parameter& parameter : parameters_) {
    if (parameter.name != name) continue;
    BLIPFT_CHECK(rows.rotated % 2 == 0 && rows.rotated <= rows.head_size && parameter.shape.at(0) % rows.head_size == 0, name,
                 ": ", parameter.shape[0], " rows are no heads of ", rows.head_size, " with ", rows.rotated, " that turn");
    parameter.rows = rows;
    return;
  }
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

const ParameterGroup& Model::add_group(const ModelSettings& settings, const std::string& name, Source source) {
  const bool frozen = std::find(settings.freeze.begin(), settings.freeze.end(), name) != settings.freeze.end();
  const bool trained = settings.trained && !frozen && (!settings.adapter.any() || name == kAdapterGroup);
  groups_.push_back({name, trained, source});
  return groups_.back();
}

const ParameterGroup* Model::add_adapter_group(const ModelSettings& settings) {
  if (!settings.adapter.any()) return nullptr;
  return &add_group(settings, kAdapterGroup, settings.adapter.saved ? Source::adapter : Source::fresh);
}

Unit& Model::add_unit(const std::string& name, const ParameterGroup& group) {
  units_.push_back(std::make_unique<Unit>(name, group));
  Unit& unit = *units_.back();
  unit.index = static_cast<int64_t>(units_.size()) - 1;
  unit_list_.push_back(&unit);
  return unit;
}

Tensor Model::read_prompts(const StepContext&, const MicroBatch&, const CacheCall&) {
  throw Error(concat(description(), ": generates no text"));
}

Tensor Model::decode(const StepContext&, const CacheCall&) {
  throw Error(concat(description(), ": generates no text"));
}

void Model::add_file_names(const std::vector<NamePrefix>& prefixes) {
  for (const std::unique_ptr<Unit>& unit : units_) {
    const std::string before(holds_adapters(*unit) ? kAdapterPrefix : "");
    std::vector<std::pair<std::string, std::string>> found;
    for (const Parameter& parameter : unit->parameters()) {
      std::vector<std::string> names = parameter.aliases;
      names.push_back(parameter.name);
      for (const std::string& name : names)
        for (const auto& [in_model, in_files] : prefixes)
          if (name.starts_with(before + in_model))
            found.emplace_back(parameter.name, before + in_files + name.substr(before.size() + in_model.size()));
    }
    for (const auto& [name, other] : found) unit->add_alias(name, other);
  }
}

int64_t Model::parameter_count() const {
  int64_t count = 0;
  for (const Unit* unit : unit_list_) count += unit->parameter_count();
  return count;
}

double Model::flops(int64_t batch_size, const TextRows& text_rows) const {
  double total = 0;
  for (const Unit* unit : unit_list_)
    for (const Phase phase : {Phase::forward, Phase::loss, Phase::backward})
      total += unit_flops(*unit, phase, batch_size, text_rows);
  return total;
}

int64_t Model::trainable_parameter_count() const {
  int64_t count = 0;
  for (const Unit* unit : unit_list_)
    if (unit->trainable) count += unit->parameter_count();
  return count;
}

}  // namespace blipft
