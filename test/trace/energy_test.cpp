// Energy counters of CPU packages, and the text of a run's energy.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "support/temporary_directory.h"
#include "trace/energy.h"

using namespace blipft;
using blipft::testing::TemporaryDirectory;

namespace {

void write(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text << "\n";
}

void make_zone(const std::string& folder, const std::string& name, uint64_t microjoules, uint64_t range = 1'000'000'000) {
  write(folder + "/name", name);
  write(folder + "/energy_uj", std::to_string(microjoules));
  write(folder + "/max_energy_range_uj", std::to_string(range));
}

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_SUITE("trace") {
  TEST_CASE("the energy of CPU packages counts on when a counter starts again, and leaves out all other zones") {
    const TemporaryDirectory folder;
    const std::string first = (folder / "intel-rapl:0"), second = (folder / "intel-rapl:1");
    make_zone(first, "package-0", 5'000'000);
    make_zone(second, "package-1", 999'000'000);
    make_zone(first + "/intel-rapl:0:0", "core", 0);
    for (const char* other : {"intel-rapl:0:0", "intel-rapl:2", "intel-rapl-mmio:0", "dtpm"})
      make_zone((folder / other), other == std::string("intel-rapl:2") ? "psys" : "package-0", 0);
    PackageEnergy energy(folder.path.string());
    CHECK(energy.unavailable() == "");
    CHECK(energy.joules() == 0);
    for (const char* other : {"intel-rapl:0:0", "intel-rapl:2", "intel-rapl-mmio:0", "dtpm"})
      write((folder / other) + "/energy_uj", "77000000");
    write(first + "/energy_uj", "7500000");
    CHECK(energy.joules() == doctest::Approx(2.5));
    write(second + "/energy_uj", "4000000");  // 1 J to the end of the range, then 4 J
    CHECK(energy.joules() == doctest::Approx(7.5));
    write(second + "/energy_uj", "3000000");  // and once more
    CHECK(energy.joules() == doctest::Approx(1006.5));
  }

  TEST_CASE("energy without counters is not available, with the reason") {
    const TemporaryDirectory folder;
    PackageEnergy none((folder / "powercap"));
    CHECK(none.unavailable() == (folder / "powercap") + ": No such file or directory");
    CHECK(std::isnan(none.joules()));
    std::filesystem::create_directories((folder / "intel-rapl"));
    CHECK(PackageEnergy(folder.path.string()).unavailable() == folder.path.string() + ": contains no CPU package");
    make_zone((folder / "intel-rapl:0"), "package-0", 1);
    std::filesystem::remove(folder / "intel-rapl:0/energy_uj");
    CHECK(PackageEnergy(folder.path.string()).unavailable() == (folder / "intel-rapl:0/energy_uj") + ": No such file or directory");
    make_zone((folder / "intel-rapl:0"), "package-0", 1);
    PackageEnergy vanishes(folder.path.string());
    CHECK(vanishes.joules() == 0);
    std::filesystem::remove_all((folder / "intel-rapl:0"));
    CHECK(std::isnan(vanishes.joules()));
    CHECK(vanishes.unavailable() == (folder / "intel-rapl:0/energy_uj") + ": can no longer be read");
  }

  TEST_CASE("the text of a run's energy") {
    CHECK(energy_text({{"GPUs", 36000, ""}, {"CPUs", 3600, ""}}, 100, 1000) ==
          "0.011 kWh (GPUs 0.01, CPUs 0.001), 396 J a sample, 39.6 J a token");
    CHECK(energy_text({{"GPUs", 36000, ""}, {"CPUs", kNone, "/x: Permission denied"}}, 100, 1000) ==
          "0.01 kWh (GPUs 0.01; CPUs: not available: /x: Permission denied), 360 J a sample, 36 J a token");
    CHECK(energy_text({{"CPUs", kNone, "/x: Permission denied"}}, 100, 1000) == "not available (CPUs: /x: Permission denied)");
  }
}
