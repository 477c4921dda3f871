// Models in the hub's local cache, by name.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/temporary_directory.h"
#include "weights/hub_cache.h"

using namespace blipft;
using testing::TemporaryDirectory;
namespace fs = std::filesystem;

namespace {

const char* const kVariables[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"};

/// The variables that say where the cache is, as they were before.
class Environment {
 public:
  Environment() {
    for (const char* name : kVariables) {
      const char* value = std::getenv(name);
      before_.emplace_back(name, value ? std::optional<std::string>(value) : std::nullopt);
      unsetenv(name);
    }
  }
  ~Environment() {
    for (const auto& [name, value] : before_) value ? setenv(name, value->c_str(), 1) : unsetenv(name);
  }

 private:
  std::vector<std::pair<const char*, std::optional<std::string>>> before_;
};

}  // namespace

TEST_SUITE("hub cache") {
  TEST_CASE("a model's name is the folder that was downloaded last") {
    const Environment environment;
    const TemporaryDirectory directory;
    const std::string hash = "c1899de289a04d12100db370d81485cdf75e47ca", model = "models--Qwen--Qwen2.5-0.5B";
    directory.write("hub/" + model + "/blobs/b1", "{}");
    directory.write("hub/" + model + "/refs/main", hash);
    const fs::path snapshot = directory.path / "hub" / model / "snapshots" / hash;
    fs::create_directories(snapshot);
    fs::create_symlink("../../blobs/b1", snapshot / "config.json");
    const std::string name = "Qwen/Qwen2.5-0.5B";
    CHECK(folder_of_model(name) == name);            // no cache is known of
    setenv("HF_HOME", directory.path.c_str(), 1);
    CHECK(folder_of_model(name) == snapshot.string());
    CHECK(hub_name_of(snapshot.string()) == name);
    CHECK(hub_name_of(snapshot.string() + "/") == name);
    CHECK(folder_of_model("Qwen/Qwen2.5-7B") == "Qwen/Qwen2.5-7B");
    unsetenv("HF_HOME");
    setenv("HF_HUB_CACHE", (directory / "hub").c_str(), 1);
    CHECK(folder_of_model(name) == snapshot.string());
    fs::remove(snapshot / "config.json");                // the download was broken off
    CHECK(folder_of_model(name) == name);
    const std::string advice = hub_advice(name);
    CHECK_MESSAGE(advice.find("\n  hf download Qwen/Qwen2.5-0.5B\n") != std::string::npos, advice);
    CHECK_MESSAGE(advice.find(directory / "hub") != std::string::npos, advice);
  }

  TEST_CASE("where the cache is") {
    const Environment environment;
    setenv("HOME", "/home/ada", 1);
    CHECK(hub_cache() == "/home/ada/.cache/huggingface/hub");
    setenv("XDG_CACHE_HOME", "/scratch/cache", 1);
    CHECK(hub_cache() == "/scratch/cache/huggingface/hub");
    setenv("HF_HOME", "~/hf", 1);
    CHECK(hub_cache() == "/home/ada/hf/hub");
    setenv("HUGGINGFACE_HUB_CACHE", "/old", 1);
    CHECK(hub_cache() == "/old");
    setenv("HF_HUB_CACHE", "/new", 1);
    CHECK(hub_cache() == "/new");
  }

  TEST_CASE("paths are no names") {
    for (const char* path : {"", "llama", "/models/llama", "./models/llama", "../llama", "~/llama", "a/b/c", "models/", "a/..",
                             "a b/c", ".cache/llama"})
      CHECK_MESSAGE(!is_hub_name(path), path);
    CHECK(is_hub_name("facebook/opt-125m"));
    CHECK(is_hub_name("Salesforce/blip2-opt-2.7b"));
    const TemporaryDirectory directory;
    CHECK(folder_of_model(directory.path.string()) == directory.path.string());
    CHECK(hub_name_of("/models/llama").empty());
    CHECK(hub_name_of("").empty());
  }
}
