// References of COCO and VQA; what they say is then scored against itself, and goes into every file that comes of it.
#include <nlohmann/json.hpp>

#include "blipft/evaluate.h"
#include "fuzz/fuzz_target.h"

BLIPFT_FUZZ_TARGET(references) {
  using namespace blipft;
  static const testing::FuzzFolder folder;
  const std::string file = folder.write("references.json", input);
  testing::refuses_or_takes([&] {
    Evaluation evaluation;
    for (const auto& one : read_references(file, file)) {
      if (one.texts.empty() || evaluation.size() == 20) continue;
      ScoredText text{evaluation.size(), one.id, one.question, one.texts.back(), one.texts, one.picture};
      text.references.push_back(one.texts.front());
      evaluation.add(text);
    }
    if (evaluation.size() == 0) return;
    const auto scores = evaluation.scores({"cider", "bleu4", "rouge_l", "vqa_accuracy", "exact_match", "squad_f1"});
    if (scores[4].value != 1) std::abort();  // each says what a reference says
    for (const auto& written : {scores_json({{"fuzz", scores, evaluation.size()}}), coco_results_json(evaluation.texts()),
                                vqa_results_json(evaluation.texts())})
      if (nlohmann::json::parse(written).is_discarded()) std::abort();
    const std::string page = evaluation_page({"fuzz", folder.path()}, scores, evaluation.texts());
    // Texts end no element: the page has its own two script marks and no more.
    const size_t end = page.find("</script");
    if (end == std::string::npos || page.find("</script", end + 1) != std::string::npos) std::abort();
  });
}
