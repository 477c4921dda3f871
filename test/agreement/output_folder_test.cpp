// Checks of an output folder before a run begins, and removals if it overwrites.
#include <doctest/doctest.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "agreement/output_folder.h"
#include "blipft/checkpoint.h"
#include "blipft/config.h"
#include "blipft/trace.h"
#include "checkpoint/saving.h"
#include "io/marker.h"
#include "io/state_files.h"
#include "support/error_message.h"
#include "support/temporary_directory.h"
#include "trace/trace_files.h"

using namespace blipft;
using namespace blipft::testing;
namespace fs = std::filesystem;

namespace {

void make_trace(const std::string& path) { open_trace(path)->close(); }

void make_model(const std::string& directory) {
  CheckpointWriter writer(directory, {{"x", DType::f32, {1}}}, 1 << 20, "model", {"0123", 2});
  const float one = 1;
  writer.write("x", 0, 1, &one);
  writer.finish();
}

// As a run leaves it: the marker, what a rank has, the index.
void make_checkpoint(const fs::path& folder, bool whole = true) {
  fs::create_directories(folder);
  io::write_marker(folder.string(), {io::Marker::kCheckpoint, "0123", 2, {}});
  std::ofstream(folder / "state-00000-of-00001.safetensors") << "x";
  io::StateIndex index;
  index.step = 2;
  index.files.push_back({"state-00000-of-00001.safetensors", 1, {}});
  if (whole) std::ofstream(folder / "checkpoint.json") << io::index_text(index);
}

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
  // Nothing of this is proven to be a run's of this program.
  for (const char* file : {"run/loss.png", "run/trace.txt", "run/trace.rank0007.h5", "run/trace_of_mine.h5",
                           "run/adapter/adapter_model.safetensors", "run/checkpoints/step10/index.json",
                           "run/checkpoints/step-00000010/state-00000-of-00001.safetensors"})
    folder.write(file, "x");
  fs::create_directories(folder / "run/trace.rank0000.h5");  // no file
  CHECK(results_message(config) == "");
  const auto refused = [&](const char* top) {
    const std::string text = results_message(config);
    CHECK_MESSAGE(contains(text, concat("run.yaml: output.path: ", config.output.path, " holds another run's results (",
                                        top, ")")), text);
    CHECK(contains(text, "output.overwrite=true"));
    CHECK(results_message(config, true) == "");
    config.output.overwrite = true;
    CHECK(results_message(config) == "");
    config.output.overwrite = false;
    fs::remove_all(folder / (std::string("run/") + top));
  };
  for (const char* trace : {"trace.rank0003.h5", "trace.part0002.rank0000.h5"}) {
    make_trace(folder / (std::string("run/") + trace));
    refused(trace);
  }
  make_model(folder / "run/model");
  refused("model");
  make_checkpoint(folder / "run/checkpoints/step-00000002");
  refused("checkpoints");
  for (int i = 1; i < 9; ++i) make_trace(folder / concat("run/trace.rank001", i, ".h5"));
  CHECK(contains(results_message(config), "trace.rank0014.h5 and 4 more"));
}

TEST_CASE("what the saved model would replace must be an older one, whether or not the rest may be overwritten") {
  const TemporaryDirectory folder;
  Config config = config_in(folder);
  config.output.overwrite = true;
  folder.write("run/model/notes.txt", "x");
  CHECK(contains(results_message(config), "not a saved model of blipft's (it has no blipft.json that says so); it is not "
                                          "replaced"));
  config.output.save_model = false;
  CHECK(results_message(config) == "");
  config.output.save_model = true;
  config.adapter.kind = AdapterKind::lora;            // saves adapter/ alone
  for (const bool merged : {true, false}) {
    config.output.save_merged = merged;
    const OutputNames names = output_names(config);
    CHECK(names.saved.size() == SaveSettings::of(config).size());
    CHECK(names.saved.front() == folder / "run/adapter");
    CHECK((names.saved.back() == folder / "run/model") == merged);
  }
  CHECK(results_message(config) == "");
  folder.write("run/adapter", "a file");
  CHECK(contains(results_message(config), "adapter: is not a folder"));
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
  make_checkpoint(folder / "run/checkpoints/step-00000002");
  CHECK(!refused(folder / "run/checkpoints/step-00000002"));
  config.output.overwrite = true;
  CHECK(refused(folder / "run/checkpoints/step-00000002"));
  CHECK(sources_message(config, true) == "");
  config.model.path = folder / "given", config.data.path = folder / "run/checkpoints/step-00000002";
  CHECK(contains(sources_message(config), "data.path"));
}

