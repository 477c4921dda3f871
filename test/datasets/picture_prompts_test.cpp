// Pictures with prompts and answers: metadata, VQA's and LAVIS's files, templates, draws.
#include <doctest/doctest.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <map>

#include <nlohmann/json.hpp>

#include "blipft/prompts.h"
#include "datasets/record_checks.h"
#include "io/digest.h"
#include "loading/loader_fixture.h"
#include "loading/sample_text.h"
#include "loading/text_survey.h"
#include "support/golden_files.h"

using namespace blipft;
using namespace blipft::testing;
using Json = nlohmann::json;

namespace {

using Texts = std::vector<std::string>;

/// "PROMPT|ANSWER*WEIGHT ...": what is learnt alone behind the bar.
std::string described(const Dataset& dataset, int64_t index) {
  const Dataset::Sample sample = dataset.read(index);
  if (sample.answers.empty()) return marked(sample);
  REQUIRE(sample.segments.size() == 2);
  CHECK_FALSE(sample.segments[0].is_label);
  CHECK(sample.segments[1].is_label);
  std::string text = sample.segments[0].text + "|";
  for (const Dataset::Answer& answer : sample.answers) text += answer.text + "*" + std::to_string(std::lround(answer.weight)) + " ";
  return text;
}

const char* const kAnswers = R"({"file_name": "1.jpg", "prompt": "what?", "answer": ["red", "blue", "red", "red"]})" "\n"
                             R"({"file_name": "2.jpg", "prompt": "how many?", "answer": "2"})" "\n";

struct Folder : TemporaryDirectory {
  explicit Folder(const std::string& metadata) {
    for (const char* name : {"1.jpg", "2.jpg"}) write(name, name);
    write("metadata.jsonl", metadata);
  }
  std::shared_ptr<const Dataset> open(const TextSettings& settings = {}) const {
    return open_dataset(path.string(), DatasetFormat::automatic, settings);
  }
};

std::string digest_of(const Dataset& dataset) {
  io::Digest digest;
  dataset.identify([&](std::string_view text, int64_t bytes) { digest.add(text), digest.add(bytes); });
  dataset.identify_contents([&](std::string_view text, int64_t bytes) { digest.add(text), digest.add(bytes); });
  return digest.text();
}

std::string text_of(const std::vector<int32_t>& ids) { return {ids.begin(), ids.end()}; }

}  // namespace

