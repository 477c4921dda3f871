// What is checked of an output folder before a run begins, and what is removed when it overwrites.
#include <doctest/doctest.h>
#include <sys/statvfs.h>

#include <filesystem>

#include "run/output_folder.h"
#include "support/error_message.h"
#include "support/temporary_directory.h"

using namespace blipft;
using namespace blipft::testing;
namespace fs = std::filesystem;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A run that saves its model into `folder`/run and reads from `folder`/given and `folder`/data.
Config config_in(const TemporaryDirectory& folder) {
  Config config;
  config.file = "run.yaml";
  config.model.path = folder / "given";
  config.data.path = folder / "data";
  config.output.path = folder / "run";
  config.output.save_model = true;
  folder.write("given/model.safetensors", "x");
  folder.write("data/metadata.jsonl", "x");
  fs::create_directories(config.output.path);
  return config;
}

std::string results_message(const Config& config, bool resumed = false) {
  return message_of([&] { check_results(config, resumed); });
}
std::string sources_message(const Config& config, bool resumed = false) {
  return message_of([&] { check_sources(config, resumed); });
}

}  // namespace

TEST_CASE("another run's results are refused, with what they are, unless they may be overwritten or are resumed") {
  const TemporaryDirectory folder;
  Config config = config_in(folder);
  folder.write("run/loss.png", "x");
  folder.write("run/trace.txt", "x");
  fs::create_directories(folder / "run/trace.rank0000.h5");  // no file
  fs::create_directories(folder / "run/adapter");            // empty
  CHECK(results_message(config) == "");
  for (const char* file : {"run/trace.rank0003.h5", "run/trace.part2.rank0000.h5", "run/model/model.safetensors",
                           "run/adapter/adapter_model.safetensors", "run/checkpoints/step10/index.json"}) {
    const std::string path = folder.write(file, "x");
    const std::string text = results_message(config), top = fs::path(file).lexically_relative("run").begin()->string();
    CHECK_MESSAGE(contains(text, concat("run.yaml: output.path: ", config.output.path,
                                        " holds another run's results (", top, ")")), text);
    CHECK(contains(text, "output.overwrite=true"));
    CHECK(results_message(config, true) == "");
    config.output.overwrite = true;
    CHECK(results_message(config) == "");
    config.output.overwrite = false;
    fs::remove(path);
    if (top == "checkpoints") fs::remove_all(folder / "run/checkpoints");
  }
  for (int i = 1; i < 9; ++i) folder.write(concat("run/trace.rank000", i, ".h5"), "x");
  CHECK(contains(results_message(config), "trace.rank0004.h5 and 4 more"));
}

TEST_CASE("what the saved model would replace must be an older one, whether or not the rest may be overwritten") {
  const TemporaryDirectory folder;
  Config config = config_in(folder);
  config.output.overwrite = true;
  folder.write("run/model/notes.txt", "x");
  CHECK(contains(results_message(config), "not a saved model; it is not replaced"));
  config.output.save_model = false;
  CHECK(results_message(config) == "");
  config.output.save_model = true;
  config.adapter.kind = "lora";            // saves adapter/ alone
  CHECK(results_message(config) == "");
  folder.write("run/adapter", "a file");
  CHECK(contains(results_message(config), "exists and is not a folder"));
}

TEST_CASE("a run does not replace what it reads, whatever its name") {
  const TemporaryDirectory folder;
  Config config = config_in(folder);
  CHECK(sources_message(config) == "");
  folder.write("run/model/model.safetensors", "x");
  const auto refused = [&](const std::string& model) {
    config.model.path = model;
    const std::string text = sources_message(config);
    return contains(text, concat("run.yaml: model.path: ", model, " is read from ", config.output.path)) &&
           contains(text, "which this run would replace; choose another output.path");
  };
  CHECK(refused(folder / "run/model"));
  CHECK(refused(folder / "run/../run/model/"));
  fs::create_directory_symlink(folder / "run/model", folder / "link");
  CHECK(refused(folder / "link"));
  fs::create_directories(folder / "links");
  fs::create_symlink(folder / "run/model/model.safetensors", folder / "links/model.safetensors");
  CHECK(refused(folder / "links"));
  folder.write("run/model/inside/model.safetensors", "x");
  CHECK(refused(folder / "run/model/inside"));
  folder.write("run/model.old/model.safetensors", "x");
  CHECK(refused(folder / "run/model.old"));
  config.output.save_model = false;
  CHECK(!refused(folder / "run/model"));

  // Checkpoints go when a run overwrites, but not when it goes on.
  folder.write("run/checkpoints/step10/model.safetensors", "x");
  CHECK(!refused(folder / "run/checkpoints/step10"));
  config.output.overwrite = true;
  CHECK(refused(folder / "run/checkpoints/step10"));
  CHECK(sources_message(config, true) == "");
  config.model.path = folder / "given", config.data.path = folder / "run/checkpoints";
  CHECK(contains(sources_message(config), "data.path"));
}

TEST_CASE("overwriting removes all traces and checkpoints, and nothing else") {
  const TemporaryDirectory folder, other_disk;
  for (const char* file : {"trace.rank0000.h5", "trace.rank0511.h5", "trace.part3.rank0001.h5"}) folder.write(file, "x");
  for (const char* file : {"trace.txt", "loss.png", "model/model.safetensors"}) folder.write(file, "x");
  other_disk.write("step10/shards/0.safetensors", "x");
  fs::create_directory_symlink(other_disk.path, folder / "checkpoints");
  remove_results(folder.path.string());
  CHECK(results_in(folder.path.string()) == std::vector<std::string>{"model"});
  CHECK(fs::exists(folder / "trace.txt"));
  CHECK(fs::exists(folder / "loss.png"));
  CHECK(fs::is_symlink(folder / "checkpoints"));
  CHECK(fs::is_empty(other_disk.path));
}

TEST_CASE("a disk without room is told with all that is to be written, before it is") {
  const TemporaryDirectory folder;
  const Config config = config_in(folder);
  struct statvfs info{};
  REQUIRE(statvfs(folder.path.c_str(), &info) == 0);
  const auto free = static_cast<int64_t>(info.f_bavail * info.f_frsize);
  const std::string model = folder / "run/model", deeper = folder / "run/checkpoints/not/there/yet";
  CHECK(check_room(config, {{"model", free / 4, model}, {"checkpoints", free / 4, deeper}}) == "");
  const auto refusal = message_of([&] {
    check_room(config, {{"model", free, model}, {"checkpoints", free, deeper}});
  });
  CHECK_MESSAGE(contains(refusal, "run.yaml: output.path: the disk of " + model + " has "), refusal);
  CHECK(contains(refusal, "free, but this run is going to write "));
  CHECK(contains(refusal, ": model "));
  CHECK(contains(refusal, ", checkpoints "));
  // What it can do without is warned of; what it removes first counts as free.
  const std::string warning = check_room(config, {{"model", free / 4, model}, {"trace", 2 * free, model, false}});
  CHECK_MESSAGE(contains(warning, "the disk of " + model), warning);
  CHECK(check_room(config, {{"model", free * 3 / 2, model}}, free) == "");
}
