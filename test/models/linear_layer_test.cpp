// LinearLayer: packed parts of any widths, where a bias gradient comes from, chunks of rows, and the seam for adapters,
// tried with one of low rank against the dense weight that it amounts to.
#include <doctest/doctest.h>

#include <memory>

#include "models/blocks/norm.h"
#include "ops/op_reference.h"

namespace blipft::test {
namespace {

/// Nothing is gathered: the tests hand the parameters over themselves.
class NoUnits : public UnitAccess {
 public:
  Tensor acquire(const Unit&) override { return {}; }
  void release(const Unit&) override {}
  UnitGradient gradient(const Unit&) override { return {}; }
  void publish(const Unit&) override {}
};

/// Numbers in host memory as a tensor.
struct Numbers {
  std::vector<float> values;
  Shape shape;
  explicit Numbers(const Shape& of, float everywhere = 0) : values(static_cast<size_t>(of.numel()), everywhere),
                                                            shape(of) {}
  static Numbers random(const Shape& of, uint64_t seed) {
    Numbers numbers(of);
    for (float& value : numbers.values) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      value = static_cast<float>(static_cast<double>(seed >> 33) / 2147483648.0 * 2 - 1);
    }
    return numbers;
  }
  Tensor tensor() { return {values.data(), kF32, shape}; }
  Vec vec() const { return {values.begin(), values.end()}; }
  /// Elements [first, first + count).
  Vec vec(int64_t first, int64_t count) const {
    return {values.begin() + first, values.begin() + first + count};
  }
};

/// Runs `body(context)` as a step does: once dry, so that the arena can plan, then on the CPU. The end of each pass
/// refuses tensors that were not given back.
template <class Body>
void run_step(const Body& body) {
  const auto device = make_cpu_device(0);
  const auto cpu_ops = make_cpu_ops(), plan_ops = make_plan_ops();
  Arena arena(*device);
  NoUnits units;
  for (Ops* ops : {plan_ops.get(), cpu_ops.get()}) {
    const StepContext context{*ops, *device, arena, units, device->compute_stream(), device->side_stream(),
                              device->create_event(), device->create_event()};
    arena.begin_pass("step");
    body(context);
    arena.end_pass();
    if (ops == cpu_ops.get()) break;
    arena.plan();
    arena.commit();
  }
}

/// y += B (A x), with parameters and gradients in the test's memory.
class LowRank final : public LinearAdapter {
 public:
  LowRank(int64_t in, int64_t out, int64_t rank)
      : a(Numbers::random({rank, in}, 11)), b(Numbers::random({out, rank}, 12)), da({rank, in}, NAN),
        db({out, rank}, NAN) {}

  bool covers(int64_t columns) const override { return columns == b.shape[0]; }
  void forward(const UnitPass& pass, const MatrixView& x, const MatrixView& add, const MatrixView& y) const override {
    const StepContext& context = pass.context;
    const ScopedTensor inner(context, "adapter", x.dtype, {x.rows(), a.shape[0]});
    context.ops.linear_forward({.x = x, .w = a.tensor(), .y = inner}, context.stream);
    context.ops.linear_forward({.x = inner, .w = b.tensor(), .residual = add, .y = y}, context.stream);
  }
  Tensor reduce(UnitBackward& pass, const MatrixView& dy) const override {
    ScopedTensor reduced(pass.context, "adapter", dy.dtype, {dy.rows(), a.shape[0]});
    pass.context.ops.linear_backward_input({.dy = dy, .w = b.tensor(), .dx = reduced}, pass.context.stream);
    ++reductions;
    return reduced.release();
  }
  void input_gradient(UnitBackward& pass, const MatrixView&, const Tensor& reduced, const MatrixView& add,
                      const MatrixView& dx) const override {
    pass.context.ops.linear_backward_input({.dy = reduced, .w = a.tensor(), .add = add, .dx = dx},
                                           pass.context.stream);
  }
  void weight_gradient(UnitBackward& pass, const MatrixView& dy, const Tensor& reduced,
                       const MatrixView& x) const override {
    const StepContext& context = pass.context;
    ScopedTensor inner(context, "adapter", x.dtype, {x.rows(), a.shape[0]});
    const Stream stream = pass.weight_stream();
    context.ops.linear_forward({.x = x, .w = a.tensor(), .y = inner}, stream);
    context.ops.linear_backward_weight({.dy = dy, .x = inner, .dw = db.tensor(), .accumulate = pass.later_rows()},
                                       stream);
    context.ops.linear_backward_weight({.dy = reduced, .x = x, .dw = da.tensor(), .accumulate = pass.later_rows()},
                                       stream);
    pass.keep(inner.release());
  }

