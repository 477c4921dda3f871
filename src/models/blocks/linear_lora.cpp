// Implements LoRA; see linear_lora.h.
#include "models/blocks/linear_lora.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace blipft {

Dropout Lora::mask(const UnitPass& pass) const {
  Dropout mask = pass.rows;
  mask.p = pass.context.training ? dropout : 0;
  mask.site = dropout_site;
  return mask;
}

Tensor Lora::dropped(const UnitPass& pass, const MatrixView& x, Stream stream) const {
  const Dropout mask = this->mask(pass);
  if (!mask) return {};
  const Tensor result = pass.context.arena.take(Owner::activations, "adapter input", x.dtype, x.shape);
  pass.context.ops.dropout_add({.x = x.tensor(), .dropout = mask, .y = result}, stream);
  return result;
}

bool Lora::covers(int64_t columns) const {
  for (const Part& part : parts) columns -= part.outputs.count;
  return columns == 0;
}

void Lora::forward(const UnitPass& pass, const MatrixView& x, const MatrixView& add, const MatrixView& y) const {
  const StepContext& context = pass.context;
  Tensor input = dropped(pass, x, context.stream);
  const Tensor h = context.arena.take(Owner::activations, "adapter rank", x.dtype, {x.rows(), width()});
  context.ops.linear_forward({.x = input ? MatrixView(input) : x, .w = a_of(pass.adapter), .scale = scale, .y = h},
                             context.stream);
  if (input) context.arena.give(input);
  for (size_t p = 0; p < parts.size(); ++p) {
    const LinearPart& outputs = parts[p].outputs;
    context.ops.linear_forward({.x = columns_of(h, p), .w = b_of(pass.adapter, parts[p]),
                                .residual = add ? add.columns(outputs.first, outputs.count) : MatrixView{},
                                .y = y.columns(outputs.first, outputs.count)},
                               context.stream);
  }
  context.arena.give(h);
}

// dh [M, P * r] = scale dy B
Tensor Lora::reduce(UnitBackward& pass, const MatrixView& dy) const {
  const StepContext& context = pass.context;
  const Tensor dh = context.arena.take(Owner::activations, "adapter rank", dy.dtype, {dy.rows(), width()});
  for (size_t p = 0; p < parts.size(); ++p)
    context.ops.linear_backward_input({.dy = dy.columns(parts[p].outputs.first, parts[p].outputs.count),
                                       .w = b_of(pass.adapter, parts[p]), .scale = scale, .dx = columns_of(dh, p)},
                                      context.stream);
  return dh;
}

void Lora::input_gradient(UnitBackward& pass, const MatrixView&, const Tensor& reduced, const MatrixView& add,
                          const MatrixView& dx) const {
  const StepContext& context = pass.context;
  const Dropout mask = this->mask(pass);
  if (!mask)
    return context.ops.linear_backward_input({.dy = reduced, .w = a_of(pass.adapter), .add = add, .dx = dx},
                                             context.stream);
  const Tensor through = context.arena.take(Owner::activations, "adapter input", dx.dtype, dx.shape);
  context.ops.linear_backward_input({.dy = reduced, .w = a_of(pass.adapter), .dx = through}, context.stream);
  context.ops.dropout_add({.x = through, .residual = add.tensor(), .dropout = mask, .y = dx.tensor()}, context.stream);
  context.arena.give(through);
}

// dB (+)= dy^T h and dA (+)= dh^T dropout(x); recomputes h and dropout(x).
void Lora::weight_gradient(UnitBackward& pass, const MatrixView& dy, const Tensor& reduced, const MatrixView& x) const {
  const StepContext& context = pass.context;
  const Stream stream = pass.weight_stream();
  const Tensor masked = dropped(pass, x, stream);
  pass.keep(masked);
  const MatrixView input = masked ? MatrixView(masked) : x;
  const Tensor h = context.arena.take(Owner::activations, "adapter rank", x.dtype, {x.rows(), width()});
  pass.keep(h);
  context.ops.linear_forward({.x = input, .w = a_of(pass.adapter), .scale = scale, .y = h}, stream);
  const bool accumulate = pass.accumulate_adapter();
  for (size_t p = 0; p < parts.size(); ++p)
    context.ops.linear_backward_weight(
        {.dy = dy.columns(parts[p].outputs.first, parts[p].outputs.count), .x = columns_of(h, p),
         .dw = pass.adapter_gradient(parts[p].b, {parts[p].outputs.count, rank}), .accumulate = accumulate},
        stream);
  context.ops.linear_backward_weight(
      {.dy = reduced, .x = input, .dw = pass.adapter_gradient(a, {width(), in}), .accumulate = accumulate}, stream);
}

std::string adapter_key(const std::string& module, const std::string& which) {
  return concat(kAdapterPrefix, module, ".", which, ".weight");
}

std::string adapted_module(const std::string& key) {
  return key.substr(kAdapterPrefix.size(), key.rfind(".lora_") - kAdapterPrefix.size());
}

