// The CPU and plan devices, and the argument checks that all backends share.
#include <doctest/doctest.h>

#include <cstring>

#include "ops/op_context.h"

namespace blipft::test {
namespace {

/// Looks at one field of a linear layer's arguments after `spoil` had its way with them.
template <class F>
void linear_with(F spoil) {
  const auto device = make_plan_device();
  const auto tensor = [&](Shape shape) { return Tensor{device->allocate(4 * shape.numel()), kF32, shape}; };
  LinearForward args;
  args.x = tensor({6, 5}), args.w = tensor({4, 5}), args.bias = tensor({4}), args.y = tensor({6, 4});
  spoil(args);
  make_plan_ops()->linear_forward(args, device->compute_stream());
}

TEST_SUITE("cpu_device") {
  TEST_CASE("memory is aligned, counted, and refused with numbers when there is too little") {
    const auto device = make_cpu_device(2);
    CHECK(device->kind() == DeviceKind::cpu);
    CHECK(device->name() == "CPU, 2 threads");
    const int64_t before = device->memory().process;
    void* a = device->allocate(1000);
    void* b = device->allocate(1);
    void* host = device->allocate_host(100);
    CHECK(reinterpret_cast<uintptr_t>(a) % 256 == 0);
    CHECK(reinterpret_cast<uintptr_t>(b) % 256 == 0);
    CHECK(device->memory().process - before == 1001);  // host memory does not count
    device->free(a);
    CHECK(device->memory().process - before == 1);
    device->free(b);
    device->free_host(host);
    CHECK_THROWS_AS(device->free(b), Error);
    CHECK(device->memory().total > device->memory().free);
    CHECK(device->memory().free > 0);
    const int64_t much = device->memory().total + (int64_t{1} << 40);
    CHECK_THROWS_WITH_AS(device->allocate(much), doctest::Contains(std::to_string(much).c_str()), Error);
    CHECK_THROWS_WITH_AS(device->allocate(much), doctest::Contains("are available"), Error);
    CHECK(device->memory().process == before);
  }

  TEST_CASE("streams, events, copies, clock") {
    const auto device = make_cpu_device(0);
    const Stream compute = device->compute_stream(), comm = device->comm_stream(), copy = device->copy_stream();
    CHECK(compute.handle != nullptr);
    CHECK(comm.handle != nullptr);
    CHECK(copy.handle != nullptr);
    CHECK(compute.handle != comm.handle);
    CHECK(compute.handle != copy.handle);
    CHECK(comm.handle != copy.handle);
    const Event first = device->create_event(), second = device->create_event();
    CHECK(first.handle != nullptr);
    CHECK(first.handle != second.handle);
    device->record(first, compute);
    device->wait(comm, first);
    CHECK(device->reached(first));
    device->synchronize(first);
    char from[6] = "hello", to[6];
    device->copy(to, from, 6, copy);
    CHECK(std::strcmp(to, "hello") == 0);
    device->zero(to, 3, copy);
    CHECK((to[0] == 0 && to[2] == 0 && to[3] == 'l'));
    int64_t earlier = 0, later = 0;
    device->timestamp(&earlier, compute);
    device->timestamp(&later, compute);
    CHECK(earlier > 0);
    CHECK(later >= earlier);
  }

  TEST_CASE("a CPU graph runs its body at each launch only; a plan graph once, at capture") {
    int runs = 0;
    const auto cpu = make_cpu_device(0);
    const auto graph = cpu->capture(cpu->compute_stream(), [&] { ++runs; });
    CHECK(runs == 0);
    graph->launch(cpu->compute_stream());
    graph->launch(cpu->compute_stream());
    CHECK(runs == 2);
    const auto plan = make_plan_device();
    const auto planned = plan->capture(plan->compute_stream(), [&] { ++runs; });
    CHECK(runs == 3);
    planned->launch(plan->compute_stream());
    CHECK(runs == 3);
  }

  TEST_CASE("the plan device hands out distinct aligned addresses and touches none") {
    const auto device = make_plan_device();
    CHECK(device->kind() == DeviceKind::plan);
    char* last = nullptr;
    for (int64_t bytes : {int64_t{1}, int64_t{257}, int64_t{1} << 42, int64_t{5}}) {
      char* memory = static_cast<char*>(device->allocate(bytes));
      CHECK(memory != nullptr);
      CHECK(reinterpret_cast<uintptr_t>(memory) % 256 == 0);
      CHECK(memory > last);
      device->zero(memory, bytes, device->copy_stream());
      device->copy(memory, memory + 1, bytes, device->copy_stream());
      device->timestamp(reinterpret_cast<int64_t*>(memory), device->compute_stream());
      last = memory + bytes - 1;
    }
    CHECK(device->memory().process == (int64_t{1} << 42) + 263);
    auto* host = static_cast<char*>(device->allocate_host(100));
    std::memset(host, 1, 100);  // host memory is real
    device->free_host(host);
  }

  TEST_CASE("argument checks name the op, the argument, what was found and expected") {
    CHECK_NOTHROW(linear_with([](LinearForward&) {}));
    const auto fails = [](auto spoil, const char* message) {
      CHECK_THROWS_WITH_AS(linear_with(spoil), doctest::Contains(message), Error);
    };
    fails([](LinearForward& a) { a.y = Tensor{a.y.data, kF32, {6, 5}}; },
          "linear_forward: y has shape [6, 5], expected 6 rows of 4");
    // If two things fail, the error that a caller can understand is reported: the shape, whatever its row stride.
    fails([](LinearForward& a) { a.y.shape = {6, 5}; }, "linear_forward: y has shape [6, 5], expected 6 rows of 4");
    fails([](LinearForward& a) { a.w.dtype = kBf16; }, "linear_forward: w has dtype bf16, expected f32");
    fails([](LinearForward& a) { a.x.dtype = DType::i32; }, "linear_forward: x has dtype i32, expected f32 or bf16");
    fails([](LinearForward& a) { a.x = {}; }, "linear_forward: x is missing");
    fails([](LinearForward& a) { a.bias.shape = {3}; }, "linear_forward: bias has shape [3], expected 4 elements");
    fails([](LinearForward& a) { a.activation = Activation::gelu; }, "pre_activation is required for gelu");
    fails([](LinearForward& a) { a.pre_activation = a.y.tensor(); }, "pre_activation is required for gelu and absent otherwise");
    fails([](LinearForward& a) { a.residual = a.y, a.activation = Activation::relu; },
          "residual goes with Activation::none");
    fails([](LinearForward& a) { a.x = a.x.columns(0, 4); }, "linear_forward: w has shape [4, 5], expected 4 rows of 4");
    fails([](LinearForward& a) { a.y.row_stride = 3; }, "linear_forward: y has row stride 3, less than its 4 columns");
    fails([](LinearForward& a) { a.x.data = a.x.as<char>() + 2; },
          "linear_forward: x does not start at a multiple of its elements' size");
    fails([](LinearForward& a) {
      a.activation = Activation::gelu, a.pre_activation = a.y.tensor(), a.y.row_stride = 8;
    }, "linear_forward: y has rows of 4 that lie 8 elements apart, but gelu needs them one behind the other");
  }

  TEST_CASE("argument checks of signs in place of a relu's output") {
    const auto device = make_plan_device();
    const auto ops = make_plan_ops();
    const Stream s = device->compute_stream();
    const auto tensor = [&](DType t, Shape shape) { return Tensor{device->allocate(8 * shape.numel()), t, shape}; };
    LinearBackwardInput a;
    a.dy = tensor(kF32, {3, 2}), a.w = tensor(kF32, {2, 5}), a.dx = tensor(kF32, {3, 5});
    a.activation = Activation::relu, a.saved = tensor(DType::u8, {2});
    CHECK_NOTHROW(ops->linear_backward_input(a, s));
    a.saved = tensor(DType::u8, {3, 5});
    CHECK_THROWS_WITH_AS(ops->linear_backward_input(a, s),
                         doctest::Contains("linear_backward_input: saved has shape [3, 5], expected 2 elements"), Error);
    a.activation = Activation::gelu, a.saved = tensor(DType::u8, {2});
    CHECK_THROWS_WITH_AS(ops->linear_backward_input(a, s),
                         doctest::Contains("linear_backward_input: saved has dtype u8, expected f32"), Error);
    CHECK_THROWS_WITH_AS(ops->pack_signs(tensor(kF32, {9}), tensor(DType::u8, {1}), s),
                         doctest::Contains("pack_signs: signs has shape [1], expected 2 elements"), Error);
  }

  TEST_CASE("argument checks of attention, dropout and row blocks") {
    const auto device = make_plan_device();
    const auto ops = make_plan_ops();
    const Stream s = device->compute_stream();
    const auto tensor = [&](DType t, Shape shape) { return Tensor{device->allocate(8 * shape.numel()), t, shape}; };
    AttentionForward a;
    a.batch = 2, a.heads = 3, a.head_size = 4, a.query_tokens = 5, a.kv_tokens = 6;
    a.q = a.k = a.v = a.out = Heads::in(tensor(kF32, {12, 12}), 0, 6);
    a.lse = tensor(kF32, {2, 3, 5});
    CHECK_NOTHROW(ops->attention_forward(a, s));
    a.causal = true;
    CHECK_THROWS_WITH_AS(ops->attention_forward(a, s), doctest::Contains("causal needs query_tokens"), Error);
    a.causal = false;
    a.k.row_stride = 11;
    CHECK_THROWS_WITH_AS(ops->attention_forward(a, s), doctest::Contains("k has row stride 11"), Error);

    DropoutAdd d{tensor(kF32, {6, 4}), {}, {0.5f, 1, 2, tensor(DType::i64, {3}), 2}, tensor(kF32, {6, 4})};
    CHECK_NOTHROW(ops->dropout_add(d, s));
    d.dropout.rows_per_sample = 4;
    CHECK_THROWS_WITH_AS(ops->dropout_add(d, s), doctest::Contains("does not divide 6 rows"), Error);
    d.dropout.rows_per_sample = 3;
    CHECK_THROWS_WITH_AS(ops->dropout_add(d, s), doctest::Contains("sample_keys has shape [3], expected 2"), Error);
    d.dropout.p = 1;
    CHECK_THROWS_WITH_AS(ops->dropout_add(d, s), doctest::Contains("expected 0 <= p < 1"), Error);

    RowBlocks r{tensor(kF32, {12, 4}), tensor(kF32, {6, 4}), 6, 4, 3};
    CHECK_THROWS_WITH_AS(ops->pick_rows(r, s), doctest::Contains("rows [4, 7) do not lie in a block of 6"), Error);
  }
}

}  // namespace
}  // namespace blipft::test