  mutable Numbers a, b, da, db;            // [r, in], [part, r]
  mutable int reductions = 0;
};

constexpr int64_t kRows = 7, kIn = 6, kRank = 3;
constexpr int64_t kQ = 8, kKv = 4, kOut = kQ + 2 * kKv;  // grouped-query attention: k and v are narrower than q

const ParameterGroup kTrained{"trained"}, kFrozen{"frozen", false};

/// q, k and v in one weight, and what a forward and a backward of it leave.
struct Packed {
  Unit unit{"layer", kTrained};
  LinearLayer layer;
  Numbers flat, gradient;
  Numbers x = Numbers::random({kRows, kIn}, 1), dy = Numbers::random({kRows, kOut}, 2);
  Numbers residual = Numbers::random({kRows, kOut}, 3), add = Numbers::random({kRows, kIn}, 4);
  Numbers y{{kRows, kOut}, NAN}, dx{{kRows, kIn}, NAN};

  explicit Packed(bool bias)
      : layer(add_packed_linear(unit, {PackedLinear{"q", kQ}, {"k", kKv}, {"v", kKv}}, kIn, bias, 0.02f)),
        flat(Numbers::random({unit.numel()}, 5)), gradient({unit.numel()}, NAN) {}

  Vec weight_gradient() const { return gradient.vec(layer.weight, kOut * kIn); }

  enum class Order { input_first, weight_first };
  /// `rows` at a time, as the head does.
  void run(bool trained, Order order, int64_t rows = kRows) {
    run_step([&](const StepContext& context) {
      const UnitGradient into{gradient.tensor(), false};
      for (int64_t first = 0; first < kRows; first += rows) {
        const int64_t n = std::min(rows, kRows - first);
        const auto part = [&](Numbers& of) { return MatrixView(of.tensor()).row_range(first, n); };
        const auto stream = rows < kRows ? UnitBackward::WeightStream::main : UnitBackward::WeightStream::side;
        UnitBackward pass({context, flat.tensor()}, trained ? UnitGradients{into, {}} : UnitGradients{}, stream, first > 0);
        layer.forward(pass, {.x = part(x), .residual = part(residual), .y = part(y)});
        if (order == Order::weight_first) layer.weight_gradient(pass, part(dy), part(x));
        layer.input_gradient(pass, {.dy = part(dy), .add = part(add), .dx = part(dx)});
        if (order == Order::input_first) layer.weight_gradient(pass, part(dy), part(x));
        pass.join();
      }
    });
  }
};

/// a [n, k] times b [k, m], either taken transposed.
Vec product(const Vec& a, bool transpose_a, const Vec& b, bool transpose_b, int64_t n, int64_t k, int64_t m) {
  Vec c(static_cast<size_t>(n * m));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < m; ++j)
      for (int64_t l = 0; l < k; ++l)
        at(c, i * m + j) += at(a, transpose_a ? l * n + i : i * k + l) * at(b, transpose_b ? j * k + l : l * m + j);
  return c;
}

