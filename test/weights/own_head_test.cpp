// Checkpoints with a head of their own, against their config.json.
#include <doctest/doctest.h>

#include <vector>

#include "blipft/checkpoint.h"
#include "support/temporary_directory.h"
#include "weights/own_head.h"

using namespace blipft;
using testing::TemporaryDirectory;

namespace {

struct Stored {
  std::string name;
  std::vector<float> values;
};

void write_model(const std::string& folder, const std::string& config, const std::vector<Stored>& tensors) {
  std::vector<CheckpointWriter::Entry> entries;
  const auto size = [](const Stored& tensor) { return static_cast<int64_t>(tensor.values.size()); };
  for (const Stored& tensor : tensors) entries.push_back({tensor.name, DType::f32, {size(tensor)}});
  CheckpointWriter writer(folder, entries);
  for (const Stored& tensor : tensors) writer.write(tensor.name, 0, size(tensor), tensor.values.data());
  writer.write_text("config.json", config);
  writer.finish();
}

}  // namespace

TEST_SUITE("own head") {
  TEST_CASE("a head is its own where config.json ties it and the checkpoint has other numbers") {
    const std::string tied = R"({"model_type": "llama", "tie_word_embeddings": true})";
    const std::string opt = R"({"model_type": "blip-2", "text_config": {"model_type": "opt"}})";
    const std::string head = "lm_head.weight", table = "model.embed_tokens.weight", part = "language_model.";
    const auto own = [](const std::string& config, const std::vector<Stored>& tensors) {
      const TemporaryDirectory directory;
      write_model(directory / "model", config, tensors);
      return has_own_head(directory / "model");
    };
    CHECK(own(tied, {{head, {1, 2}}, {table, {1, 3}}}));
    CHECK_FALSE(own(tied, {{head, {1, 2}}, {table, {1, 2}}}));
    CHECK_FALSE(own(tied, {{table, {1, 2}}}));
    CHECK_FALSE(own(tied, {{head, {1, 2}}}));
    CHECK_FALSE(own(R"({"model_type": "llama"})", {{head, {1, 2}}, {table, {1, 3}}}));  // untied anyway
    CHECK(own(opt, {{part + head, {1, 2}}, {part + "model.decoder.embed_tokens.weight", {1, 3}}}));
    // The family defines the meaning of an absent key.
    CHECK(own(R"({"model_type": "smollm3"})", {{head, {1, 2}}, {table, {1, 3}}}));
    CHECK(own(R"({"model_type": "instructblip", "text_config": {"model_type": "llama"}})",
              {{part + head, {1, 2}}, {part + table, {1, 3}}}));
    // In some families the flag of the whole file counts, not that of the text.
    const std::string text = R"(, "text_config": {"tie_word_embeddings": false}})", in_tree = "model.language_model.embed_tokens.weight";
    CHECK(own(R"({"model_type": "qwen3_vl", "tie_word_embeddings": true)" + text, {{head, {1, 2}}, {in_tree, {1, 3}}}));
    CHECK(own(R"({"model_type": "qwen2_5_vl", "tie_word_embeddings": true)" + text, {{head, {1, 2}}, {table, {1, 3}}}));
    CHECK_FALSE(own(R"({"model_type": "qwen3_vl", "tie_word_embeddings": false)" + text, {{head, {1, 2}}, {in_tree, {1, 3}}}));
    const TemporaryDirectory empty;
    CHECK_FALSE(has_own_head(empty.path.string()));      // loading tells of it
  }
}
