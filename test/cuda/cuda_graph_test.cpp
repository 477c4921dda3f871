// Captured graphs on a GPU: they are rewritten before they run, and do the same.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <vector>

#include "blipft/device.h"
#include "blipft/ops.h"
#include "support/temporary_directory.h"

using namespace blipft;

TEST_SUITE("cuda graph") {
  TEST_CASE("fills and readings of the clock keep their bytes and their order when a graph is rewritten") {
    if (cuda_device_count() == 0) {
      std::cout << "SKIPPED: captured graphs (no GPU)" << std::endl;
      return;
    }
    const auto device = make_cuda_device(0);
    const Stream stream = device->compute_stream(), side = device->side_stream();
    const Event forked = device->create_event(), joined = device->create_event();
    constexpr int64_t kBytes = 1 << 20;
    char* memory = static_cast<char*>(device->allocate(kBytes));
    auto* slots = static_cast<int64_t*>(device->allocate(8 * sizeof(int64_t)));
    struct Range {
      int64_t first, count;
    };
    // Aligned and not, shorter than a pack, one that fills several blocks.
    const std::vector<Range> ranges = {{0, 4096}, {5003, 1001}, {7000, 3}, {7015, 2}, {8192 + 4, 16}, {100001, 700003}};
    const auto body = [&] {
      device->timestamp(slots, stream);
      for (const Range& range : ranges) device->zero(memory + range.first, range.count, stream);
      device->timestamp(slots + 1, stream);
      device->timestamp(slots + 2, stream);
      device->record(forked, stream);  // the side stream begins behind the second reading, before the third is taken
      device->timestamp(slots + 3, stream);
      device->wait(side, forked);
      device->timestamp(slots + 4, side);
      device->zero(memory + 900000, 1000, side);
      device->record(joined, side);
      device->wait(stream, joined);
      device->timestamp(slots + 5, stream);
    };
    std::vector<char> expected(kBytes, 'x');
    for (const Range& range : ranges) std::memset(expected.data() + range.first, 0, static_cast<size_t>(range.count));
    std::memset(expected.data() + 900000, 0, 1000);
    const auto graph = device->capture(stream, body);
    // One reading, the fills, one that took three more, the side's fill, the last reading.
    CHECK(graph->nodes() == static_cast<int64_t>(ranges.size()) + 4);
    for (int run = 0; run < 3; ++run) {
      const std::vector<char> before(kBytes, 'x');
      const std::vector<int64_t> none(8, -1);
      device->copy(memory, before.data(), kBytes, stream);
      device->copy(slots, none.data(), 8 * sizeof(int64_t), stream);
      graph->launch(stream);
      std::vector<char> after(kBytes);
      std::vector<int64_t> times(8);
      device->copy(after.data(), memory, kBytes, stream);
      device->copy(times.data(), slots, 8 * sizeof(int64_t), stream);
      device->synchronize(stream);
      CHECK(after == expected);
      CHECK(times[0] > 0);
      CHECK(times[1] > times[0]);
      for (int i = 2; i <= 4; ++i) CHECK(times[static_cast<size_t>(i)] == times[1]);
      CHECK(times[5] > times[1]);
      CHECK(times[6] == -1);
    }
    device->free(memory);
    device->free(slots);
  }

  // Sizes that no table of products has, so that the choice is left open in the capture and made up for in settle().
  TEST_CASE("products and kernels that never ran before are captured, timed afterwards and captured again") {
    if (cuda_device_count() == 0) {
      std::cout << "SKIPPED: captures without a run before (no GPU)" << std::endl;
      return;
    }
    const testing::TemporaryDirectory folder;
    const auto device = make_cuda_device(0);
    const std::string cache = folder / "gemm_algorithms.txt";
    const auto ops = make_cuda_ops(*device, cache);
    const Stream stream = device->compute_stream();
    const auto tensor = [&](DType dtype, const Shape& shape) {
      return Tensor{device->allocate(shape.numel() * dtype_size(dtype)), dtype, shape};
    };
    const Tensor workspace = tensor(DType::u8, {2 * kWorkspaceBytes});
    ops->set_workspace(workspace);
    constexpr int64_t kRows = 328, kIn = 424, kOut = 552;
    const Tensor x = tensor(DType::bf16, {kRows, kIn}), w = tensor(DType::bf16, {kOut, kIn});
    const Tensor bias = tensor(DType::bf16, {kOut}), y = tensor(DType::bf16, {kRows, kOut});
    const LinearForward linear{.x = x, .w = w, .bias = bias, .activation = Activation::relu, .y = y};
    ops->fill_normal(x, 1, 1, 0, 0, 1, stream);
    ops->fill_normal(w, 1, 2, 0, 0, 0.05f, stream);
    ops->fill_normal(bias, 1, 3, 0, 0, 1, stream);
    device->synchronize();
    CHECK(!ops->tune_deferred_products());
    const auto body = [&] { ops->linear_forward(linear, stream); };
    const auto makeshift = device->capture(stream, body);
    CHECK(ops->tune_deferred_products());
    CHECK(!ops->tune_deferred_products());
    const auto graph = device->capture(stream, body);
    CHECK(!ops->tune_deferred_products());
    const auto result = [&](const std::function<void()>& run) {
      std::vector<char> bytes(static_cast<size_t>(y.bytes()), 'x');
      device->copy(y.data, bytes.data(), y.bytes(), stream);
      run();
      device->copy(bytes.data(), y.data, y.bytes(), stream);
      device->synchronize(stream);
      return bytes;
    };
    const std::vector<char> captured = result([&] { graph->launch(stream); }), ran = result(body);
    CHECK(captured == ran);
    CHECK(std::count(captured.begin(), captured.end(), 'x') < static_cast<int64_t>(captured.size()) / 8);
    // The next process finds what was chosen: nothing is left open.
    const auto again = make_cuda_ops(*device, cache);
    again->set_workspace(workspace);
    const auto known = device->capture(stream, [&] { again->linear_forward(linear, stream); });
    CHECK(!again->tune_deferred_products());
    CHECK(result([&] { known->launch(stream); }) == captured);
    for (const Tensor& t : {workspace, x, w, bias, y}) device->free(t.data);
  }
  // Grids and shared memory must not follow from the samples, only from how many there are and the most rows.
  TEST_CASE("captured attention takes packed samples of other rows") {
    if (cuda_device_count() == 0) {
      std::cout << "SKIPPED: captured attention (no GPU)" << std::endl;
      return;
    }
    const auto device = make_cuda_device(0);
    const auto ops = make_cuda_ops(*device, "");
    const Stream stream = device->compute_stream();
    constexpr int64_t kSamples = 5, kMax = 300, kRows = 600, kHeads = 4, kKvHeads = 2;
    const std::vector<std::vector<int32_t>> packings{{0, 300, 430, 430, 494, 600}, {0, 1, 129, 385, 599, 600},
                                                     {0, 120, 240, 360, 480, 600}};
    for (int64_t size : {64, 80, 128}) {
      CAPTURE(size);
      std::vector<Tensor> all;
      const auto tensor = [&](DType dtype, const Shape& shape) {
        return all.emplace_back(Tensor{device->allocate(shape.numel() * dtype_size(dtype)), dtype, shape});
      };
      ops->set_workspace(tensor(DType::u8, {2 * kWorkspaceBytes}));
      const int64_t width = kHeads * size, kv_width = kKvHeads * size;
      const Tensor qkv = tensor(DType::bf16, {kRows, width + 2 * kv_width}), dout = tensor(DType::bf16, {kRows, width});
      const Tensor out = tensor(DType::bf16, dout.shape), dqkv = tensor(DType::bf16, qkv.shape);
      AttentionForward f;
      f.dtype = DType::bf16, f.batch = kSamples, f.heads = kHeads, f.kv_heads = kKvHeads, f.head_size = size;
      f.query_tokens = f.kv_tokens = kMax, f.causal = true, f.scale = 0.1f;
      f.packing = {tensor(DType::i32, {kSamples + 1}), tensor(DType::i32, {kRows})};
      f.q = Heads::in(qkv, 0, kMax), f.k = Heads::in(qkv, width, kMax), f.v = Heads::in(qkv, width + kv_width, kMax);
      f.out = Heads::in(out, 0, kMax), f.lse = tensor(DType::f32, {kSamples, kHeads, kMax});
      const AttentionBackward b{.forward = f,
                                .dout = Heads::in(dout, 0, kMax),
                                .dq = Heads::in(dqkv, 0, kMax),
                                .dk = Heads::in(dqkv, width, kMax),
                                .dv = Heads::in(dqkv, width + kv_width, kMax),
                                .delta = tensor(DType::f32, f.lse.shape)};
      ops->fill_normal(qkv, 1, 1, 0, 0, 1, stream);
      ops->fill_normal(dout, 1, 2, 0, 0, 1, stream);
      const auto body = [&] {
        ops->attention_forward(f, stream);
        ops->attention_backward(b, stream);
      };
      const auto result = [&](const std::vector<int32_t>& starts, const std::function<void()>& run) {
        std::vector<char> bytes(static_cast<size_t>(out.bytes() + dqkv.bytes()), 'x');
        device->copy(f.packing.starts.data, starts.data(), f.packing.starts.bytes(), stream);
        device->copy(out.data, bytes.data(), out.bytes(), stream);
        device->copy(dqkv.data, bytes.data(), dqkv.bytes(), stream);
        run();
        device->copy(bytes.data(), out.data, out.bytes(), stream);
        device->copy(bytes.data() + out.bytes(), dqkv.data, dqkv.bytes(), stream);
        device->synchronize(stream);
        return bytes;
      };
      const std::vector<char> first = result(packings[0], body);
      const auto graph = device->capture(stream, body);
      for (const auto& starts : packings) {
        const std::vector<char> captured = result(starts, [&] { graph->launch(stream); });
        CHECK(captured == result(starts, body));
        CHECK((captured == first) == (starts == packings[0]));
      }
      for (const Tensor& t : all) device->free(t.data);
    }
  }
}