/// Adds B A to the rows of the weight that belong to `part`.
void merge(const LowRank& adapter, const LinearLayer& layer, LinearPart part, Numbers& flat) {
  const Vec dense = product(adapter.b.vec(), false, adapter.a.vec(), false, part.count, kRank, layer.in);
  for (size_t i = 0; i < dense.size(); ++i)
    flat.values[static_cast<size_t>(layer.weight + part.first * layer.in) + i] += static_cast<float>(dense[i]);
}

/// dA and dB out of the gradient of the merged weight's rows.
void check_adapter_gradients(const LowRank& adapter, const Vec& rows, int64_t in, int64_t out) {
  CHECK_CLOSE(adapter.db.vec(), product(rows, false, adapter.a.vec(), true, out, in, kRank), bound(kF32));
  CHECK_CLOSE(adapter.da.vec(), product(adapter.b.vec(), true, rows, false, kRank, out, in), bound(kF32));
}

void check_part(bool bias, size_t which, bool trained, Packed::Order order, int64_t rows) {
  CAPTURE(bias);
  CAPTURE(which);
  CAPTURE(trained);
  CAPTURE(rows);
  Packed adapted(bias), dense(bias);
  const LinearPart part = adapted.layer.parts[which];
  const auto adapter = std::make_shared<LowRank>(kIn, part.count, kRank);
  adapted.layer.attach(adapter, part);
  merge(*adapter, dense.layer, part, dense.flat);
  adapted.run(trained, order, rows);
  dense.run(true, order);
  CHECK_CLOSE(adapted.y.vec(), dense.y.vec(), bound(kF32));
  CHECK_CLOSE(adapted.dx.vec(), dense.dx.vec(), bound(kF32));
  const Vec whole = dense.weight_gradient();
  const Vec own(whole.begin() + part.first * kIn, whole.begin() + (part.first + part.count) * kIn);
  check_adapter_gradients(*adapter, own, kIn, part.count);
  if (trained) {
    CHECK_CLOSE(adapted.gradient.vec(), dense.gradient.vec(), bound(kF32));
  } else {
    for (float value : adapted.gradient.values) REQUIRE(std::isnan(value));  // not touched
  }
  // Once in each dry and each real pass: the gradients of input and weights share it.
  CHECK(adapter->reductions == 2 * ((kRows + rows - 1) / rows));
}

/// Two layers as an MLP has them: fc2(act(fc1(x))).
struct Mlp {
  static constexpr int64_t kInner = 10;
  Activation activation;
  Unit unit{"mlp", kTrained};
  LinearLayer fc1, fc2;
  Numbers flat, gradient;
  Numbers x = Numbers::random({kRows, kIn}, 1), dy = Numbers::random({kRows, kIn}, 2);
  Numbers before{{kRows, kInner}, NAN}, inner{{kRows, kInner}, NAN}, y{{kRows, kIn}, NAN};
  Numbers dinner{{kRows, kInner}, NAN}, activated{{kRows, kInner}, NAN}, dx{{kRows, kIn}, NAN};

  explicit Mlp(Activation with)
      : activation(with), fc1(add_linear(unit, "fc1", kIn, kInner, true, 0.02f)),
        fc2(add_linear(unit, "fc2", kInner, kIn, true, 0.02f)), flat(Numbers::random({unit.numel()}, 5)),
        gradient({unit.numel()}, 0) {}

