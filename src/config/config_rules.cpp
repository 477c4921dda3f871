// The table of conflicting keys and the resolution of conflicts; see config_rules.h.
#include "config/config_rules.h"

#include <algorithm>
#include <cctype>

#include "base/nearest.h"
#include "blipft/error.h"
#include "config/config_schema.h"

namespace blipft {

namespace {

using Kind = Condition::Kind;
using Conditions = std::vector<Condition>;
using Words = std::vector<std::string>;
constexpr auto first_key = KeyConflict::Yields::first_key;
constexpr auto any_key = KeyConflict::Yields::any_key;
constexpr int64_t max_step_samples = int64_t{1} << 24;

Condition is(const char* key, Words values) { return {Kind::is, key, std::move(values)}; }
Condition is_not(const char* key, Words values) { return {Kind::is_not, key, std::move(values)}; }
Condition given(const char* key, Words except) { return {Kind::given, key, std::move(except)}; }
Condition set(const char* key) { return {Kind::set, key}; }
Condition unset(const char* key) { return {Kind::unset, key}; }
Condition stated(const char* key) { return {Kind::stated, key}; }
Condition has(const char* key, const char* element) { return {Kind::has, key, {element}}; }
Condition lacks(const char* key, const char* element) { return {Kind::lacks, key, {element}}; }

/// A detail that needs another choice. It yields to that choice, and cannot override it.
KeyConflict detail(Conditions conditions, const char* remedy = "") {
  return {std::move(conditions), first_key, remedy};
}
/// Keys that exclude each other.
KeyConflict exclusive(Conditions conditions, const char* remedy = "Remove one of them") {
  return {std::move(conditions), any_key, remedy};
}
/// Values of one source may stay.
KeyConflict allowed(KeyConflict row) { return row.refused = false, row; }
KeyConflict where(KeyConflict row, bool (*relation)(const Config&, int64_t), std::vector<const char*> example) {
  return row.where = relation, row.example = std::move(example), row;
}

constexpr const char* auto_batch_size = "Set train.batch_size to a number: the loss depends on the micro-batch";
constexpr const char* for_validation = "Set data.val_path or data.val_split_fraction to validate, or remove it";

// Two of these three keys determine the third. resolve_for_ranks() refuses three that disagree.
void add_samples_of_a_step(std::vector<KeyConflict>& table) {
  static_assert(max_step_samples == 16777216);  // a message has the number
  const Condition total = is_not("train.total_batch_size", {"0"}), micro_batch = given("train.batch_size", {"auto"}),
                  accumulation = given("train.accumulate_grad_batches", {"0"});
  table.insert(table.end(), {
    detail({is("train.batch_size", {"auto"}), is("train.total_batch_size", {"0"})},
           "Set train.total_batch_size, or train.batch_size to a number"),
    detail({is("train.loss_normalization", {"micro_batch"}), is("train.batch_size", {"auto"})}, auto_batch_size),
    detail({is("train.loss_on_padding", {"true"}), is("train.batch_size", {"auto"})}, auto_batch_size),
    detail({is("train.accumulate_grad_batches", {"0"}), is("train.total_batch_size", {"0"})}, "Set one of them"),
    allowed(where(exclusive({accumulation, total, micro_batch}), nullptr, {"2", "8", "4"})),
    where(exclusive({accumulation, micro_batch}, "Lower one of them: a step may have 16777216 samples per rank"),
          [](const Config& c, int64_t) {
            return c.steps.batch_size * c.steps.accumulate_grad_batches > max_step_samples;
          }, {"1024", "60000"}),
    allowed(where(exclusive({micro_batch, total}),
                  [](const Config& c, int64_t ranks) {
                    return c.steps.batch_size > share_of_a_step(c, ranks) && !depends_on_micro_batch(c);
                  }, {"16", "8"})),
    allowed(where(exclusive({accumulation, total}),
                  [](const Config& c, int64_t ranks) {
                    return c.steps.accumulate_grad_batches > share_of_a_step(c, ranks);
                  }, {"16", "8"})),
  });
}

void add_optimizer(std::vector<KeyConflict>& table) {
  const Condition sgd = is("train.optim", {"sgd"}), rounds = is("train.stochastic_rounding", {"true"});
  table.insert(table.end(), {
    detail({set("train.momentum"), is_not("train.optim", {"sgd"})}),
    detail({set("train.beta1"), sgd}),
    detail({set("train.beta2"), sgd}),
    detail({set("train.eps"), is_not("train.optim", {"adamw", "adamw8bit"})}),
    detail({rounds, is_not("train.precision", {"bf16-true"})}),
    detail({rounds, is_not("adapter.kind", {"none"}), is("adapter.dtype", {"f32"})}),
  });
  for (const char* key : {"train.matmul_exclude", "train.fp8_gradients", "train.fp8_least_size",
                          "train.fp8_keep_weights", "train.fp8_keep_inputs"})
    table.push_back(detail({set(key), is_not("train.matmul", {"fp8"})}));
}

// One source may give both limits: the one that is reached first ends the run. A warm-up that is longer than the run is
// not refused: the run warns of it.
void add_steps(std::vector<KeyConflict>& table) {
  const Condition epochs = is_not("train.max_epochs", {"-1"}), steps = is_not("train.max_steps", {"-1"});
  table.insert(table.end(), {
    exclusive({stated("train.warmup_ratio"), stated("train.warmup_steps")}),
    detail({is("train.max_epochs", {"-1"}), is("train.max_steps", {"-1"})}, "Set one of them, so that the run ends"),
    allowed(exclusive({epochs, steps})),
    allowed(where(detail({set("train.warmup_steps"), steps}),
                  [](const Config& c, int64_t) { return c.train.warmup_steps >= c.steps.max_steps; }, {"9", "5"})),
  });
}

void add_adapter(std::vector<KeyConflict>& table) {
  const Condition none = is("adapter.kind", {"none"});
  for (const char* key : {"adapter.r", "adapter.alpha", "adapter.rslora", "adapter.dropout", "adapter.targets",
                          "adapter.dtype", "adapter.path"})
    table.push_back(detail({set(key), none}));
  table.insert(table.end(), {
    detail({is("adapter.dtype", {"bf16"}), is_not("train.precision", {"bf16-true"})}),
    detail({set("output.save_merged"), none}),
  });
}

// check_storage() refuses what cannot be quantized, where the model is known.
void add_quantize(std::vector<KeyConflict>& table) {
  const Condition none = is("model.quantize", {"none"});
  table.insert(table.end(), {
    allowed(detail({set("model.quantize"), is("adapter.kind", {"none"}), unset("model.freeze")})),
    detail({set("model.double_quantize"), is("model.quantize", {"fp8"})}, "Remove it: fp8 has one scale per matrix"),
    allowed(detail({set("model.double_quantize"), none})),
    allowed(detail({set("model.quantize_groups"), none})),
  });
}

void add_output(std::vector<KeyConflict>& table) {
  const Condition merged = set("output.save_merged"), unsaved = is("output.save_model", {"false"}),
                  untraced = is("trace.enabled", {"false"});
  table.insert(table.end(), {
    detail({merged, is_not("model.init", {"pretrained"})}),
    detail({set("output.save"), is_not("adapter.kind", {"none"})}, "Remove it: only the adapters are saved"),
    detail({merged, unsaved}),
    detail({set("output.save"), unsaved}),
    exclusive({set("trace.kernels"), untraced}),
    exclusive({set("trace.samples"), untraced}),
    exclusive({set("trace.fp8_every"), untraced}),
    detail({set("trace.fp8_every"), is_not("train.matmul", {"fp8"})}),
    detail({set("trace.kernels"), is("parallel.device", {"cpu"})}),
  });
}

void add_data_and_validation(std::vector<KeyConflict>& table) {
  const Condition no_file = unset("data.val_path"), no_split = unset("data.val_split_fraction"),
                  no_answers = unset("evaluate.samples");
  table.insert(table.end(), {
    exclusive({set("data.val_split_fraction"), set("data.val_path")}),
    exclusive({is("data.text_padding", {"packed"}), is("train.loss_on_padding", {"true"})},
              "Remove one of them: packed texts have no padding"),
  });
  for (const char* key : {"train.val_check_interval", "checkpoint.keep_best", "train.early_stopping_patience",
                          "evaluate.samples"})
    table.push_back(detail({set(key), no_file, no_split}, for_validation));
  table.insert(table.end(), {
    detail({set("evaluate.every"), no_answers}),
    detail({is_not("checkpoint.keep_best", {"none", "loss"}), no_answers},
           "Set evaluate.samples for a score of generated texts, or checkpoint.keep_best: loss or none"),
    detail({set("output.save_best"), is("checkpoint.keep_best", {"none"})},
           "Set checkpoint.keep_best: loss, or remove it"),
  });
}

void add_parallel(std::vector<KeyConflict>& table) {
  const Condition not_fsdp = is_not("parallel.strategy", {"fsdp"});
  table.insert(table.end(), {
    exclusive({is("parallel.strategy", {"single"}), is_not("parallel.devices", {"0", "1"})},
              "Set parallel.strategy: ddp or fsdp, or parallel.devices: 1"),
    detail({set("parallel.reshard"), not_fsdp}),
    detail({set("parallel.prefetch_bytes"), not_fsdp, lacks("parallel.offload", "parameters")}),
    detail({set("parallel.shard_ranks"), not_fsdp}),
    exclusive({is("parallel.reshard", {"step"}), has("parallel.offload", "parameters")},
              "Set parallel.reshard: always, or remove one of them"),
    detail({has("parallel.offload", "activations"), is("train.act_ckpt", {"none"})}),
    allowed(detail({has("parallel.offload", "optimizer"), is("train.optim", {"sgd"}), unset("train.momentum"),
                    is_not("train.precision", {"bf16-mixed"})})),
  });
}

// The settings of generation refuse these too, where the model's generation_config.json is known.
void add_generate(std::vector<KeyConflict>& table) {
  const Condition beams = set("generate.num_beams");
  table.insert(table.end(), {
    allowed(exclusive({is("generate.do_sample", {"true"}), beams})),
    allowed(exclusive({set("generate.stop"), beams})),
    allowed(where(detail({set("generate.num_return_sequences"), given("generate.num_beams", {})}),
                  [](const Config& c, int64_t) { return c.generate.num_return_sequences > c.generate.num_beams; },
                  {"3", "2"})),
  });
}

std::string text_of(const Config& config, const std::string& key) { return value_text(key_of(key), config); }

bool in_file(const Config& config, const std::string& key) {
  return config.locations.count(key) > 0 && !on_command_line(config, key);
}

void set_default(Config& config, const Key& key) {
  copy_value(key, Config(), config);
  config.locations.erase(key.full());
}

/// Applies the table to a configuration until the file has nothing that conflicts with the command line.
class ConflictResolver {
 public:
  ConflictResolver(Config& config, int64_t ranks) : config_(config), ranks_(ranks) {}

