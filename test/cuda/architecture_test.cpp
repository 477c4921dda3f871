// Which code a GPU runs of a program built for several architectures, and what it says to a GPU that it has none for.
#include <doctest/doctest.h>

#include <iostream>
#include <string>
#include <vector>

#include "blipft/device.h"
#include "cuda/device/architecture.h"
#include "support/error_message.h"

#if defined(BLIPFT_CUDA)
#include <cuda_runtime_api.h>

#include "cuda/device/loaded_code.h"
#endif

using namespace blipft;

namespace {

struct Gpu {
  const char* name;
  int major, minor;
};
constexpr Gpu kT4{"Tesla T4", 7, 5}, kA100{"NVIDIA A100", 8, 0}, kA10{"NVIDIA A10", 8, 6}, kL40{"NVIDIA L40S", 8, 9},
    kH200{"NVIDIA H200", 9, 0}, kB200{"NVIDIA B200", 10, 0}, kB300{"NVIDIA B300", 10, 3},
    kRtx{"NVIDIA RTX PRO 6000", 12, 0};

std::string code(const std::string& list, const Gpu& gpu) {
  return code_for(parse_architectures(list), gpu.name, gpu.major, gpu.minor).text();
}
std::string refusal(const std::string& list, const Gpu& gpu) {
  return testing::message_of([&] { code(list, gpu); });
}

}  // namespace

TEST_SUITE("architecture") {
  TEST_CASE("a list of architectures is read as make has it") {
    const std::vector<Architecture> expected = {{80, 0}, {90, 'a'}, {100, 'f'}};
    CHECK(parse_architectures("80 90a 100f") == expected);
    CHECK(parse_architectures("").empty());
    for (const char* wrong : {"sm_80", "8.0", "80,90a", "90b", "a", "8", "90aa"})
      CHECK(testing::message_of<Error>([&] { parse_architectures(wrong); }).find("CUDA_ARCH") != std::string::npos);
  }

  TEST_CASE("a GPU runs the latest code that it can") {
    CHECK(code("90a", kH200) == "90a");
    CHECK(code("80 90a", kH200) == "90a");
    CHECK(code("90a 80", kH200) == "90a");
    CHECK(code("80", kH200) == "80");
    CHECK(code("80 90", kH200) == "90");
    for (const Gpu& gpu : {kA100, kA10, kL40, kB200, kRtx}) CHECK(code("80 90a", gpu) == "80");
    CHECK(code("80 86 90a", kL40) == "86");
    CHECK(code("80 100", kB300) == "100");
    CHECK(code("80 100a", kB300) == "80");
    CHECK(code("80 100f", kB300) == "100f");
    CHECK(code("80 100f", kRtx) == "80");
    CHECK(code("90a 100", kRtx) == "100");
  }

  TEST_CASE("a GPU that the program has no code for is refused with the build that would do") {
    CHECK(refusal("90a", kA100) ==
          "this blipft was built for CUDA_ARCH=\"90a\", and NVIDIA A100 has compute capability 8.0; build with "
          "`make CUDA_ARCH=\"80 90a\"`");
    CHECK(refusal("90a", kB200).find("`make CUDA_ARCH=\"90a 100\"`") != std::string::npos);
    CHECK(refusal("100", kH200).find("`make CUDA_ARCH=\"90a 100\"`") != std::string::npos);
    CHECK(refusal("86", kA100).find("`make CUDA_ARCH=\"80 86\"`") != std::string::npos);
    CHECK(refusal("100f", kRtx).find("`make CUDA_ARCH=\"100f 120\"`") != std::string::npos);
  }

  TEST_CASE("a GPU that is too old is refused, whatever the program was built for") {
    for (const char* list : {"80", "90a", "80 90a"})
      CHECK(refusal(list, kT4).find("Tesla T4 has compute capability 7.5; blipft needs 8.0 or later") == 0);
  }

  TEST_CASE("a refused list is enough for the GPU once it is built") {
    for (const Gpu& gpu : {kA100, kA10, kL40, kH200, kB200, kB300, kRtx}) {
      const std::string wider = architectures_with(parse_architectures("90a"), 10 * gpu.major + gpu.minor);
      CAPTURE(wider);
      CHECK(refusal(wider, gpu).empty());
    }
  }

#if defined(BLIPFT_CUDA)
  TEST_CASE("every GPU here has loaded the code that is expected of this build") {
    if (cuda_device_count() == 0) std::cout << "SKIPPED: code that a GPU has loaded (no GPU)" << std::endl;
    for (int i = 0; i < cuda_device_count(); ++i) {
      const auto device = make_cuda_device(i);
      device->bind_thread();
      cudaDeviceProp gpu{};
      REQUIRE(cudaGetDeviceProperties(&gpu, i) == cudaSuccess);
      const LoadedCode loaded = loaded_code();
      CAPTURE(loaded.text());
      CHECK(loaded.architecture == code_for(built_architectures(), gpu.name, gpu.major, gpu.minor));
      CHECK(loaded.by_driver == (loaded.architecture.number / 10 != gpu.major));
      CHECK(device->code() == loaded.text());
    }
  }
#endif

  TEST_CASE("only code for Hopper alone has warpgroup products") {
    CHECK(Architecture{90, 'a'}.has_wgmma());
    for (const Architecture other : {Architecture{90, 0}, Architecture{80, 0}, Architecture{100, 'a'}})
      CHECK(!other.has_wgmma());
    CHECK(LoadedCode{{90, 'a'}, false}.text() == "sm_90a code (wgmma)");
    CHECK(LoadedCode{{80, 0}, false}.text() == "sm_80 code");
    CHECK(LoadedCode{{80, 0}, true}.text() == "sm_80 code (compiled from PTX by the driver)");
  }
}
