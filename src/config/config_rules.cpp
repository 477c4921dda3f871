// The rules themselves, and what follows from them; see config_rules.h.
//
// A detail (train.momentum) yields to the choice that it is a detail of (train.optim), and never the other way round: a
// detail on the command line that the file's choice has no use for is refused, since it cannot mean another choice.
#include "config/config_rules.h"

#include <algorithm>
#include <cmath>

#include "blipft/error.h"
#include "config/config_schema.h"

namespace blipft {

namespace {

constexpr int64_t most_step_samples = int64_t{1} << 24;

using Asked = std::function<bool(const Config&)>;

/// The joined parts where `wrong`, else "".
template <class... Parts>
std::string when(bool wrong, const Parts&... parts) {
  return wrong ? concat(parts...) : "";
}

bool given(const Config& config, const char* key) { return config.places.count(key) > 0; }

// A key of some optimizers alone, whose value is not the default.
Rule of_optimizer(const char* key, double TrainSection::*member, const char* needs, const char* advice,
                  bool (*takes)(const std::string& optim)) {
  return {key,
          [=](const Config& c) {
            const bool wrong = c.train.*member != TrainSection().*member && !takes(c.train.optim);
            return when(wrong, "is of optim ", needs, ", but train.optim is ", c.train.optim, "; ", advice);
          },
          {"train.optim"}};
}

// A key of train.matmul fp8 alone, whose value is not the default.
template <class T>
Rule of_fp8(const char* key, T TrainSection::*member) {
  return {key,
          [=](const Config& c) {
            return when(c.train.*member != TrainSection().*member && c.train.matmul != MatmulType::fp8,
                        "is of matmul fp8, but train.matmul is ", c.train.matmul, "; set train.matmul: fp8, or remove it");
          },
          {"train.matmul"}};
}

void add_fp8(std::vector<Rule>& rules) {
  using T = TrainSection;
  rules.push_back(of_fp8("train.matmul_exclude", &T::matmul_exclude));
  rules.push_back(of_fp8("train.fp8_gradients", &T::fp8_gradients));
  rules.push_back(of_fp8("train.fp8_least_size", &T::fp8_least_size));
  rules.push_back(of_fp8("train.fp8_keep_weights", &T::fp8_keep_weights));
  rules.push_back(of_fp8("train.fp8_keep_inputs", &T::fp8_keep_inputs));
}

void add_optimizer(std::vector<Rule>& rules) {
  using T = TrainSection;
  rules.push_back(of_optimizer("train.momentum", &T::momentum, "sgd",
                               "set train.optim: sgd, or remove momentum (adamw has beta1)",
                               [](const std::string& optim) { return optim == "sgd"; }));
  const auto not_sgd = [](const std::string& optim) { return optim != "sgd"; };
  rules.push_back(of_optimizer("train.beta1", &T::beta1, "adamw", "remove it, or use momentum", not_sgd));
  rules.push_back(of_optimizer("train.beta2", &T::beta2, "adamw", "remove it", not_sgd));
  rules.push_back(of_optimizer("train.eps", &T::eps, "adamw", "remove it",
                               [](const std::string& optim) { return optim.starts_with("adamw"); }));
  rules.push_back({"train.stochastic_rounding",
                   [](const Config& c) {
                     return when(c.train.stochastic_rounding && c.train.precision != Precision::bf16_true,
                                 "is of precision bf16-true, whose weights have no more exact copy, but train.precision is ",
                                 c.train.precision,
                                 "; set precision: bf16-true, or remove stochastic_rounding");
                   },
                   {"train.precision"}});
  rules.push_back({"train.stochastic_rounding",
                   [](const Config& c) {
                     const bool f32 = c.adapter.kind != AdapterKind::none && c.adapter.dtype == AdapterDtype::f32;
                     return when(c.train.stochastic_rounding && f32,
                                 "rounds what is updated in bf16, but adapters are f32 (adapter.dtype); remove it");
                   },
                   {"adapter.kind", "adapter.dtype"}});
}

void add_steps(std::vector<Rule>& rules) {
  rules.push_back({"train.warmup_ratio",
                   [](const Config& c) {
                     return when(c.train.warmup_steps > 0 && c.train.warmup_ratio > 0, "is ", c.train.warmup_ratio,
                                 ", but train.warmup_steps is ", c.train.warmup_steps, "; remove one of them");
                   },
                   {"train.warmup_steps"},
                   {"train.warmup_steps"}});
  rules.push_back({"train.max_epochs",
                   [](const Config& c) {
                     return when(c.train.max_epochs < 0 && c.train.max_steps < 0, "is ", c.train.max_epochs,
                                 " and train.max_steps is ", c.train.max_steps, ", so the run has no end; set one of them");
                   },
                   {"train.max_steps"}});
  // A warm-up that lasts as long as the run is somebody's choice: the run warns of it, where it knows its steps.
  Rule warmup{"train.warmup_steps",
              [](const Config& c) {
                return when(c.train.max_steps > 0 && c.train.warmup_steps >= c.train.max_steps, "is ",
                            c.train.warmup_steps, ", not less than train.max_steps ", c.train.max_steps);
              },
              {"train.max_steps"}};
  warmup.refused = false;
  rules.push_back(std::move(warmup));
  const auto limit = [&](const char* key, double TrainSection::*member, const char* what) {
    rules.push_back({key, [=](const Config& c) {
                       const double value = c.train.*member;
                       return when(value > 1 && value != std::floor(value), "found ", value,
                                   ", expected a fraction up to 1 or a whole number of ", what);
                     }});
  };
  limit("train.limit_train_batches", &TrainSection::limit_train_batches, "steps");
  limit("train.limit_val_batches", &TrainSection::limit_val_batches, "batches");
}

// What train.batch_size: auto needs, and what it may not choose: the micro-batch where that is part of the mathematics.
void add_choice(std::vector<Rule>& rules) {
  rules.push_back({"train.batch_size", [](const Config& c) {
                     return when(chooses_batch_size(c) && c.train.total_batch_size == 0,
                                 "is auto, which chooses how the samples of a step are cut into micro-batches, but ",
                                 "train.total_batch_size, which says how many these are, is not given; give it, or a number");
                   }});
  rules.push_back({"train.batch_size", [](const Config& c) {
                     const char* depends = depends_on_micro_batch(c);
                     return when(chooses_batch_size(c) && depends, "is auto",
                                 given(c, "train.batch_size") ? "" : ", since train.total_batch_size is given alone",
                                 ", but with ", depends ? depends : "", " the loss depends on the micro-batch; give ",
                                 "train.batch_size, a number, or remove ", depends ? depends : "");
                   }});
}

void add_batch(std::vector<Rule>& rules) {
  rules.push_back({"train.accumulate_grad_batches",
                   [](const Config& c) {
                     return when(c.train.accumulate_grad_batches == 0 && c.train.total_batch_size == 0,
                                 "is 0, which leaves it to train.total_batch_size, and that is not given; give one of ",
                                 "them");
                   },
                   {"train.total_batch_size"}});
  // Two of the three say the third. Whether all three agree is known with the ranks (resolve_for_ranks).
  Rule three{"train.accumulate_grad_batches",
             [](const Config& c) {
               const bool all = given(c, "train.accumulate_grad_batches") && c.train.accumulate_grad_batches > 0 &&
                                given(c, "train.batch_size") && !chooses_batch_size(c);
               return when(all && c.train.total_batch_size > 0, "is given beside train.total_batch_size");
             },
             {"train.total_batch_size", "train.batch_size"},
             {"train.total_batch_size"}};
  three.refused = false;
  rules.push_back(std::move(three));
  rules.push_back({"train.accumulate_grad_batches",
                   [](const Config& c) {
                     const int64_t micro = c.train.accumulate_grad_batches;
                     return when(c.train.batch_size * std::max<int64_t>(micro, 1) > most_step_samples, "is ", micro,
                                 " micro-batches of ", c.train.batch_size,
                                 " samples (train.batch_size), expected a step of at most ", most_step_samples,
                                 " samples a rank; lower one of them");
                   },
                   {"train.batch_size"}});
}

// A key of adapter.kind lora that is given, though it is none.
Rule of_lora(const char* key, Asked asked) {
  return {key,
          [asked = std::move(asked)](const Config& c) {
            return when(c.adapter.kind == AdapterKind::none && asked(c),
                        "is of adapter.kind lora, but kind is none; set kind: lora, or remove it");
          },
          {"adapter.kind"}};
}

void add_adapter(std::vector<Rule>& rules) {
  const auto differs = [&](const char* key, auto AdapterSection::*member) {
    rules.push_back(of_lora(key, [=](const Config& c) { return c.adapter.*member != AdapterSection().*member; }));
  };
  using A = AdapterSection;
  differs("adapter.r", &A::r);
  differs("adapter.alpha", &A::alpha);
  differs("adapter.rslora", &A::rslora);
  differs("adapter.dropout", &A::dropout);
  differs("adapter.targets", &A::targets);
  differs("adapter.dtype", &A::dtype);
  differs("adapter.path", &A::path);
  rules.push_back({"adapter.dtype",
                   [](const Config& c) {
                     const bool bf16 = c.adapter.kind != AdapterKind::none && c.adapter.dtype == AdapterDtype::bf16;
                     return when(bf16 && c.train.precision != Precision::bf16_true,
                                 "is bf16, which needs train.precision bf16-true, but that is ",
                                 c.train.precision, "; remove one of them");
                   },
                   {"train.precision"}});
  rules.push_back(of_lora("output.save_merged", [](const Config& c) { return c.output.save_merged; }));
  rules.push_back({"adapter.targets", [](const Config& c) {
                     return when(c.adapter.kind != AdapterKind::none && c.adapter.targets.empty(),
                                 "is empty, so that nothing would be trained");
                   }});
}

void add_output(std::vector<Rule>& rules) {
  rules.push_back({"output.save_merged",
                   [](const Config& c) {
                     return when(c.output.save_merged && c.model.init != InitialWeights::pretrained,
                                 "merges adapters into the checkpoint's weights, but model.init is ", c.model.init,
                                 "; set model.init: pretrained, or remove save_merged");
                   },
                   {"model.init"}});
  rules.push_back({"output.save",
                   [](const Config& c) {
                     return when(c.adapter.kind != AdapterKind::none && c.output.save != SavedTensors::all, "is ", c.output.save,
                                 ", but with adapters these alone are saved anyway; remove save");
                   },
                   {"adapter.kind"}});
  rules.push_back({"output.save_merged",
                   [](const Config& c) {
                     return when(c.output.save_merged && !c.output.save_model,
                                 "is true, but output.save_model is false; set save_model: true, or remove save_merged");
                   },
                   {"output.save_model"}});
  rules.push_back({"output.save",
                   [](const Config& c) {
                     return when(c.output.save != SavedTensors::all && !c.output.save_model, "is ", c.output.save,
                                 ", but output.save_model is false; set save_model: true, or remove save");
                   },
                   {"output.save_model"}});
  const auto needs_trace = [&](const char* key, bool (*is_set)(const TraceSection&)) {
    rules.push_back({key,
                     [is_set](const Config& c) {
                       return when(is_set(c.trace) && !c.trace.enabled, "needs the trace, but trace.enabled is false");
                     },
                     {"trace.enabled"},
                     {"trace.enabled"}});
  };
  needs_trace("trace.kernels", [](const TraceSection& t) { return !t.kernels.empty(); });
  needs_trace("trace.samples", [](const TraceSection& t) { return t.samples; });
  needs_trace("trace.fp8_every", [](const TraceSection& t) { return t.fp8_every > 0; });
  rules.push_back({"trace.fp8_every",
                   [](const Config& c) {
                     return when(c.trace.fp8_every > 0 && c.train.matmul != MatmulType::fp8, "tells of products in fp8, but ",
                                 "train.matmul is ", c.train.matmul, "; set train.matmul: fp8, or remove it");
                   },
                   {"train.matmul"}});
  rules.push_back({"trace.kernels",
                   [](const Config& c) {
                     return when(c.parallel.device == DeviceChoice::cpu && !c.trace.kernels.empty(),
                                 "records kernels on GPUs, but parallel.device is cpu; remove one of them");
                   },
                   {"parallel.device"}});
}

void add_validation(std::vector<Rule>& rules) {
  rules.push_back({"train.val_check_interval",
                   [](const Config& c) {
                     return when(c.train.val_check_interval > 0 && !validates(c), "is ", c.train.val_check_interval,
                                 ", but there is nothing to validate with; give data.val_path or ",
                                 "data.val_split_fraction");
                   },
                   {"data.val_path", "data.val_split_fraction"}});
  const auto of_validations = [&](const char* key, Asked asked) {
    rules.push_back({key,
                     [asked = std::move(asked)](const Config& c) {
                       return when(asked(c) && !validates(c), "is about validations, but there is nothing to validate ",
                                   "with; give data.val_path or data.val_split_fraction");
                     },
                     {"data.val_path", "data.val_split_fraction"}});
  };
  of_validations("checkpoint.keep_best", [](const Config& c) { return c.checkpoint.keep_best != BestCriterion::none; });
  of_validations("train.early_stopping_patience", [](const Config& c) { return c.train.early_stopping_patience > 0; });
  of_validations("evaluate.samples", [](const Config& c) { return c.evaluate.samples > 0; });
  rules.push_back({"evaluate.every",
                   [](const Config& c) {
                     return when(c.evaluate.every > 1 && c.evaluate.samples == 0, "is about texts that are generated at ",
                                 "validations, but evaluate.samples is 0; give it a number of samples, or remove every");
                   },
                   {"evaluate.samples"}});
  rules.push_back({"checkpoint.keep_best",
                   [](const Config& c) {
                     const std::string& best = c.checkpoint.keep_best.text;
                     return when(best != "none" && best != "loss" && c.evaluate.samples == 0, "is ", best,
                                 ", which is not loss: a score of texts that are generated at validations, but ",
                                 "evaluate.samples is 0; give it a number of samples, or set keep_best to loss or none");
                   },
                   {"evaluate.samples"}});
  rules.push_back({"output.save_best",
                   [](const Config& c) {
                     return when(c.output.save_best && c.checkpoint.keep_best == BestCriterion::none,
                                 "takes the best checkpoint, but checkpoint.keep_best is none; set it to loss");
                   },
                   {"checkpoint.keep_best"}});
}

void add_data(std::vector<Rule>& rules) {
  rules.push_back({"data.prompt_style", [](const Config& c) {
                     return when(c.data.prompt_style.find("{output}") != std::string::npos,
                                 "has {output} in it, but is the prompt alone: the output is put behind it; remove ",
                                 "{output}");
                   }});
  rules.push_back({"data.val_split_fraction",
                   [](const Config& c) {
                     return when(!c.data.val_path.empty() && c.data.val_split_fraction > 0, "is ",
                                 c.data.val_split_fraction, ", but data.val_path is given too; remove one of them");
                   },
                   {"data.val_path"},
                   {"data.val_path"}});
  rules.push_back({"data.text_padding",
                   [](const Config& c) {
                     return when(c.data.text_padding == TextPadding::packed && c.train.loss_on_padding,
                                 "is packed, which leaves out the padding that train.loss_on_padding: true learns; set ",
                                 "it to false, or text_padding to auto");
                   },
                   {"train.loss_on_padding"},
                   {"train.loss_on_padding"}});
}

// A key of strategy fsdp that is given with another.
Rule of_fsdp(const char* key, const char* name, std::vector<const char*> choices, Asked asked) {
  return {key,
          [=, asked = std::move(asked)](const Config& c) {
            return when(c.parallel.strategy != StrategyKind::fsdp && asked(c),
                        "is of strategy fsdp, but parallel.strategy is ", c.parallel.strategy,
                        "; set strategy: fsdp, or remove ", name);
          },
          std::move(choices)};
}

void add_parallel(std::vector<Rule>& rules) {
  rules.push_back({"parallel.strategy",
                   [](const Config& c) {
                     return when(c.parallel.strategy == StrategyKind::single && c.parallel.devices > 1,
                                 "is single, but parallel.devices is ", c.parallel.devices,
                                 "; use ddp or fsdp, or devices: 1");
                   },
                   {"parallel.devices"},
                   {"parallel.devices"}});
  rules.push_back(of_fsdp("parallel.reshard", "reshard", {"parallel.strategy"},
                          [](const Config& c) { return c.parallel.reshard != ReshardPolicy::automatic; }));
  rules.push_back(of_fsdp(
      "parallel.prefetch_bytes", "prefetch_bytes", {"parallel.strategy", "parallel.offload"},
      [](const Config& c) { return !offloads(c, "parameters") && c.parallel.prefetch_bytes != 0; }));
  rules.push_back(of_fsdp("parallel.shard_ranks", "shard_ranks", {"parallel.strategy"},
                          [](const Config& c) { return c.parallel.shard_ranks != ShardGroup::all; }));
  rules.push_back({"parallel.reshard",
                   [](const Config& c) {
                     return when(offloads(c, "parameters") && c.parallel.reshard == ReshardPolicy::step,
                                 "is step, which keeps the model on the GPU over a step, but parallel.offload has ",
                                 "parameters, which keeps it in the host; set reshard: always, or remove one of them");
                   },
                   {"parallel.offload"},
                   {"parallel.offload"},
                   "parameters"});
  Rule activations{"parallel.offload",
                   [](const Config& c) {
                     return when(offloads(c, "activations") && c.train.act_ckpt == LayerCheckpointing::none,
                                 "has activations, which are those that checkpointed layers keep, but train.act_ckpt ",
                                 "is none; set train.act_ckpt: full or half, or remove activations");
                   },
                   {"train.act_ckpt"}};
  activations.element = "activations";
  rules.push_back(std::move(activations));
  // That there is nothing to offload otherwise is told when the states are known.
  Rule states{"parallel.offload",
              [](const Config& c) {
                const bool none = c.train.optim == "sgd" && c.train.momentum == 0;
                return when(none && c.train.precision != Precision::bf16_mixed && offloads(c, "optimizer"),
                            "has optimizer, whose states there are none of");
              },
              {"train.optim", "train.momentum", "train.precision"}};
  states.element = "optimizer", states.refused = false;
  rules.push_back(std::move(states));
}

// What of these is wrong for the model at hand is told where it is known (check_storage).
void add_quantize(std::vector<Rule>& rules) {
  const auto moot = [&](const char* key, std::vector<const char*> yields_to, auto asked) {
    Rule rule{key, [=](const Config& c) { return when(asked(c), "has nothing to quantise"); }, std::move(yields_to)};
    rule.refused = false;
    rules.push_back(std::move(rule));
  };
  moot("model.quantize", {"adapter.kind", "model.freeze"}, [](const Config& c) {
    return c.model.quantize != WeightQuantization::none && c.adapter.kind == AdapterKind::none && c.model.freeze.empty();
  });
  rules.push_back({"model.double_quantize",
                   [](const Config& c) {
                     return when(c.model.quantize == WeightQuantization::fp8 && c.model.double_quantize, "is of model.quantize nf4 or int8, but "
                                 "quantize is fp8, which has one scale for a matrix; remove double_quantize");
                   },
                   {"model.quantize"}});
  const std::vector<const char*> choices = {"model.quantize", "adapter.kind", "model.freeze"};
  moot("model.double_quantize", choices,
       [](const Config& c) { return c.model.quantize == WeightQuantization::none && c.model.double_quantize; });
  moot("model.quantize_groups", choices,
       [](const Config& c) { return c.model.quantize == WeightQuantization::none && !c.model.quantize_groups.empty(); });
}

bool in_file(const Config& config, const std::string& key) { return given(config, key.c_str()) && !on_command_line(config, key); }

const Key& key_of(const std::string& full) {
  const size_t dot = full.find('.');
  return *find_key(full.substr(0, dot), full.substr(dot + 1));
}

/// Which of `keys` satisfy `where`.
template <class Where>
std::vector<const char*> those(const std::vector<const char*>& keys, const Where& where) {
  std::vector<const char*> found;
  std::copy_if(keys.begin(), keys.end(), std::back_inserter(found), where);
  return found;
}

/// `config` without a value that its file has, with a note. Of a list `element` goes alone, where one is named.
Config without(Config config, const char* name, const std::string& element, const char* winner) {
  const Key& key = key_of(name);
  const Field field = key.field(config);
  auto* list = std::get_if<std::vector<std::string>*>(&field);
  const bool one = list && !element.empty();
  config.notes.push_back(concat(place_of(config, name), ": ", name, ": ", one ? element : value_text(key, config),
                                " is left out: it cannot stand beside ", winner, "=",
                                value_text(key_of(winner), config),
                                place_of(config, winner).starts_with(smoke_override) ? " of --smoke" : " of the command line"));
  if (one) {
    std::erase(**list, element);
    return config;
  }
  Config defaults;
  const Field initial = key.field(defaults);
  std::visit(
      [&]<class F>(const F& value) {
        if constexpr (std::is_same_v<F, ChoiceField>) value.set(std::get<F>(initial));
        else *value = *std::get<F>(initial);
      },
      field);
  config.places.erase(name);
  return config;
}

/// `config` as the command line wants it; unchanged where neither side wins.
Config settled(const Config& config, const Rule& rule) {
  const auto commanded = [&](const char* key) { return on_command_line(config, key); };
  const std::vector<const char*> winners = those(rule.yields_to, commanded);
  if (in_file(config, rule.key) && !winners.empty()) return without(config, rule.key, rule.element, winners[0]);
  if (!commanded(rule.key)) return config;
  Config other = config;
  for (const char* key : those(rule.wins_over, [&](const char* name) { return in_file(config, name); }))
    other = without(other, key, rule.element, rule.key);
  return rule.found(other).empty() ? other : config;
}

}  // namespace

const std::vector<Rule>& config_rules() {
  static const std::vector<Rule> rules = [] {
    std::vector<Rule> all;
    add_choice(all);
    add_batch(all);
    add_optimizer(all);
    add_fp8(all);
    add_steps(all);
    add_adapter(all);
    add_quantize(all);
    add_output(all);
    add_data(all);
    add_validation(all);
    add_parallel(all);
    return all;
  }();
  return rules;
}

// One key that goes may make another moot, so all are looked at until nothing changes. A key goes once.
void settle_contradictions(Config& config) {
  for (bool changed = true; changed;) {
    changed = false;
    for (const Rule& rule : config_rules()) {
      if (rule.found(config).empty()) continue;
      Config other = settled(config, rule);
      changed = changed || other.notes.size() > config.notes.size();
      config = std::move(other);
    }
  }
  if (config.train.max_steps > 0 && !given(config, "train.max_epochs")) config.train.max_epochs = -1;
}

void check_rules(const Config& config) {
  for (const Rule& rule : config_rules()) {
    const std::string text = rule.refused ? rule.found(config) : "";
    if (!text.empty()) throw UserError(concat(place_of(config, rule.key), ": ", rule.key, ": ", text));
  }
}

}  // namespace blipft
