// Config check: refuses configurations that are invalid for every run, or for the given ranks and model.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/nearest.h"
#include "blipft/error.h"
#include "config/config_rules.h"
#include "config/config_schema.h"

namespace blipft {

namespace {

/// Throws with the place of `key` when `impossible`.
template <class... Parts>
void refuse_if(const Config& config, bool impossible, const char* key, const Parts&... why) {
  if (impossible) throw UserError(concat(location_of(config, key), ": ", key, ": ", why...));
}

}  // namespace

void check_combinations(const Config& config) {
  const auto limit = [&](const char* key, double value, const char* what) {
    refuse_if(config, value > 1 && value != std::floor(value), key, "found ", value,
              ", expected a fraction up to 1 or a whole number of ", what);
  };
  limit("train.limit_train_batches", config.steps.limit_train_batches, "steps");
  limit("train.limit_val_batches", config.steps.limit_val_batches, "batches");
  refuse_if(config, config.data.prompt_style.text.find("{output}") != std::string::npos, "data.prompt_style",
            "has {output} in it, but the output always follows the prompt. Remove {output}");
  refuse_if(config, config.adapter.kind != AdapterKind::none && config.adapter.targets.empty(), "adapter.targets",
            "is empty, so that nothing would be trained. Name the layers that get adapters");
  check_conflicts(config);
  time_limit_seconds(config);
}

void check_ranks(const Config& config, int64_t ranks) {
  const int64_t devices = config.parallel.devices;
  const char* were = ranks == 1 ? " rank was started" : " ranks were started";
  refuse_if(config, devices != 0 && devices != ranks, "parallel.devices", "is ", devices, ", but ", ranks, were,
            "; start with mpirun -np ", devices, ", or set parallel.devices=", ranks, " (0: any number)");
  refuse_if(config, config.parallel.strategy == StrategyKind::single && ranks > 1, "parallel.strategy", "is single, but ", ranks,
            were, "; start one rank, or set parallel.strategy=ddp or fsdp");
}

const char* depends_on_micro_batch(const Config& config) {
  if (config.steps.loss_normalization == LossNormalization::micro_batch) return "train.loss_normalization: micro_batch";
  return config.steps.loss_on_padding ? "train.loss_on_padding: true" : nullptr;
}

int64_t share_of_a_step(const Config& config, int64_t ranks) {
  return (config.steps.total_batch_size + ranks - 1) / ranks;
}

Config with_micro_batches(const Config& config, int64_t ranks, int64_t micro_batches) {
  Config other = config;
  other.steps.accumulate_grad_batches = micro_batches;
  other.steps.batch_size = (share_of_a_step(config, ranks) + micro_batches - 1) / micro_batches;
  return other;
}

Config resolve_for_ranks(const Config& config, int64_t ranks) {
  const StepsSection& steps = config.steps;
  if (steps.total_batch_size == 0) return config;
  const int64_t total = steps.total_batch_size, share = share_of_a_step(config, ranks);
  const std::string given = concat("is ", total);
  refuse_if(config, total < ranks, "train.total_batch_size", given, ", less than the ", ranks,
            " ranks, so that some would have no sample; start at most ", counted(total, "rank"), ", or raise it");
  const int64_t requested = steps.accumulate_grad_batches;
  if (chooses_batch_size(config)) {
    refuse_if(config, requested > share, "train.accumulate_grad_batches", "is ", requested, ", but of train.total_batch_size ", total,
              " a rank has ", counted(share, "sample"), "; lower it, or remove it: train.batch_size is auto");
    return config;
  }
  const int64_t together = ranks * steps.batch_size, below = total / together * together;
  const std::string unit = concat(counted(ranks, "rank"), " x train.batch_size ", steps.batch_size);
  const char* depends = depends_on_micro_batch(config);
  refuse_if(config, depends && total % together != 0, "train.total_batch_size", given, ", which is no multiple of ", unit,
            " = ", together, ", and with ", depends, " micro-batches must be equal; the nearest that ",
            below > 0 ? concat("are: ", below, " or ") : "is: ", below + together);
  refuse_if(config, steps.batch_size > share, "train.batch_size", "is ", steps.batch_size, ", but of train.total_batch_size ",
            total, " each of ", counted(ranks, "rank"), " has ", counted(share, "sample"), "; lower it to ", share,
            ", or give auto");
  const int64_t accumulate = (share + steps.batch_size - 1) / steps.batch_size;
  // More micro-batches than needed are allowed if train.batch_size is still their size: 13 samples can be 6 x 3, with
  // empty slots.
  const bool fine = requested == accumulate || (requested > 0 && (share + requested - 1) / requested == steps.batch_size);
  refuse_if(config, requested != 0 && !fine, "train.accumulate_grad_batches", "is ", requested,
            ", but train.total_batch_size ", total, " on ", unit, " takes ", accumulate, "; remove one of them");
  Config resolved = config;
  resolved.steps.accumulate_grad_batches = requested > 0 ? requested : accumulate;
  return resolved;
}

}  // namespace blipft