TEST_SUITE("picture prompts") {
  TEST_CASE("metadata with prompts: only the answer is trained, equal answers count together") {
    const Folder folder(kAnswers);
    TextSettings settings;
    CHECK(described(*folder.open(settings), 0) == "what?|red*3 blue*1 ");
    CHECK(described(*folder.open(settings), 1) == "how many?|2*1 ");
    CHECK(folder.open()->read(0).ends == true);
    settings.prompt_template = "Question: {} Short answer:";
    CHECK(described(*folder.open(settings), 1) == "Question: how many? Short answer:|2*1 ");
    settings.answers = AnswerSelection::common;
    CHECK(described(*folder.open(settings), 0) == "Question: what? Short answer:|red*1 ");
    settings.answers = AnswerSelection::all;
    CHECK(folder.open(settings)->size() == 5);
    CHECK(described(*folder.open(settings), 3) == "Question: what? Short answer:|blue*1 ");
    settings.prompt_template = "a photo of";
    const std::string message = message_of([&] { folder.open(settings)->read(0); });
    check_parts(message, {"metadata.jsonl:1: ", "data.prompt_template", "put {} into it"});
  }

  TEST_CASE("other names, CSV, weights, and what is wrong with a record") {
    TextSettings settings;
    settings.keys = {{"file_name", "image"}, {"prompt", "question"}, {"answer", "reply"}};
    const Folder folder(R"({"image": "1.jpg", "question": "q", "reply": [{"answer": "a", "weight": 2}, {"answer": "b"}]})");
    CHECK(described(*folder.open(settings), 0) == "q|a*2 b*1 ");
    const TemporaryDirectory table;
    table.write("1.jpg", "x");
    table.write("metadata.csv", "file_name,prompt,answer,question_id\n1.jpg,q,yes,7\n");
    const auto dataset = open_dataset(table.path.string(), DatasetFormat::automatic);
    CHECK(described(*dataset, 0) == "q|yes*1 ");
    CHECK(dataset->read_prompt(0).id == "\"7\"");
    const auto refused = [](const std::string& record, const Texts& parts) {
      const Folder broken(record);
      check_parts(message_of([&] { broken.open(); }), parts);
    };
    refused(R"({"file_name": "1.jpg", "prompt": "q", "answer": []})", {":1: ", "empty list"});
    refused(R"({"file_name": "1.jpg", "prompt": "q", "answer": 5})", {":1: ", "\"answer\" is 5"});
    refused(R"({"file_name": "1.jpg", "prompt": 1, "answer": "a"})", {":1: ", "\"prompt\" is 1"});
    refused(R"({"file_name": "1.jpg", "prompt": "q", "answer": [{"answer": "a", "weight": 0}]})", {"weight of \"a\" is 0"});
    refused(R"({"file_name": "1.jpg", "prompt": "q", "answer": ""})", {"empty"});
    settings.keys = {{"answer", "reply"}};
    const Folder without(R"({"file_name": "1.jpg", "prompt": "q", "answer": "a"})");
    check_parts(message_of([&] { without.open(settings); }), {"no key \"reply\"", "data.keys={answer: KEY}"});
  }

  TEST_CASE("captions after a fixed prompt, which is not trained") {
    const Folder folder(R"({"file_name": "1.jpg", "text": ["a cat", "the cat"]})");
    TextSettings settings;
    settings.prompt_template = "a photo of";
    CHECK(described(*folder.open(settings), 0) == "a photo of|a cat*1 ");
    CHECK(folder.open(settings)->read(0).ends == std::nullopt);
    const PromptedSample prompt = prompt_of_sample(*folder.open(settings), 0, ByteTokenizer(), {.vocabulary = 256});
    CHECK(text_of(prompt.ids) == "\2" "a photo of");
    CHECK(prompt.references == Texts{"a cat", "the cat"});
    settings.prompt_template = "Q: {}";
    check_parts(message_of([&] { folder.open(settings)->read(0); }), {"has a caption and no prompt"});
  }

  TEST_CASE("keys of records of pictures that nothing reads are counted") {
    const auto unread = [](const std::string& metadata) { return Folder(metadata).open()->unread_keys(); };
    CHECK(unread(kAnswers) == "");
    CHECK(unread(R"({"file_name": "1.jpg", "text": "a", "id": 4, "caption": "b", "width": 5})" "\n"
                 R"({"file_name": "2.jpg", "caption": "b", "width": 5, "source": "x"})" "\n") ==
          "caption (1), source (1), width (2)");
    CHECK(unread(R"({"file_name": "1.jpg", "prompt": "p", "answer": "a", "text": "t"})" "\n") == "text (1)");
    CHECK(unread(R"({"file_name": "1.jpg", "prompt": "p", "text": "t"})" "\n") == "prompt (1)");
    const TemporaryDirectory directory;
    for (const char* name : {"1.jpg", "2.jpg"}) directory.write(name, name);
    directory.write("metadata.csv", "file_name,words,text,split\n1.jpg,a,b,train\n2.jpg,c,d,train\n");
    const auto keys_of = [&](const TextSettings& settings) {
      return open_dataset(directory.path.string(), DatasetFormat::automatic, settings)->unread_keys();
    };
    CHECK(keys_of({}) == "split (2), words (2)");
    TextSettings settings;
    settings.keys = {{"text", "words"}};
    CHECK(keys_of(settings) == "split (2), text (2)");
  }

  TEST_CASE("VQA's two files, found by either; LAVIS's list") {
    const TemporaryDirectory directory;
    directory.write("train2014/COCO_train2014_000000000009.jpg", "nine");
    const std::string questions = directory.write("v2_OpenEnded_mscoco_train2014_questions.json", Json{
        {"info", {{"year", 2017}}}, {"task_type", "Open-Ended"}, {"data_subtype", "train2014"}, {"license", {{"url", "x"}}},
        {"questions", {{{"image_id", 9}, {"question", "what?"}, {"question_id", 9000}},
                       {{"image_id", 9}, {"question", "why?"}, {"question_id", 9001}}}}}.dump());
    const std::string annotations = directory.write("v2_mscoco_train2014_annotations.json", Json{
        {"info", {{"year", 2017}}}, {"data_subtype", "train2014"},
        {"annotations", {{{"question_id", 9001}, {"image_id", 9}, {"multiple_choice_answer", "b"},
                          {"answers", {{{"answer", "b"}, {"answer_id", 1}}, {{"answer", "b"}, {"answer_id", 2}}}}},
                         {{"question_id", 9000}, {"image_id", 9},
                          {"answers", {{{"answer", "a"}, {"answer_confidence", "yes"}}}}}}}}.dump());
    for (const std::string& path : {questions, annotations}) {
      const auto dataset = open_dataset(path, DatasetFormat::automatic);
      REQUIRE(dataset->size() == 2);
      CHECK(described(*dataset, 0) == "what?|a*1 ");
      CHECK(described(*dataset, 1) == "why?|b*2 ");
      CHECK(dataset->read(1).picture->size() == 4);
      const auto prompts = prompts_of_dataset(*dataset, ByteTokenizer(), {.vocabulary = 256});
      REQUIRE(prompts.size() == 2);
      CHECK(prompts[1].references == Texts{"b", "b"});
      CHECK(prompts[1].id == "9001");
      CHECK(dataset->unread_keys() == "multiple_choice_answer (1)");
    }
    std::filesystem::remove(annotations);
    check_parts(message_of([&] { open_dataset(questions, DatasetFormat::automatic); }), {questions, "annotations are not beside"});
    TextSettings settings;
    settings.for_prompts = true;
    CHECK(open_dataset(questions, DatasetFormat::automatic, settings)->read_prompt(0).text == "what?");

    const std::string list = directory.write("vqa_train.json", Json{
        {{"image", "train2014/COCO_train2014_000000000009.jpg"}, {"question", "what?"}, {"question_id", 5},
         {"answer", {"a", "b", "a"}}, {"dataset", "vqa"}}}.dump());
    CHECK(described(*open_dataset(list, DatasetFormat::automatic), 0) == "what?|a*2 b*1 ");
    CHECK(open_dataset(list, DatasetFormat::automatic)->unread_keys() == "dataset (1)");
    const std::string captions = directory.write("coco_karpathy_train.json", Json{
        {{"image", "train2014/COCO_train2014_000000000009.jpg"}, {"caption", "a cat"}, {"image_id", "coco_9"}}}.dump());
    CHECK(described(*open_dataset(captions, DatasetFormat::automatic), 0) == "+a cat");
    CHECK(open_dataset(captions, DatasetFormat::automatic)->read_prompt(0).id == "\"coco_9\"");
  }

  TEST_CASE("an answer has a space before it where the tokenizer puts none") {
    const Folder folder(kAnswers);
    const auto text = [&](const std::string& prompt, const Tokenizer& tokenizer) {
      TextSettings settings;
      settings.prompt_template = prompt;
      const Dataset::Sample sample = folder.open(settings)->read(1);
      return tokenizer.decode(tokenize_answers(sample, tokenizer, 99, 1000).texts.at(0).ids);
    };
    const auto bytes = load_tokenizer(testing::golden_path("tokenizer/vocab_merges"), {});
    const auto pieces = load_tokenizer(testing::golden_path("tokenizer/sentencepiece_legacy"), {});
    CHECK(text("{} A:", *bytes) == "how many? A: 2");
    CHECK(text("{} A:\n", *bytes) == "how many? A:\n2");
    CHECK(text("{} A:", *pieces) == "how many? A: 2");
  }

  TEST_CASE("draws follow the weights, and depend on seed, sample and pass alone") {
    TokenizedAnswers answers;
    answers.texts = {{{1}, {1}}, {{2}, {1}}, {{3}, {1}}};
    answers.weights = {1, 6, 3};
    std::map<int32_t, int64_t> counts;
    for (int64_t number = 0; number < 100; ++number)
      for (int64_t pass = 0; pass < 100; ++pass) {
        answers.number = number;
        ++counts[answers.drawn(7, pass).ids.front()];
        CHECK(answers.drawn(7, pass).ids == answers.drawn(7, pass).ids);
      }
    // 10,000 draws: the deviation of a count is 50 at most; five of these.
    CHECK(std::abs(counts[1] - 1000) < 250);
    CHECK(std::abs(counts[2] - 6000) < 250);
    CHECK(std::abs(counts[3] - 3000) < 250);
    CHECK(answers.drawn(7, -1).ids.front() == 2);
  }

  TEST_CASE("the loader draws the same for any number of ranks, another in another pass, and the common one to validate") {
    const Folder folder("");
    std::string metadata;
    const std::vector<uint8_t> picture = read_bytes(testing::golden_path("images/gray.jpg"));
    folder.write("1.jpg", std::string(picture.begin(), picture.end()));
    for (int i = 0; i < 12; ++i)
      metadata += R"({"file_name": "1.jpg", "prompt": ")" + std::string(1, static_cast<char>('A' + i)) +
                  R"(", "answer": ["x", "y", "z", "x"]})" "\n";
    folder.write("metadata.jsonl", metadata);
    // The bytes' tokenizer has no end token, so that append_eos has to be off.
    TextSettings settings;
    settings.append_eos = false;
    const std::shared_ptr<const Dataset> dataset = folder.open(settings);
    Config config = small_config();
    config.steps.max_epochs = 3;
    const auto drawn = [&](int64_t world, bool pictures) {
      std::map<std::string, std::string> answers;  // by prompt: of each pass
      Config own = config;
      own.steps.batch_size = 6 / world;
      own.steps.accumulate_grad_batches = 1;
      HostDevice device;
      const auto tokenizer = std::make_shared<ByteTokenizer>();
      const ModelInputs inputs = pictures ? small_pictures() : ModelInputs{.text = {.vocabulary = 256, .max_tokens = 100}};
      SampleSet set{dataset, 0, nullptr};
      if (!pictures) set = survey_samples(own, {dataset}, *tokenizer, {.text = {.vocabulary = 256}}, 2);
      std::vector<std::unique_ptr<DataLoader>> loaders;
      for (int64_t rank = 0; rank < world; ++rank)
        loaders.push_back(make_data_loader(own, rank, world, inputs, {TextShape{20}}, tokenizer, set, device));
      for (int64_t step = 0; step < 6; ++step)
        for (const auto& loader : loaders) {
          const HostBatch* batch = loader->next();
          REQUIRE(batch != nullptr);
          for (int64_t i = 0; i < own.steps.batch_size; ++i) {
            const int32_t* ids = part<int32_t>(*batch, BatchField::ids) + i * batch->layout.text().tokens;
            answers[std::string(1, static_cast<char>(ids[1]))] += static_cast<char>(ids[3]);  // 2, prompt, space, answer
          }
          loader->give_back(batch);
        }
      return answers;
    };
    config.data.text_padding = TextPadding::max;
    const auto one = drawn(1, true);
    CHECK(one.size() == 12);
    for (const auto& [prompt, answers] : one) CHECK(answers.size() == 3);
    CHECK(drawn(2, true) == one);
    CHECK(drawn(3, false) == one);
    std::map<std::string, int> kinds;
    for (const auto& [prompt, answers] : one) ++kinds[answers];
    CHECK(kinds.size() > 4);
    HostDevice device;
    config.steps.batch_size = 12;
    const auto validation = make_validation_loader(config, 0, 1, small_pictures(), {TextShape{20}},
                                                   std::make_shared<ByteTokenizer>(), {dataset}, device);
    const HostBatch* batch = validation->next();
    for (int64_t i = 0; i < 12; ++i)
      CHECK(part<int32_t>(*batch, BatchField::ids)[i * batch->layout.text().tokens + 3] == 'x');
  }

  TEST_CASE("digests: other prompts, answers or weights are other data") {
    const std::string same = digest_of(*Folder(kAnswers).open());
    CHECK(digest_of(*Folder(kAnswers).open()) == same);
    for (const auto& [from, to] : {std::pair{"what?", "whom?"}, {"\"blue\"", "\"pink\""}, {"\"blue\"", "\"red\""}}) {
      std::string other = kAnswers;
      other.replace(other.find(from), std::string(from).size(), to);
      CHECK(digest_of(*Folder(other).open()) != same);
    }
  }

  TEST_CASE("a folder of pictures alone is walked once") {
    const TemporaryDirectory directory;
    for (const char* name : {"trip/1.jpg", "trip/2.PNG", "trip/notes.md", "trip/.thumbs/1.jpg", "trip/._1.jpg"}) directory.write(name, "x");
    TextSettings settings;
    settings.for_prompts = true;
    const int events = inotify_init1(IN_NONBLOCK);
    REQUIRE(events >= 0);
    // Equal events that follow each other are one: what is closed between them tells them apart.
    REQUIRE(inotify_add_watch(events, (directory / "trip").c_str(), IN_OPEN | IN_CLOSE_NOWRITE) >= 0);
    const auto dataset = open_dataset(directory.path.string(), DatasetFormat::automatic, settings);
    CHECK(dataset->size() == 2);
    CHECK(dataset->other_files() == 2);
    int64_t opened = 0;
    alignas(inotify_event) char buffer[4096];
    for (ssize_t bytes; (bytes = read(events, buffer, sizeof buffer)) > 0;)
      for (const char* at = buffer; at < buffer + bytes;) {
        const auto& event = *reinterpret_cast<const inotify_event*>(at);
        opened += event.len == 0 && (event.mask & IN_OPEN) != 0;  // the folder itself
        at += sizeof event + event.len;
      }
    close(events);
    CHECK(opened == 2);                      // to list the pictures, and to see which of them are links
    directory.write("trip/metadata.jsonl", R"({"file_name": "1.jpg", "text": "a"})");
    CHECK(open_dataset(directory / "trip", DatasetFormat::automatic, settings)->other_files() == std::nullopt);
  }
}
