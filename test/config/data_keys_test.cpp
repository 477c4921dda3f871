// data.keys, the one key that is a map.
#include <doctest/doctest.h>

#include "blipft/config.h"
#include "config/run_file.h"
#include "support/error_message.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

using Map = std::map<std::string, std::string>;

const std::string required = "model: {path: m}\noutput: {path: o}\ndata:\n  path: d\n";

Map keys_of(const std::string& line, const std::vector<std::string>& overrides = {}) {
  return load_config(RunFile(required + line).name(), overrides).data.keys;
}

void check_refused(const std::string& line, const std::vector<std::string>& parts) {
  const std::string message = message_of([&] { keys_of(line); });
  for (const std::string& part : parts) CHECK_MESSAGE(message.find(part) != std::string::npos, message);
}

}  // namespace

TEST_SUITE("data.keys") {
  TEST_CASE("a map in a file and on the command line, printed so that it is read again") {
    const Map keys = {{"completion", "the answer"}, {"prompt", "question"}};
    CHECK(keys_of("").empty());
    CHECK(keys_of("  keys: {prompt: question, completion: the answer}\n") == keys);
    CHECK(keys_of("  keys:\n    prompt: question\n    completion: \"the answer\"\n") == keys);
    CHECK(keys_of("", {"data.keys={prompt: question, completion: the answer}"}) == keys);
    CHECK(keys_of("  keys: {text: yes}\n", {"data.keys={}"}).empty());
    const RunFile file(required + "  keys: {text: \"a: b\", file_name: \"true\"}\n");
    const std::string printed = to_yaml(load_config(file.name(), {}));
    CHECK_MESSAGE(printed.find("  keys: {file_name: \"true\", text: \"a: b\"}\n") != std::string::npos, printed);
    CHECK(to_yaml(load_config(RunFile(printed).name(), {})) == printed);
  }

  TEST_CASE("what is no map of known names is refused") {
    check_refused("  keys: question\n", {":5: data.keys: found \"question\", expected a map, {messages: name}"});
    check_refused("  keys: [question]\n", {"found a list"});
    check_refused("  keys: {promt: question}\n", {"found \"promt\"", "did you mean prompt?"});
    check_refused("  keys: {prompt: }\n", {"prompt: found nothing, expected the name"});
    check_refused("  keys: {prompt: [a]}\n", {"prompt: found a list, expected the name"});
    check_refused("  keys: {prompt: a, prompt: b}\n", {"prompt"});
  }
}
