// Weights between a checkpoint and the ranks: under which keys and dtypes they are found, and what is saved of them.
#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <set>

#include "engine/settings.h"
#include "strategies/strategy_harness.h"
#include "support/choice_of.h"
#include "support/temporary_directory.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

const char* const kTable = "language_model.model.decoder.embed_tokens.weight";
const char* const kHead = "language_model.lm_head.weight";
const char* const kFirstTrained = "qformer.encoder.layer.0.output_query.dense.weight";

struct Content {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::vector<char> bytes;
  bool operator==(const Content&) const = default;
};
using Contents = std::map<std::string, Content>;

Contents contents_of(const std::string& directory) {
  const SafetensorsReader reader(directory);
  Contents contents;
  for (const auto& [name, tensor] : reader.tensors()) {
    Content& content = contents[name];
    content = {tensor.dtype, tensor.shape, std::vector<char>(static_cast<size_t>(tensor.end - tensor.begin))};
    reader.read(name, 0, tensor.numel(), content.bytes.data());
  }
  return contents;
}

std::vector<float> floats_of(const Content& content) {
  std::vector<float> values(content.bytes.size() / static_cast<size_t>(dtype_size(content.dtype)));
  const auto* halves = reinterpret_cast<const uint16_t*>(content.bytes.data());
  if (content.dtype == DType::f32) std::memcpy(values.data(), content.bytes.data(), content.bytes.size());
  else
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = content.dtype == DType::bf16 ? bf16_to_float(halves[i]) : f16_to_float(halves[i]);
  return values;
}

Content converted(const Content& content, DType dtype) {
  const std::vector<float> values = floats_of(content);
  Content result{dtype, content.shape, std::vector<char>(values.size() * static_cast<size_t>(dtype_size(dtype)))};
  auto* halves = reinterpret_cast<uint16_t*>(result.bytes.data());
  if (dtype == DType::f32) std::memcpy(result.bytes.data(), values.data(), result.bytes.size());
  else
    for (size_t i = 0; i < values.size(); ++i)
      halves[i] = dtype == DType::bf16 ? float_to_bf16(values[i]) : float_to_f16(values[i]);
  return result;
}

// The tiny model with other weights, in a folder of this rank alone.
class OtherModel {
 public:
  explicit OtherModel(const Contents& contents) {
    std::filesystem::copy_file(model_directory("blip2_ordinary") + "/config.json", folder_ / "config.json");
    std::vector<CheckpointWriter::Entry> entries;
    for (const auto& [name, content] : contents) entries.push_back({name, content.dtype, content.shape});
    CheckpointWriter writer(folder_ / "weights", entries);
    for (const auto& [name, content] : contents)
      writer.write(name, 0, static_cast<int64_t>(content.bytes.size()) / dtype_size(content.dtype),
                   content.bytes.data());
    writer.finish();
    std::filesystem::rename(folder_ / "weights/model.safetensors", folder_ / "model.safetensors");
  }
  std::string directory() const { return folder_.path.string(); }

 private:
  TemporaryDirectory folder_;
};

Contents stored_as(DType dtype) {
  Contents contents = contents_of(model_directory("blip2_ordinary"));
  for (auto& [name, content] : contents) content = converted(content, dtype);
  return contents;
}

Job saving_job(const OtherModel& model, Precision precision) {
  Job job = make_job("blip2_ordinary", precision);
  job.config.model.path = model.directory();
  job.config.output.save_model = true;
  job.config.train.lr = 0.1;
  job.steps = 1;
  return job;
}

// The content that a job with fsdp on all ranks saves; empty on all ranks but the first.
Contents saved_by(const Job& job) {
  const TemporaryDirectory folder;
  TestRun run(job, {"fsdp"}, &mpi_world());
  run.train();
  run.save(mpi_world(), folder / "model");
  return mpi_world().rank() == 0 ? contents_of(folder / "model") : Contents();
}

bool is_frozen(const std::string& name) {
  return name.rfind("vision_model.", 0) == 0 || name.rfind("language_model.", 0) == 0;
}