  void run() {
    run_step([&](const StepContext& context) {
      const UnitGradient into{gradient.tensor(), false};
      UnitBackward pass({context, flat.tensor()}, {into, {}});
      const bool gelu = activation == Activation::gelu;
      fc1.forward(pass, {.x = x.tensor(), .activation = activation, .pre_activation = gelu ? before.tensor() : Tensor{},
                         .y = inner.tensor()});
      fc2.forward(pass, {.x = inner.tensor(), .y = y.tensor()});
      const BiasGradient fc1_bias = fc1.bias_gradient(pass);
      CHECK(fc1_bias);
      fc2.input_gradient(pass, {.dy = dy.tensor(), .activation = activation,
                                .saved = gelu ? before.tensor() : inner.tensor(),
                                .activated = gelu ? activated.tensor() : Tensor{}, .dbias = fc1_bias.sums,
                                .accumulate_dbias = fc1_bias.accumulate, .dx = dinner.tensor()});
      fc2.weight_gradient(pass, dy.tensor(), gelu ? activated.tensor() : inner.tensor());
      fc1.input_gradient(pass, {.dy = dinner.tensor(), .dx = dx.tensor()});
      fc1.weight_gradient(pass, dinner.tensor(), x.tensor(), fc1_bias);
      pass.join();
    });
  }
  Vec weight_gradient(const LinearLayer& of) const { return gradient.vec(of.weight, of.in * of.out); }
};

}  // namespace

