// Cleaning of answers and references before they are compared.
#include "generate/answers/answer_text.h"
#include "support/golden_files.h"

#include <doctest/doctest.h>

using namespace blipft;

TEST_SUITE("answer text") {
  TEST_CASE("answers and references are cleaned alike") {
    const auto tokenizer = load_tokenizer(testing::golden_path("tokenizer/vocab_merges"), {});
    GenerateSettings settings;
    const AnswerText plain(*tokenizer, settings);
    const std::pair<const char*, const char*> texts[] = {
        {" red", "red"}, {"red\n", "red"}, {"\t a  b \r\n", "a  b"}, {"", ""}, {" \n", ""},
        {"<think>\n\n</think>\n\nred", "red"}, {" <think></think>red", "red"}, {"<think>\n</think>", ""},
        {"<think>\nit is\n</think>\n\nred", "<think>\nit is\n</think>\n\nred"}, {"<think>", "<think>"},
        {"<think> ", "<think>"},
        {"red <think></think>", "red <think></think>"}};
    for (const auto& [text, expected] : texts) {
      CAPTURE(text);
      CHECK(plain.clean(text) == expected);
    }
    settings.stop = {"\n\n", "|"};
    const AnswerText stops(*tokenizer, settings);
    CHECK(stops.clean(" red|blue\n\n") == "red");
    CHECK(stops.clean("|red") == "");
    CHECK(stops.clean("<think>\n\n</think>\n\nred\n\nblue") == "red");
  }

  TEST_CASE("the references of a scored text are cleaned as the answer is") {
    const auto tokenizer = load_tokenizer(testing::golden_path("tokenizer/vocab_merges"), {});
    GenerateSettings settings;
    settings.stop = {"|"};
    const AnswerText answers(*tokenizer, settings);
    PromptedSample prompt;
    prompt.references = {" red", "<think>\n\n</think>\n\nred|\n", "red"};
    const ScoredText scored = scored_text(prompt, 3, "colour?", answers.clean(" red\n"), answers);
    CHECK(scored.candidate == "red");
    CHECK(scored.references == std::vector<std::string>{"red", "red", "red"});
  }
}
