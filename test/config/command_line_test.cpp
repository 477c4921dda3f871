// The command line: what is read, what is refused, and with which words.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "config/run_file.h"
#include "support/temporary_directory.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

CommandLine parse(std::vector<const char*> words) {
  words.insert(words.begin(), "blipft");
  return parse_command_line(static_cast<int>(words.size()), words.data());
}

std::string parse_message(const std::vector<const char*>& words) {
  return approved(message_of([&] { parse(words); }));
}

}  // namespace

TEST_SUITE("config") {
  TEST_CASE("command line") {
    using Action = CommandLine::Action;
    CommandLine line = parse({"a.yaml", "train.lr=1", "parallel.devices=2"});
    CHECK(line.action == Action::train);
    CHECK(line.config_file == "a.yaml");
    CHECK(line.overrides == std::vector<std::string>{"train.lr=1", "parallel.devices=2"});
    line = parse({"--plan", "--ranks", "8", "--node-ranks", "4", "--gpu-memory=79.5", "a.yaml"});
    CHECK(line.action == Action::plan);
    CHECK(line.plan_ranks == 8);
    CHECK(line.plan_node_ranks == 4);
    CHECK(line.plan_gpu_gib == 79.5);
    CHECK(!line.plan_fit);
    for (const char* size : {"24", "24GiB", "24 GiB", "24.0", "24G", "24 G", "24576MiB", "24576 MiB"}) {
      line = parse({"--plan", "--fit", size, "a.yaml"});
      CHECK(line.plan_fit);
      CHECK(line.plan_gpu_gib == 24);
    }
    for (const char* size : {"24GB", "24 GB"})
      CHECK(parse({"--plan", "--gpu-memory", size, "a.yaml"}).plan_gpu_gib == doctest::Approx(24e9 / (1 << 30)));
    CHECK(contains(help_text(""), "may be GiB (also G"));
    CHECK(parse({"a.yaml", "--print-config"}).action == Action::print_config);
    line = parse({"--show", "a.yaml"});
    CHECK(line.action == Action::show);
    CHECK(line.show_samples == 3);
    CHECK(!line.show_random);
    CHECK(parse({"--show", "12", "a.yaml"}).show_samples == 12);
    CHECK(parse({"a.yaml", "--show=1"}).show_samples == 1);
    line = parse({"--show", "random:7", "a.yaml"});
    CHECK(line.show_samples == 7);
    CHECK(line.show_random);
    CHECK(parse({"--show", "random:", "a.yaml"}).show_samples == 3);
    line = parse({"--chat", "a.yaml", "--system", "Be brief."});
    CHECK(line.action == Action::generate);
    CHECK(line.chat);
    CHECK(line.system == "Be brief.");
    CHECK(parse({"--generate", "a.yaml", "--prompt", "x", "--system=s"}).system == "s");
    CHECK(parse({"-h"}).action == Action::help);
    CHECK(parse({"--plan", "--help", "--version"}).action == Action::help);
    CHECK(parse({"--version"}).action == Action::version);
    CHECK(parse({"--recipes"}).action == Action::recipes);
    CHECK(parse({"@llama/7b-lora"}).config_file.ends_with("inputs/llama/7b-lora.yaml"));
    CHECK(contains(parse_message({"@llama/7b-lorra"}), "@llama/7b-lora; blipft --recipes"));
    CHECK(parse({"--help", "train"}).help_section == "train");
    CHECK(parse({"--help=train"}).help_section == "train");
    CHECK(parse({"--help", "a.yaml"}).help_section.empty());
    CHECK(parse({"a.yaml"}).smoke_steps == 0);
    CHECK(parse({"--smoke", "a.yaml"}).smoke_steps == 5);
    CHECK(parse({"a.yaml", "--smoke"}).smoke_steps == 5);
    CHECK(parse({"--smoke", "3", "a.yaml"}).smoke_steps == 3);
    line = parse({"--smoke=12", "a.yaml", "train.max_steps=500"});
    CHECK(line.smoke_steps == 12);
    CHECK(line.overrides == std::vector<std::string>{"train.max_steps=500", "--smoke: train.max_steps=12",
                                                      "--smoke: train.max_epochs=-1"});
    CHECK(parse({"dir/x=1.yaml"}).config_file == "dir/x=1.yaml");
    CHECK(parse({"output.path=/a/b", "x.yaml"}).overrides == std::vector<std::string>{"output.path=/a/b"});
  }

  TEST_CASE("command line errors") {
    CHECK(names(parse_message({"--pln", "a.yaml"}), {"--pln", "did you mean --plan?"}));
    CHECK(names(parse_message({"--printconfig"}), {"--printconfig", "did you mean --print-config?"}));
    CHECK(names(parse_message({"-plan"}), {"-plan", "did you mean --plan?"}));
    CHECK(names(parse_message({"--zzzzzz"}), {"--zzzzzz", "--smoke, --plan"}));
    CHECK(contains(parse_message({}), "no run file given; usage: blipft"));
    CHECK(contains(parse_message({"a.yaml", "b.yaml"}), "found \"b.yaml\" beside the run file a.yaml"));
    CHECK(contains(parse_message({"a.yaml", "--ranks"}), "--ranks needs a value"));
    CHECK(contains(parse_message({"--plan", "--ranks", "0", "a.yaml"}),
                   "--ranks: found \"0\", expected an integer >= 1"));
    CHECK(contains(parse_message({"--plan", "--ranks", "4x", "a.yaml"}), "--ranks: found \"4x\""));
    CHECK(contains(parse_message({"--plan", "--gpu-memory", "-1", "a.yaml"}), "--gpu-memory: found \"-1\""));
    for (const char* size : {"24KB", "x", "0", "GiB", "24GiBs", "24  GiB", "24 ", ""})
      CHECK(names(parse_message({"--plan", "--fit", size, "a.yaml"}), {"--fit: found \"", size, "\"", "--fit 24GiB"}));
    CHECK(contains(parse_message({"--fit", "24", "a.yaml"}), "--fit is for --plan"));
    CHECK(contains(parse_message({"--plan", "--fit", "24", "--gpu-memory", "24", "a.yaml"}), "is given already"));
    CHECK(contains(parse_message({"--plan", "--node-ranks", "0", "a.yaml"}), "--node-ranks: found \"0\""));
    CHECK(contains(parse_message({"--node-ranks", "2", "a.yaml"}), "--node-ranks is for --plan"));
    CHECK(contains(parse_message({"--ranks", "4", "a.yaml"}), "--ranks is for --plan"));
    CHECK(contains(parse_message({"--plan", "--print-config", "a.yaml"}), "exclude each other"));
    CHECK(contains(parse_message({"--plan=3", "a.yaml"}), "--plan takes no value"));
    CHECK(contains(parse_message({"", "a.yaml"}), "empty argument"));
    CHECK(names(parse_message({"a.yaml", "--train.lr", "1e-4"}), {"--train.lr", "train.lr=VALUE"}));
    CHECK(names(parse_message({"a.yaml", "--train.lr=1e-4"}), {"--train.lr=1e-4", ": train.lr=1e-4"}));
    CHECK(contains(parse_message({"a.yaml", "--learning-rate", "1e-4"}), "with an =: train.lr=VALUE"));
    CHECK(contains(parse_message({"a.yaml", "--max_steps=5"}), "with an =: train.max_steps=5"));
    CHECK(names(parse_message({"a.yaml", "train.lr", "1e-4"}), {"found train.lr", "train.lr=VALUE"}));
    CHECK(contains(parse_message({"--smoke=0", "a.yaml"}), "--smoke: found \"0\", expected an integer >= 1"));
    CHECK(contains(parse_message({"--smoke", "--plan", "a.yaml"}), "--smoke tries a run"));
  }

  TEST_CASE("options whose value is empty are refused") {
    for (const char* option : {"--prompt", "--image", "--export"}) {
      CAPTURE(option);
      const std::string expected = std::string(option) + ": found an empty value, expected ";
      const std::string joined = std::string(option) + "=";
      CHECK(contains(parse_message({option, "", "a.yaml"}), expected));
      CHECK(contains(parse_message({joined.c_str(), "a.yaml"}), expected));
    }
    CHECK(parse({"--smoke", "a.yaml"}).smoke_steps == 5);
    CHECK(parse({"--help"}).help_section.empty());
  }

  TEST_CASE("the folder of a run stands for its settings where its weights are used") {
    const TemporaryDirectory folder;
    const std::string run = folder.path.string();
    CHECK(names(approved(about_file(message_of([&] { parse({"--evaluate", run.c_str()}); }), run)), {"FILE: ", "config.yaml"}));
    folder.write("config.yaml", "");
    for (const std::vector<const char*>& action : std::vector<std::vector<const char*>>{
             {"--evaluate"}, {"--generate"}, {"--plan", "--evaluate"}}) {
      std::vector<const char*> words = action;
      words.push_back(run.c_str());
      CommandLine line = parse(words);
      CHECK(line.config_file == run + "/config.yaml");
      CHECK(line.overrides == std::vector<std::string>{"output.path=" + run});
      words.push_back("output.path=out");
      line = parse(words);
      CHECK(line.config_file == run + "/config.yaml");
      CHECK(line.overrides == std::vector<std::string>{"output.path=out"});
    }
    CHECK(parse({run.c_str()}).config_file == run);
    CHECK(parse({"--plan", run.c_str()}).config_file == run);
  }
}
