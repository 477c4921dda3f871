// Which combinations of keys are refused, for any world and for the one at hand.
#include <doctest/doctest.h>


#include "config/run_file.h"
#include "engine/placement.h"
#include "engine/settings.h"

using namespace blipft;
using namespace blipft::testing;

TEST_SUITE("config") {
  TEST_CASE("impossible combinations name the key's line") {
    const auto both = [](const std::string& train, const std::string& parallel) {
      return after_base("train: {" + train + "}\nparallel: {" + parallel + "}\n");
    };
    CHECK(names(both("", "strategy: single, devices: 4"), {"FILE:6: parallel.strategy:"}));
    CHECK(names(both("", "strategy: ddp, reshard: step"),
                {"FILE:6: parallel.reshard:", "but parallel.strategy", "Set parallel.strategy: fsdp"}));
    CHECK(names(both("", "prefetch_bytes: 1024"),
                {"FILE:6: parallel.prefetch_bytes:", "but parallel.strategy", "Set parallel.strategy: fsdp"}));
    CHECK(both("", "strategy: fsdp, reshard: step, prefetch_bytes: 1024").empty());
    CHECK(both("", "offload: [optimizer]").empty());
    CHECK(both("", "offload: [optimizer, parameters]").empty());
    CHECK(names(both("", "strategy: fsdp, reshard: step, offload: [parameters]"),
                {"FILE:6: parallel.reshard:", "but parallel.offload", "Set parallel.reshard: always"}));
    CHECK(names(both("", "offload: [activations]"),
                {"FILE:6: parallel.offload:", "but train.act_ckpt", "Set train.act_ckpt: half"}));
    CHECK(both("act_ckpt: half", "offload: [activations]").empty());
    CHECK(both("", "strategy: ddp, offload: [parameters], prefetch_bytes: 1024").empty());
    CHECK(contains(both("", "offload: [optimiser]"), "did you mean optimizer?"));
    CHECK(both("", "offload: optimizer").empty());
    CHECK(contains(both("", "offload: {optimizer: true}"), "write for example [optimizer]"));
    CHECK(names(both("momentum: 0.9", ""), {"FILE:5: train.momentum:", "but train.optim", "Set train.optim: sgd"}));
    CHECK(both("momentum: 0.9, optim: sgd", "").empty());
    CHECK(names(both("momentum: 0.9, optim: adamw8bit", ""), {"train.momentum:", "but train.optim"}));
    CHECK(both("beta1: 0.95, beta2: 0.98, optim: lion", "").empty());
    CHECK(both("eps: 1.0e-6, beta2: 0.95, optim: adamw8bit", "").empty());
    CHECK(names(both("eps: 1.0e-6, optim: lion", ""), {"FILE:5: train.eps:", "but train.optim"}));
    CHECK(both("stochastic_rounding: true", "").empty());
    const std::vector<std::string> lora{"adapter.kind=lora", "train.precision=bf16-true"};
    const auto with_lora = [&](const std::string& more) {
      std::vector<std::string> all = lora;
      all.push_back(more);
      return message(base, all);
    };
    CHECK(with_lora("adapter.dtype=bf16").empty());
    CHECK(names(message(base, {"adapter.kind=lora", "adapter.dtype=bf16", "train.precision=32-true"}),
                {"adapter.dtype:", "but train.precision", "Set train.precision: bf16"}));
    CHECK(names(with_lora("train.stochastic_rounding=true"), {"train.stochastic_rounding:", "but adapter.kind"}));
    CHECK(names(both("stochastic_rounding: true, precision: bf16-mixed", ""),
                {"FILE:5: train.stochastic_rounding:", "but train.precision", "Set train.precision: bf16"}));
    CHECK(names(both("beta2: 0.95, optim: sgd", ""), {"FILE:5: train.beta2:", "but train.optim", "Set train.optim: adamw"}));
    CHECK(both("warmup_steps: 11, max_steps: 10", "").empty());  // the run warns of it
    CHECK(both("warmup_steps: 9, max_steps: 10", "").empty());
    CHECK(both("max_epochs: -1, max_steps: 10", "").empty());
    CHECK(both("max_epochs: -1", "").find("train.max_epochs: is -1, but train.max_steps is -1. Set one of them") !=
          std::string::npos);
    CHECK(names(both("limit_train_batches: 2.5", ""), {"FILE:5: train.limit_train_batches:"}));
    CHECK(both("limit_train_batches: 2", "").empty());
    CHECK(both("loss_on_padding: true, loss_normalization: micro_batch", "").empty());
    CHECK(message(base, {"data.text_padding=packed"}).empty());
    CHECK(message(base, {"train.loss_on_padding=true", "train.loss_normalization=micro_batch"}).empty());
    CHECK(names(message(base, {"data.text_padding=packed", "train.loss_on_padding=true"}),
                {"data.text_padding:", "but train.loss_on_padding", "Remove one of them"}));
    CHECK(message(base, {"data.text_padding=packed", "train.loss_normalization=micro_batch"}).empty());
    CHECK(names(after_base("parallel: {device: cpu}\ntrace: {kernels: [0]}\n"),
                {"FILE:6: trace.kernels:", "but parallel.device", "Set parallel.device: auto"}));
    CHECK(names(after_base("trace: {enabled: false, kernels: [0]}\n"),
                {"FILE:5: trace.kernels:", "but trace.enabled", "Remove one of them"}));
    CHECK(names(after_base("output:\n  save: trained\n"),
                {"FILE:6: output.save:", "but output.save_model", "Set output.save_model: true"}));
    CHECK(after_base("output: {save: trained, save_model: true}\n").empty());
  }

  TEST_CASE("what is frozen is checked against the model's parameter groups") {
    const std::vector<std::string> groups{"eyes", "ears", "mouth"};
    const auto frozen = [&](const std::string& list) {
      const Config config = load("model:\n  path: m\n  freeze: [" + list + "]\ndata: {path: d}\n");
      return approved(about_file(message_of([&] { check_freeze(config, groups); }), config.file));
    };
    CHECK(frozen("").empty());
    CHECK(frozen("mouth, eyes").empty());
    CHECK(names(frozen("eyes, month"), {":3: model.freeze:", "found \"month\"", "did you mean mouth?"}));
    CHECK(names(frozen("language"), {":3: model.freeze:", "found \"language\""}));
    const Config lora = load("model: {path: m, freeze: [ears, mouth, eyes]}\ndata: {path: d}\nadapter: {kind: lora}\n");
    CHECK(message_of([&] { check_freeze(lora, groups); }).empty());
    CHECK(names(frozen("ears, mouth, eyes"), {":3: model.freeze:", "remove one"}));
  }

  TEST_CASE("number of ranks") {
    const Config config = load(base + "parallel: {devices: 4}\n");
    CHECK_NOTHROW(check_ranks(config, 4));
    const std::string text = approved(about_file(message_of([&] { check_ranks(config, 1); }), config.file));
    CHECK(names(text, {":5: parallel.devices:", "start with mpirun -np"}));
    const Config single = load(base, {"parallel.strategy=single"});
    CHECK_NOTHROW(check_ranks(single, 1));
    CHECK_THROWS_AS(check_ranks(single, 2), UserError);
    CHECK_NOTHROW(check_ranks(load(base), 3));
  }

  TEST_CASE("validation and warm-up: what cannot stand together") {
    CHECK(!validates(load(base)));
    CHECK(validates(load(base, {"data.val_path=v"})));
    CHECK(validates(load(base, {"data.val_split_fraction=0.1", "train.val_check_interval=5"})));
    CHECK(names(message(base, {"data.val_path=v", "data.val_split_fraction=0.1"}),
                {"data.val_split_fraction:", "but data.val_path", "Remove one of them"}));
    CHECK(names(message(base, {"train.val_check_interval=5"}), {"train.val_check_interval:", "but data.val_path"}));
    CHECK(contains(message(base, {"data.val_split_fraction=1"}), "expected a number >= 0 and < 1"));
    CHECK(contains(message(base, {"train.limit_val_batches=2.5"}), "or a whole number of batches"));
    CHECK(names(message(base, {"train.warmup_ratio=0.1", "train.warmup_steps=5"}),
                {"train.warmup_ratio:", "but train.warmup_steps", "Remove one of them"}));
    CHECK(contains(with_override("train.val_every=5"), "did you mean train.val_check_interval?"));
    CHECK(contains(message(base, {"train.matmul_precision=medium"}), "expected one of highest or high"));
  }

  TEST_CASE("samples of a step over all ranks") {
    const Config config = load(base + "train: {batch_size: 4, total_batch_size: 48}\n");
    CHECK(config.steps.accumulate_grad_batches == 0);
    for (const int64_t ranks : {1, 2, 3, 4, 6, 12}) {
      const Config resolved = resolve_for_ranks(config, ranks);
      CHECK(resolved.steps.accumulate_grad_batches * ranks * 4 == 48);
      CHECK(to_yaml(resolve_for_ranks(load(to_yaml(resolved)), ranks)) == to_yaml(resolved));
      CHECK(resolve_for_ranks(load(to_yaml(config)), ranks).steps.accumulate_grad_batches ==
            resolved.steps.accumulate_grad_batches);
    }
    const auto refused = [&](const Config& some, int64_t ranks) {
      return approved(about_file(message_of([&] { resolve_for_ranks(some, ranks); }), some.file));
    };
    // An uneven division leaves slots empty: 10 samples of a rank in 3 micro-batches of at most 4.
    CHECK(resolve_for_ranks(config, 5).steps.accumulate_grad_batches == 3);
    CHECK(samples_of_a_step(resolve_for_ranks(config, 5), 5) == 48);
    for (const char* means : {"loss_normalization: micro_batch", "loss_on_padding: true"})
      CHECK(names(refused(load(base + "train: {batch_size: 4, total_batch_size: 48, " + means + "}\n"), 5),
                  {":5: train.total_batch_size:", "48", "5 ranks", "20", means, "40 or 60"}));
    CHECK(names(refused(config, 16), {":5: train.batch_size:"}));
    CHECK(names(refused(config, 49), {":5: train.total_batch_size:", "48", "49 ranks", "at most 48"}));
    const Config both = load(base + "train: {batch_size: 4, total_batch_size: 48, accumulate_grad_batches: 3}\n");
    CHECK(resolve_for_ranks(both, 4).steps.accumulate_grad_batches == 3);
    CHECK(names(refused(both, 2), {"train.accumulate_grad_batches:", "remove one of them"}));
    CHECK(resolve_for_ranks(load(base), 3).steps.accumulate_grad_batches == 1);
    CHECK(names(message(base, {"train.accumulate_grad_batches=0"}),
                {"train.accumulate_grad_batches:", "but train.total_batch_size"}));
    CHECK(contains(message(base, {"train.total_batch_size=-1"}), "expected an integer >= 0"));
  }

  TEST_CASE("a micro-batch that the program chooses") {
    const auto chooses = [&](const std::string& keys) { return chooses_batch_size(load(base + "train: {" + keys + "}\n")); };
    CHECK(chooses("total_batch_size: 48"));
    CHECK(chooses("total_batch_size: 48, batch_size: auto"));
    CHECK(chooses("total_batch_size: 48, accumulate_grad_batches: 2"));
    CHECK(!chooses("total_batch_size: 48, batch_size: 16"));
    CHECK(!chooses("total_batch_size: 0"));
    const Config requested = load(base, {"train.total_batch_size=50"});
    const Config resolved = resolve_for_ranks(requested, 4);
    CHECK(chooses_batch_size(resolved));
    CHECK(contains(to_yaml(resolved), "\n  batch_size: auto\n"));
    CHECK(to_yaml(load(to_yaml(resolved))) == to_yaml(resolved));
    for (int64_t micro_batches = 1; micro_batches <= 13; ++micro_batches) {
      const Config cut = with_micro_batches(resolved, 4, micro_batches);
      const int64_t slots = cut.steps.batch_size * micro_batches * 4;
      CHECK(cut.steps.accumulate_grad_batches == micro_batches);
      CHECK(slots >= 50);
      CHECK(slots - 4 * micro_batches < 50);  // one less in each would not do
      CHECK(to_yaml(resolve_for_ranks(load(to_yaml(cut)), 4)) == to_yaml(cut));
      int64_t samples = 0;
      for (int64_t rank = 0; rank < 4; ++rank) samples += samples_of_a_rank(cut, 4, rank);
      CHECK(samples == 50);
      CHECK(samples_of_a_rank(cut, 4, 0) - samples_of_a_rank(cut, 4, 3) <= 1);
    }
    CHECK(names(message(base, {"train.batch_size=auto"}), {"train.batch_size:", "but train.total_batch_size"}));
    CHECK(names(message(base, {"train.total_batch_size=8", "train.loss_normalization=micro_batch"}),
                {"train.loss_normalization:", "but train.batch_size"}));
    CHECK(message(base, {"train.total_batch_size=8", "train.batch_size=4", "train.loss_normalization=micro_batch"}).empty());
    CHECK(contains(message(base, {"train.batch_size=\"automatic\""}), "expected an integer >= 1 and <= 65535, or auto"));
    CHECK(contains(message(base, {"train.lr=auto"}), "expected a number"));
  }

  TEST_CASE("shard groups") {
    const auto parallel = [](const std::string& keys) { return base + "parallel: {strategy: fsdp, " + keys + "}\n"; };
    const auto refused = [&](const std::string& value, int64_t ranks, int64_t node_ranks) {
      const Config some = load(parallel("shard_ranks: " + value));
      return approved(about_file(message_of([&] { shard_group_size(some, ranks, node_ranks); }), some.file));
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
    CHECK(names(refused("5", 12, 2), {":5: parallel.shard_ranks:"}));
    CHECK(names(refused("16", 12, 2), {":5: parallel.shard_ranks:", "16", "12 ranks", ": 12 (all: 12)"}));
    CHECK(names(refused("node", 12, 8), {":5: parallel.shard_ranks:", "8 ranks", "12 ranks", "6 or 12 (all: 12)"}));
    CHECK(names(refused("node", 12, 0), {":5: parallel.shard_ranks:", "node", "every machine"}));
    const std::string expected = ", expected one of all, node or an integer >= 1 and <= 1048576";
    CHECK(contains(message(parallel("shard_ranks: 0")), "parallel.shard_ranks: found 0" + expected));
    CHECK(contains(message(parallel("shard_ranks: -2")), "parallel.shard_ranks: found -2" + expected));
    CHECK(contains(message(parallel("shard_ranks: nod")), "found \"nod\"" + expected + "; did you mean node?"));
    CHECK(contains(message(parallel("shard_ranks: 2.5")), "found \"2.5\"" + expected));
    CHECK(names(message(base + "parallel: {strategy: ddp, shard_ranks: 2}\n"),
                {":5: parallel.shard_ranks:", "but parallel.strategy", "Set parallel.strategy: fsdp"}));
    CHECK(contains(with_override("parallel.hybrid_shard=2"), "did you mean parallel.shard_ranks?"));
  }
}