std::vector<float> loaded(const std::string& directory, const std::string& parameter) {
  Job job = make_job("blip2_ordinary");
  job.config.model.path = directory;
  job.steps = 0;
  const TestRun run(job, {}, nullptr);
  const Unit* owner = nullptr;
  const Parameter* wanted = nullptr;
  for (const Unit* unit : run.model().units())
    for (const Parameter& own : unit->parameters())
      if (own.name == parameter) owner = unit, wanted = &own;
  REQUIRE(wanted);
  const Tensor part = run.store().weights(*owner).part(wanted->offset, {wanted->numel()});
  return std::vector<float>(part.as<float>(), part.as<float>() + part.numel());
}

// A layer of a checkpoint and an adapter beside it, on all ranks: a frozen group that is loaded and a trained one that
// begins by its Init. No model computes with them.
class Adapted {
 public:
  Adapted() {
    for (Unit* unit : {&layer, &adapter}) {
      unit->index = static_cast<int64_t>(units.size());
      units.push_back(unit);
    }
    config_.output.save_model = true;
    StoreContext held{device_.get(), ops_.get(), &arena_, units, precision_types(config_),
                      optimizer_.get()};
    held.shards = mpi_world().size(), held.index = mpi_world().rank();
    store_ = std::make_unique<ParameterStore>(held);
    strategy_ = make_strategy(StrategyKind::fsdp, {device_.get(), ops_.get(), groups_.groups(), &arena_, store_.get(), units}, {});
    arena_.plan(std::max(loading_scratch_bytes(),
                         saving_scratch_bytes(units, *store_, *strategy_, SaveSettings::of(config_).front())));
    arena_.commit();
    store_->bind();
    strategy_->bind();
  }
  void load(const SafetensorsReader& reader) {
    check_weights(units, reader);
    init_weights(context(), 11, Filled::fresh);
    load_weights(context(), reader, 2);
  }
  void init() { init_weights(context(), 11); }
  void save(const std::string& source, const std::string& directory, const char* what, const SafetensorsReader& from) {
    config_.output.save = choice_of<SavedTensors>(what);
    save_weights(context(), mpi_world(), {directory, source, SaveSettings::of(config_).front(), &from});
  }
  /// All ranks' part of a unit.
  std::vector<uint16_t> whole(const Unit& unit) {
    const int64_t padded = store_->shard(unit).padded;
    std::vector<uint16_t> values(static_cast<size_t>(padded));
    strategy_->gather_weights(unit, {values.data(), DType::bf16, {padded}}, arena_.scratch(),
                              device_->compute_stream());
    values.resize(static_cast<size_t>(unit.numel()));
    return values;
  }

  const ParameterGroup loaded{"layer", false}, fresh{"added", true, Source::fresh};
  Unit layer{"layer", loaded}, adapter{"adapter", fresh};
  const int64_t weight = layer.add(kFirstTrained, {16, 40}, Init::normal(1));
  const int64_t a = adapter.add("adapter.a", {4, 40}, Init::normal(0.5f));
  const int64_t b = adapter.add("adapter.b", {16, 4}, Init::constant(0));
  Units units;

 private:
  WeightContext context() {
    return {units, store_.get(), strategy_.get(), device_.get(), ops_.get(), arena_.scratch()};
  }
  Config config_;                          // bf16-true, pretrained
  std::unique_ptr<Device> device_ = make_cpu_device(1);
  std::unique_ptr<Ops> ops_ = make_cpu_ops();
  CommGroups groups_{mpi_world(), mpi_world().size(), *device_, [](const World& of, bool) { return make_mpi_comm(of); }};
  std::unique_ptr<Optimizer> optimizer_ = make_optimizer(config_.train, config_.steps.seed);
  Arena arena_{*device_};
  std::unique_ptr<ParameterStore> store_;
  std::unique_ptr<Strategy> strategy_;
};

}  // namespace

