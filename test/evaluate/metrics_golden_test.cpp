// The metrics against the tools they are named after.
#include <doctest/doctest.h>

#include <cmath>

#include "blipft/evaluate.h"
#include "evaluate/answer_metrics.h"
#include "evaluate/caption_metrics.h"
#include "evaluate/golden_metrics.h"
#include "evaluate/likelihood_metrics.h"

using namespace blipft;

namespace {

// Both sides add up in double precision, some hundred values of at most 10, in orders of their own.
constexpr double tolerance = 1e-12;

bool close(double found, double wanted) {
  return std::abs(found - wanted) <= tolerance * std::max(1.0, std::abs(wanted));
}

void check_scores(const std::string& name, const CaptionScore& found, const nlohmann::json& wanted) {
  CAPTURE(name);
  CHECK(close(found.value, wanted[0]));
  REQUIRE(found.by_caption.size() == wanted[1].size());
  for (size_t i = 0; i < found.by_caption.size(); ++i) {
    CAPTURE(i);
    CHECK(close(found.by_caption[i], wanted[1][i]));
  }
}

}  // namespace

TEST_SUITE("metrics golden") {
  TEST_CASE("CIDEr-D, BLEU and ROUGE-L of random sets are pycocoevalcap's") {
    for (const auto& set : testing::golden_metrics("captions.json")) {
      std::vector<TokenizedCaption> captions;
      for (const auto& item : set["captions"]) captions.push_back({item[0], item[1]});
      CAPTURE(captions.size());
      const auto& scores = set["scores"];
      check_scores("cider", cider_d(captions), scores["cider"]);
      check_scores("rouge_l", rouge_l(captions), scores["rouge_l"]);
      const auto bleus = bleu(captions);
      for (size_t k = 0; k < 4; ++k) {
        const std::string name = "bleu" + std::to_string(k + 1);
        check_scores(name, bleus[k], scores[name]);
      }
    }
  }

  TEST_CASE("answers are normalised and scored as the official VQA script does it") {
    const auto golden = testing::golden_metrics("vqa.json");
    for (const auto& item : golden["normalized"]) {
      const std::string answer = item[0];
      CAPTURE(answer);
      CHECK(vqa_normalized(answer) == item[1].get<std::string>());
      CHECK(vqa_without_punctuation(answer) == item[2].get<std::string>());
    }
    for (const auto& item : golden["cases"]) {
      CAPTURE(item.dump());
      CHECK(close(vqa_accuracy(item[0].get<std::string>(), item[1]), item[2]));
      CHECK(close(vqa_accuracy_lavis(item[0].get<std::string>(), item[1]), item[3]));
    }
  }

  TEST_CASE("vqa_accuracy normalises both sides, or neither if all annotators agree") {
    const std::vector<std::string> split{"two", "two", "two", "two", "two", "yes", "yes", "yes", "yes", "yes"};
    CHECK(vqa_accuracy("two", split) == 1);
    CHECK(vqa_accuracy_lavis("two", split) == 0);
    CHECK(vqa_accuracy("2", split) == 1);
    CHECK(vqa_accuracy("2", std::vector<std::string>(10, "two")) == 0);
    CHECK(vqa_accuracy("two", std::vector<std::string>(10, " two\n")) == 1);
    CHECK(vqa_accuracy("the dog", {"Dog.", "dog", "cat"}) == doctest::Approx((1.0 / 3 + 1.0 / 3 + 2.0 / 3) / 3));
  }
  TEST_CASE("exact and F1 are those of the SQuAD script") {
    for (const auto& item : testing::golden_metrics("squad.json")) {
      CAPTURE(item.dump());
      CHECK(squad_exact(item[0].get<std::string>(), item[1]) == item[2].get<double>());
      CHECK(close(squad_f1(item[0].get<std::string>(), item[1]), item[3]));
    }
  }

  TEST_CASE("choices and perplexities are lm-eval's") {
    const auto golden = testing::golden_metrics("lm_eval.json");
    Evaluation questions, texts;
    for (const auto& item : golden["questions"])
      questions.add(ScoredChoices{questions.size(), "", item[0], item[1], item[2]});
    for (const auto& score : questions.scores({"acc", "acc_norm", "acc_bytes"})) {
      CAPTURE(score.metric);
      const auto& wanted = golden["scores"][score.metric];
      CHECK(close(score.value, wanted[0]));
      CHECK(close(score.standard_error.value(), wanted[1]));
      CHECK(score.by_sample == wanted[2].get<std::vector<double>>());
    }
    for (const auto& item : golden["losses"]) {
      const std::string text = item[0];
      CAPTURE(text);
      CHECK(count_words(text) == item[2].get<int64_t>());
      CHECK(static_cast<int64_t>(text.size()) == item[3].get<int64_t>());
      texts.add(ScoredLoss{texts.size(), item[1], 1, count_words(text), static_cast<int64_t>(text.size())});
    }
    for (const auto& score : texts.scores({"word_perplexity", "byte_perplexity", "bits_per_byte"})) {
      CAPTURE(score.metric);
      CHECK(close(score.value, golden["perplexities"][score.metric]));
    }
  }
}
