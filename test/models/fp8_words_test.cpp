// The words for the largest magnitudes of products in fp8: each is found once in a micro-batch.
#include <doctest/doctest.h>

#include "models/fp8_rig.h"

namespace blipft::test {

TEST_SUITE("fp8") {
  TEST_CASE("a magnitude is found once in a micro-batch, by the writer of a tensor or by its first cast, and passed to the others") {
    constexpr int64_t kRows = 5, kIn = 32, kOut = 48;
    constexpr float kMore = 1000;
    Unit unit("layer", kTrained);
    unit.index = 0;
    const LinearLayer layer = add_linear(unit, "layer.fc", kIn, kOut, false, 0.02f);
    std::vector<float> flat = random_numbers(unit.numel(), 1, 0.1f), gradient(static_cast<size_t>(unit.numel()));
    std::vector<float> x = random_numbers(kRows * kIn, 2, 1), other = random_numbers(kRows * kIn, 3, 100), dy = random_numbers(kRows * kOut, 4, 1);
    std::vector<float> y(static_cast<size_t>(kRows * kOut)), dx(static_cast<size_t>(kRows * kIn));
    const Tensor tx{x.data(), kF32, {kRows, kIn}}, tother{other.data(), kF32, {kRows, kIn}}, tdy{dy.data(), kF32, {kRows, kOut}};
    const Tensor ty{y.data(), kF32, {kRows, kOut}}, tdx{dx.data(), kF32, {kRows, kIn}};
    const auto device = make_cpu_device(0), plan_device = make_plan_device();
    const auto cpu_ops = make_cpu_ops(), plan_ops = make_plan_ops();
    Arena arena(*device);
    NoUnits units({flat.data(), kF32, {unit.numel()}}, {gradient.data(), kF32, {unit.numel()}});
    Fp8Products fp8({&unit}, {DType::f8e5m2, 1, {}, 0}, arena);
    const std::vector<double> w8 = in_fp8(flat, DType::f8e4m3);
    const auto expect_y = [&](const std::vector<double>& x8) {
      CHECK(normalised_error(wide(y), product(kRows, kOut, kIn, [&](int64_t r, int64_t l) { return at(x8, r * kIn + l); },
                                              [&](int64_t j, int64_t l) { return at(w8, j * kIn + l); })) < 1e-6);
    };
    const auto expect_dw = [&](const std::vector<double>& x8, const std::vector<double>& dy8) {
      CHECK(normalised_error(wide(gradient), product(kOut, kIn, kRows, [&](int64_t i, int64_t l) { return at(dy8, l * kOut + i); },
                                                     [&](int64_t j, int64_t l) { return at(x8, l * kIn + j); })) < 1e-6);
    };
    for (const bool planned : {false, true}) {
      StepContext context{planned ? *cpu_ops : *plan_ops, *device, arena, units, device->compute_stream(), device->side_stream(),
                          device->create_event(), device->create_event()};
      context.fp8 = &fp8;
      arena.begin_pass("step");
      fp8.begin_pass();
      UnitPass pass = acquire(context, unit), again = pass;
      again.again = true;
      CHECK_FALSE(layer.input_amax(pass));   // no word is ready
      for (const bool requests : {true, false, true}) {
        fp8.begin_micro_batch(planned ? *device : *plan_device, context.stream);
        UnitBackward backward(pass, gradients(context, unit));
        const float more = requests ? kMore : 0;
        for (const Tensor& amax : {requests ? layer.input_amax(pass) : Tensor{}, requests ? layer.gradient_amax(backward) : Tensor{}}) {
          CHECK(static_cast<bool>(amax) == requests);
          if (!planned || !requests) continue;
          CHECK(*amax.as<float>() == 0);
          *amax.as<float>() = kMore;
        }
        if (requests) CHECK_FALSE(layer.input_amax(pass));
        layer.forward(pass, {.x = tx, .y = ty});
        if (planned) expect_y(in_fp8(x, DType::f8e4m3, more));
        CHECK_FALSE(layer.input_amax(again));
        std::fill(y.begin(), y.end(), 0.0f);
        layer.forward(again, {.x = tx, .y = ty});
        if (planned) expect_y(in_fp8(x, DType::f8e4m3, more));
        layer.input_gradient(backward, {.dy = tdy, .dx = tdx});
        const std::vector<double> dy8 = in_fp8(dy, DType::f8e5m2, more);
        layer.weight_gradient(backward, tdy, tx, {}, Fp8Seen::same);
        if (planned) expect_dw(in_fp8(x, DType::f8e4m3, more), dy8);
        layer.weight_gradient(backward, tdy, tx, {}, Fp8Seen::alike);
        if (planned) expect_dw(in_fp8(x, DType::f8e4m3), dy8);
        layer.forward(pass, {.x = tother, .y = ty});  // a second tensor: from here on the word serves none
        if (planned) expect_y(in_fp8(other, DType::f8e4m3));
        CHECK_FALSE(layer.input_amax(pass));
        layer.forward(again, {.x = tx, .y = ty});
        if (planned) expect_y(in_fp8(x, DType::f8e4m3));
        layer.weight_gradient(backward, tdy, tother, {}, Fp8Seen::same);
        if (planned) expect_dw(in_fp8(other, DType::f8e4m3), dy8);
        backward.join();
      }
      release(context, unit);
      arena.end_pass();
      if (planned) break;
      arena.plan();
      arena.commit();
      fp8.bind(arena);
    }
  }

  TEST_CASE("kept inputs are multiplied in backward as they were in forward, for which nobody makes x again") {
    constexpr int64_t kRows = 5, kIn = 32, kOut = 48;
    Unit unit("layer", kTrained);
    unit.index = 0;
    const LinearLayer layer = add_linear(unit, "layer.fc", kIn, kOut, true, 0.02f);
    std::vector<float> flat = random_numbers(unit.numel(), 1, 0.1f), gradient(static_cast<size_t>(unit.numel()));
    std::vector<float> x = random_numbers(kRows * kIn, 2, 1), other = random_numbers(kRows * kIn, 3, 100), dy = random_numbers(kRows * kOut, 4, 1);
    std::vector<float> y(static_cast<size_t>(kRows * kOut));
    const Tensor tx{x.data(), kF32, {kRows, kIn}}, tother{other.data(), kF32, {kRows, kIn}}, tdy{dy.data(), kF32, {kRows, kOut}};
    const Tensor ty{y.data(), kF32, {kRows, kOut}};
    const auto device = make_cpu_device(0), plan_device = make_plan_device();
    const auto cpu_ops = make_cpu_ops(), plan_ops = make_plan_ops();
    std::vector<std::vector<float>> found;   // of each way: dw and db
    enum Way { not_kept, kept, kept_again, two_inputs, another_alike };
    for (const Way way : {not_kept, kept, kept_again, two_inputs, another_alike}) {
      CAPTURE(static_cast<int>(way));
      Arena arena(*device);
      NoUnits units({flat.data(), kF32, {unit.numel()}}, {gradient.data(), kF32, {unit.numel()}});
      Fp8Settings settings{DType::f8e5m2, 1, {}, 0};
      settings.keep_inputs = way != not_kept;
      Fp8Products fp8({&unit}, settings, arena);
      for (const bool planned : {false, true}) {
        StepContext context{planned ? *cpu_ops : *plan_ops, *device, arena, units, device->compute_stream(), device->side_stream(),
                            device->create_event(), device->create_event()};
        context.fp8 = &fp8;
        arena.begin_pass("step");
        fp8.begin_pass();
        fp8.begin_micro_batch(planned ? *device : *plan_device, context.stream);
        UnitPass pass = acquire(context, unit);
        pass.keeps = way != kept_again;
        layer.forward(pass, {.x = tx, .y = ty}, Fp8Seen::same);
        CHECK(layer.needs_input(pass) == (way == not_kept || way == kept_again));
        if (way == kept_again) {
          UnitPass again = pass;
          again.again = again.keeps = true;
          layer.forward(again, {.x = tx, .y = ty}, Fp8Seen::same);
        }
        if (way >= two_inputs) layer.forward(pass, {.x = tother, .y = ty}, way == two_inputs ? Fp8Seen::same : Fp8Seen::alike);
        UnitBackward backward(pass, gradients(context, unit));
        const bool reads = way == not_kept || way >= two_inputs;
        CHECK(layer.needs_input(backward) == reads);
        CHECK(layer.has_weight_gradient(backward));
        layer.weight_gradient(backward, tdy, reads ? MatrixView(tx) : MatrixView(), {}, Fp8Seen::same);
        CHECK(layer.needs_input(backward) == reads);  // what is taken is not to be made either
        backward.join();
        release(context, unit);
        arena.end_pass();                    // which complains of what was not given back
        if (planned) break;
        arena.plan();
        arena.commit();
        fp8.bind(arena);
      }
      found.push_back(gradient);
      std::fill(gradient.begin(), gradient.end(), 0.0f);
    }
    for (const std::vector<float>& one : found) CHECK(one == found[0]);
  }
}

}  // namespace blipft::test