  // An ignored key may cause a further conflict, so the search starts again. Each turn removes a key or an element.
  void resolve() {
    const auto resolves = [&](const KeyConflict& row) { return resolve(row); };
    while (std::any_of(key_conflicts().begin(), key_conflicts().end(), resolves)) {}
  }

 private:
  /// The key of the command line that determines the value of `key`; null: none does.
  const char* winner_of(const char* key) const {
    if (on_command_line(config_, key)) return key;
    const auto ignored = ignored_.find(key);
    return ignored == ignored_.end() ? nullptr : ignored->second;
  }

  /// True if a key was ignored.
  bool resolve(const KeyConflict& row) {
    if (!row.holds(config_, ranks_, true)) return false;
    const auto wins = [&](const Condition& one) { return winner_of(one.key) != nullptr; };
    const auto end = row.yields == first_key ? row.conditions.begin() + 1 : row.conditions.end();
    for (auto loser = row.conditions.begin(); loser != end; ++loser) {
      const auto other_wins = [&](const Condition& one) { return &one != &*loser && wins(one); };
      const auto winner = std::find_if(row.conditions.begin(), row.conditions.end(), other_wins);
      if (!in_file(config_, loser->key) || winner == row.conditions.end()) continue;
      Config other = without(*loser, winner_of(winner->key));
      if (row.holds(other, ranks_, true)) continue;
      ignored_[loser->key] = winner_of(winner->key);
      config_ = std::move(other);
      return true;
    }
    return false;
  }

