// Ranks that were given different things: the first difference is named on all of them, with both values.
#include <doctest/doctest.h>

#include <filesystem>

#include "agreement/same_run.h"
#include "blipft/version.h"
#include "config/config_facts.h"
#include "strategies/strategy_harness.h"
#include "support/error_message.h"
#include "support/temporary_directory.h"

using namespace blipft;
using namespace blipft::testing;

namespace {


std::string agreed(const std::function<void()>& action) { return message_of<AgreedError>(action); }

Config base_config() {
  Config config;
  config.file = "run.yaml";
  config.model.path = "/models/a", config.data.path = "/data/a";
  return config;
}

std::string config_message(const std::function<void(Config&)>& change) {
  Config config = base_config();
  if (mpi_world().rank() + 1 == mpi_world().size()) change(config);
  return agreed([&] { compare_facts(mpi_world(), config_facts(config), "start them alike"); });
}

struct Names final : Dataset {
  explicit Names(std::vector<std::string> given) : names(std::move(given)) {}
  int64_t size() const override { return static_cast<int64_t>(names.size()); }
  Sample read(int64_t) const override { return {}; }
  void identify(const Take& take) const override {
    for (const std::string& name : names) take(name, 7);
  }
  std::vector<std::string> names;
};

}  // namespace

TEST_SUITE("mpi same run") {
  TEST_CASE("another configuration on one rank is reported on all, with key, places and values") {
    const World& world = mpi_world();
    const int64_t last = world.size() - 1;
    CHECK(config_message([](Config&) {}) == "");
    const std::string text = config_message([](Config& config) {
      config.train.lr = 0.25;
      config.locations["train.lr"] = "override \"train.lr=0.25\"";
      config.output.save_model = true;
    });
    if (last == 0) {
      CHECK(text == "");
      return;
    }
    CHECK(text == concat("rank ", last, " on ", world.host(), ": train.lr is 0.25 (override \"train.lr=0.25\"), but ",
                         "on rank 0 (", world.host(), ") it is 1e-05 (run.yaml); also different: output.save_model; ",
                         "start them alike"));
    CHECK(contains(config_message([](Config& config) { config.steps.seed = 7; }), "train.seed is 7 (run.yaml), but"));
    CHECK(contains(config_message([](Config& config) { config.data.val_path = "/there"; }), "data.val_path is given"));
    // Keys that may differ between machines.
    CHECK(config_message([](Config& config) {
            config.model.path = config.data.path = "/scratch";
            config.data.num_workers = 99, config.data.prefetch_steps = 9, config.parallel.threads = 3;
          }) == "");
    // Long values are cut, to where they differ.
    const std::string prompt = config_message([](Config& config) {
      config.data.prompt_style = std::string(5000, 'p') + "{instruction}" + std::string(5000, 'q');
    });
    CHECK_MESSAGE((contains(prompt, "data.prompt_style is ") && prompt.size() < 600), prompt);
  }

  TEST_CASE("where rank 0 is the one that differs the next says so, and how many others do") {
    const World& world = mpi_world();
    if (world.size() < 2) return;
    const Facts facts = {{"a", world.rank() == 0 ? "x" : "y"}};
    const std::string text = agreed([&] { compare_facts(world, facts, "do"); });
    const int64_t others = world.size() - 2;
    CHECK(text == concat("rank 1 on ", world.host(),
                         others == 0 ? "" : concat(" (", others, others == 1 ? " other rank fails" : " other ranks ",
                                                   others == 1 ? " too)" : "fail too)"),
                         ": a is y, but on rank 0 (", world.host(), ") it is x; do"));
  }

  TEST_CASE("an error that all ranks have alike is reported unchanged, any other with rank and host") {
    const World& world = mpi_world();
    const int64_t last = world.size() - 1;
    CHECK(agreed([&] { world.run_agreeing_on_errors([] { throw UserError("the same"); }); }) == "the same");
    const std::string one = agreed([&] {
      world.run_agreeing_on_errors([&] { BLIPFT_USER_CHECK(world.rank() != last, "only here"); });
    });
    CHECK(one == (last == 0 ? "only here" : concat("rank ", last, " on ", world.host(), ": only here")));
    const std::string each = agreed([&] { world.run_agreeing_on_errors([&] { throw UserError(concat("mine ", world.rank())); }); });
    const bool named = contains(each, concat("rank 0 on ", world.host()));
    CHECK((last == 0 ? each == "mine 0" : named && each.ends_with(": mine 0")));
  }

  TEST_CASE("model files are compared by name, size and content, tensors by their header") {
    const World& world = mpi_world();
    const bool last = world.rank() + 1 == world.size() && world.size() > 1;
    const TemporaryDirectory model;
    const std::string header = std::string("\x08\0\0\0\0\0\0\0", 8) + "{\"a\": 1}";
    const auto message = [&] {
      return agreed([&] { compare_facts(world, file_facts("model file", model.path.string(), true), "copy them"); });
    };
    model.write("config.json", "{}");
    model.write("tokenizer.json", std::string(3 << 20, 't'));
    model.write("model.safetensors", header + (last ? "tensor bytes" : "other bytes!"));
    model.write("README.md", last ? "other" : "text");
    CHECK(message() == "");
    model.write("tokenizer.json", std::string(3 << 20, 't') + (last ? "u" : ""));
    const std::string longer = message();
    model.write("tokenizer.json", std::string((3 << 20) - 1, 't') + (last ? "u" : "t"));
    const std::string changed = message();
    model.write("tokenizer.json", "t");
    model.write("model.safetensors", std::string("\x08\0\0\0\0\0\0\0", 8) + (last ? "{\"b\": 1}" : "{\"a\": 1}"));
    const std::string shapes = message();
    model.write("model.safetensors", last ? "" : "\xff\xff\xff\xff\xff\xff\xff\x7f");  // no safetensors at all
    const std::string broken = message();
    if (last) std::filesystem::remove(model / "model.safetensors");
    const std::string missing = message();
    if (world.size() == 1) return;
    CHECK_MESSAGE(contains(longer, "model file tokenizer.json is 3145729 bytes, "), longer);
    CHECK_MESSAGE(contains(changed, "model file tokenizer.json is 3145728 bytes, "), changed);
    CHECK_MESSAGE(contains(shapes, "model file model.safetensors is 16 bytes, header "), shapes);
    CHECK_MESSAGE(contains(broken, "model file model.safetensors is 0 bytes"), broken);
    CHECK_MESSAGE(contains(missing, "model file model.safetensors is missing, but on rank 0"), missing);
    CHECK(contains(missing, "; copy them"));
  }

  TEST_CASE("chat templates are compared by their text") {
    const World& world = mpi_world();
    const bool last = world.rank() + 1 == world.size() && world.size() > 1;
    Config config = base_config();
    config.data.chat_template = std::string("t.jinja");
    RunData data;
    data.training.dataset = std::make_shared<Names>(std::vector<std::string>{"a"});
    const auto message = [&](const char* own, const char* others) {
      data.texts.chosen_template = last ? own : others;
      return agreed([&] { compare_facts(world, read_facts(config, data), "copy it"); });
    };
    CHECK(message("", "") == "");
    CHECK(message("{{ a }}", "{{ a }}") == "");
    const std::string changed = message("{{ b }}", "{{ a }}");
    if (world.size() > 1) CHECK_MESSAGE(contains(changed, "the text of data.chat_template is 7 bytes, "), changed);
  }

  TEST_CASE("datasets are compared by the number, names and sizes of their samples") {
    const World& world = mpi_world();
    const bool last = world.rank() + 1 == world.size() && world.size() > 1;
    const auto message = [&](const std::vector<std::string>& own, const std::vector<std::string>& others) {
      const Names data(last ? own : others);
      return agreed([&] { compare_facts(world, {data_fact("data.path", "/data", data)}, "copy it"); });
    };
    CHECK(message({"a", "b"}, {"a", "b"}) == "");
    const std::string fewer = message({"a"}, {"a", "b"}), renamed = message({"a", "c"}, {"a", "b"}),
                      shifted = message({"ab", "c"}, {"a", "bc"});
    if (world.size() == 1) return;
    CHECK_MESSAGE(contains(fewer, "the data at data.path is 1 samples, digest "), fewer);
    CHECK(contains(fewer, "it is 2 samples, digest "));
    CHECK(renamed != "");
    CHECK(shifted != "");
  }

  TEST_CASE("the program knows its build") {
    CHECK(version_build().size() == 40);
    CHECK(version_build().find_first_not_of("0123456789abcdef") == std::string::npos);
  }
}
