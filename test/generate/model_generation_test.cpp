// Texts of the golden models against transformers' generate() (tools/blipft_golden/model_generation.py): greedy and beams, more
// texts than slots, so that some wait for others.
#include <doctest/doctest.h>

#include <map>

#include "generate/golden_rank.h"
#include "support/golden_files.h"

using namespace blipft;
using namespace blipft::test;

TEST_SUITE("generation golden") {
  TEST_CASE("prompts are continued as transformers continues them") {
    const nlohmann::json golden = io::read_json_file(testing::golden_path("generation/models.json"));
    int64_t texts = 0;
    for (const auto& [name, cases] : golden.items()) {
      CAPTURE(name);
      for (const int64_t beams : {1, 3}) {
        std::vector<nlohmann::json> mine;
        TextsToGenerate work{1, 0};
        int64_t new_tokens = 1;
        for (const nlohmann::json& one : cases) {
          if (one.at("beams") != beams) continue;
          mine.push_back(one);
          work.longest_prompt = std::max(work.longest_prompt, static_cast<int64_t>(one.at("ids").size()));
          new_tokens = std::max(new_tokens, static_cast<int64_t>(one.at("new").size()));
        }
        work.texts = static_cast<int64_t>(mine.size());
        GoldenRank rank(name, beams, work, new_tokens);
        const int64_t picture = rank.model->inputs().picture_size;
        std::map<int64_t, std::vector<int32_t>> found;
        GeneratorCalls calls;
        calls.next = [&, next = size_t{0}]() mutable -> std::optional<TextRequest> {
          if (next == mine.size()) return std::nullopt;
          ++next;
          return request_of(mine[next - 1], static_cast<int64_t>(next) - 1, picture);
        };
        calls.done = [&](const TextResult& result) {
          CHECK(result.texts.size() == 1);
          found[result.number] = result.texts.at(0).ids;
        };
        Generator(*rank.engine->decoder, 1, true).run(calls);
        REQUIRE(found.size() == mine.size());
        for (size_t i = 0; i < mine.size(); ++i) {
          CAPTURE(i);
          CHECK(found[static_cast<int64_t>(i)] == mine[i].at("new").get<std::vector<int32_t>>());
          ++texts;
        }
      }
    }
    CHECK(texts >= 70);
  }

  // Each token's likelihood by the cache is that of the whole text at once.
  TEST_CASE("the score of a text is its likelihood") {
    const nlohmann::json golden = io::read_json_file(testing::golden_path("generation/models.json"));
    for (const char* name : {"llama_gqa", "modern_gemma2", "blip2_ordinary"}) {
      CAPTURE(name);
      const nlohmann::json one = golden.at(name).at(0);
      const auto ids = one.at("ids").get<std::vector<int32_t>>(), more = one.at("new").get<std::vector<int32_t>>();
      const auto maximum = static_cast<int64_t>(ids.size() + more.size());
      GoldenRank rank(name, 1, {maximum, 1}, static_cast<int64_t>(more.size()), true);
      const int64_t picture = rank.model->inputs().picture_size;
      double score = 0;
      GeneratorCalls calls;
      calls.next = [&, given = false]() mutable {
        return std::exchange(given, true) ? std::nullopt : std::optional<TextRequest>(request_of(one, 0, picture));
      };
      calls.done = [&](const TextResult& result) { score = result.texts.at(0).score; };
      Generator(*rank.engine->decoder, 1, true).run(calls);
      BatchSample whole;
      whole.text.ids = ids;
      whole.text.ids.insert(whole.text.ids.end(), more.begin(), more.end());
      whole.text.is_label.assign(whole.text.ids.size(), 0);
      std::fill(whole.text.is_label.begin() + static_cast<std::ptrdiff_t>(ids.size()), whole.text.is_label.end(), 1);
      const std::vector<uint8_t> pixels = picture > 0 ? pixels_of(one.at("seed").get<int64_t>(), picture) : std::vector<uint8_t>{};
      const uint8_t* const pictures[] = {pixels.data()};
      const std::vector<TextLikelihood> found = rank.engine->decoder->score({&whole, 1}, pictures);
      REQUIRE(found.size() == 1);
      CHECK(found[0].tokens == static_cast<int64_t>(more.size()));
      CHECK(found[0].log_likelihood == doctest::Approx(score).epsilon(1e-5));  // f32, some tens of sums of some tens of terms
    }
  }
}
