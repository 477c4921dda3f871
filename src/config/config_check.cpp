// Config check: refuses configurations that are invalid for every run, or for the given ranks and model.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "blipft/error.h"
#include "config/config_rules.h"
#include "config/config_schema.h"
#include "config/nearest.h"

namespace blipft {

namespace {

/// Throws with the place of `key` when `impossible`.
template <class... Parts>
void refuse_if(const Config& config, bool impossible, const char* key, const Parts&... why) {
  if (impossible) throw UserError(concat(place_of(config, key), ": ", key, ": ", why...));
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
  const bool all = config.adapter.kind == AdapterKind::none && frozen.size() == groups.size();  // adapters freeze the rest anyway
  refuse_if(config, !groups.empty() && all, "model.freeze",
            "every part of the model is frozen, so nothing would be trained; remove one");
}

void check_combinations(const Config& config) {
  const auto limit = [&](const char* key, double value, const char* what) {
    refuse_if(config, value > 1 && value != std::floor(value), key, "found ", value,
              ", expected a fraction up to 1 or a whole number of ", what);
  };
  limit("train.limit_train_batches", config.train.limit_train_batches, "steps");
  limit("train.limit_val_batches", config.train.limit_val_batches, "batches");
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
  if (config.train.loss_normalization == LossNormalization::micro_batch) return "train.loss_normalization: micro_batch";
  return config.train.loss_on_padding ? "train.loss_on_padding: true" : nullptr;
}

int64_t share_of_a_step(const Config& config, int64_t ranks) {
  return (config.train.total_batch_size + ranks - 1) / ranks;
}

Config with_micro_batches(const Config& config, int64_t ranks, int64_t micro_batches) {
  Config other = config;
  other.train.accumulate_grad_batches = micro_batches;
  other.train.batch_size = (share_of_a_step(config, ranks) + micro_batches - 1) / micro_batches;
  return other;
}

Config resolve_for_ranks(const Config& config, int64_t ranks) {
  const TrainSection& train = config.train;
  if (train.total_batch_size == 0) return config;
  const int64_t total = train.total_batch_size, share = share_of_a_step(config, ranks);
  const std::string given = concat("is ", total);
  refuse_if(config, total < ranks, "train.total_batch_size", given, ", less than the ", ranks,
            " ranks, so that some would have no sample; start at most ", counted(total, "rank"), ", or raise it");
  const int64_t asked = train.accumulate_grad_batches;
  if (chooses_batch_size(config)) {
    refuse_if(config, asked > share, "train.accumulate_grad_batches", "is ", asked, ", but of train.total_batch_size ", total,
              " a rank has ", counted(share, "sample"), "; lower it, or remove it: train.batch_size is auto");
    return config;
  }
  const int64_t together = ranks * train.batch_size, below = total / together * together;
  const std::string unit = concat(counted(ranks, "rank"), " x train.batch_size ", train.batch_size);
  const char* depends = depends_on_micro_batch(config);
  refuse_if(config, depends && total % together != 0, "train.total_batch_size", given, ", which is no multiple of ", unit,
            " = ", together, ", and with ", depends, " micro-batches must be equal; the nearest that ",
            below > 0 ? concat("are: ", below, " or ") : "is: ", below + together);
  refuse_if(config, train.batch_size > share, "train.batch_size", "is ", train.batch_size, ", but of train.total_batch_size ",
            total, " each of ", counted(ranks, "rank"), " has ", counted(share, "sample"), "; lower it to ", share,
            ", or give auto");
  const int64_t accumulate = (share + train.batch_size - 1) / train.batch_size;
  // More micro-batches than needed are allowed if train.batch_size is still their size: 13 samples can be 6 x 3, with
  // empty slots.
  const bool fine = asked == accumulate || (asked > 0 && (share + asked - 1) / asked == train.batch_size);
  refuse_if(config, asked != 0 && !fine, "train.accumulate_grad_batches", "is ", asked,
            ", but train.total_batch_size ", total, " on ", unit, " takes ", accumulate, "; remove one of them");
  Config resolved = config;
  resolved.train.accumulate_grad_batches = asked > 0 ? asked : accumulate;
  return resolved;
}

int64_t shard_group_size(const Config& config, int64_t ranks, int64_t node_ranks) {
  const std::string& asked = config.parallel.shard_ranks.text;
  const char* key = "parallel.shard_ranks";
  // ddp, or one rank: each has all weights in its own host memory, and gathers units from there.
  if (offloads(config, OffloadedData::parameters) && config.parallel.strategy != StrategyKind::fsdp) return 1;
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

// Parses a time in Slurm's notation: minutes, MM:SS, H:MM:SS, D-HH:MM, D-HH:MM:SS. A field after another one is at most
// 59, hours after days at most 23.
double time_limit_seconds(const Config& config) {
  const std::string& text = config.checkpoint.time_limit.text;
  if (text == "none") return 0;
  const auto refuse = [&] {
    throw UserError(concat(place_of(config, "checkpoint.time_limit"), ": checkpoint.time_limit: found ", "\"", brief(text), "\"",
                           ", expected none, minutes, MM:SS, H:MM:SS, D-HH:MM or D-HH:MM:SS"));
  };
  const auto number = [&](const std::string& digits) {
    int64_t value = -1;
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || stop != digits.data() + digits.size() || value < 0 || value > 1'000'000) refuse();
    return static_cast<double>(value);
  };
  const size_t dash = text.find('-');
  const bool days = dash != std::string::npos;
  std::vector<double> fields;
  for (size_t begin = days ? dash + 1 : 0; begin <= text.size();) {
    const size_t end = std::min(text.find(':', begin), text.size());
    fields.push_back(number(text.substr(begin, end - begin)));
    if (fields.back() > (fields.size() > 1 ? 59 : days ? 23 : 1e6)) refuse();
    begin = end + 1;
  }
  if (fields.size() > 3) refuse();
  double unit = days || fields.size() == 3 ? 3600 : 60, seconds = days ? 86400 * number(text.substr(0, dash)) : 0;
  for (const double field : fields) seconds += field * unit, unit /= 60;
  if (seconds == 0) refuse();
  return seconds;
}

std::string checkpoints_folder(const Config& config) {
  return config.checkpoint.path.empty() ? config.output.path + "/checkpoints" : config.checkpoint.path;
}

}  // namespace blipft
