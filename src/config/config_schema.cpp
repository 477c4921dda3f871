// Config schema: the table of keys, and what follows from it (texts, suggestions, printing).
#include "config/config_schema.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <type_traits>

#include "blipft/error.h"
#include "config/nearest.h"

namespace blipft {

namespace {

template <class Section, class T>
Key key(Section Config::*section, T Section::*member, const char* section_name, const char* name, Allowed allowed,
        const char* doc, std::vector<std::string> aliases = {}) {
  auto field = [section, member](Config& config) -> Field { return &(config.*section.*member); };
  return {section_name, name, field, std::move(allowed), doc, std::move(aliases)};
}

// Largest numbers: far above what anybody wants, and so small that no product of them overflows, and that what is taken
// for them (an order of so many samples) fits into a machine.
constexpr double most_samples = 1e9;        // of an epoch
constexpr double most_batch = 1 << 20;      // micro-batches of a step
constexpr double most_steps = 1e12;
constexpr double most_ranks = 1 << 20;
constexpr double most_threads = 4096;
constexpr double most_factor = 1e6;         // learning rates and the like, which become f32
constexpr double least_f32 = 1e-37;

Allowed any() { return {}; }
Allowed required() {
  Allowed allowed;
  allowed.required = true;
  return allowed;
}
Allowed one_of(std::vector<std::string> choices) {
  Allowed allowed;
  allowed.choices = std::move(choices);
  return allowed;
}
/// A choice, or a text with `part` in it, which messages call `form`.
Allowed one_of_or_containing(std::vector<std::string> choices, std::string part, std::string form = "") {
  Allowed allowed = one_of(std::move(choices));
  allowed.or_containing = std::move(part);
  allowed.form = std::move(form);
  return allowed;
}
/// A choice, or an integer, min <= value <= max.
Allowed one_of_or_integer(std::vector<std::string> choices, double min, double max) {
  Allowed allowed = one_of(std::move(choices));
  allowed.or_integer = true;
  allowed.min = min;
  allowed.max = max;
  return allowed;
}
Allowed at_least(double min) {
  Allowed allowed;
  allowed.min = min;
  return allowed;
}
/// min <= value <= max
Allowed from_to(double min, double max) {
  Allowed allowed = at_least(min);
  allowed.max = max;
  return allowed;
}
/// min < value <= max
Allowed above(double min, double max) {
  Allowed allowed = from_to(min, max);
  allowed.above_min = true;
  return allowed;
}
/// min <= value < max
Allowed half_open(double min, double max) {
  Allowed allowed = from_to(min, max);
  allowed.below_max = true;
  return allowed;
}
/// -1 or at least 1
Allowed minus_one_or_positive() {
  Allowed allowed = from_to(-1, most_steps);
  allowed.zero = false;
  return allowed;
}

void add_model(std::vector<Key>& keys) {
  const auto m = [&](auto member, auto... rest) { keys.push_back(key(&Config::model, member, "model", rest...)); };
  using M = ModelSection;
  m(&M::path, "path", required(), "directory saved by Hugging Face: config.json, weights, tokenizer, image processor");
  m(&M::init, "init", one_of({"pretrained", "random"}), "where the first weights come from");
  m(&M::freeze, "freeze", any(),
    "parameter groups of the model that are not trained; --plan tells their names");
  m(&M::quantize, "quantize", one_of({"none", "nf4", "int8"}),
    "matrices of frozen layers in 4 or 8 bits (blocks of 64); embeddings, norms and head as ever",
    std::vector<std::string>{"quantization", "load_in_4bit", "load_in_8bit"});
  m(&M::double_quantize, "double_quantize", any(), "the scales of quantised blocks in 8 bits, not 32",
    std::vector<std::string>{"bnb_4bit_use_double_quant", "double_quant"});
  m(&M::quantize_groups, "quantize_groups", any(),
    "frozen parameter groups, as --plan names them, whose layers quantize takes; empty: all that are frozen");
}

void add_adapter(std::vector<Key>& keys) {
  const auto a = [&](auto member, auto... rest) { keys.push_back(key(&Config::adapter, member, "adapter", rest...)); };
  using A = AdapterSection;
  using Names = std::vector<std::string>;
  a(&A::kind, "kind", one_of({"none", "lora"}), "lora: low-rank adapters are trained, the model itself is frozen",
    Names{"peft_type"});
  a(&A::r, "r", from_to(1, 65536), "rank of the adapters", Names{"rank", "lora_r"});
  a(&A::alpha, "alpha", above(0, most_factor), "their product is scaled by alpha / r", Names{"lora_alpha"});
  a(&A::rslora, "rslora", any(), "scale by alpha / sqrt(r) instead", Names{"use_rslora"});
  a(&A::dropout, "dropout", half_open(0, 1), "of the adapters' input", Names{"lora_dropout"});
  a(&A::targets, "targets", any(),
    "layers that get adapters: q, k, v, o, mlp, head of the language model, or ends of modules' names (q_proj)",
    Names{"target_modules"});
  a(&A::dtype, "dtype", one_of({"f32", "bf16"}),
    "of the adapters' weights, gradients and optimizer states; products run in the compute dtype");
  a(&A::path, "path", any(), "PEFT adapter folder to go on from; empty: new adapters",
    Names{"adapter_name_or_path"});
}

void add_data(std::vector<Key>& keys) {
  const auto d = [&](auto member, auto... rest) { keys.push_back(key(&Config::data, member, "data", rest...)); };
  using D = DataSection;
  d(&D::path, "path", required(),
    "ImageFolder directory, or a .tar or directory of .tar shards (WebDataset), or a .json or .jsonl file or directory "
    "of them");
  d(&D::val_path, "val_path", any(), "samples for validation, as at path; empty: none",
    std::vector<std::string>{"validation_path", "eval_path"});
  d(&D::val_split_fraction, "val_split_fraction", half_open(0, 1),
    "share of the samples at path, drawn by train.seed, that is kept for validation; 0: none",
    std::vector<std::string>{"val_split", "val_fraction", "validation_split"});
  d(&D::format, "format", one_of({"auto", "imagefolder", "webdataset", "json"}),
    "auto: as the files at data.path say");
  d(&D::num_train_samples, "num_train_samples", from_to(0, most_samples),
    "use the first n samples; 0: all; more than there are: the set repeats",
    std::vector<std::string>{"num_samples", "samples"});
  d(&D::allow_outside, "allow_outside", any(),
    "pictures of an ImageFolder may lie outside of its folder: by .., an absolute path or a link");
  d(&D::exif_orientation, "exif_orientation", any(),
    "turn pictures as their EXIF orientation says, as the datasets library does; false: as they are stored");
  d(&D::transparency, "transparency", one_of({"white", "drop"}),
    "white: what is transparent lies on white, as in transformers from 5.23 on; drop: as if it were opaque, as before");
  d(&D::max_text_tokens, "max_text_tokens", from_to(2, 1 << 27),
    "longer texts are cut; the first token is given, so that 2 leave one to learn; JSON data: 512, where it is not given; "
    "may be written max_seq_length",
    std::vector<std::string>{"max_length", "max_seq_len", "cutoff_len", "block_size"});
  keys.back().other_name = "max_seq_length";
  d(&D::prompt_style, "prompt_style", one_of_or_containing({"alpaca", "none"}, "{instruction}"),
    "the prompt of JSON records with instruction and input; none: both as they are; or a text of one's own, with "
    "{instruction} and {input} in it");
  d(&D::chat_template, "chat_template", one_of({"auto", "llama2", "llama3", "chatml", "zephyr"}),
    "how JSON records with messages become text; auto: as tokenizer_config.json says, where it is one of these");
  d(&D::mask_prompt, "mask_prompt", any(),
    "true: of JSON records with a prompt the answer alone is learnt; of messages it always is");
  d(&D::append_eos, "append_eos", one_of({"auto", "true", "false"}),
    "put the end token behind a text; auto: behind answers to prompts, else as the tokenizer's files say");
  d(&D::text_padding, "text_padding", one_of({"auto", "packed", "longest", "max"}),
    "packed: next to none, each text takes its own length; longest: all of a step as its longest text, rounded up to "
    "8; max: always max_text_tokens; auto: packed, but longest where padding is learnt",
    std::vector<std::string>{"padding"});
  d(&D::num_workers, "num_workers", from_to(1, most_threads), "threads of each rank that decode and tokenize",
    std::vector<std::string>{"workers"});
  d(&D::prefetch_steps, "prefetch_steps", from_to(1, 4096), "steps prepared ahead",
    std::vector<std::string>{"prefetch_factor"});
  d(&D::shuffle, "shuffle", any(), "a new order every epoch");
  d(&D::on_bad_sample, "on_bad_sample", one_of({"stop", "skip"}),
    "a sample that cannot be read, decoded or tokenized; skip: the step goes on without it, it is counted and listed");
}

void add_train(std::vector<Key>& keys) {
  const auto t = [&](auto member, auto... rest) { keys.push_back(key(&Config::train, member, "train", rest...)); };
  using T = TrainSection;
  using Names = std::vector<std::string>;
  t(&T::lr, "lr", above(0, 1e30), "learning rate", Names{"learning_rate"});
  t(&T::lr_schedule, "lr_schedule", one_of({"constant", "linear", "cosine"}),
    "learning rate after the warm-up; linear and cosine end at 0",
    Names{"scheduler", "schedule", "lr_scheduler"});
  t(&T::warmup_steps, "warmup_steps", from_to(0, most_steps),
    "the first n steps: step s, counted from 0, learns at lr * s / n; 0: no warm-up", Names{"warmup"});
  t(&T::warmup_ratio, "warmup_ratio", half_open(0, 1), "warmup_steps as a share of all steps, rounded up; 0: none");
  t(&T::batch_size, "batch_size", from_to(1, kMostSamplesAtOnce), "samples of one micro-batch of one rank",
    Names{"micro_batch_size", "per_device_batch_size"});
  t(&T::accumulate_grad_batches, "accumulate_grad_batches", from_to(0, most_batch),
    "micro-batches of one step; 0: as total_batch_size says, which is so where that alone is given",
    Names{"gradient_accumulation_steps", "accumulation", "grad_accum"});
  t(&T::total_batch_size, "total_batch_size", from_to(0, most_samples),
    "samples of one step over all ranks: accumulate_grad_batches follows from it; 0: as batch_size and that say",
    Names{"global_batch_size", "effective_batch_size"});
  t(&T::precision, "precision", one_of({"32-true", "bf16-true", "bf16-mixed"}),
    "bf16-mixed: master weights in f32, arithmetic in bf16", Names{"dtype"});
  t(&T::matmul_precision, "matmul_precision", one_of({"highest", "high"}),
    "matrix products of 32-true on GPUs: highest: f32; high: TF32, as torch.set_float32_matmul_precision; no effect "
    "with bf16",
    Names{"float32_matmul_precision", "tf32"});
  t(&T::optim, "optim", one_of({"adamw", "adamw8bit", "lion", "sgd"}),
    "optimizer; adamw8bit: AdamW with moments in 8 bits", Names{"optimizer"});
  t(&T::beta1, "beta1", half_open(0, 1), "adamw: decay of the first moment; lion: of the mean in its sign");
  t(&T::beta2, "beta2", half_open(0, 1), "adamw: decay of the second moment; lion: of the kept mean (the paper: 0.99)");
  t(&T::eps, "eps", from_to(least_f32, 1), "adamw: added to the denominator", Names{"epsilon", "adam_epsilon"});
  t(&T::weight_decay, "weight_decay", from_to(0, most_factor), "adamw, lion: decoupled; sgd: added to the gradient");
  t(&T::momentum, "momentum", half_open(0, 1), "sgd: momentum");
  t(&T::stochastic_rounding, "stochastic_rounding", any(),
    "bf16-true: updates round weights up or down at random, exact in the mean");
  t(&T::gradient_clip_val, "gradient_clip_val", from_to(0, 1e30), "largest norm of the gradient; 0: no clipping",
    Names{"max_grad_norm", "grad_clip", "clip_grad_norm"});
  t(&T::on_nonfinite, "on_nonfinite", one_of({"stop", "skip"}),
    "a step whose gradient norm is not finite; stop: end with an error; skip: it changes no weight, gradients are held",
    Names{"skip_nan", "skip_nonfinite"});
  t(&T::act_ckpt, "act_ckpt", one_of({"none", "half", "full"}), "layers that recompute their forward in backward",
    Names{"activation_checkpointing", "gradient_checkpointing"});
  t(&T::max_epochs, "max_epochs", from_to(1, 1e6), "passes over the data",
    Names{"epochs", "num_epochs", "num_train_epochs"});
  t(&T::max_steps, "max_steps", minus_one_or_positive(),
    "stop after that many steps, or after max_epochs where these are fewer; -1: as max_epochs says",
    Names{"steps"});
  t(&T::limit_train_batches, "limit_train_batches", above(0, most_steps),
    "<= 1: this fraction of an epoch's steps; > 1: that many steps of each epoch");
  t(&T::val_check_interval, "val_check_interval", from_to(0, most_steps),
    "validation after every so many steps, and at the end; 0: after every epoch",
    Names{"val_every", "eval_interval", "eval_steps", "check_val_every_n_epoch"});
  t(&T::limit_val_batches, "limit_val_batches", above(0, most_steps),
    "<= 1: this fraction of a validation's batches; > 1: that many", Names{"eval_iters", "max_eval_batches"});
  t(&T::seed, "seed", at_least(0), "random seed of shuffling, dropout and random weights");
  t(&T::loss_on_padding, "loss_on_padding", any(), "true: train on padding too, as the tutorial does");
  t(&T::loss_normalization, "loss_normalization", one_of({"tokens", "micro_batch"}),
    "mean over the step's tokens, or the mean of the micro-batches' means");
  t(&T::dropout, "dropout", any(), "false: all dropout probabilities are 0");
}

void add_parallel(std::vector<Key>& keys) {
  const auto p = [&](auto member, auto... rest) {
    keys.push_back(key(&Config::parallel, member, "parallel", rest...));
  };
  using P = ParallelSection;
  using Names = std::vector<std::string>;
  p(&P::device, "device", one_of({"auto", "cpu", "cuda"}), "auto: cuda where there is a GPU", Names{"accelerator"});
  p(&P::devices, "devices", from_to(0, most_ranks), "number of ranks, one GPU each; 0: as many as mpirun started",
    Names{"gpus", "num_gpus", "ranks", "world_size", "nproc"});
  p(&P::strategy, "strategy", one_of({"auto", "single", "ddp", "fsdp"}), "auto: single on one rank, else ddp");
  p(&P::shard_ranks, "shard_ranks", one_of_or_integer({"all", "node"}, 1, most_ranks),
    "fsdp: ranks that share one copy of the parameters; node: those of a machine; gradients are summed over the groups",
    Names{"sharding_strategy", "hybrid_shard", "hybrid_sharding"});
  p(&P::reshard, "reshard", one_of({"auto", "always", "step"}),
    "fsdp: drop gathered parameters after each use or once a step; auto: as memory allows",
    Names{"reshard_after_forward"});
  p(&P::offload, "offload", one_of({"optimizer", "parameters", "activations"}),
    "what lies in page-locked host memory: optimizer states and master weights, updated through the link; parameters, "
    "read ahead of each use; activations that checkpointed layers keep", Names{"offload_optimizer", "cpu_offload"});
  p(&P::prefetch_bytes, "prefetch_bytes", from_to(0, 1e15),
    "fsdp: bytes gathered ahead of use; 0: from the memory plan");
  p(&P::direct_gathers, "direct_gathers", any(),
    "fsdp: gather by copies between GPUs instead of NCCL, in groups of one machine");
  p(&P::direct_reductions, "direct_reductions", any(),
    "sum gradients by reading the other GPUs' memory instead of NCCL, in groups of one machine");
  p(&P::nccl_max_ctas, "nccl_max_ctas", from_to(0, 1024),
    "thread blocks that a NCCL collective may occupy; 0: a good default");
  p(&P::gemm_search, "gemm_search", one_of({"quick", "thorough"}),
    "how long products are timed that are new on this machine");
  p(&P::cuda_graph, "cuda_graph", any(), "capture the step of each text shape once and replay it");
  p(&P::threads, "threads", from_to(0, most_threads),
    "CPU threads of a rank's operations; 0: cores / ranks of this machine",
    Names{"omp_num_threads", "num_threads"});
  p(&P::timeout_seconds, "timeout_seconds", from_to(0.01, 1e6),
    "a rank silent for so long, or no progress of any rank, ends the run (longer while it starts or saves)",
    Names{"timeout", "nccl_timeout", "ddp_timeout"});
}

void add_checkpoint(std::vector<Key>& keys) {
  const auto c = [&](auto member, auto... rest) {
    keys.push_back(key(&Config::checkpoint, member, "checkpoint", rest...));
  };
  using C = CheckpointSection;
  using Names = std::vector<std::string>;
  c(&C::every_steps, "every_steps", from_to(0, most_steps), "steps between checkpoints; 0: not by steps",
    Names{"save_steps", "save_interval", "every_n_train_steps"});
  c(&C::every_minutes, "every_minutes", from_to(0, 1e6), "minutes between checkpoints; 0: not by time",
    Names{"train_time_interval"});
  c(&C::keep, "keep", from_to(1, 1e6), "how many of the newest are kept", Names{"save_total_limit", "save_top_k"});
  c(&C::path, "path", any(), "folder of the checkpoints; empty: checkpoints/ under output.path");
  c(&C::resume, "resume", one_of_or_containing({"never", "auto"}, "/", "the path of a checkpoint, with / in it"),
    "auto: go on from the newest whole checkpoint, if there is any; or the path (with a /) of one",
    Names{"resume_from_checkpoint", "ckpt_path"});
  Allowed limit = one_of_or_containing({"none"}, ":", "MM:SS, H:MM:SS, D-HH:MM or D-HH:MM:SS");
  limit.or_integer = true;
  limit.min = 1, limit.max = 1e6;
  c(&C::time_limit, "time_limit", limit,
    "none, minutes, or a time as Slurm writes it: in time for it the run writes a checkpoint and ends with code 75",
    Names{"max_time"});
  c(&C::host_gib, "host_gib", from_to(0, 1e6),
    "page-locked host memory of a rank for a checkpoint on its way; 0: all of it, or a quarter of the rank's share");
}

void add_trace_and_output(std::vector<Key>& keys) {
  const auto t = [&](auto member, auto... rest) { keys.push_back(key(&Config::trace, member, "trace", rest...)); };
  using T = TraceSection;
  t(&T::enabled, "enabled", any(), "write trace.rankNNNN.h5 under output.path");
  t(&T::spans, "spans", one_of({"none", "units"}), "record begin and end of every unit's work");
  t(&T::kernels, "kernels", from_to(0, most_steps),
    "steps of which every kernel is recorded (CUPTI); they run apart from the others, and slower");
  t(&T::sample_seconds, "sample_seconds", from_to(0.001, most_factor),
    "seconds between samples of GPU utilisation, power and clocks");
  t(&T::on_error, "on_error", one_of({"warn", "stop"}),
    "when the trace cannot be written: say so and train on without it, or stop");

  const auto o = [&](auto member, auto... rest) { keys.push_back(key(&Config::output, member, "output", rest...)); };
  using O = OutputSection;
  using Names = std::vector<std::string>;
  o(&O::path, "path", required(), "directory of this run: traces, saved model", Names{"output_dir", "save_dir"});
  o(&O::overwrite, "overwrite", any(),
    "true: replace the results of another run at path (traces, checkpoints, saved model); false: refuse such a path",
    Names{"overwrite_output_dir", "exist_ok", "force"});
  o(&O::save_model, "save_model", any(),
    "write model/ in Hugging Face form at the end; with adapters adapter/ in PEFT's form");
  o(&O::save, "save", one_of({"all", "trained"}), "all tensors, or those alone that were trained");
  o(&O::save_merged, "save_merged", any(), "with adapters: write model/ too, with the adapters merged into it",
    Names{"merge", "merge_and_unload"});
  o(&O::save_dtype, "save_dtype", one_of({"auto", "f32", "bf16"}),
    "dtype of all saved tensors; auto: what was trained as its master weights, what is frozen as it was stored");
  o(&O::memory_every, "memory_every", from_to(1, most_steps), "steps between memory lines; also at steps 0 and 1",
    Names{"log_every", "log_every_n_steps"});
  o(&O::progress_seconds, "progress_seconds", from_to(0, 1e300),
    "seconds between progress lines when not on a terminal");
}

template <class Number>
std::string number_text(Number value) {
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);  // doubles: the shortest that reads back
  return std::string(buffer, result.ptr);
}

template <class T>
std::string element_text(const T& value) {
  if constexpr (std::is_same_v<T, std::string>) return quote_scalar(value);
  else return number_text(value);
}

template <class T>
std::string field_text(const T& value) {
  if constexpr (std::is_same_v<T, bool>) return value ? "true" : "false";
  else if constexpr (std::is_same_v<T, Precision>) return precision_name(value);
  else return element_text(value);
}

template <class T>
std::string field_text(const std::vector<T>& values) {
  std::string text;
  for (const T& value : values) text += (text.empty() ? "" : ", ") + element_text(value);
  return "[" + text + "]";
}

std::string bound_text(double bound) {
  const bool whole = bound == std::floor(bound) && std::fabs(bound) < 1e16;
  return whole ? number_text(static_cast<int64_t>(bound)) : number_text(bound);
}

std::string bounds_text(const Allowed& allowed) {
  std::string text;
  if (allowed.min > -std::numeric_limits<double>::infinity())
    text = concat(allowed.above_min ? " > " : " >= ", bound_text(allowed.min));
  if (allowed.max < std::numeric_limits<double>::infinity())
    text += concat(text.empty() ? "" : " and", allowed.below_max ? " < " : " <= ", bound_text(allowed.max));
  if (!allowed.zero) text += ", not 0";
  return text;
}

}  // namespace

