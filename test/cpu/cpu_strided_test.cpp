// Linear ops on columns of wider matrices, on the CPU: the bits of the same numbers in matrices of their own, and
// nothing beside the columns changes.
#include <doctest/doctest.h>

#include "ops/op_reference.h"

namespace blipft::test {
namespace {

constexpr int64_t kM = 9, kK = 13, kN = 7, kFirst = 3, kBehind = 2;

/// A matrix as columns of a wide one, and a copy of it.
struct Both {
  Tensor wide;
  MatrixView columns;
  Tensor copy;
};

Both make_both(OpContext& c, const std::string& name, DType t, int64_t cols) {
  const Tensor wide = c.inout(name, t, {kM, kFirst + cols + kBehind});
  const MatrixView columns = MatrixView(wide).columns(kFirst, cols);
  return {wide, columns, c.values(name + " copy", t, c.read(columns)).view({kM, cols})};
}

/// The output tensor: `before` is what the wide matrix holds now.
struct Written {
  Tensor wide;
  MatrixView columns;
  Tensor copy;
  Vec before;
};

Written make_written(OpContext& c, const std::string& name, DType t, int64_t cols) {
  const Tensor wide = c.inout(name, t, {kM, kFirst + cols + kBehind});
  return {wide, MatrixView(wide).columns(kFirst, cols), c.output(name + " copy", t, {kM, cols}), c.read(wide)};
}

void check(const OpContext& c, const Written& out) {
  CHECK(c.read(out.columns) == c.read(out.copy));
  const Vec after = c.read(out.wide);
  const int64_t width = out.wide.cols();
  for (int64_t i = 0; i < out.wide.numel(); ++i)
    if (i % width < kFirst || i % width >= width - kBehind) REQUIRE(at(after, i) == at(out.before, i));
}

}  // namespace

TEST_SUITE("cpu_strided") {
  TEST_CASE("linear layers read and write columns of wider matrices") {
    for (DType t : {kF32, kBf16}) {
      CAPTURE(name_of(t));
      OpContext c(cpu());
      const Both x = make_both(c, "x", t, kK), residual = make_both(c, "residual", t, kN);
      const Both dy = make_both(c, "dy", t, kN), add = make_both(c, "add", t, kK);
      const Tensor w = c.input("w", t, {kN, kK}), bias = c.input("bias", t, {kN});
      const Written y = make_written(c, "y", t, kN), dx = make_written(c, "dx", t, kK);
      const Tensor dw = c.output("dw", t, {kN, kK}), dw_copy = c.output("dw copy", t, {kN, kK});
      const Tensor db = c.output("db", kF32, {kN}), db_copy = c.output("db copy", kF32, {kN});
      c.run([&](Ops& ops, Stream s) {
        ops.linear_forward({.x = x.columns, .w = w, .bias = bias, .residual = residual.columns, .y = y.columns}, s);
        ops.linear_forward({.x = x.copy, .w = w, .bias = bias, .residual = residual.copy, .y = y.copy}, s);
        ops.linear_backward_input({.dy = dy.columns, .w = w, .add = add.columns, .dx = dx.columns}, s);
        ops.linear_backward_input({.dy = dy.copy, .w = w, .add = add.copy, .dx = dx.copy}, s);
        ops.linear_backward_weight({.dy = dy.columns, .x = x.columns, .dw = dw, .dbias = db}, s);
        ops.linear_backward_weight({.dy = dy.copy, .x = x.copy, .dw = dw_copy, .dbias = db_copy}, s);
      });
      check(c, y);
      check(c, dx);
      CHECK(c.read(dw) == c.read(dw_copy));
      CHECK(c.read(db) == c.read(db_copy));
    }
  }

  TEST_CASE("what is added to the gradient of an input goes through the activation's derivative too") {
    for (Activation activation : {Activation::relu, Activation::gelu}) {
      CAPTURE(int(activation));
      OpContext c(cpu());
      const Tensor dy = c.input("dy", kF32, {kM, kN}), w = c.input("w", kF32, {kN, kK});
      const Tensor add = c.input("add", kF32, {kM, kK}), saved = c.input("saved", kF32, {kM, kK}, -2, 2);
      const Tensor zeros = c.values("zeros", kF32, Vec(static_cast<size_t>(kM * kN))).view({kM, kN});
      const Tensor dx = c.output("dx", kF32, {kM, kK}), alone = c.output("alone", kF32, {kM, kK});
      const Tensor addend = c.output("addend", kF32, {kM, kK});
      c.run([&](Ops& ops, Stream s) {
        ops.linear_backward_input({.dy = dy, .w = w, .add = add, .activation = activation, .saved = saved, .dx = dx},
                                  s);
        ops.linear_backward_input({.dy = dy, .w = w, .activation = activation, .saved = saved, .dx = alone}, s);
        ops.linear_backward_input({.dy = zeros, .w = w, .add = add, .activation = activation, .saved = saved,
                                   .dx = addend}, s);  // of the addend alone
      });
      CHECK_CLOSE(c.read(dx), sum_of(c.read(alone), c.read(addend)), bound(kF32));
      Vec derivative = c.read(saved);
      for (double& v : derivative)
        v = activation == Activation::relu ? (v > 0 ? 1 : 0)
                                           : 0.5 * (1 + std::erf(v / std::sqrt(2.0))) +
                                                 v * std::exp(-v * v / 2) / std::sqrt(2 * std::acos(-1.0));
      Vec expected = c.read(add);
      for (size_t i = 0; i < expected.size(); ++i) expected[i] *= derivative[i];
      CHECK_CLOSE(c.read(addend), expected, bound(kF32));
    }
  }
}

}  // namespace blipft::test
