// Config check: values that are fine by themselves and cannot stand together.
#include <algorithm>
#include <cmath>

#include "blipft/error.h"
#include "config/config_schema.h"
#include "config/nearest.h"

namespace blipft {

namespace {

/// Throws with the place of `key` when `impossible`.
template <class... Parts>
void refuse_if(const Config& config, bool impossible, const char* key, const Parts&... why) {
  if (impossible) throw UserError(concat(place_of(config, key), ": ", key, ": ", why...));
}

constexpr int64_t most_step_samples = int64_t{1} << 24;

void check_train(const Config& config) {
  const TrainSection& train = config.train;
  const TrainSection standard;
  const bool sgd = train.optim == "sgd", adamw = train.optim == "adamw" || train.optim == "adamw8bit";
  refuse_if(config, train.accumulate_grad_batches == 0 && train.total_batch_size == 0, "train.accumulate_grad_batches",
            "is 0, which leaves it to train.total_batch_size, and that is not given; give one of them");
  refuse_if(config, !sgd && train.momentum != 0, "train.momentum", "is of optim sgd, but train.optim is ", train.optim,
            "; set train.optim: sgd, or remove momentum (adamw has beta1)");
  refuse_if(config, sgd && train.beta1 != standard.beta1, "train.beta1",
            "is of optim adamw, but train.optim is sgd; remove it, or use momentum");
  refuse_if(config, sgd && train.beta2 != standard.beta2, "train.beta2",
            "is of optim adamw, but train.optim is sgd; remove it");
  refuse_if(config, !adamw && train.eps != standard.eps, "train.eps", "is of optim adamw, but train.optim is ",
            train.optim, "; remove it");
  refuse_if(config, train.stochastic_rounding && train.precision != Precision::bf16_true, "train.stochastic_rounding",
            "is of precision bf16-true, whose weights have no more exact copy, but train.precision is ",
            precision_name(train.precision), "; set precision: bf16-true, or remove stochastic_rounding");
  refuse_if(config, train.stochastic_rounding && config.adapter.kind != "none" && config.adapter.dtype == "f32",
            "train.stochastic_rounding", "rounds what is updated in bf16, but adapters are f32 (adapter.dtype); remove it");
  refuse_if(config, train.warmup_steps > 0 && train.warmup_ratio > 0, "train.warmup_ratio", "is ", train.warmup_ratio,
            ", but train.warmup_steps is ", train.warmup_steps, "; remove one of them");
  refuse_if(config, train.max_steps > 0 && train.warmup_steps >= train.max_steps, "train.warmup_steps", "is ",
            train.warmup_steps, ", not less than train.max_steps ", train.max_steps,
            "; the learning rate would never be reached; lower it, or give train.warmup_ratio in its place");
  refuse_if(config, train.batch_size * std::max<int64_t>(train.accumulate_grad_batches, 1) > most_step_samples,
            "train.accumulate_grad_batches", "is ", train.accumulate_grad_batches, " micro-batches of ",
            train.batch_size, " samples (train.batch_size), expected a step of at most ", most_step_samples,
            " samples a rank; lower one of them");
  const auto no_limit = [&](double limit, const char* key, const char* what) {
    refuse_if(config, limit > 1 && limit != std::floor(limit), key, "found ", limit,
              ", expected a fraction up to 1 or a whole number of ", what);
  };
  no_limit(train.limit_train_batches, "train.limit_train_batches", "steps");
  no_limit(train.limit_val_batches, "train.limit_val_batches", "batches");
}

void check_parallel(const Config& config) {
  const ParallelSection& parallel = config.parallel;
  const bool fsdp = cuts_parameters(parallel.strategy);
  refuse_if(config, parallel.strategy == "single" && parallel.devices > 1, "parallel.strategy",
            "is single, but parallel.devices is ", parallel.devices, "; use ddp or fsdp, or devices: 1");
  refuse_if(config, !fsdp && parallel.reshard != "auto", "parallel.reshard", "is of strategy fsdp, but ",
            "parallel.strategy is ", parallel.strategy, "; set strategy: fsdp, or remove reshard");
  refuse_if(config, !fsdp && !offloads(config, "parameters") && parallel.prefetch_bytes != 0, "parallel.prefetch_bytes",
            "is of strategy fsdp, but parallel.strategy is ", parallel.strategy, "; set strategy: fsdp, or remove ",
            "prefetch_bytes");
  refuse_if(config, !fsdp && parallel.shard_ranks != "all", "parallel.shard_ranks", "is of strategy fsdp, but ",
            "parallel.strategy is ", parallel.strategy, "; set strategy: fsdp, or remove shard_ranks");
  refuse_if(config, offloads(config, "parameters") && parallel.reshard == "step", "parallel.reshard", "is step, which ",
            "keeps the model on the GPU over a step, but parallel.offload has parameters, which keeps it in the host; ",
            "set reshard: always, or remove one of them");
  refuse_if(config, offloads(config, "activations") && config.train.act_ckpt == "none", "parallel.offload",
            "has activations, which are those that checkpointed layers keep, but train.act_ckpt is none; set ",
            "train.act_ckpt: full or half, or remove activations");
}

void check_data(const Config& config) {
  const TrainSection& train = config.train;
  refuse_if(config, config.data.prompt_style.find("{output}") != std::string::npos, "data.prompt_style",
            "has {output} in it, but is the prompt alone: the output is put behind it; remove {output}");
  const DataSection& data = config.data;
  refuse_if(config, !data.val_path.empty() && data.val_split_fraction > 0, "data.val_split_fraction", "is ",
            data.val_split_fraction, ", but data.val_path is given too; remove one of them");
  refuse_if(config, train.val_check_interval > 0 && !validates(config), "train.val_check_interval", "is ",
            train.val_check_interval, ", but there is nothing to validate with; give data.val_path or ",
            "data.val_split_fraction");
  refuse_if(config, data.text_padding == "packed" && train.loss_on_padding, "data.text_padding",
            "is packed, which leaves out the padding that ",
            "train.loss_on_padding: true learns; set it to false, or text_padding to auto");
}

void check_adapter(const Config& config) {
  const AdapterSection& adapter = config.adapter;
  const AdapterSection standard;
  const bool none = adapter.kind == "none";
  const auto needs_lora = [&](bool given, const char* key) {
    refuse_if(config, none && given, key, "is of adapter.kind lora, but kind is none; set kind: lora, or remove it");
  };
  needs_lora(adapter.r != standard.r, "adapter.r");
  needs_lora(adapter.alpha != standard.alpha, "adapter.alpha");
  needs_lora(adapter.rslora, "adapter.rslora");
  needs_lora(adapter.dropout != standard.dropout, "adapter.dropout");
  needs_lora(adapter.targets != standard.targets, "adapter.targets");
  needs_lora(adapter.dtype != standard.dtype, "adapter.dtype");
  needs_lora(!adapter.path.empty(), "adapter.path");
  refuse_if(config, !none && adapter.dtype == "bf16" && config.train.precision != Precision::bf16_true, "adapter.dtype",
            "is bf16, which needs train.precision bf16-true, but that is ", precision_name(config.train.precision),
            "; remove one of them");
  needs_lora(config.output.save_merged, "output.save_merged");
  refuse_if(config, config.output.save_merged && config.model.init != "pretrained", "output.save_merged",
            "merges adapters into the checkpoint's weights, but model.init is ", config.model.init,
            "; set model.init: pretrained, or remove save_merged");
  refuse_if(config, !none && config.output.save != "all", "output.save", "is ", config.output.save, ", but with ",
            "adapters these alone are saved anyway; remove save");
  refuse_if(config, !none && adapter.targets.empty(), "adapter.targets", "is empty, so that nothing would be trained");
}

void check_rest(const Config& config) {
  time_limit_seconds(config);
  refuse_if(config, config.output.save_merged && !config.output.save_model, "output.save_merged",
            "is true, but output.save_model is false; set save_model: true, or remove save_merged");
  refuse_if(config, config.output.save != "all" && !config.output.save_model, "output.save", "is ",
            config.output.save, ", but output.save_model is false; set save_model: true, or remove save");
  refuse_if(config, !config.trace.enabled && !config.trace.kernels.empty(), "trace.kernels",
            "needs the trace, but trace.enabled is false");
  refuse_if(config, config.parallel.device == "cpu" && !config.trace.kernels.empty(), "trace.kernels",
            "records kernels on GPUs, but parallel.device is cpu; remove one of them");
}

}  // namespace

void check_freeze(const Config& config, const std::vector<std::string>& groups) {
  const std::vector<std::string>& frozen = config.model.freeze;  // none is listed twice
  for (const std::string& name : frozen) {
    const bool known = std::find(groups.begin(), groups.end(), name) != groups.end();
    const std::string near = nearest_name(name, groups);
    refuse_if(config, !known, "model.freeze", "found \"", name, "\", expected a list of ", join_names(groups),
              near.empty() ? "" : "; did you mean " + near + "?");
  }
  const bool all = config.adapter.kind == "none" && frozen.size() == groups.size();  // adapters freeze the rest anyway
  refuse_if(config, !groups.empty() && all, "model.freeze",
            "every part of the model is frozen, so nothing would be trained; remove one");
}

void check_combinations(const Config& config) {
  check_train(config);
  check_adapter(config);
  check_data(config);
  check_parallel(config);
  check_rest(config);
}

std::string place_of(const Config& config, const std::string& key) {
  const auto found = config.places.find(key);
  return found == config.places.end() ? config.file : found->second;
}

void check_ranks(const Config& config, int64_t ranks) {
  const int64_t devices = config.parallel.devices;
  const char* were = ranks == 1 ? " rank was started" : " ranks were started";
  refuse_if(config, devices != 0 && devices != ranks, "parallel.devices", "is ", devices, ", but ", ranks, were,
            "; start with mpirun -np ", devices, ", or set parallel.devices=", ranks, " (0: any number)");
  refuse_if(config, config.parallel.strategy == "single" && ranks > 1, "parallel.strategy", "is single, but ", ranks,
            were, "; start one rank, or set parallel.strategy=ddp or fsdp");
}

Config resolve_for_ranks(const Config& config, int64_t ranks) {
  const TrainSection& train = config.train;
  if (train.total_batch_size == 0) return config;
  const int64_t together = ranks * train.batch_size, total = train.total_batch_size;
  const std::string unit = concat(ranks, ranks == 1 ? " rank" : " ranks", " x train.batch_size ", train.batch_size);
  const int64_t below = total / together * together;
  refuse_if(config, total % together != 0, "train.total_batch_size", "is ", total, ", which is no multiple of ", unit,
            " = ", together, "; the nearest that ", below > 0 ? concat("are: ", below, " or ") : "is: ",
            below + together);
  const int64_t accumulate = total / together, asked = train.accumulate_grad_batches;
  refuse_if(config, asked != 0 && asked != accumulate, "train.accumulate_grad_batches", "is ", asked,
            ", but train.total_batch_size ", total, " on ", unit, " takes ", accumulate, "; remove one of them");
  Config resolved = config;
  resolved.train.accumulate_grad_batches = accumulate;
  return resolved;
}

int64_t shard_group_size(const Config& config, int64_t ranks, int64_t node_ranks) {
  const std::string& asked = config.parallel.shard_ranks;
  const char* key = "parallel.shard_ranks";
  // ddp, or one rank: each has all weights in its own host memory, and gathers units from there.
  if (offloads(config, "parameters") && !cuts_parameters(config.parallel.strategy)) return 1;
  if (asked == "all") return ranks;
  const bool node = asked == "node";
  refuse_if(config, node && node_ranks == 0, key, "is node, but not every machine has the same number of ranks; ",
            "start as many on each, or give a number of ranks");
  const int64_t size = node ? node_ranks : std::stoll(asked);
  if (ranks % size == 0) return size;
  int64_t below = std::min(size, ranks), above = size;
  while (ranks % below != 0) --below;
  while (above <= ranks && ranks % above != 0) ++above;
  const std::string nearest = below < size && above <= ranks ? concat(below, " or ", above) : concat(below);
  throw UserError(concat(place_of(config, key), ": ", key, ": ", node ? "a machine has " : "is ", size,
                         node ? " ranks" : "", ", which does not divide the ", ranks, " ranks; the nearest that ",
                         "do: ", nearest, " (all: ", ranks, ")"));
}

}  // namespace blipft
