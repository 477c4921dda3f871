// Collecting samples, the files that come of it, and the page.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "blipft/error.h"
#include "blipft/evaluate.h"
#include "io/json.h"
#include "support/error_message.h"
#include "support/temporary_directory.h"

using namespace blipft;
using testing::message_of;

namespace {

ScoredText text(int64_t index, const std::string& candidate, const std::vector<std::string>& references) {
  return {index, std::to_string(100 + index), "", candidate, references, ""};
}

const std::vector<ScoredText> captions{text(0, "a man rides a wave", {"A man rides a big wave.", "a surfer on a wave"}),
                                       text(1, "two dogs' toys", {"Two dog toys on a bed", "toys of two dogs"}),
                                       text(2, "", {"A clock tower at 10:30 a.m.", "a tower with a clock"}),
                                       text(3, "a tower with a clock", {"a tower with a clock", "A clock tower"})};

}  // namespace

TEST_SUITE("evaluation") {
  TEST_CASE("the order in which samples come changes no bit") {
    const std::vector<std::string> names{"cider",       "bleu1",        "bleu4",   "rouge_l",
                                         "exact_match", "vqa_accuracy", "squad_f1"};
    Evaluation one;
    for (const auto& caption : captions) one.add(caption);
    const auto wanted = one.scores(names);
    auto order = captions;
    while (std::next_permutation(order.begin(), order.end(), [](auto& a, auto& b) { return a.index < b.index; })) {
      Evaluation other;
      for (const auto& caption : order) other.add(caption);
      const auto found = other.scores(names);
      for (size_t i = 0; i < names.size(); ++i) {
        CHECK(found[i].metric == names[i]);
        CHECK(found[i].value == wanted[i].value);
        CHECK(found[i].by_sample == wanted[i].by_sample);
      }
      CHECK(other.texts()[2].id == "102");
    }
    CHECK(wanted[4].value == 0.25);
    CHECK(wanted[0].value > 0);
  }

  TEST_CASE("perplexity is of a token, and goes over the whole set") {
    Evaluation set;
    set.add(ScoredLoss{0, -6.0, 3, 0, 0});
    set.add(ScoredLoss{1, -2.0, 1, 0, 0});
    const auto scores = set.scores({"loss", "perplexity"});
    CHECK(scores[0].value == 2.0);
    CHECK(scores[1].value == std::exp(2.0));
    CHECK(message_of([&] { set.scores({"word_perplexity"}); }) ==
          "word_perplexity: the texts have no words; expected at least one in the set");
    CHECK(
        message_of([&] { set.scores({"acc"}); }) ==
        "acc is computed from choices with their log-likelihoods, and this set has none; "
        "choose a metric "
        "for what it has, or another set");
  }

  TEST_CASE("each metric of the table is computed, and no two of the same samples alike") {
    Evaluation set;
    for (const auto& caption : captions) set.add(caption);
    set.add(text(4, "The dog!", {"dog", "a cat"}));
    set.add(text(5, "red", {"Red", "Red", "a red", "blue"}));     // only vqa_accuracy finds any of these
    const auto choices = [&](int64_t index, const std::vector<std::string>& texts, const std::vector<double>& likelihoods) {
      set.add(ScoredChoices{index, std::to_string(index), texts, likelihoods, 0});
    };
    // The first, which is right, is the likeliest; per character and byte; per byte; never; per character and byte.
    choices(0, {"a", "abc", "ab"}, {-2, -3, -9}), choices(1, {"abcdef", "a", "ab"}, {-4, -3, -9});
    choices(2, {"\u00e9\u00e9", "ab"}, {-3, -2}), choices(3, {"a", "ab", "abc"}, {-2, -1, -1});
    choices(4, {"abcd", "a"}, {-3, -1});
    set.add(ScoredLoss{0, -6.0, 3, 2, 11});
    std::map<std::pair<MetricInput, double>, std::string> found;
    for (const Metric& metric : metrics()) {
      CAPTURE(metric.name);
      std::vector<Score> scores;
      CHECK_NOTHROW(scores = set.scores({metric.name}));
      REQUIRE(scores.size() == 1);
      CHECK(scores[0].metric == metric.name);
      const auto [other, is_new] = found.emplace(std::pair(metric.input, scores[0].value), metric.name);
      CHECK_MESSAGE(is_new, "the same as ", other->second);
    }
  }

  TEST_CASE("mistakes are named") {
    Evaluation set;
    CHECK(message_of([&] { set.scores({"cider"}); }).find("this set has none") != std::string::npos);
    CHECK(message_of([&] { set.add(text(0, "a", {})); }) ==
          "sample 100 has no reference; expected at least one to score with");
    CHECK(message_of([&] {
            set.add(ScoredChoices{0, "q", {"a", "b"}, {-1, -2}, 2});
          }) == "sample q: the right choice is number 2, counted from 0; expected one of its 2 choices");
    CHECK(message_of([&] {
            set.add(ScoredChoices{0, "q", {"a", ""}, {-1, -2}, 0});
          }) == "sample q has an empty choice; expected a text");
    set.add(text(0, "yes", {"yes"}));
    const std::string several = message_of([&] { set.scores({"vqa_accuracy"}); });
    CHECK(several.find("sample 100 has 1 reference; expected the answers of several annotators") != std::string::npos);
    CHECK(message_of([&] {
            find_metric("Cider", "run.yaml: evaluate.metrics");
          }).starts_with("run.yaml: evaluate.metrics: no metric is called \"Cider\"; choose of cider, bleu1, "));
    for (const auto& metric : metrics())
      CHECK(find_metric(metric.name, "").higher_is_better == metric.higher_is_better);
    set.add(text(0, "yes", {"yes"}));
    CHECK(message_of<Error>([&] { set.scores({"exact_match"}); }).find("two samples have index 0") !=
          std::string::npos);
  }

  TEST_CASE("scores.json has lm-eval's form") {
    const auto json = nlohmann::json::parse(
        scores_json({{"boolq", {{"acc", 0.5, 0.25, {1, 0}}, {"acc_norm", 1, std::nullopt, {}}}, 2},
                     {"wiki", {{"loss", 2, {}, {}}}, 1}},
                    R"({"model": "x"})"));
    CHECK(json["results"]["boolq"] == nlohmann::json{{"alias", "boolq"},
                                                     {"acc,none", 0.5},
                                                     {"acc_stderr,none", 0.25},
                                                     {"acc_norm,none", 1.0},
                                                     {"acc_norm_stderr,none", "N/A"}});
    CHECK(json["higher_is_better"]["boolq"]["acc"] == true);
    CHECK(json["higher_is_better"]["wiki"]["loss"] == false);
    CHECK(json["n-samples"]["boolq"] == nlohmann::json{{"original", 2}, {"effective", 2}});
    CHECK(json["config"]["model"] == "x");
  }

  TEST_CASE("result files are COCO's and VQA's") {
    auto odd = text(0, "he said \"hi\" \xff", {"x"});
    const auto coco = nlohmann::json::parse(
        coco_results_json({odd, {1, "a/b.jpg", "", "c", {"x"}, ""}, {2, "007", "", "", {"x"}, ""}}));
    CHECK(coco == nlohmann::json::parse(
                      "[{\"image_id\": 100, \"caption\": \"he said \\\"hi\\\" \uFFFD\"},"
                      "{\"image_id\": \"a/b.jpg\", \"caption\": \"c\"}, {\"image_id\": \"007\", \"caption\": \"\"}]"));
    CHECK(nlohmann::json::parse(vqa_results_json({odd}))[0]["question_id"] == 100);
    CHECK(nlohmann::json::parse(vqa_results_json({})) == nlohmann::json::array());
  }

  TEST_CASE("captions.csv has paths inside the data folder and quotes what a comma or quote is in") {
    const std::vector<ScoredText> texts{{0, "", "", "a dog", {}, "photos/sub/1.jpg"},
                                        {1, "", "", "a \"red\" cat, asleep", {}, "photos/2,b.jpg"},
                                        {2, "", "", "", {}, "elsewhere/3.jpg"}};
    const std::string expected = "file_name,text\nsub/1.jpg,a dog\n\"2,b.jpg\",\"a \"\"red\"\" cat, asleep\"\n"
                                 "elsewhere/3.jpg,\n";
    CHECK(captions_csv(texts, "photos/metadata.jsonl") == expected);
  }
  TEST_CASE("references of COCO and VQA are read") {
    const testing::TemporaryDirectory folder;
    const auto coco = read_references(folder.write("captions.json", R"({"info": {"images": [{"id": 9}]},
      "annotations": [{"image_id": 7, "id": 1, "caption": "b"}, {"image_id": 5, "id": 2, "caption": "a"},
      {"image_id": 7, "id": 3, "caption": "c"}],
      "images": [{"id": 5, "file_name": "five.jpg"}, {"id": 7, "file_name": "seven.jpg"},
      {"id": 8, "file_name": "none.jpg"}]})"));
    REQUIRE(coco.size() == 2);
    CHECK(coco[0].id == "7");
    CHECK(coco[0].picture == "seven.jpg");
    CHECK(coco[0].texts == std::vector<std::string>{"b", "c"});
    CHECK(coco[1].texts == std::vector<std::string>{"a"});
    const auto vqa = read_references(
        folder.write(
            "annotations.json",
            R"({"annotations": [{"question_id": 71, "image_id": 7, 
              "answers": [{"answer": "yes", "answer_id": 1}, {"answer": "no"}]}]})"),
        folder.write("questions.json", R"({"questions": [{"question_id": 71, "image_id": 7, "question": "Is it?"}]})"));
    REQUIRE(vqa.size() == 1);
    CHECK(vqa[0].question == "Is it?");
    CHECK(vqa[0].texts == std::vector<std::string>{"yes", "no"});
    const auto broken = [&](const std::string& content) {
      return message_of([&] { read_references(folder.write("broken.json", content)); });
    };
    CHECK(broken(R"({"annotations": [{"image_id": 7}]})")
              .find("broken.json: annotations[0]: found {\"image_id\":7}, expected the key \"caption\"") !=
          std::string::npos);
    CHECK(broken(R"({"annotations": [{"caption": "a", "image_id": 1}, {"caption": "a"}]})")
              .find("annotations[1]: found {\"caption\":\"a\"}, expected a text or a number under \"image_id\"") !=
          std::string::npos);
    CHECK(broken("[]").find("found no record in a list \"annotations\"") != std::string::npos);
    CHECK(broken(R"({"annotations": [{"question_id": 1, "image_id": 1, "answers": 5}]})") != "");
    CHECK(broken("{\"annotations\": [").find("broken.json") != std::string::npos);
  }

  TEST_CASE("no text of a page can leave its place") {
    std::vector<ScoredText> texts{
        text(0, "</script><script>alert(1)</script> <!-- @SAMPLES@ \u2028", {"<b>bold</b> & 'quotes' \xff"})};
    texts[0].picture = "/data/run/pictures/a \"b\"#1?.jpg";
    texts[0].prompt = "@METRICS@";
    const std::string page =
        evaluation_page({"<i>Title</i> @SUMMARY@", "/data/run/eval"}, {{"cider", 1.5, std::nullopt, {1.5}}}, texts);
    CHECK(page.find("</script><script>") == std::string::npos);
    CHECK(page.find("<!--") == std::string::npos);
    CHECK(page.find("<b>bold") == std::string::npos);
    CHECK(page.find("<i>") == std::string::npos);
    CHECK(page.find("&lt;i&gt;Title&lt;/i&gt; @SUMMARY@") != std::string::npos);
    CHECK(page.find("./../pictures/a%20%22b%22%231%3F.jpg") != std::string::npos);
    CHECK(page.find("\u2028") == std::string::npos);
    CHECK(page.find("[[\"cider\",true]]") != std::string::npos);
    CHECK(page.find("http") == std::string::npos);  // nothing from a network
  }

  TEST_CASE("a page has the thumbnails that it is given, once each") {
    std::vector<ScoredText> texts{text(0, "a", {"a"}), text(1, "b", {"b"}), text(2, "c", {"c"}), text(3, "d", {"d"})};
    texts[0].picture = texts[2].picture = "/data/a.jpg";
    texts[1].picture = "/data/b.jpg";
    const std::string page = evaluation_page({"Title", "/data/run", {{"/data/a.jpg", "/9j+AA=="}, {"/data/z.jpg", "/9j+BB=="}}}, {}, texts);
    CHECK(page.find("const thumbnails = [\"/9j+AA==\"];") != std::string::npos);
    for (const char* sample : {R"(["100","./../a.jpg","","a",["a"],[],0])", R"(["101","./../b.jpg","","b",["b"],[],-1])",
                               R"(["102","./../a.jpg","","c",["c"],[],0])", R"(["103","","","d",["d"],[],-1])"})
      CHECK_MESSAGE(page.find(sample) != std::string::npos, sample);
  }
}
