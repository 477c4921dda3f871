// Pictures in conversations: LLaVA's, ShareGPT's, OpenAI's and TRL's records, placeholders and paths.
#include <doctest/doctest.h>

#include <filesystem>

#include "datasets/record_checks.h"
#include "datasets/record_pictures.h"
#include "text/chat_template.h"

using namespace blipft;
using namespace blipft::testing;
using Json = nlohmann::ordered_json;

namespace {

/// Contents as texts or lists of parts, as published templates read them.
constexpr const char* parts_template =
    "{% for m in messages %}<|{{ m.role }}|>{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<|picture|>{% elif 'text' in part %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";

TextSettings settings_with(const char* jinja) {
  TextSettings settings;
  settings.chat_template = std::make_shared<const ChatTemplate>(jinja, "t.jinja");
  return settings;
}

PictureConversation conversation_in(const std::string& record, const std::string& key = "messages",
                                    const TextSettings& settings = settings_with(parts_template)) {
  return picture_conversation_of(Json::parse(record), key, settings, "a.jsonl:3");
}

/// The rendered conversation, "+" before trained segments, and behind it the pictures.
std::string rendered(const std::string& record, const std::string& key = "messages") {
  const TextSettings settings = settings_with(parts_template);
  const PictureConversation found = conversation_in(record, key);
  std::string text;
  for (const TextSegment& segment : render_chat(found.conversation, settings, "here"))
    text += (segment.is_label ? "+" : "-") + segment.text;
  for (const std::string& picture : found.pictures) text += " " + picture;
  return text;
}

std::string refusal(const std::string& record, const std::string& key = "messages") {
  return message_of([&] { conversation_in(record, key); });
}

const std::string answer = R"(, {"role": "assistant", "content": "A"}]})";

}  // namespace