const std::vector<Key>& config_keys() {
  static const std::vector<Key> keys = [] {
    std::vector<Key> all;
    add_model(all);
    add_adapter(all);
    add_data(all);
    add_train(all);
    add_parallel(all);
    add_checkpoint(all);
    add_trace_and_output(all);
    return all;
  }();
  return keys;
}

const std::vector<std::string>& config_sections() {
  static const std::vector<std::string> sections = [] {
    std::vector<std::string> names;
    for (const Key& key : config_keys())
      if (names.empty() || names.back() != key.section) names.push_back(key.section);
    return names;
  }();
  return sections;
}

const Key* find_key(const std::string& section, const std::string& name) {
  for (const Key& key : config_keys())
    if (key.section == section && (key.name == name || (!name.empty() && key.other_name == name))) return &key;
  return nullptr;
}

std::string expected_value(const Key& key) {
  Config config;
  const Allowed& allowed = key.allowed;
  return std::visit(
      [&](auto* field) -> std::string {
        using T = std::remove_pointer_t<decltype(field)>;
        if constexpr (std::is_same_v<T, bool>) return "true or false";
        else if constexpr (std::is_same_v<T, int64_t>) return "an integer" + bounds_text(allowed);
        else if constexpr (std::is_same_v<T, double>) return "a number" + bounds_text(allowed);
        else if constexpr (std::is_same_v<T, std::vector<std::string>>)
          return "a list of " + (allowed.choices.empty() ? "names" : join_names(allowed.choices));
        else if constexpr (std::is_same_v<T, std::vector<int64_t>>)
          return "a list of integers" + bounds_text(allowed);
        std::vector<std::string> choices = allowed.choices;
        if (allowed.or_integer) choices.push_back("an integer" + bounds_text(allowed));
        if (!allowed.or_containing.empty())
          choices.push_back(allowed.form.empty() ? "a text with " + allowed.or_containing + " in it" : allowed.form);
        return choices.empty() ? "text" : "one of " + join_names(choices);
      },
      key.field(config));
}

