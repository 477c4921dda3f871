// Which combinations of keys are refused, for any world and for the one at hand.
#include <doctest/doctest.h>

#include <algorithm>

#include "config/run_file.h"

using namespace blipft;
using namespace blipft::testing;

TEST_SUITE("config") {
  TEST_CASE("impossible combinations name the key's line") {
    const auto both = [](const std::string& train, const std::string& parallel) {
      return after_base("train: {" + train + "}\nparallel: {" + parallel + "}\n");
    };
    CHECK(contains(both("", "strategy: single, devices: 4"), "FILE:6: parallel.strategy: is single, but "));
    CHECK(contains(both("", "strategy: ddp, reshard: step"),
                   "FILE:6: parallel.reshard: is step, but parallel.strategy is ddp. Set parallel.strategy: fsdp, or"));
    CHECK(contains(both("", "prefetch_bytes: 1024"),
                   "FILE:6: parallel.prefetch_bytes: is 1024, but parallel.strategy is auto and parallel.offload does "
                   "not include parameters. Set parallel.strategy: fsdp, add parameters to parallel.offload, or"));
    CHECK(both("", "strategy: fsdp, reshard: step, prefetch_bytes: 1024").empty());
    CHECK(both("", "offload: [optimizer]").empty());
    CHECK(both("", "offload: [optimizer, parameters]").empty());
    CHECK(contains(both("", "strategy: fsdp, reshard: step, offload: [parameters]"),
                   "FILE:6: parallel.reshard: is step, but parallel.offload includes parameters. Set parallel.reshard: "
                   "always, or remove one of them."));
    CHECK(contains(both("", "offload: [activations]"),
                   "FILE:6: parallel.offload: includes activations, but train.act_ckpt is none. Set train.act_ckpt: "
                   "half or full, or remove activations."));
    CHECK(both("act_ckpt: half", "offload: [activations]").empty());
    CHECK(both("", "strategy: ddp, offload: [parameters], prefetch_bytes: 1024").empty());
    CHECK(contains(both("", "offload: [optimiser]"), "did you mean optimizer?"));
    CHECK(both("", "offload: optimizer").empty());
    CHECK(contains(both("", "offload: {optimizer: true}"), "write for example [optimizer]"));
    CHECK(contains(both("momentum: 0.9", ""),
                   "FILE:5: train.momentum: is 0.9, but train.optim is adamw. Set train.optim: sgd"));
    CHECK(both("momentum: 0.9, optim: sgd", "").empty());
    CHECK(contains(both("momentum: 0.9, optim: adamw8bit", ""),
                   "train.momentum: is 0.9, but train.optim is adamw8bit"));
    CHECK(both("beta1: 0.95, beta2: 0.98, optim: lion", "").empty());
    CHECK(both("eps: 1.0e-6, beta2: 0.95, optim: adamw8bit", "").empty());
    CHECK(contains(both("eps: 1.0e-6, optim: lion", ""), "FILE:5: train.eps: is 1e-06, but train.optim is l"));
    CHECK(both("stochastic_rounding: true", "").empty());
    const std::vector<std::string> lora{"adapter.kind=lora", "train.precision=bf16-true"};
    const auto with_lora = [&](const std::string& more) {
      std::vector<std::string> all = lora;
      all.push_back(more);
      return message(base, all);
    };
    CHECK(with_lora("adapter.dtype=bf16").empty());
    CHECK(contains(message(base, {"adapter.kind=lora", "adapter.dtype=bf16", "train.precision=32-true"}),
                   "adapter.dtype: is bf16, but train.precision is 32-true. Set train.precision: bf16-true"));
    CHECK(contains(with_lora("train.stochastic_rounding=true"),
                   "train.stochastic_rounding: is true, but adapter.kind is lora and adapter.dtype is f32"));
    CHECK(contains(both("stochastic_rounding: true, precision: bf16-mixed", ""),
                   "FILE:5: train.stochastic_rounding: is true, but train.precision is bf16-mixed. Set "
                   "train.precision: bf16-true"));
    CHECK(contains(both("beta2: 0.95, optim: sgd", ""),
                   "FILE:5: train.beta2: is 0.95, but train.optim is sgd. Set train.optim: adamw, adamw8bit or lion"));
    CHECK(both("warmup_steps: 11, max_steps: 10", "").empty());  // the run warns of it
    CHECK(both("warmup_steps: 9, max_steps: 10", "").empty());
    CHECK(both("max_epochs: -1, max_steps: 10", "").empty());
    CHECK(both("max_epochs: -1", "").find("train.max_epochs: is -1, but train.max_steps is -1. Set one of them") !=
          std::string::npos);
    CHECK(contains(both("limit_train_batches: 2.5", ""), "FILE:5: train.limit_train_batches: found 2.5"));
    CHECK(both("limit_train_batches: 2", "").empty());
    CHECK(both("loss_on_padding: true, loss_normalization: micro_batch", "").empty());
    CHECK(message(base, {"data.text_padding=packed"}).empty());
    CHECK(message(base, {"train.loss_on_padding=true", "train.loss_normalization=micro_batch"}).empty());
    CHECK(contains(message(base, {"data.text_padding=packed", "train.loss_on_padding=true"}),
                   "data.text_padding: is packed, but train.loss_on_padding is true. Remove one of them"));
    CHECK(message(base, {"data.text_padding=packed", "train.loss_normalization=micro_batch"}).empty());
    CHECK(contains(after_base("parallel: {device: cpu}\ntrace: {kernels: [0]}\n"),
                   "FILE:6: trace.kernels: is [0], but parallel.device is cpu. Set parallel.device: auto or cuda"));
    CHECK(contains(after_base("trace: {enabled: false, kernels: [0]}\n"),
                   "FILE:5: trace.kernels: is [0], but trace.enabled is false. Remove one of them"));
    CHECK(after_base("output:\n  save: trained\n") ==
          "FILE:6: output.save: is trained, but output.save_model is false. Set output.save_model: true, or "
          "remove output.save.");
    CHECK(after_base("output: {save: trained, save_model: true}\n").empty());
  }

  TEST_CASE("what is frozen is checked against the model's parameter groups") {
    const std::vector<std::string> groups{"eyes", "ears", "mouth"};
    const auto frozen = [&](const std::string& list) {
      const Config config = load("model:\n  path: m\n  freeze: [" + list + "]\ndata: {path: d}\n");
      const std::string text = message_of([&] { check_freeze(config, groups); });
      return text.substr(std::min(text.size(), config.file.size()));
    };
    CHECK(frozen("").empty());
    CHECK(frozen("mouth, eyes").empty());
    CHECK(frozen("eyes, month") ==
          ":3: model.freeze: found \"month\", expected a list of eyes, ears or mouth; did you mean mouth?");
    CHECK(frozen("language") == ":3: model.freeze: found \"language\", expected a list of eyes, ears or mouth");
    const Config lora = load("model: {path: m, freeze: [ears, mouth, eyes]}\ndata: {path: d}\nadapter: {kind: lora}\n");
    CHECK(message_of([&] { check_freeze(lora, groups); }).empty());
    CHECK(frozen("ears, mouth, eyes") ==
          ":3: model.freeze: every part of the model is frozen, so nothing would be trained; remove one");
  }

  TEST_CASE("number of ranks") {
    const Config config = load(base + "parallel: {devices: 4}\n");
    CHECK_NOTHROW(check_ranks(config, 4));
    const std::string text = message_of([&] { check_ranks(config, 1); });
    CHECK(contains(text, ":5: parallel.devices: is 4, but 1 rank was started; start with mpirun -np 4, or set "
                         "parallel.devices=1"));
    const Config single = load(base, {"parallel.strategy=single"});
    CHECK_NOTHROW(check_ranks(single, 1));
    CHECK_THROWS_AS(check_ranks(single, 2), UserError);
    CHECK_NOTHROW(check_ranks(load(base), 3));
  }

  TEST_CASE("validation and warm-up: what cannot stand together") {
    CHECK(!validates(load(base)));
    CHECK(validates(load(base, {"data.val_path=v"})));
    CHECK(validates(load(base, {"data.val_split_fraction=0.1", "train.val_check_interval=5"})));
    CHECK(contains(message(base, {"data.val_path=v", "data.val_split_fraction=0.1"}),
                   "data.val_split_fraction: is 0.1, but data.val_path is v. Remove one of them"));
    CHECK(contains(message(base, {"train.val_check_interval=5"}),
                   "train.val_check_interval: is 5, but data.val_path is not set and data.val_split_fraction is 0."));
    CHECK(contains(message(base, {"data.val_split_fraction=1"}), "expected a number >= 0 and < 1"));
    CHECK(contains(message(base, {"train.limit_val_batches=2.5"}), "or a whole number of batches"));
    CHECK(contains(message(base, {"train.warmup_ratio=0.1", "train.warmup_steps=5"}),
                   "train.warmup_ratio: is 0.1, but train.warmup_steps is 5. Remove one of them."));
    CHECK(contains(with_override("train.val_every=5"), "did you mean train.val_check_interval?"));
    CHECK(contains(message(base, {"train.matmul_precision=medium"}), "expected one of highest or high"));
  }

  TEST_CASE("samples of a step over all ranks") {
    const Config config = load(base + "train: {batch_size: 4, total_batch_size: 48}\n");
    CHECK(config.train.accumulate_grad_batches == 0);
    for (const int64_t ranks : {1, 2, 3, 4, 6, 12}) {
      const Config resolved = resolve_for_ranks(config, ranks);
      CHECK(resolved.train.accumulate_grad_batches * ranks * 4 == 48);
      CHECK(to_yaml(resolve_for_ranks(load(to_yaml(resolved)), ranks)) == to_yaml(resolved));
      CHECK(resolve_for_ranks(load(to_yaml(config)), ranks).train.accumulate_grad_batches ==
            resolved.train.accumulate_grad_batches);
    }
    const auto refused = [&](const Config& some, int64_t ranks) {
      return message_of([&] { resolve_for_ranks(some, ranks); });
    };
    // What does not come out even leaves places empty: 10 samples of a rank in 3 micro-batches of at most 4.
    CHECK(resolve_for_ranks(config, 5).train.accumulate_grad_batches == 3);
    CHECK(samples_of_a_step(resolve_for_ranks(config, 5), 5) == 48);
    for (const char* means : {"loss_normalization: micro_batch", "loss_on_padding: true"})
      CHECK(contains(refused(load(base + "train: {batch_size: 4, total_batch_size: 48, " + means + "}\n"), 5),
                     concat(":5: train.total_batch_size: is 48, which is no multiple of 5 ranks x train.batch_size 4 = 20, "
                            "and with train.", means, " micro-batches must be equal; the nearest that are: 40 or 60")));
    CHECK(contains(refused(config, 16), ":5: train.batch_size: is 4, but of train.total_batch_size 48 each of 16 ranks has 3 "
                                        "samples; lower it to 3, or give auto"));
    CHECK(contains(refused(config, 49), "is 48, less than the 49 ranks"));
    const Config both = load(base + "train: {batch_size: 4, total_batch_size: 48, accumulate_grad_batches: 3}\n");
    CHECK(resolve_for_ranks(both, 4).train.accumulate_grad_batches == 3);
    CHECK(contains(refused(both, 2), "train.accumulate_grad_batches: is 3, but train.total_batch_size 48 on 2 ranks x "
                                     "train.batch_size 4 takes 6; remove one of them"));
    CHECK(resolve_for_ranks(load(base), 3).train.accumulate_grad_batches == 1);
    CHECK(contains(message(base, {"train.accumulate_grad_batches=0"}),
                   "train.accumulate_grad_batches: is 0, but train.total_batch_size is 0. Set one of them"));
    CHECK(contains(message(base, {"train.total_batch_size=-1"}), "expected an integer >= 0"));
  }

  TEST_CASE("a micro-batch that the program chooses") {
    const auto chooses = [&](const std::string& keys) { return chooses_batch_size(load(base + "train: {" + keys + "}\n")); };
    CHECK(chooses("total_batch_size: 48"));
    CHECK(chooses("total_batch_size: 48, batch_size: auto"));
    CHECK(chooses("total_batch_size: 48, accumulate_grad_batches: 2"));
    CHECK(!chooses("total_batch_size: 48, batch_size: 16"));
    CHECK(!chooses("total_batch_size: 0"));
    const Config asked = load(base, {"train.total_batch_size=50"});
    const Config resolved = resolve_for_ranks(asked, 4);
    CHECK(chooses_batch_size(resolved));
    CHECK(contains(to_yaml(resolved), "\n  batch_size: auto\n"));
    CHECK(to_yaml(load(to_yaml(resolved))) == to_yaml(resolved));
    for (int64_t micro_batches = 1; micro_batches <= 13; ++micro_batches) {
      const Config cut = with_micro_batches(resolved, 4, micro_batches);
      const int64_t places = cut.train.batch_size * micro_batches * 4;
      CHECK(cut.train.accumulate_grad_batches == micro_batches);
      CHECK(places >= 50);
      CHECK(places - 4 * micro_batches < 50);  // one less in each would not do
      CHECK(to_yaml(resolve_for_ranks(load(to_yaml(cut)), 4)) == to_yaml(cut));
      int64_t samples = 0;
      for (int64_t rank = 0; rank < 4; ++rank) samples += samples_of_a_rank(cut, 4, rank);
      CHECK(samples == 50);
      CHECK(samples_of_a_rank(cut, 4, 0) - samples_of_a_rank(cut, 4, 3) <= 1);
    }
    CHECK(contains(message(base, {"train.batch_size=auto"}),
                   "train.batch_size: is auto, but train.total_batch_size is 0. Set train.total_batch_size"));
    CHECK(contains(message(base, {"train.total_batch_size=8", "train.loss_normalization=micro_batch"}),
                   "train.loss_normalization: is micro_batch, but train.batch_size is auto. Set train.batch_size to a "
                   "number"));
    CHECK(message(base, {"train.total_batch_size=8", "train.batch_size=4", "train.loss_normalization=micro_batch"}).empty());
    CHECK(contains(message(base, {"train.batch_size=\"automatic\""}), "expected an integer >= 1 and <= 65535, or auto"));
    CHECK(contains(message(base, {"train.lr=auto"}), "expected a number"));
  }

  TEST_CASE("shard groups") {
    const auto parallel = [](const std::string& keys) { return base + "parallel: {strategy: fsdp, " + keys + "}\n"; };
    const auto refused = [&](const std::string& value, int64_t ranks, int64_t node_ranks) {
      return message_of([&] { shard_group_size(load(parallel("shard_ranks: " + value)), ranks, node_ranks); });
    };
    CHECK(shard_group_size(load(base), 6, 2) == 6);
    CHECK(shard_group_size(load(parallel("shard_ranks: all")), 6, 0) == 6);
    CHECK(shard_group_size(load(parallel("offload: [parameters]")), 6, 2) == 6);
    for (const char* strategy : {"ddp", "auto"})  // each rank gathers from its own host memory
      CHECK(shard_group_size(load(base, {concat("parallel.strategy=", strategy), "parallel.offload=[parameters]"}), 6,
                             2) == 1);
    CHECK(shard_group_size(load(parallel("shard_ranks: 3")), 6, 2) == 3);
    CHECK(shard_group_size(load(parallel("shard_ranks: \"3\"")), 6, 2) == 3);  // as --print-config prints it
    CHECK(shard_group_size(load(parallel("shard_ranks: 1")), 6, 2) == 1);
    CHECK(shard_group_size(load(parallel(""), {"parallel.shard_ranks=6"}), 6, 2) == 6);
    CHECK(shard_group_size(load(parallel("shard_ranks: node")), 6, 2) == 2);
    CHECK(contains(refused("5", 12, 2), ":5: parallel.shard_ranks: is 5, which does not divide the 12 ranks; the "
                                        "nearest that do: 4 or 6 (all: 12)"));
    CHECK(contains(refused("16", 12, 2), "is 16, which does not divide the 12 ranks; the nearest that do: 12 (all: 12)"));
    CHECK(contains(refused("node", 12, 8), "a machine has 8 ranks, which does not divide the 12 ranks; the nearest "
                                           "that do: 6 or 12 (all: 12)"));
    CHECK(contains(refused("node", 12, 0), "is node, but not every machine has the same number of ranks"));
    const std::string expected = ", expected one of all, node or an integer >= 1 and <= 1048576";
    CHECK(contains(message(parallel("shard_ranks: 0")), "parallel.shard_ranks: found 0" + expected));
    CHECK(contains(message(parallel("shard_ranks: -2")), "parallel.shard_ranks: found -2" + expected));
    CHECK(contains(message(parallel("shard_ranks: nod")), "found \"nod\"" + expected + "; did you mean node?"));
    CHECK(contains(message(parallel("shard_ranks: 2.5")), "found \"2.5\"" + expected));
    CHECK(contains(message(base + "parallel: {strategy: ddp, shard_ranks: 2}\n"),
                   ":5: parallel.shard_ranks: is \"2\", but parallel.strategy is ddp. Set parallel.strategy: fsdp"));
    CHECK(contains(with_override("parallel.hybrid_shard=2"), "did you mean parallel.shard_ranks?"));
  }
}
