// Which metrics a run file asks for, and what it asks for in vain.
#include <doctest/doctest.h>

#include "blipft/error.h"
#include "generate/run_metrics.h"

using namespace blipft;

namespace {

Config evaluated(std::vector<std::string> metrics, const std::string& keep_best = "none") {
  Config config;
  config.file = "run.yaml";
  config.data.val_path = "d";
  config.evaluate.samples = 4;
  config.evaluate.metrics = std::move(metrics);
  config.checkpoint.keep_best = keep_best;
  return config;
}

}  // namespace

TEST_SUITE("run metrics") {
  TEST_CASE("validations compute scores of texts alone, and the one that the best checkpoint is kept by") {
    using Names = std::vector<std::string>;
    CHECK(metrics_of_validations(evaluated({}), true) == Names{"bleu4", "rouge_l", "cider"});
    CHECK(metrics_of_validations(evaluated({}), false) == Names{"exact_match", "rouge_l"});
    CHECK(metrics_of_validations(evaluated({"loss", "bleu1", "perplexity"}), true) == Names{"bleu1"});
    CHECK(metrics_of_validations(evaluated({"bleu1"}, "cider"), true) == Names{"bleu1", "cider"});
    CHECK(metrics_of_validations(evaluated({"cider", "bleu1"}, "cider"), true) == Names{"cider", "bleu1"});
    CHECK(metrics_of_validations(evaluated({"bleu1"}, "loss"), true) == Names{"bleu1"});
  }

  TEST_CASE("a metric knows whether the highest is the best") {
    CHECK(best_is_highest(evaluated({}, "cider")));
    CHECK(best_is_highest(evaluated({}, "squad_f1")));
    CHECK(!best_is_highest(evaluated({}, "loss")));
    CHECK(!best_is_highest(evaluated({})));
  }

  TEST_CASE("names that there are not, or that a validation does not compute, are refused with the key") {
    CHECK_NOTHROW(check_metrics(evaluated({"cider", "loss"}, "bleu4")));
    CHECK_THROWS_WITH_AS(check_metrics(evaluated({"meteor"})), doctest::Contains("run.yaml: evaluate.metrics"), UserError);
    CHECK_THROWS_WITH_AS(check_metrics(evaluated({}, "ciderr")), doctest::Contains("run.yaml: checkpoint.keep_best"), UserError);
    CHECK_THROWS_WITH_AS(check_metrics(evaluated({}, "acc")), doctest::Contains("which validations do not compute"), UserError);
    CHECK_THROWS_WITH_AS(check_metrics(evaluated({}, "perplexity")), doctest::Contains("which validations do not compute"),
                         UserError);
    CHECK_THROWS_WITH_AS(check_metrics(evaluated({"acc"})), doctest::Contains("no metric of generated texts"), UserError);
    for (const char* name : {"word_perplexity", "byte_perplexity", "bits_per_byte"}) {
      Config config = evaluated({name});
      config.evaluate.samples = 0;
      CHECK_THROWS_WITH_AS(check_metrics(config), doctest::Contains("run.yaml: evaluate.metrics: found "), UserError);
      CHECK_THROWS_WITH_AS(check_metrics(config), doctest::Contains("Take perplexity"), UserError);
    }
    Config choices = evaluated({"acc"});   // of --evaluate alone
    choices.evaluate.samples = 0;
    CHECK_NOTHROW(check_metrics(choices));
  }
}