std::string value_text(const Key& key, const Config& config) {
  // The table's fields are mutable pointers; nothing is written through them here.
  const Field field = key.field(const_cast<Config&>(config));
  return std::visit([](const auto* value) { return field_text(*value); }, field);
}

std::string suggest_key(const std::string& section, const std::string& name) {
  std::vector<std::string> elsewhere, own_names, other_names;
  for (const Key& key : config_keys()) {
    const bool alias = std::find(key.aliases.begin(), key.aliases.end(), name) != key.aliases.end();
    if (alias) return "; did you mean " + key.full() + "?";
    if (key.name == name) elsewhere.push_back(key.full());
    if (key.section == section) own_names.push_back(key.name);
    other_names.push_back(key.name);
  }
  if (!elsewhere.empty()) return "; " + brief(name) + " belongs elsewhere: did you mean " + join_names(elsewhere) + "?";
  std::string near = nearest_name(name, own_names);
  if (!near.empty()) return "; did you mean " + section + "." + near + "?";
  near = nearest_name(name, other_names);
  for (const Key& key : config_keys())
    if (!near.empty() && key.name == near) return "; did you mean " + key.full() + "?";
  if (own_names.empty()) return "; the sections are " + join_names(config_sections(), " and ");
  return "; the keys of " + section + " are " + join_names(own_names, " and ");
}

