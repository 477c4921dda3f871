// Chat templates as Jinja texts: against jinja2 as transformers sets it up (tools/blipft_golden/chat_templates.py), against what
// transformers renders of published templates (shared data), and hostile ones.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>

#include "blipft/error.h"
#include "support/error_message.h"
#include "support/golden_files.h"
#include "text/jinja_template.h"

using namespace blipft;
using Json = nlohmann::ordered_json;

namespace {

std::tm moment() {
  std::tm now{};
  now.tm_year = 126, now.tm_mon = 10, now.tm_mday = 28, now.tm_hour = 9, now.tm_min = 5, now.tm_sec = 7;
  timegm(&now);  // fills in the day of the week
  return now;
}

std::string content(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  REQUIRE_MESSAGE(in.good(), file.string());
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/// The spans in code points.
Json spans_of(const ChatTemplate::Text& text) {
  const auto code_points = [&](size_t bytes) {
    return std::count_if(text.text.begin(), text.text.begin() + static_cast<std::ptrdiff_t>(bytes),
                         [](char c) { return (c & 0xc0) != 0x80; });
  };
  Json spans = Json::array();
  for (const auto& [begin, end] : text.spans) spans.push_back({code_points(begin), code_points(end)});
  return spans;
}

/// "" where a template makes what is expected: a text, its spans, or an error.
std::string difference(const ChatTemplate& chat, const Json& variables, const Json& expected) {
  ChatTemplate::Text text;
  try {
    text = chat.render(variables, moment());
  } catch (const UserError& error) {
    return expected.contains("error") ? "" : concat("refused: ", error.what());
  }
  if (expected.contains("error"))
    return concat("expected the error ", expected["error"].dump(), ", found ", Json(text.text).dump());
  if (text.text != expected["text"].get<std::string>())
    return concat("expected ", expected["text"].dump(), ", found ", Json(text.text).dump());
  const bool same = !expected.contains("spans") || expected["spans"] == spans_of(text);
  return same ? "" : concat("expected the spans ", expected["spans"].dump(), ", found ", spans_of(text).dump());
}

/// transformers' variables of a case of the shared data.
Json variables_of(const Json& one, const Json& special_tokens) {
  Json variables = Json::object();
  variables["messages"] = one.contains("keep_null") ? one["messages"] : chat_messages(one["messages"]);
  for (const char* key : {"tools", "documents"}) variables[key] = one.contains(key) ? one[key] : Json();
  variables["add_generation_prompt"] =
      one.contains("add_generation_prompt") && one["add_generation_prompt"].get<bool>();
  variables.update(one.contains("special_tokens") ? one["special_tokens"] : special_tokens);
  if (one.contains("kwargs")) variables.update(one["kwargs"]);
  return variables;
}

}  // namespace

TEST_SUITE("jinja") {
  TEST_CASE("templates print what jinja2 prints, and fail where it fails") {
    const Json golden = Json::parse(content(testing::golden_path("text/jinja.json")));
    for (const Json& one : golden["cases"]) {
      const std::string source = one["template"];
      const std::string problem = [&] {
        try {
          return difference(ChatTemplate(source, "chat_template"), golden["variables"], one);
        } catch (const UserError& error) {
          return one.contains("error") ? std::string() : concat("refused: ", error.what());
        }
      }();
      CHECK_MESSAGE(problem.empty(), source << ": " << problem);
    }
    CHECK(golden["cases"].size() > 100);
  }

  TEST_CASE("published templates render as transformers renders them") {
    const char* const root = std::getenv("BLIPFT_SHARED");
    const std::filesystem::path folder = std::string(root ? root : "../shared") + "/data/chat_templates";
    if (!std::filesystem::exists(folder)) {
      std::cout << "SKIPPED: published chat templates (no " << folder.string() << "; set BLIPFT_SHARED)" << std::endl;
      return;
    }
    const Json data = Json::parse(content(folder / "conversations.json"));
    std::map<std::string, Json> cases;
    for (const Json& one : data["cases"])
      if (!one.contains("continue_final_message"))
        cases[one["case"]] = variables_of(one, data["default_special_tokens"]);
    std::map<std::string, std::unique_ptr<ChatTemplate>> templates;
    std::ifstream in(folder / "expected.jsonl", std::ios::binary);
    int64_t compared = 0;
    for (std::string line; std::getline(in, line);) {
      const Json expected = Json::parse(line);
      const auto variables = cases.find(expected["case"]);
      if (variables == cases.end()) continue;
      const std::string name = expected["template"];
      std::unique_ptr<ChatTemplate>& chat = templates[name];
      if (!chat) chat = std::make_unique<ChatTemplate>(content(folder / (name + ".jinja")), name);
      const std::string problem = difference(*chat, variables->second, expected);
      CHECK_MESSAGE(problem.empty(), name << ", " << expected["case"] << ": " << problem);
      ++compared;
    }
    CHECK(compared > 9000);
    CHECK(templates.size() > 160);
  }

  TEST_CASE("errors name template and line") {
    const auto message = [](const std::string& source) {
      return testing::message_of(
          [&] { ChatTemplate(source, "model/chat_template.jinja").render(Json::object(), moment()); });
    };
    CHECK(message("a\n{{ messages[0] }}") == "model/chat_template.jinja:2: 'messages' is undefined");
    CHECK(message("{% if true %}\n{{ 1 +\n }}{% endif %}") ==
          "model/chat_template.jinja:3: found the end of the tag, expected an expression. Correct the chat template.");
    CHECK(message("{{ raise_exception('no system message') }}") == "model/chat_template.jinja:1: no system message");
  }

  TEST_CASE("hostile templates end in one error, soon and in little memory") {
    const auto repeated = [](const std::string& text, int times) {
      std::string out;
      for (int i = 0; i < times; ++i) out += text;
      return out;
    };
    const std::string doubled = "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ";
    const std::vector<std::string> hostile = {
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f() %}{% for i in range(9) %}{{ f() }}{% endfor %}{% endmacro %}{{ f() }}",
        doubled + "ns.x ~ ns.x %}{% endfor %}",
        doubled + "[ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        doubled + "[ns.x, ns.x] %}{% endfor %}{{ ns.x|tojson }}",
        doubled + "[ns.x, ns.x] %}{% endfor %}{{ ns.x == ns.x }}",
        doubled + "[ns.x] + [ns.x] %}{% endfor %}{% for i in range(999) %}{% set ns.x = [ns.x] %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{{ 'x' * 10**12 }}",
        "{{ [1] * 10**12 }}",
        "{{ 'x'|indent(10**12) * 10**9 }}",
        "{{ 9**9**9 }}",
        "{{ 2**63 }}",
        "{{ '%099999999d' % 1 }}",
        "{{ 'a'.replace('', 'x' * 10**6) * 10**6 }}",
        repeated("{% if true %}", 5000),
        repeated("{{ (", 1) + repeated("(", 100000),
        "{{ " + repeated("[", 100000),
        "{{ 1" + repeated(" + 1", 100000) + " }}",
        "{{ x" + repeated(".x", 100000) + " }}",
        "{{ " + repeated("not ", 100000) + "x }}",
        "{{ x" + repeated("|trim", 100000) + " }}",
        "{% if a %}" + repeated("{% elif a %}", 100000) + "{% endif %}"};
    for (const std::string& source : hostile) {
      const auto begin = std::chrono::steady_clock::now();
      const std::string message =
          testing::message_of([&] { ChatTemplate(source, "t").render(Json::object(), moment()); });
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      CHECK_MESSAGE(message.starts_with("t:1: "), source.substr(0, 80) << ": " << message);
      CHECK_MESSAGE(message.size() < 600, source.substr(0, 80));
      CHECK_MESSAGE(seconds < 5, source.substr(0, 80) << ": " << seconds << " s");  // far above what it takes
    }
    // Namespaces may hold each other.
    CHECK(ChatTemplate("{% set n = namespace() %}{% set n.n = [n] %}{{ n.n is sequence }}", "t")
              .render(Json::object(), moment())
              .text == "True");
  }
}