  /// Returns the configuration with the default of a key, or without the conflicting element of a list.
  Config without(const Condition& loser, const char* winner) const {
    Config config = config_;
    const Key& key = key_of(loser.key);
    const bool element = loser.kind == Kind::has;
    config.notes.push_back(concat(location_of(config, loser.key), ": ", loser.key, ": ",
                                  element ? loser.values[0] : value_text(key, config), " is ignored because ",
                                  location_of(config, winner).starts_with(smoke_override) ? "--smoke" : "the command line",
                                  " sets ", winner, "=", text_of(config, winner)));
    if (element) {
      const auto list = std::get<ChoiceListField>(key.field(config));
      Words words = list.words();
      std::erase(words, loser.values[0]);
      list.assign(list.value, words);
    } else {
      set_default(config, key);
    }
    set_implied_defaults(config);
    return config;
  }

  Config& config_;
  int64_t ranks_;
  std::map<std::string, const char*> ignored_;  ///< key of the file -> key of the command line
};

// "is 0.9", "includes activations", "is not set"
std::string found_text(const Condition& one, const Config& config) {
  if (one.kind == Kind::has) return "includes " + one.values[0];
  if (one.kind == Kind::lacks) return "does not include " + one.values[0];
  const std::string text = text_of(config, one.key);
  return text == quote_scalar("") ? "is not set" : "is " + text;
}

// How a condition is ended: "set train.optim: sgd".
std::string change_text(const Condition& one) {
  const std::string key = one.key;
  if (one.kind == Kind::has) return concat("remove ", one.values[0], " from ", key);
  if (one.kind == Kind::lacks) return concat("add ", one.values[0], " to ", key);
  if (one.kind == Kind::is_not) return concat("set ", key, ": ", join_names(one.values));
  if (one.kind != Kind::is) return (one.kind == Kind::unset ? "set " : "remove ") + key;
  Words words = key_of(key).allowed.choices;
  if (words.empty()) words = {"true", "false"};
  std::erase_if(words, [&](const std::string& word) {
    return std::find(one.values.begin(), one.values.end(), word) != one.values.end();
  });
  return concat("set ", key, ": ", join_names(words));
}

std::string message_of(const KeyConflict& row, const Config& config) {
  const Condition& first = row.conditions.front();
  std::string others, remedy;
  for (auto one = row.conditions.begin() + 1; one != row.conditions.end(); ++one) {
    others += concat(others.empty() ? "" : " and ", one->key, " ", found_text(*one, config));
    remedy += change_text(*one) + ", ";
  }
  remedy += concat("or remove ", first.kind == Kind::has ? first.values[0] : first.key);
  remedy[0] = static_cast<char>(std::toupper(remedy[0]));
  return concat(location_of(config, first.key), ": ", first.key, ": ", found_text(first, config), ", but ", others, ". ",
                *row.remedy ? row.remedy : remedy, ".");
}

}  // namespace

bool Condition::holds(const Config& config, bool settling) const {
  static const Config defaults;
  const Key& its_key = key_of(key);
  const std::string text = value_text(its_key, config);
  const auto is_one = [&] {
    return std::any_of(values.begin(), values.end(),
                       [&](const std::string& value) { return text == value || text == quote_scalar(value); });
  };
  const auto contains = [&] {
    const Words words = std::get<ChoiceListField>(its_key.field(const_cast<Config&>(config))).words();
    return std::find(words.begin(), words.end(), values[0]) != words.end();
  };
  switch (kind) {
    case Kind::is: return is_one();
    case Kind::is_not: return !is_one();
    case Kind::given: return config.locations.count(key) > 0 && !is_one();
    case Kind::set: return text != value_text(its_key, defaults);
    case Kind::unset: return text == value_text(its_key, defaults);
    case Kind::stated: return text != value_text(its_key, defaults) || (settling && on_command_line(config, key));
    case Kind::has: return contains();
    case Kind::lacks: return !contains();
  }
  return false;
}

bool KeyConflict::holds(const Config& config, int64_t ranks, bool settling) const {
  const auto condition_holds = [&](const Condition& one) { return one.holds(config, settling); };
  return std::all_of(conditions.begin(), conditions.end(), condition_holds) && (!where || where(config, ranks));
}

const std::vector<KeyConflict>& key_conflicts() {
  static const std::vector<KeyConflict> table = [] {
    std::vector<KeyConflict> all;
    add_samples_of_a_step(all);
    add_optimizer(all);
    add_steps(all);
    add_adapter(all);
    add_quantize(all);
    add_output(all);
    add_data_and_validation(all);
    add_parallel(all);
    add_generate(all);
    return all;
  }();
  return table;
}

void set_implied_defaults(Config& config) {
  StepsSection& steps = config.steps;
  const StepsSection defaults;
  const bool limited = steps.max_steps > 0, total = steps.total_batch_size > 0;
  const auto set_default = [&](const char* key, int64_t& value, int64_t implied) {
    if (config.locations.count(key) == 0) value = implied;
  };
  set_default("train.max_epochs", steps.max_epochs, limited ? -1 : defaults.max_epochs);
  set_default("train.accumulate_grad_batches", steps.accumulate_grad_batches,
              total ? 0 : defaults.accumulate_grad_batches);
  set_default("train.batch_size", steps.batch_size, total ? 0 : defaults.batch_size);
}

void resolve_conflicts(Config& config, int64_t ranks) {
  set_implied_defaults(config);
  ConflictResolver(config, ranks > 0 ? ranks : std::max<int64_t>(1, config.parallel.devices)).resolve();
}

void check_conflicts(const Config& config) {
  for (const KeyConflict& row : key_conflicts())
    if (row.refused && row.holds(config, 1)) throw UserError(message_of(row, config));
}

}  // namespace blipft