ScalarKind scalar_kind(const std::string& text) {
  static const std::vector<std::string> nulls = {"", "~", "null", "Null", "NULL"};
  static const std::vector<std::string> booleans = {"true", "True", "TRUE", "false", "False", "FALSE"};
  if (std::find(nulls.begin(), nulls.end(), text) != nulls.end()) return ScalarKind::null;
  if (std::find(booleans.begin(), booleans.end(), text) != booleans.end()) return ScalarKind::boolean;
  const char* begin = text.data() + (text[0] == '+' ? 1 : 0);
  const char* end = text.data() + text.size();
  double value = 0;
  const auto [stop, error] = std::from_chars(begin, end, value);
  const bool signs_twice = begin != text.data() && begin != end && *begin == '-';
  const bool number = stop == end && stop != begin && !signs_twice && error != std::errc::invalid_argument;
  return number ? ScalarKind::number : ScalarKind::text;
}

std::string quote_scalar(const std::string& text) {
  static const std::string safe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-+";
  static const std::vector<std::string> old_booleans = {"yes", "no", "on", "off", "y", "n"};  // of YAML 1.1
  const bool is_old_boolean = std::any_of(old_booleans.begin(), old_booleans.end(),
                                          [&](const std::string& word) { return name_distance(word, text) == 0; });
  const bool plain = text.find_first_not_of(safe) == std::string::npos && scalar_kind(text) == ScalarKind::text &&
                     text[0] != '-' && !is_old_boolean;
  if (plain) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    const char* digits = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') quoted += {'\\', c};
    else if (byte < 0x20 || byte == 0x7f) quoted += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
    else quoted += c;
  }
  return quoted + "\"";
}

}  // namespace blipft
