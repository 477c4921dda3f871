// The loss, the optimizers' updates, and ops on flat buffers.
#include "blipft/error.h"
#include "op_bench/cases.h"

namespace blipft::bench {

namespace {

void loss_case(Harness& harness, int64_t rows, DType dtype) {
  const int64_t vocabulary = 50304;
  harness.run("cross_entropy", concat(dims({rows, vocabulary}), " ", dtype_name(dtype)),
              {2.0 * static_cast<double>(rows * vocabulary * dtype_size(dtype))}, [&]() -> Harness::Work {
    CrossEntropy args;
    args.logits = harness.tensor({rows, vocabulary}, dtype), args.labels = harness.ids({rows}, 50265);
    args.weight = harness.tensor({1}, DType::f32, 1, 0), args.row_loss = harness.tensor({rows}, DType::f32);
    return [&harness, args] { harness.ops().cross_entropy(args, harness.stream()); };
  });
}

/// Returns n quantized normal numbers.
Quantized quantized(Harness& harness, CodeBook book, int64_t n) {
  const Quantized q{book, harness.raw({n * code_bits(book) / 8}, DType::u8),
                    harness.raw({n / code_block(book)}, DType::f32)};
  const int64_t part = int64_t{1} << 20;
  const Tensor numbers = harness.tensor({part}, DType::f32);
  for (int64_t first = 0; first < n; first += part)
    harness.ops().quantize(numbers, {book, q.quantized.part(first * code_bits(book) / 8, {part * code_bits(book) / 8}),
                                     q.scales.part(first / code_block(book), {part / code_block(book)})},
                           harness.stream());
  return q;
}

void update_cases(Harness& harness, const char* name, DType param, bool master, DType grad, DType state) {
  const int64_t n = int64_t{1} << 26;
  // With f32 master weights, the parameter itself is only written.
  const int64_t weights = master ? dtype_size(param) + 8 : 2 * dtype_size(param);
  const auto cost = [&](int64_t states) {
    return Cost{static_cast<double>(n * (weights + dtype_size(grad) + 2 * states * dtype_size(state)))};
  };
  const auto scalars = [&] {
    const Tensor t = harness.tensor({kStepScalars}, DType::f32, 0, 0);
    harness.ops().fill(t, 0.5f, harness.stream());
    harness.ops().fill(t.part(kSkipUpdate, {1}), 0, harness.stream());
    return t;
  };
  const std::string shape = concat(name, " ", n);
  harness.run("adamw_update", shape, cost(2), [&]() -> Harness::Work {
    AdamWUpdate args;
    args.param = harness.tensor({n}, param), args.grad = harness.tensor({n}, grad);
    if (master) args.master = harness.tensor({n}, DType::f32);
    args.m = harness.tensor({n}, state), args.v = harness.tensor({n}, state, 8, 1), args.scalars = scalars();
    args.squares = harness.tensor({squares_count(n)}, DType::f32);
    return [&harness, args] { harness.ops().adamw_update(args, harness.stream()); };
  });
  harness.run("sgd_update", shape, cost(1), [&]() -> Harness::Work {
    SgdUpdate args;
    args.param = harness.tensor({n}, param), args.grad = harness.tensor({n}, grad);
    if (master) args.master = harness.tensor({n}, DType::f32);
    args.momentum_buffer = harness.tensor({n}, state), args.scalars = scalars(), args.momentum = 0.9f;
    return [&harness, args] { harness.ops().sgd_update(args, harness.stream()); };
  });
  harness.run("lion_update", shape, cost(1), [&]() -> Harness::Work {
    LionUpdate args;
    args.param = harness.tensor({n}, param), args.grad = harness.tensor({n}, grad);
    if (master) args.master = harness.tensor({n}, DType::f32);
    args.m = harness.tensor({n}, state), args.scalars = scalars();
    return [&harness, args] { harness.ops().lion_update(args, harness.stream()); };
  });
  const double moments = static_cast<double>(4 * n + n / 16);  // two moments with their scales, read and written
  harness.run("adamw8bit_update", shape, {cost(0).bytes + moments}, [&]() -> Harness::Work {
    AdamW8bitUpdate args;
    args.param = harness.tensor({n}, param), args.grad = harness.tensor({n}, grad);
    if (master) args.master = harness.tensor({n}, DType::f32);
    args.m = quantized(harness, CodeBook::dynamic8, n), args.v = quantized(harness, CodeBook::dynamic8_unsigned, n);
    args.scalars = scalars(), args.squares = harness.tensor({squares_count(n)}, DType::f32);
    return [&harness, args] { harness.ops().adamw8bit_update(args, harness.stream()); };
  });
}

void quantize_cases(Harness& harness) {
  const int64_t n = int64_t{1} << 27;
  for (auto [name, book] :
       {std::pair{"nf4", CodeBook::nf4}, {"int8", CodeBook::int8}, {"dynamic8", CodeBook::dynamic8}}) {
    const double stored = static_cast<double>(n * code_bits(book) / 8 + 4 * n / code_block(book));
    const auto add = [&](const char* op, auto run) {
      harness.run(op, concat(name, " ", n, " bf16"), {2.0 * static_cast<double>(n) + stored}, [&]() -> Harness::Work {
        const Tensor values = harness.tensor({n});
        const Quantized coded = quantized(harness, book, n);
        return [&harness, run, values, coded] { run(harness, values, coded); };
      });
    };
    add("quantize", [](Harness& h, const Tensor& x, const Quantized& q) { h.ops().quantize(x, q, h.stream()); });
    add("dequantize", [](Harness& h, const Tensor& x, const Quantized& q) { h.ops().dequantize(q, x, h.stream()); });
  }
}

// Times reads of a matrix that is stored in fp8, for layers without fp8 products and for the gradient of their input.
void stored_fp8_cases(Harness& harness) {
  const int64_t rows = 11008, cols = 4096, n = rows * cols;
  const double bytes = static_cast<double>(n);
  harness.run("decode_fp8", concat(rows, " x ", cols, " bf16"), {3 * bytes}, [&]() -> Harness::Work {
    const Tensor values = harness.tensor({n});
    const Fp8Matrix stored{harness.raw({n}, DType::f8e4m3), harness.raw({4}, DType::f32).part(0, {1})};
    harness.ops().fill(stored.scale, 1, harness.stream());
    harness.ops().encode_fp8(values, stored, harness.stream());
    return [&harness, values, stored] { harness.ops().decode_fp8(stored, values, harness.stream()); };
  });
  harness.run("transpose_fp8", concat(rows, " x ", cols), {2 * bytes}, [&]() -> Harness::Work {
    const Tensor quantized = harness.raw({rows, cols}, DType::f8e4m3), transposed = harness.raw({cols, rows}, DType::f8e4m3);
    return [&harness, quantized, transposed] { harness.ops().transpose_fp8(quantized, transposed, harness.stream()); };
  });
}

void buffer_cases(Harness& harness) {
  const int64_t n = int64_t{1} << 27;
  const double elements = static_cast<double>(n);
  for (DType dtype : {DType::bf16, DType::f32}) {
    const double bytes = elements * static_cast<double>(dtype_size(dtype));
    harness.run("sum_squares", concat(n, " ", dtype_name(dtype)), {bytes}, [&]() -> Harness::Work {
      const Tensor x = harness.tensor({n}, dtype), out = harness.tensor({1}, DType::f32);
      return [&harness, x, out] { harness.ops().sum_squares(x, out, false, harness.stream()); };
    });
    harness.run("add", concat(n, " ", dtype_name(dtype)), {3 * bytes}, [&]() -> Harness::Work {
      const Tensor from = harness.tensor({n}, dtype), to = harness.tensor({n}, dtype);
      return [&harness, from, to] { harness.ops().add(from, to, harness.stream()); };
    });
  }
  harness.run("sum", concat(n, " f32"), {4 * elements}, [&]() -> Harness::Work {
    const Tensor x = harness.tensor({n}, DType::f32), out = harness.tensor({1}, DType::f32);
    return [&harness, x, out] { harness.ops().sum(x, out, false, harness.stream()); };
  });
  harness.run("cast", concat(n, " f32 to bf16"), {6 * elements}, [&]() -> Harness::Work {
    const Tensor from = harness.tensor({n}, DType::f32), to = harness.tensor({n});
    return [&harness, from, to] { harness.ops().cast(from, to, harness.stream()); };
  });
  harness.run("fill", concat(n, " bf16"), {2 * elements}, [&]() -> Harness::Work {
    const Tensor x = harness.tensor({n});
    return [&harness, x] { harness.ops().fill(x, 1.5f, harness.stream()); };
  });
  harness.run("fill_normal", concat(n, " bf16"), {2 * elements}, [&]() -> Harness::Work {
    const Tensor x = harness.tensor({n});
    return [&harness, x] { harness.ops().fill_normal(x, 1, 2, 0, 0, 1, harness.stream()); };
  });
}

// Ops on a few numbers: the launch determines the time.
void scalar_cases(Harness& harness) {
  harness.run("loss_weights", "4", {32}, [&]() -> Harness::Work {
    const Tensor counts = harness.tensor({4}, DType::f32, 8, 1), weights = harness.tensor({4}, DType::f32);
    return [&harness, counts, weights] { harness.ops().loss_weights(counts, weights, 4, harness.stream()); };
  });
  harness.run("clip_coefficient", "1", {12}, [&]() -> Harness::Work {
    const Tensor squares = harness.tensor({1}, DType::f32, 8, 1), scalars = harness.tensor({kStepScalars}, DType::f32);
    return [&harness, squares, scalars] { harness.ops().clip_coefficient(squares, scalars, 1, harness.stream()); };
  });
}

}  // namespace

void flat_cases(Harness& harness) {
  loss_case(harness, 784, DType::bf16);
  loss_case(harness, 784, DType::f32);
  update_cases(harness, "bf16", DType::bf16, false, DType::bf16, DType::bf16);
  update_cases(harness, "mixed", DType::bf16, true, DType::f32, DType::f32);
  update_cases(harness, "f32", DType::f32, false, DType::f32, DType::f32);
  quantize_cases(harness);
  stored_fp8_cases(harness);
  buffer_cases(harness);
  scalar_cases(harness);
}

}  // namespace blipft::bench