bool names_module(const std::string& end, const std::string& module) { return module == end || module.ends_with("." + end); }

namespace {

constexpr uint32_t kAdapterSites = 1u << 20;  // dropout sites, one for each layer with an adapter

struct Kind {
  const char* name;
  std::vector<std::string> modules;        // last parts of module names
};

// Returns the names of linear layers in the families' language models, by kind.
const std::vector<Kind>& kinds() {
  static const std::vector<Kind> table = {
      {"q", {"q_proj", "q"}}, {"k", {"k_proj", "k"}}, {"v", {"v_proj", "v"}}, {"o", {"o_proj", "out_proj", "o"}},
      {"mlp", {"gate_proj", "up_proj", "gate_up_proj", "down_proj", "fc1", "fc2", "wi", "wi_0", "wi_1", "wo"}},
      {"head", {"lm_head"}}};
  return table;
}

constexpr std::array<const char*, 3> kFused = {"q", "k", "v"};

std::string last_part(const std::string& module) { return module.substr(module.rfind('.') + 1); }

}  // namespace

bool LoraBuilder::in_language(const std::string& module) const {
  return std::any_of(language_.begin(), language_.end(), [&](const std::string& prefix) { return module.starts_with(prefix); });
}

// all-linear and language mean every layer of the language model but the head.
bool LoraBuilder::is_target(const std::string& module) {
  const std::string last = last_part(module);
  known_.insert(last);
  bool found = false;
  // A fused qkv matrix is a target only if q, k and v are all targets.
  const std::vector<std::string>& requested = settings_.targets;
  if (last == "qkv_proj" && in_language(module) &&
      std::all_of(kFused.begin(), kFused.end(),
                  [&](const char* kind) { return std::find(requested.begin(), requested.end(), kind) != requested.end(); })) {
    used_.insert(kFused.begin(), kFused.end());
    found = true;
  }
  for (const std::string& target : settings_.targets) {
    const auto kind = std::find_if(kinds().begin(), kinds().end(), [&](const Kind& k) { return k.name == target; });
    bool named = false;
    if (target == "all-linear" || target == "language")
      named = in_language(module) ? last != "lm_head" : towers_ && target == "all-linear";
    else if (kind == kinds().end())
      named = names_module(target, module);
    else
      named = in_language(module) && std::find(kind->modules.begin(), kind->modules.end(), last) != kind->modules.end();
    if (named) used_.insert(target);
    found |= named;
  }
  return found;
}

void LoraBuilder::attach(Unit& unit, const std::vector<Layer>& layers) {
  if (!settings_.any()) return;
  for (const Layer& layer : layers) attach(layer, unit);
}

// A is initialized like PEFT's kaiming_uniform_(a = sqrt 5): uniform within 1 / sqrt(in). B is zero.
void LoraBuilder::attach(const Layer& layer, Unit& unit) {
  LinearLayer& linear = *layer.linear;
  BLIPFT_CHECK(layer.modules.size() == linear.parts.size(), layer.modules.size(), " names of ", linear.parts.size(),
               " parts");
  std::vector<size_t> targets;
  for (size_t i = 0; i < layer.modules.size(); ++i)
    if (is_target(layer.modules[i])) targets.push_back(i);
  if (targets.empty()) return;
  if (!unit.adapter) unit.adapter = &add_unit_(unit.name() + ".adapter");
  Unit& beside = *unit.adapter;
  auto lora = std::make_shared<Lora>();
  lora->in = linear.in, lora->rank = settings_.rank, lora->scale = settings_.scale;
  lora->dropout = settings_.dropout, lora->dropout_site = kAdapterSites + layers_++;
  const float bound = 1 / std::sqrt(static_cast<float>(linear.in));
  for (const size_t i : targets) {
    const int64_t offset = beside.add(adapter_key(layer.modules[i], "lora_A"), {settings_.rank, linear.in},
                                      Init::uniform(bound), lora->a >= 0);
    if (lora->a < 0) lora->a = offset;
  }
  for (const size_t i : targets) {
    const LinearPart part = linear.parts[i];
    const std::string key = adapter_key(layer.modules[i], "lora_B");
    lora->parts.push_back({part, beside.add(key, {part.count, settings_.rank}, Init::constant(0))});
    beside.order_rows(key, part.rows);
  }
  linear.attach(std::move(lora));
}

void LoraBuilder::check() const {
  for (const std::string& target : settings_.targets) {
    if (!settings_.any() || used_.count(target)) continue;
    std::string known;
    for (const Kind& kind : kinds()) known += concat(known.empty() ? "" : ", ", kind.name);
    known += ", language, all-linear";
    for (const std::string& module : known_) known += ", " + module;
    throw UserError(concat("adapter.targets: found \"", target, "\", which names no linear layer that can have an ",
                           "adapter in this model; expected some of ", known));
  }
}

}  // namespace blipft
