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

  TEST_CASE("what stands before evaluate.ignore_before is not scored") {
    const auto tokenizer = load_tokenizer(testing::golden_path("tokenizer/vocab_merges"), {});
    GenerateSettings settings;
    const AnswerText all(*tokenizer, settings);
    CHECK(all.scored("a</think>b") == "a</think>b");
    settings.ignore_before = "</think>";
    const AnswerText answers(*tokenizer, settings);
    const std::pair<const char*, const char*> texts[] = {
        {"red", "red"}, {"", ""}, {"<think>\nred?\n</think>\n\nblue", "blue"}, {"red?</think>blue", "blue"},
        {"a</think>b</think> c", "c"}, {"a</think>", ""}, {"a</think> \n", ""}, {"<think>red", "<think>red"}};
    for (const auto& [text, expected] : texts) {
      CAPTURE(text);
      CHECK(answers.scored(text) == expected);
      PromptedSample prompt;
      prompt.references = {text, "green"};
      const ScoredText scored = scored_text(prompt, 0, "colour?", answers.clean(text), answers);
      CHECK(scored.candidate == expected);
      CHECK(scored.references == std::vector<std::string>{expected, "green"});
    }
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