TEST_CASE("overwriting removes what the program has made, and nothing else") {
  const TemporaryDirectory folder, other_disk;
  Config config = config_in(folder);
  config.output.overwrite = true;
  for (const char* name : {"trace.rank0000.h5", "trace.rank0511.h5", "trace.part0003.rank0001.h5"})
    make_trace(folder / (std::string("run/") + name));
  make_model(folder / "run/model");
  for (const char* step : {"step-00000001", "step-00000002", "step-00000004.aside"})
    make_checkpoint(folder / (std::string("run/checkpoints/") + step));
  make_checkpoint(folder / "run/checkpoints/step-00000005.partial", false);
  make_checkpoint(folder / "run/checkpoints/step-00000006", false);  // half copied
  folder.write("run/checkpoints/step-00000001/notes.txt", "x");
  make_checkpoint(other_disk / "step-00000007");
  fs::create_directory_symlink(other_disk / "step-00000007", folder / "run/checkpoints/step-00000007");
  for (const char* file : {"run/trace.txt", "run/checkpoints/base-model/weights.bin", "run/trace.rank0009.h5"})
    folder.write(file, "x");
  remove_results(config);
  std::vector<std::string> left;
  for (const auto& entry : fs::recursive_directory_iterator(folder / "run"))
    if (!entry.is_directory() || entry.is_symlink()) left.push_back(entry.path().lexically_relative(folder / "run").string());
  std::sort(left.begin(), left.end());
  CHECK(left == std::vector<std::string>{
                    "checkpoints/base-model/weights.bin", "checkpoints/step-00000001/notes.txt",
                    "checkpoints/step-00000006/blipft.json", "checkpoints/step-00000006/state-00000-of-00001.safetensors",
                    "checkpoints/step-00000007", "model/blipft.json", "model/model.safetensors", "trace.rank0009.h5",
                    "trace.txt"});
  CHECK(fs::exists(other_disk / "step-00000007/checkpoint.json"));
  config.output.save_model = false;        // no new model will replace the older one
  remove_results(config);
  CHECK_FALSE(fs::exists(folder / "run/model"));
  // A folder of checkpoints that is a link: nothing goes through it.
  fs::rename(folder / "run/checkpoints", folder / "run/mine");
  fs::create_directory_symlink(other_disk.path, folder / "run/checkpoints");
  CHECK(contains(results_message(config), "checkpoints: is a link, behind which are a run's checkpoints (step-00000007)"));
  remove_results(config);
  CHECK(fs::exists(other_disk / "step-00000007/checkpoint.json"));
}

TEST_CASE("a trace is known by what is in it, also that of a run which was killed") {
  const TemporaryDirectory folder;
  const std::string path = folder / "trace.rank0000.h5";
  const auto trace = open_trace(path);     // before its first record
  CHECK(own_trace_files(folder.path.string()).size() == 1);
  trace->add(std::vector<MemoryRecord>{{0, "peak", "data", 0, 1}});
  fs::copy_file(path, folder / "trace.rank0001.h5");  // as it lies on the disk now
  CHECK(own_trace_files(folder.path.string()).size() == 2);
  trace->close();
  CHECK(own_trace_files(folder.path.string()).size() == 2);
  CHECK(contains(message_of([&] { open_trace(path); }), "already"));  // never over something
  fs::create_symlink(path, folder / "trace.rank0002.h5");
  fs::copy_file(path, folder / "trace.rank3.h5");
  folder.write("trace.rank0004.h5", "creator blipft");
  CHECK(own_trace_files(folder.path.string()).size() == 2);
}

TEST_CASE("a disk without room is reported with all that is to be written, before it is") {
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
  // Optional files cause a warning; files that the run removes first count as free.
  const std::string warning = check_room(config, {{"model", free / 4, model}, {"trace", 2 * free, model, false}});
  CHECK_MESSAGE(contains(warning, "the disk of " + model), warning);
  CHECK(check_room(config, {{"model", free * 3 / 2, model}}, {{"", free, model}}) == "");
}