TEST_SUITE("record pictures") {
  TEST_CASE("LLaVA, ShareGPT, OpenAI and TRL write the same conversation") {
    const std::string two = "-<|user|>U<|picture|>V<|picture|><|end|><|assistant|>+A<|end|> a.jpg b/c.png";
    const std::string sharegpt =
        R"({"images": ["a.jpg", "b/c.png"], "conversations": [{"from": "human", "value": "U<image>V<image>"},)"
        R"({"from": "gpt", "value": "A"}]})";
    CHECK(rendered(sharegpt, "conversations") == two);
    CHECK(rendered(R"({"images": [{"path": "a.jpg", "bytes": null}, "b/c.png"], "messages": [{"role": "user", "content":)"
                   R"("U<image>V<image>"})" + answer) == two);
    CHECK(rendered(R"({"images": ["a.jpg", "b/c.png"], "messages": [{"role": "user", "content": [{"type": "text", "text": "U"},)"
                   R"({"type": "image"}, {"type": "text", "text": "V"}, {"type": "image", "image": null}]})" + answer) == two);
    CHECK(rendered(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "U"}, {"type": "image_url",)"
                   R"("image_url": {"url": "a.jpg"}}, {"type": "text", "text": "V"}, {"type": "image", "image": "b/c.png"}]})" +
                   answer) == two);
    CHECK(rendered(R"({"images": ["a.jpg", "b/c.png"], "prompt": [{"role": "user", "content": "U<image>V<image>"}],)"
                   R"("completion": [{"role": "assistant", "content": "A"}]})") == two);
    CHECK(rendered(R"({"id": 1, "image": "a.jpg", "conversations": [{"from": "human", "value": "<image>\nU"},)"
                   R"({"from": "gpt", "value": "A"}, {"from": "human", "value": "V"}, {"from": "gpt", "value": "B"}]})",
                   "conversations") ==
          "-<|user|><|picture|>\nU<|end|><|assistant|>+A<|end|>-<|user|>V<|end|><|assistant|>+B<|end|> a.jpg");
    // A picture of its own between those of the record, and a conversation without pictures.
    CHECK(conversation_in(R"({"images": ["1", "3"], "messages": [{"role": "user", "content": "<image>"}, {"role": "user",)"
                          R"("content": [{"type": "image", "path": "2"}, {"type": "image"}]})" + answer).pictures ==
          std::vector<std::string>{"1", "2", "3"});
    const PictureConversation plain = conversation_in(R"({"images": [], "messages": [{"role": "user", "content": "U"})" + answer);
    CHECK(plain.pictures.empty());
    CHECK(plain.conversation.messages[0]["content"] == "U");
  }

  TEST_CASE("parts of a content") {
    RecordPictures pictures(Json::parse(R"({"image": ["1", "2"]})"), "here");
    CHECK(pictures.parts_of(Json("<image><image>text"), "here") ==
          Json::parse(R"([{"type": "image"}, {"type": "image"}, {"type": "text", "text": "text"}])"));
    CHECK(pictures.in_order() == std::vector<std::string>{"1", "2"});
    // In a list of parts a text stays as it is.
    CHECK(pictures.parts_of(Json::parse(R"([{"type": "text", "text": "<image>"}])"), "here")[0]["text"] == "<image>");
  }

  TEST_CASE("placeholders without pictures and pictures without placeholders are refused by record") {
    CHECK(refusal(R"({"image": "a.jpg", "messages": [{"role": "user", "content": "U"})" + answer) ==
          "a.jsonl:3: found 1 picture under \"image\" and 0 placeholders in the messages, expected as many of both. Write "
          "<image> into a text, or a part {\"type\": \"image\"} into a list, where each picture stands.");
    CHECK(refusal(R"({"images": ["a", "b"], "messages": [{"role": "user", "content": "<image><image> <image>"})" + answer)
              .starts_with("a.jsonl:3: found 2 pictures under \"images\" and 3 placeholders"));
    CHECK(refusal(R"({"messages": [{"role": "user", "content": [{"type": "image"}]})" + answer)
              .starts_with("a.jsonl:3: found 0 pictures"));
    check_parts(refusal(R"({"image": "a", "text": "<image>"})"), {"a.jsonl:3: found \"image\", \"text\", expected a key \"messages\""});
  }

  TEST_CASE("what is no file of a picture is refused") {
    const auto with = [&](const std::string& keys, const std::string& content = "\"<image>\"") {
      return refusal("{" + keys + R"(, "messages": [{"role": "user", "content": )" + content + "}" + answer);
    };
    check_parts(with(R"("images": ["a", "http://b/c.jpg"])"), {"a.jsonl:3: key \"images\": picture 2 is \"http://b/c.jpg\"", "Download"});
    check_parts(with(R"("image": "data:image/png;base64,aa")"), {"key \"image\": picture 1 is \"data:", "Download or decode"});
    check_parts(with(R"("images": [{"bytes": "aa", "path": "a"}])"), {"picture 1 is {", "expected the name of a file"});
    check_parts(with(R"("images": [7])"), {"picture 1 is 7, expected the name of a file. Store"});
    check_parts(with(R"("videos": ["a.mp4"])"), {"a.jsonl:3: found a key \"videos\"", "Remove the record"});
    check_parts(with(R"("image": "a")", R"([{"type": "video", "video": "a.mp4"}])"),
                {"a.jsonl:3: message 1 has the part {\"type\":\"video\"", "expected parts of type text or image"});
    check_parts(with(R"("image": "a")", R"([{"type": "image", "image": {"url": "https://a"}}])"),
                {"message 1: a part's picture is \"https://a\""});
    check_parts(message_of([&] {
                  conversation_in(R"({"image": "a", "messages": [{"role": "user", "content": "<image>"})" + answer, "messages",
                                  settings_with("{% for m in messages %}{{ m.content }}{% endfor %}"));
                }), {"a.jsonl:3: message 1 has a picture, but the chat template reads texts alone", "data.chat_template: auto"});
  }

  TEST_CASE("paths are relative to data.pictures, else to the records, and do not lead out") {
    const TemporaryDirectory directory;
    directory.write("data/in.jpg", "");
    directory.write("out.jpg", "");
    std::filesystem::create_symlink(directory / "out.jpg", directory / "data/link.jpg");
    TextSettings settings;
    const auto path = [&](const std::string& name) { return picture_path(name, directory / "data", settings, "a.jsonl:3"); };
    CHECK(path("in.jpg") == directory / "data/in.jpg");
    CHECK(path("absent.jpg") == directory / "data/absent.jpg");  // reading it says so
    for (const std::string& name : {std::string("../out.jpg"), directory / "out.jpg", std::string("link.jpg")}) {
      const std::string message = message_of([&] { path(name); });
      check_parts(message, {"a.jsonl:3: picture \"", "leads out of " + directory / "data", "data.allow_outside: true"});
    }
    settings.allow_outside = true;
    CHECK(path("../out.jpg") == directory / "data/../out.jpg");
    CHECK(path(directory / "out.jpg") == directory / "out.jpg");
    settings.pictures = directory / "";
    CHECK(path("out.jpg") == directory / "out.jpg");
  }

  TEST_CASE("samples and prompts of a model that reads pictures in texts name the files of their pictures") {
    const TemporaryDirectory folder;
    for (const char* name : {"a.jpg", "b.jpg"}) folder.write(name, name);
    TextSettings settings = settings_with(parts_template);
    settings.pictures_in_texts = true;
    const auto described = [](const std::string& text, const std::vector<PictureFile>& pictures) {
      std::string all = text;
      for (const PictureFile& picture : pictures) all += " " + std::filesystem::path(picture.file).filename().string();
      return all;
    };
    const auto first = [&](const std::string& name, const std::string& content) {
      const auto dataset = open_dataset(folder.write(name, content), DatasetFormat::automatic, settings);
      const Dataset::Sample sample = dataset->read(0);
      const Dataset::Prompt prompt = dataset->read_prompt(0);
      CHECK(sample.whole);
      CHECK_FALSE(sample.picture);
      return described(marked(sample), sample.pictures) + " | " + described(prompt.text, prompt.pictures);
    };
    CHECK(first("c.jsonl", R"({"images": ["b.jpg", "a.jpg"], "conversations": [{"from": "human", "value": "<image>U<image>"}, )"
                           R"({"from": "gpt", "value": "A"}]})") ==
          "-<|user|><|picture|>U<|picture|><|end|><|assistant|>+A<|end|> b.jpg a.jpg | "
          "<|user|><|picture|>U<|picture|><|end|><|assistant|> b.jpg a.jpg");
    CHECK(first("captions.csv", "file_name,text\na.jpg,a dog\n") ==
          "-<|user|><|picture|><|end|><|assistant|>+a dog<|end|> a.jpg | <|user|><|picture|><|end|><|assistant|> a.jpg");
    CHECK(first("vqa.csv", "file_name,prompt,answer\nb.jpg,what?,red\n") ==
          "-<|user|><|picture|>what?<|end|><|assistant|>+red<|end|> b.jpg | <|user|><|picture|>what?<|end|><|assistant|> b.jpg");
    // Pictures beside texts that are no conversation are refused by record.
    const std::string message = message_of([&] { first("d.jsonl", R"({"image": "a.jpg", "prompt": "P", "completion": "C"})"); });
    CHECK(message.find("d.jsonl:1: found a picture, expected one only in a record of messages") != std::string::npos);
    settings.chat_template = std::make_shared<const ChatTemplate>("{% for m in messages %}{{ m.content }}{% endfor %}", "t.jinja");
    CHECK(message_of([&] { first("e.csv", "file_name,text\na.jpg,a dog\n"); }).find("has a picture, but the chat template reads texts alone") !=
          std::string::npos);
  }
}
