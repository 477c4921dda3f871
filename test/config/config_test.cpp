// Run files: what is read, what is refused, and with which words.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "blipft/config_rules.h"
#include "config/config_schema.h"
#include "config/run_file.h"

using namespace blipft;
using namespace blipft::testing;

TEST_SUITE("config") {
  TEST_CASE("a minimal file has the defaults") {
    const Config config = load(base);
    CHECK(config.model.path == "some/model");
    CHECK(config.model.init == InitialWeights::pretrained);
    CHECK(config.train.precision == Precision::bf16_true);
    CHECK(config.steps.max_steps == -1);
    CHECK(config.steps.max_epochs == 1);
    CHECK(config.parallel.devices == 0);
    CHECK(config.trace.kernels.empty());
    CHECK(config.output.path == "runs/run");
  }

  TEST_CASE("every type is read") {
    const Config config = load(
        "model: {path: \"a b: #\", freeze: [vision, qformer]}\n"
        "data: {path: 'd', shuffle: false, num_train_samples: +512}\n"
        "train:\n  lr: 2e-5\n  precision: 32-true\n  eps: 1.5E-7\n  max_steps: 7\n  seed: 9007199254740993\n"
        "  loss_on_padding: True\n"
        "trace: {kernels: [3, 1]}\n");
    CHECK(config.model.path == "a b: #");
    CHECK(config.model.freeze == std::vector<std::string>{"vision", "qformer"});
    CHECK_FALSE(config.data.shuffle);
    CHECK(config.data.num_train_samples == 512);
    CHECK(config.train.lr == 2e-5);
    CHECK(config.train.eps == 1.5e-7);
    CHECK(config.train.precision == Precision::f32_true);
    CHECK(config.steps.max_steps == 7);
    CHECK(config.steps.max_epochs == -1);
    CHECK(config.steps.seed == 9007199254740993);  // not through a double
    CHECK(config.steps.loss_on_padding);
    CHECK(config.trace.kernels == std::vector<int64_t>{3, 1});
  }

  TEST_CASE("overrides win, the last one last, and are named") {
    const Config config = load(base + "train:\n  lr: 1e-3\n",
                               {"train.lr=2", "train.lr=3e-4", "trace.kernels=[4,5]", "model.freeze=[language]",
                                "output.path=runs/a: b", "data.path=123", "train.precision=bf16-mixed"});
    CHECK(config.train.lr == 3e-4);
    CHECK(config.trace.kernels == std::vector<int64_t>{4, 5});
    CHECK(config.model.freeze == std::vector<std::string>{"language"});
    CHECK(config.output.path == "runs/a: b");
    CHECK(config.data.path == "123");
    CHECK(config.train.precision == Precision::bf16_mixed);
    CHECK(location_of(config, "train.lr") == "override \"train.lr=3e-4\"");
  }

  TEST_CASE("~ at the begin of a path is the home directory") {
    setenv("HOME", "/home/ada", 1);
    const RunFile file("model: {path: ~/m}\ndata: {path: \"~ada/d\"}\n");
    const Config config = load_config(file.name(), {"output.path=~/runs/1", "data.val_path=~", "adapter.path=x/~/y",
                                                    "adapter.kind=lora", "checkpoint.resume=~/c"});
    CHECK(config.model.path == "/home/ada/m");
    CHECK(config.data.path == "~ada/d");
    CHECK(config.output.path == "/home/ada/runs/1");
    CHECK(config.data.val_path == "~");
    CHECK(config.adapter.path == "x/~/y");
    CHECK(config.checkpoint.resume == "/home/ada/c");
  }

  TEST_CASE("places: file and line") {
    const RunFile file(base + "\n# a comment\nparallel:\n  devices: 4\n");
    const Config config = load_config(file.name(), {});
    CHECK(location_of(config, "parallel.devices") == file.name() + ":8");
    CHECK(location_of(config, "train.lr") == file.name());
  }

  TEST_CASE("unknown keys name the nearest") {
    CHECK(names(after_base("train:\n  batchsize: 4\n"),
                {"FILE:6: unknown key train.batchsize", "did you mean train.batch_size?"}));
    CHECK(names(after_base("train:\n  lr: 1\n  acumulate_grad_batches: 4\n"),
                {"FILE:7: unknown key train.acumulate_grad_batches", "did you mean train.accumulate_grad_batches?"}));
    CHECK(names(after_base("train:\n  devices: 4\n"),
                {"FILE:6: unknown key train.devices", "did you mean parallel.devices?"}));
    CHECK(names(after_base("train:\n  path: x\n"), {"FILE:6: unknown key train.path", "did you mean model.path"}));
    CHECK(names(after_base("train:\n  learning_rate: 1\n"),
                {"FILE:6: unknown key train.learning_rate", "did you mean train.lr?"}));
    CHECK(names(after_base("parallel:\n  batchsize: 1\n"),
                {"FILE:6: unknown key parallel.batchsize", "did you mean train.batch_size?"}));
    CHECK(names(after_base("trace:\n  xyzzy: 1\n"), {"FILE:6: unknown key trace.xyzzy"}));
    CHECK(after_base("train:\n  <<: {lr: 1}\n").substr(0, 28) == "FILE:6: unknown key train.<<");
  }

  TEST_CASE("unknown sections name the nearest") {
    CHECK(names(after_base("trian:\n  lr: 1\n"), {"FILE:5: unknown section trian", "did you mean train?"}));
    CHECK(names(after_base("lr: 1\n"), {"FILE:5: unknown section lr", "did you mean train.lr?"}));
    CHECK(names(after_base("train.lr: 1\n"), {"FILE:5: unknown section train.lr", "in a file write"}));
    CHECK(names(after_base("zzz:\n  lr: 1\n"), {"FILE:5: unknown section zzz", "model, adapter, data"}));
  }

  TEST_CASE("wrong types") {
    const auto train = [](const std::string& line) { return after_base("train:\n  " + line + "\n"); };
    CHECK(names(train("lr: fast"), {"FILE:6: train.lr:", "found \"fast\""}));
    CHECK(names(train("lr: \"1e-3\""), {"FILE:6: train.lr:", "found \"1e-3\"", "write it without quotes"}));
    CHECK(names(train("lr: 1e-3x"), {"FILE:6: train.lr:", "found \"1e-3x\""}));
    CHECK(names(train("lr: .nan"), {"FILE:6: train.lr:", "found \".nan\""}));
    CHECK(names(train("lr: inf"), {"FILE:6: train.lr:", "found inf"}));
    CHECK(names(train("lr: 1e999"), {"FILE:6: train.lr:", "found 1e999", "it does not fit a double"}));
    CHECK(names(train("lr: true"), {"FILE:6: train.lr:", "found \"true\""}));
    CHECK(names(train("lr:"), {"FILE:6: train.lr:", "found nothing"}));
    CHECK(names(train("lr: ~"), {"FILE:6: train.lr:", "found nothing"}));
    CHECK(names(train("lr: [1]"), {"FILE:6: train.lr:"}));
    CHECK(names(train("lr: {a: 1}"), {"FILE:6: train.lr:"}));
    CHECK(names(train("batch_size: 4.5"), {"FILE:6: train.batch_size:", "found 4.5"}));
    CHECK(names(train("batch_size: 99999999999999999999"), {"FILE:6: train.batch_size:", "found 99999999999999999999"}));
    CHECK(names(train("batch_size: 0x10"), {"FILE:6: train.batch_size:", "found \"0x10\""}));
    CHECK(names(train("loss_on_padding: yes"), {"FILE:6: train.loss_on_padding:", "found \"yes\""}));
    CHECK(names(train("loss_on_padding: 1"), {"FILE:6: train.loss_on_padding:", "found \"1\""}));
    CHECK(names(train("loss_on_padding: 'true'"),
                {"FILE:6: train.loss_on_padding:", "found \"true\"", "write it without quotes"}));
    CHECK(names(train("optim: adam"), {"FILE:6: train.optim:", "found \"adam\"", "did you mean adamw?"}));
    CHECK(names(train("precision: bf16"), {"FILE:6: train.precision:", "found \"bf16\"", "did you mean bf16-true?"}));
    CHECK(names(train("optim: null"), {"FILE:6: train.optim:", "found nothing"}));
    CHECK(names(after_base("output:\n  path: true\n"), {"FILE:6: output.path:", "found true", "write it in quotes"}));
    CHECK(names(after_base("output:\n  path: 12\n"), {"FILE:6: output.path:", "found 12", "write it in quotes"}));
    CHECK(names(after_base("output:\n  path: \"\"\n"), {"FILE:6: output.path:", "found \"\""}));
    CHECK(names(after_base("trace:\n  kernels: {a: 3}\n"), {"FILE:6: trace.kernels:", "write for example [0, 1]"}));
    CHECK(names(after_base("trace:\n  kernels: [1, x]\n"), {"FILE:6: trace.kernels:", "found \"x\""}));
    CHECK(names(after_base("trace:\n  kernels: [1, 1]\n"), {"FILE:6: trace.kernels:"}));
    CHECK(names(message("model:\n  path: m\n  freeze:\ndata: {path: d}\n"),
                {"FILE:3: model.freeze:", "found nothing", "write for example [name]"}));
    CHECK(names(message("model: {path: m, quantize: nf5}\ndata: {path: d}\n"),
                {"FILE:1: model.quantize:", "found \"nf5\"", "did you mean nf4?"}));
    CHECK(message("model: {path: m, load_in_4bit: true}\ndata: {path: d}\n").find("did you mean model.quantize?") !=
          std::string::npos);
    CHECK(names(message("model: {path: m, freeze: [1]}\ndata: {path: d}\n"),
                {"FILE:1: model.freeze:", "found 1", "write it in quotes"}));
  }

  TEST_CASE("ranges") {
    const auto train = [](const std::string& line) { return after_base("train:\n  " + line + "\n"); };
    CHECK(names(train("lr: 0"), {"FILE:6: train.lr:", "found 0"}));
    CHECK(names(train("lr: -1e-5"), {"FILE:6: train.lr:", "found -1e-5"}));
    CHECK(names(train("max_steps: 0"), {"FILE:6: train.max_steps:", "found 0"}));
    CHECK(names(train("max_steps: -2"), {"FILE:6: train.max_steps:", "found -2"}));
    CHECK(train("max_steps: -1").empty());
    CHECK(names(train("beta1: 1"), {"FILE:6: train.beta1:", "found 1"}));
    CHECK(train("beta1: 0").empty());
    CHECK(names(train("batch_size: 0"), {"FILE:6: train.batch_size:", "found 0"}));
    CHECK(names(after_base("trace:\n  kernels: [-1]\n"), {"FILE:6: trace.kernels:", "found -1"}));
  }

  TEST_CASE("files that are not run files") {
    CHECK(names(message(""), {"FILE:"}));
    CHECK(contains(message("# only a comment\n"), "FILE: the file is empty"));
    CHECK(names(message("hello\n"), {"FILE:1:", "found \"hello\""}));
    CHECK(names(message("- a\n- b\n"), {"FILE:1: found a list"}));
    CHECK(names(message(base + "---\n" + base), {"FILE:", "first YAML document", "remove it"}));
    CHECK(contains(message("{model: {path: m}, data: {path: d}} }"), "FILE:1: not valid YAML"));
    CHECK(message("---\n" + base + "...\n").empty());
    CHECK(contains(message(base + "train:\n  lr: [1, 2\nx"), "not valid YAML"));
    CHECK(contains(message("model:\n  path: a\n bad: b\n"), "FILE:3: not valid YAML: "));
    CHECK(contains(message("model:\n\tpath: a\n"), "FILE:2: not valid YAML: "));
    CHECK(contains(message(std::string(2 << 20, 'x')), "FILE: has 2097152 bytes"));
    CHECK_FALSE(message(std::string("\0\1\2\xff", 4)).empty());
    CHECK_THROWS_WITH_AS(load_config("no/such/file.yaml", {}),
                         "no/such/file.yaml: there is no such run file", UserError);
    CHECK_THROWS_WITH_AS(load_config("/", {}), "/: is a directory, expected a run file (YAML)", UserError);
  }

  TEST_CASE("sections that are not sections, duplicates, missing keys") {
    CHECK(names(after_base("train: 5\n"), {"FILE:5: section train"}));
    CHECK(names(after_base("train: [lr]\n"), {"FILE:5: section train"}));
    CHECK(contains(after_base("train:\n"), "FILE:5: section train is empty"));
    CHECK(after_base("train: {}\n").empty());
    CHECK(names(after_base("train:\n  lr: 1\n  seed: 2\n  lr: 1\n"), {"FILE:8: train.lr", "remove one"}));
    CHECK(names(after_base("model:\n  init: random\n"), {"FILE:5: section model", "join them"}));
    CHECK(contains(after_base("? [a, b]\n: 1\n"), "found a list where a key is expected"));
    CHECK(names(message("model: {path: x}\n"), {"FILE: data.path", "give it in section data"}));
    CHECK(message("model: {path: x}\n", {"data.path=y"}).empty());
  }

  TEST_CASE("overrides are as strict as files") {
    CHECK(names(with_override("train.lr=fast"), {"override \"train.lr=fast\": train.lr:", "found \"fast\""}));
    CHECK(names(with_override("train.lr="), {"override \"train.lr=\": train.lr:", "found nothing"}));
    CHECK(names(with_override("train.lr=["), {"override \"train.lr=[\": train.lr:", "found \"[\""}));
    CHECK(names(with_override("train.batchsize=4"),
                {"override \"train.batchsize=4\": unknown key train.batchsize", "did you mean train.batch_size?"}));
    CHECK(names(with_override("lr=4"), {"override \"lr=4\": unknown key lr", "did you mean train.lr?"}));
    CHECK(names(with_override("trian.lr=4"), {"override \"trian.lr=4\": unknown section trian", "did you mean train.lr?"}));
    CHECK(names(with_override("train.lr"), {"override \"train.lr\":"}));
    CHECK(names(with_override("=4"), {"override \"=4\":"}));
    CHECK(names(with_override("output.path="), {"override \"output.path=\": output.path:", "found \"\""}));
    CHECK(contains(with_override("train.precision=bf16-tru"), "did you mean bf16-true?"));
    CHECK(names(with_override("parallel.reshard=step"), {"override \"parallel.reshard=step\": parallel.reshard:"}));
  }

  TEST_CASE("a text of an override is what it is, and read as in a file where it has quotes around it") {
    const auto style = [](const std::string& value) {
      return load("model: {path: m}\ndata: {path: d}\n", {"data.prompt_style=" + value}).data.prompt_style;
    };
    CHECK(style(R"({instruction}\n: # "x")") == R"({instruction}\n: # "x")");
    CHECK(style(R"("Q: {instruction}\nA:")") == "Q: {instruction}\nA:");
    CHECK(style("'{instruction} it''s'") == "{instruction} it's");
    for (const char* plain : {R"("{instruction}" and "{input}")", R"('{instruction}' # 'x')", R"("{instruction}"")"})
      CHECK(style(plain) == plain);
    CHECK(names(with_override(R"(data.prompt_style="\q {instruction}")"), {"data.prompt_style:", "without them"}));
  }

  TEST_CASE("time limits are read as Slurm writes them") {
    const auto seconds = [](const std::string& limit) {
      return time_limit_seconds(load("model: {path: m}\ndata: {path: d}\n", {"checkpoint.time_limit=" + limit}));
    };
    CHECK(seconds("none") == 0);
    CHECK(seconds("90") == 5400);
    CHECK(seconds("3:50") == 230);
    CHECK(seconds("3:50:01") == 13801);
    CHECK(seconds("100:00:00") == 360000);
    CHECK(seconds("1-12:30") == 131400);
    CHECK(seconds("2-00:00:01") == 172801);
    for (const char* wrong : {"0:00", "3:99:00", "0:00:60", "1-24:00", "1-1:2:3:4", "-1:00", "1:-1", "x:00", "1:", ":1"})
      CHECK(contains(with_override(std::string("checkpoint.time_limit=") + wrong), "checkpoint.time_limit: found"));
  }

  TEST_CASE("data.max_text_tokens may be written max_seq_length") {
    const auto data = [](const std::string& keys) { return "model: {path: m}\ndata:\n  path: d\n" + keys; };
    CHECK(load(data("  max_seq_length: 77\n")).data.max_text_tokens == 77);
    CHECK(load(data(""), {"data.max_seq_length=78"}).data.max_text_tokens == 78);
    CHECK(load(data("  max_text_tokens: 4\n"), {"data.max_seq_length=78"}).data.max_text_tokens == 78);
    CHECK(location_of(load(data(""), {"data.max_seq_length=78"}), "data.max_text_tokens") ==
          "override \"data.max_seq_length=78\"");
    CHECK(names(message(data("  max_text_tokens: 4\n  max_seq_length: 77\n")),
                {"FILE:5: data.max_text_tokens", "remove one"}));
    CHECK(names(message(data("  max_seq_length: 4\n  max_seq_length: 77\n")), {"FILE:5: data.max_text_tokens", "at FILE:4"}));
    CHECK(names(message(data("  max_seq_length: 1\n")), {"FILE:4: data.max_text_tokens:", "found 1"}));
    CHECK(contains(with_override("data.max_seq_len=4"), "did you mean data.max_text_tokens?"));
  }

  TEST_CASE("how records become text") {
    const auto style = [](const std::string& value) { return message(base, {"data.prompt_style=" + value}); };
    CHECK(style("none").empty());
    CHECK(style("Q: {instruction} {input}\nA:").empty());
    CHECK(load(base, {"data.prompt_style={instruction}"}).data.prompt_style == "{instruction}");
    CHECK(names(style("alpca"), {"data.prompt_style:", "did you mean alpaca?"}));
    CHECK(contains(style("Question: {question}"), "a text with {instruction} in it"));
    CHECK(contains(style("{instruction} {output}"), "data.prompt_style: has {output} in it"));
    CHECK(contains(with_override("data.chat_template=lama3"), "did you mean llama3?"));
    CHECK(contains(with_override("data.append_eos=maybe"), "expected one of auto, true or false"));
    const std::string yaml = "model: {path: m}\ndata: {path: d, append_eos: true, mask_prompt: true,\n"
                             "       prompt_style: \"{instruction}:\\n\"}\n";
    CHECK(load(yaml).data.append_eos == AutoSwitch::on);
    CHECK(load(yaml).data.mask_prompt);
    CHECK(load(yaml).data.prompt_style == "{instruction}:\n");
    CHECK(load(to_yaml(load(yaml))).data.prompt_style == "{instruction}:\n");
    CHECK(load(to_yaml(load(yaml))).data.append_eos == AutoSwitch::on);
  }

  TEST_CASE("to_yaml reads back to the same") {
    // Texts with everything that YAML could misread.
    const std::vector<std::string> texts = {
        "a",     "true", "null", "12", "1e-3", "a: b", "# c", " x ", "yes", "\"q\\", "-",    "- a",  "tab\tx", "~",
        "é",     "[a]",  "{",    "&x", "*x",   "!t",   "%",   "@",   "`",   "...",   "---",  "a\nb", "0x1",    ".inf",
        "nan",   "+1",   "a#b",  "'",  "?",    "N",    ",",   "\x7f"};
    for (const std::string& text : texts) {
      Config config = load(base);
      config.model.path = text;
      CAPTURE(text);
      CHECK(load(to_yaml(config)).model.path == text);
    }
    const Config config = load("model: {path: m, freeze: [qformer, vision]}\ndata: {path: d, shuffle: false}\n"
                               "train: {lr: 1.2345678901234567e-17, weight_decay: 0.30000000000000004,\n"
                               "        precision: 32-true, optim: sgd, momentum: 0.9, seed: 9223372036854775807}\n"
                               "parallel: {strategy: fsdp, reshard: always, devices: 3}\n"
                               "trace: {kernels: [7, 1000000000000]}\noutput: {progress_seconds: 1e300}\n");
    const Config again = load(to_yaml(config));
    CHECK(to_yaml(again) == to_yaml(config));
    CHECK(again.train.weight_decay == config.train.weight_decay);
    CHECK(again.steps.seed == 9223372036854775807);
    CHECK(again.trace.kernels == config.trace.kernels);
    CHECK(again.model.freeze == config.model.freeze);
    CHECK_FALSE(again.data.shuffle);
  }

  TEST_CASE("the table: every key can be overridden by its own value, and is printed and documented once") {
    Config defaults;
    defaults.model.path = defaults.data.path = "x";
    const std::string yaml = to_yaml(defaults), help = help_text();
    for (const Key& key : config_keys()) {
      CAPTURE(key.full());
      CHECK(message(base, {key.full() + "=" + value_text(key, defaults)}).empty());
      CHECK(contains(yaml, "\n  " + key.name + ": "));
      CHECK(contains(help, "\n  " + key.name + ": "));
      CHECK_FALSE(key.doc.empty());
      CHECK(find_key(key.section, key.name) == &key);
    }
    CHECK(config_sections() ==
          std::vector<std::string>{"model", "adapter", "data", "train", "parallel", "checkpoint", "generate", "evaluate", "trace",
                                   "output"});
  }

  TEST_CASE("the table: what may differ between ranks, and when a run is resumed") {
    for (const char* key : {"train.lr", "train.seed", "data.shuffle", "model.quantize", "adapter.r", "train.optim",
                            "data.val_split_fraction", "train.gradient_clip_val"}) {
      CAPTURE(key);
      CHECK(rules_of(key).on_resume == OnResume::refused);
      CHECK_FALSE(rules_of(key).of_each_rank);
    }
    for (const char* key : {"data.on_bad_sample", "train.on_nonfinite", "checkpoint.keep", "parallel.timeout_seconds",
                            "trace.spans", "output.save_dtype", "train.act_ckpt", "train.limit_val_batches"})
      CHECK(rules_of(key).on_resume == OnResume::allowed);
    CHECK(rules_of("train.max_steps").on_resume == OnResume::length);
    CHECK(rules_of("output.path").on_resume == OnResume::unreported);
    for (const char* key : {"model.path", "adapter.path", "data.path", "data.val_path", "data.num_workers",
                            "data.prefetch_steps", "parallel.threads"})
      CHECK(rules_of(key).of_each_rank);
    CHECK(rules_of("train.seed").default_value == "0");
    CHECK_THROWS_AS((void)rules_of("train.nothing"), Error);
  }

  TEST_CASE("the run files of the repository") {
    for (const char* name : {"single", "ddp", "fsdp", "demo"}) {
      CAPTURE(name);
      const Config config = load_config(concat("inputs/", name, ".yaml"), {});
      CHECK(config.output.path == concat("runs/", name));
      CHECK(config.parallel.devices == (std::string(name) == "single" ? 1 : 4));
      if (std::string(name) == "demo") continue;
      CHECK(config.train.lr == (config.parallel.devices == 1 ? 2e-5 : 8e-5));
      CHECK(config.steps.batch_size * config.steps.accumulate_grad_batches == 64);
      CHECK(config.steps.loss_on_padding);
      CHECK(config.steps.loss_normalization == LossNormalization::micro_batch);
      CHECK(config.data.num_train_samples == 512);
    }
  }

  TEST_CASE("damaged run files are refused with a UserError or read, and nothing else") {
    std::ostringstream text;
    text << std::ifstream("inputs/fsdp.yaml").rdbuf();
    REQUIRE(text.str().size() > 1000);
    std::mt19937 random(1);
    const std::string bytes = "{}[]:,-#&*!|>'\"%@`?~ \n\t\r\0\x80\xffx1.";
    int64_t refused = 0;
    for (int64_t trial = 0; trial < 300; ++trial) {
      std::string damaged = text.str();
      for (uint64_t change = 0; change <= random() % 3; ++change) {
        const size_t at = random() % damaged.size();
        if (random() % 4 == 0) damaged.erase(at, random() % 200);
        else damaged[at] = bytes[random() % bytes.size()];
      }
      const RunFile file(damaged);
      try {
        load_config(file.name(), {});
      } catch (const UserError& error) {
        ++refused;
        const std::string what = error.what();
        INFO(what);
        CHECK(what.rfind(file.name(), 0) == 0);
      }
    }
    CHECK(refused > 50);
    // Nesting beyond yaml-cpp's own limit of depth.
    CHECK_FALSE(message(base + "train: " + std::string(20000, '[')).empty());
    CHECK_FALSE(message(base + "train: " + std::string(20000, '{')).empty());
  }
}
