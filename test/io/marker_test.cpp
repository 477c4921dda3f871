// Markers: a folder is this program's when its marker says so, and nothing else passes for one.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "io/marker.h"
#include "support/error_message.h"
#include "support/temporary_directory.h"

using namespace blipft;
using namespace blipft::testing;
namespace fs = std::filesystem;

TEST_SUITE("marker") {

TEST_CASE("a marker comes back as it was written, and another may replace it") {
  const TemporaryDirectory folder;
  CHECK_FALSE(io::read_marker(folder.path.string()));
  io::write_marker(folder.path.string(), {io::Marker::kModel, "0123", 7, {"config.json", "model.safetensors"}});
  const auto marker = io::read_marker(folder.path.string());
  REQUIRE(marker);
  CHECK(marker->what == "model");
  CHECK(marker->run_id == "0123");
  CHECK(marker->step == 7);
  CHECK(marker->files == std::vector<std::string>{"config.json", "model.safetensors"});
  io::write_marker(folder.path.string(), {io::Marker::kCheckpoints, "45", -1, {}});
  CHECK(io::read_marker(folder.path.string())->what == "checkpoints");
  CHECK(io::read_marker(folder.path.string())->step == -1);
  CHECK(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()) == 1);
}

TEST_CASE("what only looks like a marker proves nothing, and is not written over") {
  for (const char* text : {"", "{", "[]", "1", R"({"made_by": "another"})", R"({"made_by": 1})",
                           R"({"made_by": "blipft", "step": "x"})", R"({"made_by": "blipft", "files": 3})"}) {
    const TemporaryDirectory folder;
    folder.write("blipft.json", text);
    CHECK_FALSE(io::read_marker(folder.path.string()));
    CHECK(message_of([&] { io::write_marker(folder.path.string(), {"model", "01", -1, {}}); }).find("not of blipft's") !=
          std::string::npos);
    std::ifstream in(folder / "blipft.json");
    CHECK(std::string(std::istreambuf_iterator<char>(in), {}) == text);
  }
  const TemporaryDirectory linked, piped, real;
  io::write_marker(real.path.string(), {"model", "01", -1, {}});
  fs::create_symlink(real.path / "blipft.json", linked.path / "blipft.json");
  CHECK_FALSE(io::read_marker(linked.path.string()));
  REQUIRE(::mkfifo((piped / "blipft.json").c_str(), 0644) == 0);
  CHECK_FALSE(io::read_marker(piped.path.string()));  // and waits for nobody
  fs::create_directory_symlink(real.path, linked.path / "folder");
  CHECK_FALSE(io::read_marker(linked / "folder"));
}

}