TEST_SUITE("linear layer") {
  TEST_CASE("a packed layer's parts are rows of its weight, of widths of their own") {
    Packed packed(true);
    REQUIRE(packed.layer.parts.size() == 3);
    CHECK(packed.layer.out == kOut);
    CHECK(packed.layer.parts[1].first == kQ);
    CHECK(packed.layer.parts[2].first == kQ + kKv);
    CHECK(packed.unit.parameters()[1].offset == packed.layer.weight + kQ * kIn);
    CHECK(packed.unit.parameters()[5].offset == packed.layer.bias + kQ + kKv);
    packed.run(true, Packed::Order::input_first);
    Vec y = product(packed.x.vec(), false, packed.flat.vec(packed.layer.weight, kOut * kIn), true, kRows, kIn, kOut);
    for (int64_t i = 0; i < kRows * kOut; ++i)
      at(y, i) += at(packed.residual.vec(), i) + at(packed.flat.vec(packed.layer.bias, kOut), i % kOut);
    CHECK_CLOSE(packed.y.vec(), y, bound(kF32));
    const Vec dw = product(packed.dy.vec(), true, packed.x.vec(), false, kOut, kRows, kIn);
    CHECK_CLOSE(packed.weight_gradient(), dw, bound(kF32));
  }

  TEST_CASE("an adapter on one part computes what a dense weight would, trained or frozen, whole or in chunks") {
    for (size_t part : {0, 1, 2}) {
      check_part(true, part, true, Packed::Order::input_first, kRows);
      check_part(false, part, true, Packed::Order::weight_first, kRows);
      check_part(true, part, false, Packed::Order::weight_first, kRows);
      check_part(false, part, false, Packed::Order::input_first, kRows);
      check_part(true, part, true, Packed::Order::input_first, 3);
      check_part(false, part, false, Packed::Order::input_first, 3);
    }
  }

  TEST_CASE("adapters on two parts add up in the input's gradient") {
    Packed adapted(false), dense(false);
    for (size_t which : {0, 2}) {
      const LinearPart part = adapted.layer.parts[which];
      const auto adapter = std::make_shared<LowRank>(kIn, part.count, kRank);
      adapted.layer.attach(adapter, part);
      merge(*adapter, dense.layer, part, dense.flat);
    }
    adapted.run(false, Packed::Order::input_first);
    dense.run(true, Packed::Order::input_first);
    CHECK_CLOSE(adapted.y.vec(), dense.y.vec(), bound(kF32));
    CHECK_CLOSE(adapted.dx.vec(), dense.dx.vec(), bound(kF32));
  }

  TEST_CASE("adapters before and behind an activation leave its fusions what they are") {
    for (Activation activation : {Activation::relu, Activation::gelu}) {
      CAPTURE(int(activation));
      Mlp adapted(activation), dense(activation);
      const auto first = std::make_shared<LowRank>(kIn, Mlp::kInner, kRank);
      const auto second = std::make_shared<LowRank>(Mlp::kInner, kIn, kRank);
      adapted.fc1.attach(first);
      adapted.fc2.attach(second);
      merge(*first, dense.fc1, {0, dense.fc1.out}, dense.flat);
      merge(*second, dense.fc2, {0, dense.fc2.out}, dense.flat);
      adapted.run();
      dense.run();
      CHECK_CLOSE(adapted.y.vec(), dense.y.vec(), bound(kF32));
      CHECK_CLOSE(adapted.dinner.vec(), dense.dinner.vec(), bound(kF32));
      CHECK_CLOSE(adapted.dx.vec(), dense.dx.vec(), bound(kF32));
      CHECK_CLOSE(adapted.gradient.vec(), dense.gradient.vec(), bound(kF32));
      check_adapter_gradients(*first, dense.weight_gradient(dense.fc1), kIn, Mlp::kInner);
      check_adapter_gradients(*second, dense.weight_gradient(dense.fc2), Mlp::kInner, kIn);
    }
  }

  TEST_CASE("a bias gradient is the same wherever its columns are summed") {
    // The columns of dy, by hand.
    Packed packed(true);
    Vec sums(static_cast<size_t>(kOut));
    Numbers ones({kRows, 1}, 1), dw({kOut, 1});
    for (int64_t i = 0; i < kRows * kOut; ++i) at(sums, i % kOut) += at(packed.dy.vec(), i);
    for (const bool accumulate : {false, true})
      for (const bool ahead : {false, true}) {
        CAPTURE(accumulate);
        CAPTURE(ahead);
        std::fill(packed.gradient.values.begin(), packed.gradient.values.end(), 0.5f);
        Vec expected = sums;
        if (accumulate) for (double& value : expected) value += 0.5;
        run_step([&](const StepContext& context) {
          BiasGradient requested;
          if (ahead) {
            requested = packed.layer.bias_gradient_ahead(context, packed.unit);
            REQUIRE(requested.ahead);
            // Any producer: here the weight gradient of a layer of one input.
            context.ops.linear_backward_weight({.dy = packed.dy.tensor(), .x = ones.tensor(), .dw = dw.tensor(),
                                                .dbias = requested.sums, .accumulate = requested.accumulate},
                                               context.stream);
          }
          const UnitGradient into{packed.gradient.tensor(), accumulate};
          UnitBackward pass({context, packed.flat.tensor()}, {into, {}});
          packed.layer.weight_gradient(pass, packed.dy.tensor(), packed.x.tensor(), requested);
          pass.join();
        });
        CHECK_CLOSE(packed.gradient.vec(packed.layer.bias, kOut), expected, bound(kF32));
      }
  }

  TEST_CASE("no bias gradient is computed for a layer without bias, or with a frozen one") {
    Packed with(true), without(false);
    run_step([&](const StepContext& context) {
      const UnitGradient into{with.gradient.tensor(), false};
      UnitBackward trained({context, with.flat.tensor()}, {into, {}}), frozen({context, with.flat.tensor()}, {});
      CHECK(with.layer.bias_gradient(trained));
      CHECK(!with.layer.bias_gradient(frozen));
      CHECK(!without.layer.bias_gradient(trained));
      CHECK(!without.layer.bias_gradient_ahead(context, without.unit));
      CHECK(!with.layer.bias_gradient_ahead(context, Unit("frozen", kFrozen)));
    });
  }

  TEST_CASE("a frozen layer reads its input in backward for its adapters alone") {
    Packed packed(true);
    run_step([&](const StepContext& context) {
      const UnitGradient into{packed.gradient.tensor(), false};
      UnitBackward trained({context, packed.flat.tensor()}, {into, {}}), frozen({context, packed.flat.tensor()}, {});
      CHECK(packed.layer.needs_input(trained));
      CHECK(!packed.layer.needs_input(frozen));
      const Unit still("frozen", kFrozen);
      const UnitPass moving{context, packed.flat.tensor(), {}, {}, &packed.unit}, of_still{context, packed.flat.tensor(), {}, {}, &still};
      CHECK(packed.layer.needs_input(moving));
      CHECK(!packed.layer.needs_input(of_still));
      CHECK_NOTHROW(packed.layer.weight_gradient(frozen, packed.dy.tensor(), {}));
      LinearLayer adapted = packed.layer;
      adapted.attach(std::make_shared<LowRank>(kIn, kOut, kRank));
      CHECK(adapted.needs_input(frozen));
      CHECK(adapted.needs_input(of_still));
      frozen.join();
    });
  }

  TEST_CASE("a weight that is stored as codes is multiplied with them, adapters beside it, and not read elsewhere") {
    constexpr int64_t in = 128, out = 24, rows = 3;
    const auto ops = make_cpu_ops();
    Numbers dense = Numbers::random({out, in}, 5), bias = Numbers::random({out}, 6), x = Numbers::random({rows, in}, 7);
    std::vector<uint8_t> quantized(out * in / 2);
    std::vector<float> scales(out * in / 64);
    const Quantized stored{CodeBook::nf4, {quantized.data(), DType::u8, {out * in / 2}}, {scales.data(), kF32, {out * in / 64}}, {}};
    ops->quantize(dense.tensor(), stored, {});
    ops->dequantize(stored, dense.tensor(), {});
    Unit unit("quantised", kFrozen);
    LinearLayer layer = add_linear(unit, "w", in, out, true, 0.02f);
    layer.attach(std::make_shared<LowRank>(in, out, kRank));
    // The bias is where it always is; where the weight would be are NaNs.
    struct Held final : NoUnits {
      Tensor flat;
      Quantized weight;
      int64_t requested = -1;
      Tensor acquire(const Unit&) override { throw Error("the layer was acquired decoded"); }
      UnitWeights acquire_quantized(const Unit&, AcceptedEncodings accepted) override {
        CHECK(accepted == AcceptedEncodings::blocks);
        return flat;
      }
      std::optional<Quantized> quantized(const Unit&, int64_t first, int64_t count) const override {
        CHECK(count == out * in);
        return first == requested ? std::optional(weight) : std::nullopt;
      }
    } held;
    Numbers flat({unit.numel()}, NAN), decoded({unit.numel()});
    for (auto [numbers, w] : {std::pair{&flat, false}, {&decoded, true}}) {
      std::copy(bias.values.begin(), bias.values.end(), numbers->values.begin() + layer.bias);
      if (w) std::copy(dense.values.begin(), dense.values.end(), numbers->values.begin() + layer.weight);
    }
    held.flat = flat.tensor(), held.weight = stored, held.requested = layer.weight;
    for (const Activation activation : {Activation::none, Activation::relu}) {
      Numbers found({rows, out}), expected({rows, out});
      run_step([&](const StepContext& of_step) {
        layer.forward({of_step, decoded.tensor()}, {.x = x.tensor(), .activation = activation, .y = expected.tensor()});
        StepContext context{of_step.ops, of_step.device, of_step.arena, held, of_step.stream, of_step.side,
                            of_step.forked, of_step.joined};
        context.max_coded_rows = rows;
        CHECK_THROWS_WITH(acquire(context, unit, rows + 1), doctest::Contains("acquired decoded"));
        CHECK_THROWS_WITH(acquire(context, unit), doctest::Contains("acquired decoded"));
        const UnitPass pass = acquire(context, unit, rows);
        layer.forward(pass, {.x = x.tensor(), .activation = activation, .y = found.tensor()});
      });
      CHECK(found.vec() == expected.vec());
    }
  }

  TEST_CASE("an adapter is refused outputs that the layer does not have") {
    Packed packed(true);
    CHECK_THROWS_WITH_AS(packed.layer.attach(std::make_shared<LowRank>(kIn, kKv, kRank), {kOut - 1, kKv}),
                         doctest::Contains("outputs 15 to 19 of a linear layer with 16"), Error);
  }
}

}  // namespace blipft::test
