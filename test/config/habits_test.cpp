// Habits of new users: settings that contradict the run file, and words and ways of other programs. Each has
// its result or its message here.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>

#include "blipft/config_rules.h"
#include "config/config_rules.h"
#include "config/config_schema.h"
#include "config/run_file.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

/// The value of a key in YAML.
std::string value(const Config& config, const std::string& name) {
  for (const auto& [key, text] : config_values(config))
    if (key == name) return text;
  return "no such key";
}

const std::string lora =
    "adapter: {kind: lora, r: 16, alpha: 32, rslora: true, dropout: 0.05, targets: [q, v, mlp], dtype: bf16, path: p}\n";

/// A run file, what the command line adds, the value that a key then has, how many keys went, each with a note; and the
/// key that is refused where all of it comes from the command line ("": it is not).
struct OverrideCase {
  std::string file, override_text, key, after;
  size_t notes;
  std::string refused;
};

// Combinations with several keys and notes; key_conflicts_test.cpp tries every pair of the table.
const std::vector<OverrideCase>& wins() {
  static const std::vector<OverrideCase> rows{
      {"train: {warmup_steps: 100}\n", "train.max_steps=5", "train.warmup_steps", "0", 1, ""},
      {"train: {warmup_steps: 100, max_steps: 500}\n", "train.max_steps=100", "train.warmup_steps", "0", 1, ""},
      {"train: {warmup_steps: 100, max_steps: 500}\n", "train.max_steps=101", "train.warmup_steps", "100", 0, ""},
      {"train: {max_epochs: -1, max_steps: 500}\n", "train.max_steps=-1", "train.max_epochs", "1", 1, "train.max_epochs"},
      {"train: {warmup_steps: 10}\n", "train.warmup_ratio=0.1", "train.warmup_steps", "0", 1, "train.warmup_ratio"},
      {"train: {warmup_ratio: 0.1}\n", "train.warmup_steps=10", "train.warmup_ratio", "0", 1, "train.warmup_ratio"},
      {"train: {val_check_interval: 9}\ndata: {path: d, val_split_fraction: 0.5}\n", "data.val_split_fraction=0",
       "train.val_check_interval", "0", 1, "train.val_check_interval"},
      {"train: {early_stopping_patience: 2}\ndata: {path: d, val_path: v}\n", "data.val_path=",
       "train.early_stopping_patience", "0", 1, "train.early_stopping_patience"},
      {"checkpoint: {keep_best: loss}\ndata: {path: d, val_path: v}\n", "data.val_path=", "checkpoint.keep_best", "none", 1,
       "checkpoint.keep_best"},
      {"evaluate: {samples: 9}\ndata: {path: d, val_path: v}\n", "data.val_path=", "evaluate.samples", "0", 1,
       "evaluate.samples"},
      {"evaluate: {samples: 9, every: 2}\ndata: {path: d, val_path: v}\n", "evaluate.samples=0", "evaluate.every", "1", 1,
       "evaluate.every"},
      {"evaluate: {samples: 9}\ncheckpoint: {keep_best: cider}\ndata: {path: d, val_path: v}\n", "evaluate.samples=0",
       "checkpoint.keep_best", "none", 1, "checkpoint.keep_best"},
      {"checkpoint: {keep_best: loss}\noutput: {save_model: true, save_best: true}\ndata: {path: d, val_path: v}\n",
       "checkpoint.keep_best=none", "output.save_best", "false", 1, "output.save_best"},
      {"train: {val_check_interval: 9}\ndata: {path: d, val_path: v}\n", "data.val_path=", "train.val_check_interval",
       "0", 1, "train.val_check_interval"},
      {"data: {path: d, val_split_fraction: 0.5}\n", "data.val_path=v", "data.val_split_fraction", "0", 1, "data.val_split_fraction"},
      {"data: {path: d, val_path: v}\n", "data.val_split_fraction=0.5", "data.val_path", "\"\"", 1, "data.val_split_fraction"},
      {lora, "adapter.kind=none", "adapter.targets", "[q, v]", 7, "adapter.r"},
      {lora + "output: {save_model: true, save_merged: true}\n", "adapter.kind=none", "output.save_merged", "false", 8, "adapter.r"},
      {lora, "train.precision=32-true", "adapter.dtype", "f32", 1, "adapter.dtype"},
      {"adapter: {kind: lora}\nmodel: {path: m, quantize: nf4, double_quantize: true}\n", "adapter.kind=none",
       "model.quantize", "none", 2, ""},
      {"model: {path: m, freeze: [language], quantize: nf4, quantize_groups: [language]}\n", "model.freeze=[]",
       "model.quantize_groups", "[]", 2, ""},
      {"model: {path: m, freeze: [language], quantize: nf4, double_quantize: true}\n", "model.quantize=none",
       "model.double_quantize", "false", 1, ""},
      {"train: {momentum: 0.9, optim: sgd}\n", "train.optim=adamw", "train.momentum", "0", 1, "train.momentum"},
      {"train: {beta1: 0.8, beta2: 0.95, eps: 1.0e-6}\n", "train.optim=sgd", "train.beta2", "0.999", 3, "train.beta1"},
      {"train: {eps: 1.0e-6}\n", "train.optim=lion", "train.eps", "1e-08", 1, "train.eps"},
      {"train: {stochastic_rounding: true}\n", "train.precision=bf16-mixed", "train.stochastic_rounding", "false", 1, "train.stochastic_rounding"},
      {"train: {stochastic_rounding: true}\n", "adapter.kind=lora", "train.stochastic_rounding", "false", 1, "train.stochastic_rounding"},
      {"train: {total_batch_size: 64, batch_size: 4}\n", "train.accumulate_grad_batches=2", "train.total_batch_size",
       "0", 1, ""},
      {"train: {accumulate_grad_batches: 4, batch_size: 16}\n", "train.total_batch_size=64", "train.accumulate_grad_batches", "0", 1, ""},
      {"train: {total_batch_size: 64, batch_size: 4, accumulate_grad_batches: 16}\n", "train.batch_size=8",
       "train.accumulate_grad_batches", "0", 1, ""},
      {"train: {accumulate_grad_batches: 0, total_batch_size: 8}\n", "train.total_batch_size=0",
       "train.accumulate_grad_batches", "1", 1, "train.accumulate_grad_batches"},
      {"train: {accumulate_grad_batches: 1024}\n", "train.batch_size=60000", "train.accumulate_grad_batches", "1", 1, "train.accumulate_grad_batches"},
      {"parallel: {strategy: single}\n", "parallel.devices=4", "parallel.strategy", "auto", 1, "parallel.strategy"},
      {"train: {matmul: fp8, matmul_exclude: [down_proj]}\n", "train.matmul=default", "train.matmul_exclude", "[]", 1, "train.matmul_exclude"},
      {"train: {matmul: fp8, fp8_gradients: e5m2}\n", "train.matmul=default", "train.fp8_gradients", "e4m3", 1, "train.fp8_gradients"},
      {"train: {matmul: fp8, fp8_least_size: 1}\n", "train.matmul=default", "train.fp8_least_size", "1000", 1, "train.fp8_least_size"},
      {"train: {matmul: fp8, fp8_keep_weights: none}\n", "train.matmul=default", "train.fp8_keep_weights", "auto", 1, "train.fp8_keep_weights"},
      {"train: {matmul: fp8, fp8_keep_inputs: none}\n", "train.matmul=default", "train.fp8_keep_inputs", "auto", 1, "train.fp8_keep_inputs"},
      {"parallel: {devices: 4}\n", "parallel.strategy=single", "parallel.devices", "0", 1, "parallel.strategy"},
      {"parallel: {strategy: fsdp, reshard: step, prefetch_bytes: 1024, shard_ranks: node}\n", "parallel.strategy=ddp",
       "parallel.shard_ranks", "all", 3, "parallel.reshard"},
      {"parallel: {offload: [parameters], prefetch_bytes: 1024}\n", "parallel.offload=[]", "parallel.prefetch_bytes",
       "0", 1, "parallel.prefetch_bytes"},
      {"parallel: {strategy: fsdp, reshard: step}\n", "parallel.offload=parameters", "parallel.reshard", "auto", 1, "parallel.reshard"},
      {"parallel: {strategy: fsdp, offload: [optimizer, parameters]}\n", "parallel.reshard=step", "parallel.offload",
       "[optimizer]", 1, "parallel.reshard"},
      {"train: {act_ckpt: full}\nparallel: {offload: [optimizer, activations]}\n", "train.act_ckpt=none",
       "parallel.offload", "[optimizer]", 1, "parallel.offload"},
      {"parallel: {offload: [optimizer]}\n", "train.optim=sgd", "parallel.offload", "[]", 1, ""},
      {"train: {loss_on_padding: true}\n", "data.text_padding=packed", "train.loss_on_padding", "false", 1, "data.text_padding"},
      {"data: {path: d, text_padding: packed}\n", "train.loss_on_padding=true", "data.text_padding", "auto", 1, "data.text_padding"},
      {"output: {save_model: true, save: trained}\n", "output.save_model=false", "output.save", "all", 1, "output.save"},
      {"output: {save_model: true, save: trained}\n", "adapter.kind=lora", "output.save", "all", 1, "output.save"},
      {"adapter: {kind: lora}\noutput: {save_model: true, save_merged: true}\n", "output.save_model=false",
       "output.save_merged", "false", 1, "output.save_merged"},
      {"adapter: {kind: lora}\noutput: {save_model: true, save_merged: true}\n", "model.init=random",
       "output.save_merged", "false", 1, "output.save_merged"},
      {"trace: {kernels: [3]}\n", "trace.enabled=false", "trace.kernels", "[]", 1, "trace.kernels"},
      {"trace: {enabled: false}\n", "trace.kernels=[3]", "trace.enabled", "true", 1, "trace.kernels"},
      {"trace: {kernels: [3]}\n", "parallel.device=cpu", "trace.kernels", "[]", 1, "trace.kernels"},
      {"trace: {samples: true}\n", "trace.enabled=false", "trace.samples", "false", 1, "trace.samples"},
      {"trace: {enabled: false}\n", "trace.samples=true", "trace.enabled", "true", 1, "trace.samples"},
      {"train: {matmul: fp8}\ntrace: {fp8_every: 5}\n", "trace.enabled=false", "trace.fp8_every", "0", 1, "trace.fp8_every"},
      {"train: {matmul: fp8}\ntrace: {enabled: false}\n", "trace.fp8_every=5", "trace.enabled", "true", 1, "trace.fp8_every"},
      {"train: {matmul: fp8}\ntrace: {fp8_every: 5}\n", "train.matmul=default", "trace.fp8_every", "0", 1, "trace.fp8_every"},
  };
  return rows;
}

