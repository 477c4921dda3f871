// Non-finite steps; see nonfinite_steps.h.
#include "train/nonfinite_steps.h"

#include <cmath>

namespace blipft {

namespace {
constexpr int64_t kListed = 5;
constexpr const char* kHint =
    "; a lower train.lr, train.warmup_steps or train.gradient_clip_val=1 may help, and the data may be at fault";
}  // namespace

std::string NonFiniteSteps::finished(const StepResult& result) {
  const bool norm_finite = std::isfinite(result.grad_norm);
  if (is_finite(result)) {
    in_a_row_ = 0;
    return {};
  }
  const std::string what =
      concat("step ", result.step, ": loss ", result.loss, ", gradient norm ", result.grad_norm, ": not finite",
             result.not_finite_in_fp8.empty() ? "" : concat("; the first factor in fp8 that is not: ", result.not_finite_in_fp8));
  const char* untouched = "; no model was saved, and the one on disk is untouched";
  const std::string location = concat(location_of(config_, "train.on_nonfinite"), ": train.on_nonfinite: ");
  if (config_.train.on_nonfinite == FaultAction::stop) throw SharedError(concat(location, "stop: ", what, untouched, kHint));
  if (norm_finite)
    throw SharedError(concat(location, "skip: ", what, ", but steps are skipped by their gradient norm", untouched, kHint));
  ++skipped_, ++in_a_row_;
  if (skipped_ <= kListed) first_ += concat(skipped_ == 1 ? "" : ", ", result.step);
  if (in_a_row_ >= kMaxInARow)
    throw SharedError(concat(location, "skip: ", what, ", as of the ", kMaxInARow - 1,
                             " steps before, so that skipping does not help", untouched, kHint));
  return concat(what, ", the step changes no weight (train.on_nonfinite: skip)");
}

void NonFiniteSteps::check_run(int64_t steps) const {
  BLIPFT_USER_CHECK(skipped_ == 0 || 2 * skipped_ < steps, location_of(config_, "train.on_nonfinite"),
                    ": train.on_nonfinite: skip: ", summary(steps), "; no model was saved, and the one on disk is ",
                    "untouched", kHint);
}

std::string NonFiniteSteps::summary(int64_t steps) const {
  return concat(skipped_, " of ", steps, " steps changed no weight, for their gradient norm was not finite: ", first_,
                skipped_ > kListed ? ", ..." : "");
}

}  // namespace blipft
