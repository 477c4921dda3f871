// Which validation is the best, by the loss or by a score, and how that goes from part to part of a run.
#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include "train/best_validation.h"

using namespace blipft;

namespace {

std::vector<bool> notes(BestValidation& best, const std::vector<double>& values) {
  std::vector<bool> found;
  for (size_t i = 0; i < values.size(); ++i) found.push_back(best.note(static_cast<int64_t>(i) + 1, values[i]));
  return found;
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

TEST_SUITE("best validation") {
  TEST_CASE("the least loss, or the highest score; of equal ones the first, and never what is no number") {
    BestValidation loss(2, "loss", false), score(2, "cider", true);
    CHECK(notes(loss, {kNan, 3, 2, 2, -kInfinity, 4}) == std::vector<bool>{false, true, true, false, false, false});
    CHECK(loss.steps() == 3);
    CHECK(loss.value() == 2);
    CHECK(loss.out_of_patience());
    CHECK(notes(score, {0, 0.5, 0.5, kInfinity, 0.75}) == std::vector<bool>{true, true, false, false, true});
    CHECK(score.steps() == 5);
    CHECK(!score.out_of_patience());
  }

  TEST_CASE("a checkpoint keeps it to the bit, for the same metric alone") {
    BestValidation before(3, "cider", true);
    notes(before, {0.1, 1.0 / 3, 0.2});
    BestValidation after(3, "cider", true), other(3, "loss", false);
    after.restore(before.facts());
    other.restore(before.facts());
    CHECK(after.steps() == 2);
    CHECK(after.value() == 1.0 / 3);
    CHECK(!after.note(4, 0.3));
    CHECK(!after.out_of_patience());
    CHECK(!after.note(5, 0.3));
    CHECK(after.out_of_patience());        // three since: one before, two after
    CHECK(other.steps() == -1);            // a score is no loss to compare with
    CHECK(other.note(4, 9));
  }
}