TEST_SUITE("mpi weights") {
  TEST_CASE("fresh parameters of a pretrained run begin by their Init, and can be saved alone") {
    Contents contents = stored_as(DType::f32);
    contents["adapter.b"] = {DType::f32, {16, 4}, std::vector<char>(16 * 4 * 4, 1)};  // counts for nothing
    const OtherModel model(contents);
    const SafetensorsReader reader(model.directory());
    Adapted run, random;
    run.load(reader);
    random.init();
    const std::vector<uint16_t> adapter = run.whole(run.adapter);
    CHECK(adapter == random.whole(random.adapter));
    double squares = 0;
    for (int64_t i = 0; i < 4 * 40; ++i) squares += std::pow(bf16_to_float(adapter[static_cast<size_t>(run.a + i)]), 2);
    CHECK(std::sqrt(squares / (4 * 40)) == doctest::Approx(0.5).epsilon(0.2));
    for (int64_t i = 0; i < 16 * 4; ++i) CHECK(adapter[static_cast<size_t>(run.b + i)] == 0);
    const std::vector<float> stored = floats_of(contents.at(kFirstTrained));
    const std::vector<uint16_t> layer = run.whole(run.layer);
    REQUIRE(layer.size() == stored.size());
    for (size_t i = 0; i < stored.size(); ++i) CHECK(layer[i] == float_to_bf16(stored[i]));
    CHECK(layer != random.whole(random.layer));

    const TemporaryDirectory folder;
    run.save(model.directory(), folder / "trained", "trained", reader);
    run.save(model.directory(), folder / "all", "all", reader);
    if (mpi_world().rank() != 0) return;
    Contents expected;
    for (const auto& [name, first, shape] : {std::tuple{"adapter.a", run.a, std::vector<int64_t>{4, 40}},
                                             {"adapter.b", run.b, std::vector<int64_t>{16, 4}}}) {
      const char* begin = reinterpret_cast<const char*>(adapter.data() + first);
      expected[name] = {DType::bf16, shape, std::vector<char>(begin, begin + 2 * shape[0] * shape[1])};
    }
    CHECK(contents_of(folder / "trained") == expected);
    expected[kFirstTrained] = contents.at(kFirstTrained);
    CHECK(contents_of(folder / "all") == expected);
  }

  TEST_CASE("the trained tensors of a model are saved alone") {
    const Contents source = stored_as(DType::f32);
    const OtherModel model(source);
    Job job = saving_job(model, Precision::bf16_mixed);
    job.config.model.freeze = {"vision", "language"};
    const Contents all = saved_by(job);
    job.config.output.save = SavedTensors::trained;
    const Contents trained = saved_by(job);
    for (const auto& [name, content] : all) {
      CAPTURE(name);
      CHECK(trained.count(name) == !is_frozen(name));
      if (!is_frozen(name)) CHECK(trained.at(name) == content);
    }
  }

  TEST_CASE("config.json tells the saved dtype wherever it tells one, and files for text and pictures go along") {
    const OtherModel model(stored_as(DType::f32));
    const std::filesystem::path from = model.directory();
    nlohmann::json config = nlohmann::json::parse(read_text_file((from / "config.json").string()));
    config["text_config"]["dtype"] = "float16";
    config["audio_config"] = {{"tower", {{"torch_dtype", nullptr}, {"size", 3}}}};
    std::ofstream(from / "config.json") << config;
    const std::vector<std::string> copied = {"tokenizer.model", "vocab.txt", "merges.txt", "special_tokens_map.json",
                                            "video_preprocessor_config.json", "generation_config.json",
                                            "chat_template.jinja", "tokenizer_config.json"};
    const std::vector<std::string> left = {"README.md", "model.safetensors.index.json", "optimizer.bin", "notes.txt"};
    for (const auto* names : {&copied, &left})
      for (const std::string& name : *names) std::ofstream(from / name) << name;
    Job job = saving_job(model, Precision::bf16_true);
    const TemporaryDirectory folder;
    TestRun run(job, {"fsdp"}, &mpi_world());
    run.save(mpi_world(), folder / "model");
    if (mpi_world().rank() != 0) return;
    for (const std::string& name : copied) CHECK(read_text_file(folder / ("model/" + name)) == name);
    for (const std::string& name : left) CHECK_FALSE(std::filesystem::exists(folder / ("model/" + name)));
    config["text_config"]["dtype"] = config["audio_config"]["tower"]["torch_dtype"] = "bfloat16";
    config["dtype"] = config["torch_dtype"] = "bfloat16";
    CHECK(nlohmann::json::parse(read_text_file(folder / "model/config.json")) == config);
  }

  TEST_CASE("frozen tensors are saved bit for bit as they were stored, whatever they are held in") {
    for (DType stored : {DType::f32, DType::bf16, DType::f16}) {
      const Contents source = stored_as(stored);
      const OtherModel model(source);
      for (Precision precision : {Precision::f32_true, Precision::bf16_true, Precision::bf16_mixed}) {
        CAPTURE(dtype_name(stored));
        CAPTURE(choice_word(precision));
        Job job = saving_job(model, precision);
        job.config.model.freeze = {"vision", "language"};
        job.config.model.quantize = choice_of<WeightQuantization>(stored == DType::f32 ? "none" : stored == DType::bf16 ? "nf4" : "int8");
        const DType trained = precision == Precision::bf16_true ? DType::bf16 : DType::f32;
        for (const auto& [name, content] : saved_by(job)) {
          CAPTURE(name);
          if (is_frozen(name)) CHECK(content == source.at(name));
          else CHECK(content.dtype == trained);
          if (name == kFirstTrained) CHECK(content != converted(source.at(name), trained));
        }
      }
    }
  }

  TEST_CASE("a save_dtype of all tensors converts frozen ones from the checkpoint") {
    const Contents source = stored_as(DType::f16);
    const OtherModel model(source);
    for (const auto& [name, dtype] : {std::pair{"f32", DType::f32}, {"bf16", DType::bf16}}) {
      CAPTURE(name);
      Job job = saving_job(model, Precision::bf16_true);  // holds them rounded
      job.config.model.freeze = {"vision", "language"};
      job.config.output.save_dtype = choice_of<SavedDtype>(name);
      for (const auto& [tensor, content] : saved_by(job)) {
        CAPTURE(tensor);
        CHECK(content.dtype == dtype);
        if (is_frozen(tensor)) CHECK(content == converted(source.at(tensor), dtype));
      }
    }
  }

  TEST_CASE("frozen tensors that come from no checkpoint are saved as they are held") {
    const OtherModel model(stored_as(DType::f32));
    Job job = saving_job(model, Precision::bf16_mixed);
    job.config.model.freeze = {"vision", "language"};
    job.config.model.init = InitialWeights::random;
    for (const WeightQuantization quantize : {WeightQuantization::none, WeightQuantization::nf4}) {
      job.config.model.quantize = quantize;
      const Contents saved = saved_by(job);
      for (const auto& [name, content] : saved)
        CHECK(content.dtype == (is_frozen(name) ? DType::bf16 : DType::f32));
      if (mpi_world().rank() != 0) continue;
      // A block of 64 in nf4 has 16 numbers at most.
      const std::vector<float> layer = floats_of(saved.at("vision_model.encoder.layers.0.mlp.fc1.weight"));
      const std::set<float> block(layer.begin(), layer.begin() + 64);
      CHECK((block.size() <= 16) == (job.config.model.quantize == WeightQuantization::nf4));
    }
  }

  TEST_CASE("a tied pair is loaded from either of its keys, and from the more exact of two") {
    Contents contents = stored_as(DType::f32);
    const std::vector<float> table = floats_of(contents.at(kTable));
    const Content stored = contents.at(kTable), rounded = converted(stored, DType::bf16);
    contents.erase(kTable);
    contents[kHead] = stored;
    CHECK(loaded(OtherModel(contents).directory(), kTable) == table);
    contents[kTable] = rounded;
    CHECK(loaded(OtherModel(contents).directory(), kTable) == table);
    contents[kTable] = stored, contents[kHead] = rounded;
    CHECK(loaded(OtherModel(contents).directory(), kTable) == table);
    contents[kHead].bytes[0] ^= 1;         // the last bit of the first number
    const OtherModel different(contents);
    const auto throws = [&](const OtherModel& bad, const std::string& text) {
      CHECK_THROWS_WITH_AS(loaded(bad.directory(), kTable), doctest::Contains(text.c_str()), UserError);
    };
    throws(different, concat("tensor ", kHead, " differs from ", kTable));
    throws(different, "tie_word_embeddings");
    contents.erase(kTable);
    contents.erase(kHead);
    throws(OtherModel(contents), concat("tensor ", kTable, " is missing"));
  }
}