std::string whole(const std::string& text) {
  std::string file = text;
  if (!contains(text, "model: {")) file = "model: {path: m}\n" + file;
  if (!contains(text, "data: {")) file = "data: {path: d}\n" + file;
  return file;
}

std::string word(const std::string& name, const std::string& text) { return message(base, {name + "=" + text}); }

}  // namespace

TEST_SUITE("config") {
  TEST_CASE("the command line wins over the run file, with a note") {
    for (const OverrideCase& row : wins()) {
      CAPTURE(row.file);
      CAPTURE(row.override_text);
      REQUIRE(message(whole(row.file)).empty());  // the file by itself is fine
      const Config config = load(whole(row.file), {row.override_text});
      CHECK(value(config, row.key) == row.after);
      CHECK(config.notes.size() == row.notes);
      for (const std::string& note : config.notes) {
        CHECK(contains(note, ".yaml:"));
        CHECK(contains(note, " is ignored because the command line sets "));
        CHECK(contains(note, row.override_text.substr(0, row.override_text.find('=') + 1)));
      }
      CHECK(message(to_yaml(config)).empty());  // what is left is a whole configuration
    }
    const Config one = load(base + "train: {warmup_steps: 100}\n", {"train.max_steps=5"});
    REQUIRE(one.notes.size() == 1);
    CHECK(one.notes[0] == one.file + ":5: train.warmup_steps: 100 is ignored because the command line sets "
                                     "train.max_steps=5");
    const Config trial = load(base + "train: {warmup_steps: 100}\n", {"train.max_steps=7", "--smoke: train.max_steps=5"});
    REQUIRE(trial.notes.size() == 1);
    CHECK(trial.notes[0] == trial.file + ":5: train.warmup_steps: 100 is ignored because --smoke sets "
                                         "train.max_steps=5");
  }

  TEST_CASE("what contradicts itself in one place is refused") {
    for (const OverrideCase& row : wins()) {
      CAPTURE(row.file);
      CAPTURE(row.override_text);
      const Config file = load(whole(row.file));
      std::vector<std::string> all;        // the file's keys on the command line: neither side wins
      for (const auto& [key, location] : file.locations)
        if (key != row.override_text.substr(0, row.override_text.find('='))) all.push_back(key + "=" + value(file, key));
      all.push_back(row.override_text);
      const std::string text = message("model: {path: m}\ndata: {path: d}\n", all);
      CHECK((row.refused.empty() ? text.empty() : contains(text, "\": " + row.refused + ": ")));
    }
    const std::vector<std::string> both{"train.warmup_steps=5", "train.warmup_ratio=0.1"};
    CHECK(names(message(base, both), {"override \"train.warmup_ratio=0.1\": train.warmup_ratio:"}));
    CHECK(names(message(base, {"adapter.kind=none", "adapter.r=4"}),
                {"adapter.r:", "but adapter.kind", "Set adapter.kind: lora"}));
    CHECK(contains(message(base, {"parallel.strategy=single", "parallel.devices=2"}), "is single, but parallel.devices"));
    // A detail on the command line cannot mean another choice than the file's.
    CHECK(names(message(base + "train: {optim: lion}\n", {"train.eps=1e-6"}),
                {"train.eps:", "but train.optim", "Set train.optim: adamw"}));
    CHECK(names(message(base + "adapter: {kind: none}\n", {"adapter.r=4"}),
                {"adapter.r:", "but adapter.kind", "Set adapter.kind: lora"}));
  }

  TEST_CASE("the last of one key on the command line counts, and the file's notes are of that") {
    const Config config = load(base + "train: {warmup_steps: 50}\n", {"train.max_steps=5", "train.max_steps=100"});
    CHECK(config.notes.empty());
    CHECK(config.train.warmup_steps == 50);
  }

  TEST_CASE("a micro-batch given alone that changes the samples of a step is reported") {
    const auto notes = [](const std::string& train, const std::vector<std::string>& overrides) {
      return load(base + "train: {" + train + "}\n", overrides).notes;
    };
    const std::vector<std::string> printed = notes("batch_size: 4, accumulate_grad_batches: 8", {"train.batch_size=8"});
    REQUIRE(printed.size() == 1);
    CHECK(names(approved(printed[0]), {"override \"train.batch_size=8\":"}));
    // The note, and the file itself has no such note.
    const Config kept = load(base + "train: {batch_size: 4, accumulate_grad_batches: 8}\n",
                             {"train.batch_size=8", "train.total_batch_size=32"});
    CHECK(kept.notes.size() == 1);
    CHECK(resolve_for_ranks(kept, 1).steps.accumulate_grad_batches == 4);
    CHECK(notes("batch_size: 4, accumulate_grad_batches: 8", {"train.batch_size=8", "train.accumulate_grad_batches=4"}).empty());
    CHECK(notes("batch_size: 4, accumulate_grad_batches: 8", {"train.batch_size=4"}).empty());
    CHECK(notes("batch_size: 4", {"train.batch_size=8"}).empty());
    CHECK(notes("batch_size: 4", {"train.accumulate_grad_batches=8"}).empty());
    CHECK(notes("batch_size: 4, total_batch_size: 32", {"train.batch_size=8"}).empty());
    CHECK(notes("batch_size: 4, accumulate_grad_batches: 8}\nparallel: {devices: 4", {"train.batch_size=8"})[0].find(
              "; train.total_batch_size=128 beside it keeps these") != std::string::npos);
  }

  TEST_CASE("words of other programs name the choice that is meant") {
    for (const auto& [name, text, choice] : std::vector<std::array<std::string, 3>>{
             {"parallel.device", "gpu", "cuda"},
             {"train.optim", "adamw_torch", "adamw"},
             {"train.optim", "paged_adamw_8bit", "adamw8bit"},
             {"train.precision", "bf16", "bf16-true"},
             {"train.precision", "fp32", "32-true"},
             {"train.lr_schedule", "constant_with_warmup", "constant"},
             {"model.quantize", "4bit", "nf4"},
             {"parallel.strategy", "deepspeed", "fsdp"},
             {"output.save_dtype", "float32", "f32"}}) {
      CAPTURE(text);
      CHECK(contains(word(name, text), "; did you mean " + choice + "?"));
    }
  }

  TEST_CASE("lists may be written as words with commas") {
    const auto targets = [](const std::string& text) {
      return load(base, {"adapter.kind=lora", "adapter.targets=" + text}).adapter.targets;
    };
    using Names = std::vector<std::string>;
    CHECK(targets("q,v") == Names{"q", "v"});
    CHECK(targets("q, v") == Names{"q", "v"});
    CHECK(targets("[q, v]") == Names{"q", "v"});
    CHECK(targets("q_proj") == Names{"q_proj"});
    CHECK(targets("[all-linear, head]") == Names{"all-linear", "head"});
    CHECK(load(base, {"trace.kernels=3,4"}).trace.kernels == std::vector<int64_t>{3, 4});
    CHECK(load(base, {"parallel.offload=optimizer"}).parallel.offload == std::vector{OffloadedData::optimizer});
    CHECK(contains(word("trace.kernels", "3,x"), "trace.kernels: found \"x\""));
    CHECK(names(word("adapter.targets", "q,,v"), {"adapter.targets:", "found \"q,,v\""}));
    CHECK(contains(message(base, {"adapter.kind=lora", "adapter.targets=q,q"}), "\"q\" is listed twice"));
  }

  TEST_CASE("variables of the environment in paths") {
    setenv("BLIPFT_TEST_DISK", "/big disk", 1);
    unsetenv("BLIPFT_TEST_NOTHING");
    setenv("HOME", "/home/ada", 1);
    const auto output = [](const std::string& text) { return load(base, {"output.path=" + text}).output.path; };
    CHECK(output("$HOME/runs") == "/home/ada/runs");
    CHECK(output("${HOME}/runs") == "/home/ada/runs");
    CHECK(output("$BLIPFT_TEST_DISK/${BLIPFT_TEST_DISK}x") == "/big disk//big diskx");
    CHECK(output("a$/b$1") == "a$/b$1");
    CHECK(output("a${HOME") == "a${HOME");
    CHECK(load("model: {path: $HOME/m}\ndata: {path: d}\n").model.path == "/home/ada/m");
    CHECK(names(message("model: {path: m}\ndata: {path: $BLIPFT_TEST_NOTHING/d}\n"),
                {"FILE:2: data.path:", "set it (export BLIPFT_TEST_NOTHING=...),"}));
  }

  TEST_CASE("no memory lines") {
    CHECK(load(base, {"output.memory_every=0"}).output.memory_every == 0);
    CHECK(contains(word("output.memory_every", "-1"), "expected an integer >= 0"));
  }

  TEST_CASE("a trial keeps the training settings and leaves nothing behind") {
    Config config = load(base + "train: {max_epochs: 1, limit_train_batches: 3, val_check_interval: 2}\n"
                                "output: {save_model: true, save: trained, overwrite: true}\n"
                                "checkpoint: {every_steps: 1, resume: auto, path: c}\n",
                         {"data.val_split_fraction=0.5", "train.max_steps=7"});
    make_smoke(config, 7);
    CHECK(config.steps.max_steps == 7);
    CHECK(config.train.val_check_interval == 7);
    CHECK_FALSE(config.output.save_model);
    CHECK_FALSE(config.output.overwrite);
    CHECK_FALSE(writes_checkpoints(config));
    CHECK(config.checkpoint.resume == "never");
    CHECK(message(to_yaml(config)).empty());
    Config plain = load(base);
    make_smoke(plain, 5);
    CHECK(plain.train.val_check_interval == 0);
  }

  TEST_CASE("help has lines of at most 100 characters, for all sections and for each") {
    std::vector<std::string> texts{help_text()};
    for (const std::string& section : config_sections()) {
      texts.push_back(help_text(section));
      CHECK(texts.back().starts_with(section + ":\n"));
      CHECK(contains(texts[0], texts.back()));
      for (const std::string& other : config_sections())
        CHECK(contains(texts.back(), "\n" + other + ":\n") == false);
    }
    for (const std::string& text : texts)
      for (size_t begin = 0; begin < text.size();) {
        const size_t end = std::min(text.find('\n', begin), text.size());
        CHECK_MESSAGE(end - begin <= 100, text.substr(begin, end - begin));
        begin = end + 1;
      }
    CHECK(contains(message_of([] { help_text("trian"); }), "expected one of the sections model, adapter"));
  }

  TEST_CASE("what a run was trained with is taken from it, but for the command line") {
    const std::string recipe = "model: {path: m}\ndata: {path: d, prompt_style: none}\ntrain: {lr: 0.5}\n";
    const Config run = load("model: {path: m, quantize: nf4}\nadapter: {kind: lora, r: 4}\n"
                            "data: {path: e, mask_prompt: false, num_workers: 3, keys: {prompt: q}}\n"
                            "train: {lr: 0.5, precision: 32-true}\n"
                            "generate: {max_new_tokens: 3}\noutput: {path: o}\n");
    Config config = load(recipe, {"data.mask_prompt=true"});
    config.notes.clear();
    const std::string location = location_of(config, "data.prompt_style");
    for (const std::string& key : keys_of_a_run()) take_from_run(config, run, key);
    for (const auto& [key, expected] : std::vector<std::pair<std::string, std::string>>{
             {"model.quantize", "nf4"}, {"adapter.kind", "lora"}, {"adapter.r", "4"}, {"train.precision", "32-true"},
             {"data.prompt_style", "alpaca"}, {"data.mask_prompt", "true"}, {"data.path", "d"},
             {"data.num_workers", value({}, "data.num_workers")},
             {"generate.max_new_tokens", "64"}, {"output.path", "runs/run"}}) {
      CAPTURE(key);
      CHECK(value(config, key) == expected);
    }
    CHECK(config.data.keys == run.data.keys);
    CHECK(config.notes.size() == 6);         // quantize, kind, r, keys, precision, prompt_style
    CHECK(config.locations.count("data.prompt_style") == 0);
    CHECK(config.locations.at("train.precision") == run.locations.at("train.precision"));
    const std::string all = std::accumulate(config.notes.begin(), config.notes.end(), std::string());
    CHECK(contains(all, "data.prompt_style=alpaca as in the run of the weights ("));
    CHECK(contains(all, ", not none (" + location + "). To use another value, give data.prompt_style="));
    // The meaning of an absent key is not lost in a file that is written.
    CHECK(!contains(to_yaml(run, false), "prompt_style"));
    CHECK(!contains(to_yaml(run, false), "num_beams"));
    CHECK(contains(to_yaml(run, false), "max_new_tokens: 3"));
    CHECK(contains(to_yaml(load(recipe), false), "prompt_style: none"));
    CHECK(contains(to_yaml(run), "prompt_style: alpaca"));
  }
}
