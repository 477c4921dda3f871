#!/usr/bin/env python3
"""The rules of tools/code_rules.py: each kind of breach is found, and none in a tree that keeps them."""
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "test/support"), str(ROOT / "tools")]
import layering  # noqa: E402
import lengths  # noqa: E402
import one_definition  # noqa: E402
import retired_words  # noqa: E402
from script_tests import check, run_tests, test  # noqa: E402

TOOL = ROOT / "tools/code_rules.py"

GOOD = {
    "include/blipft/tensor.h": "#include <vector>\n",
    "include/blipft/ops.h": '#include "blipft/tensor.h"\n',
    "include/blipft/unit.h": '#include "blipft/tensor.h"\n',
    "include/blipft/format.h": '#include "blipft/ops.h"\n',
    "include/blipft/optimizer.h": '#include "blipft/format.h"\n#include "blipft/unit.h"\n',
    "include/blipft/store.h": '#include "blipft/optimizer.h"\n',
    "include/blipft/comm.h": '#include "blipft/tensor.h"\n',
    "include/blipft/model.h": '#include "blipft/unit.h"\n',
    "include/blipft/config.h": "",
    "include/blipft/pictures.h": "",
    "include/blipft/loading.h": "",
    "include/blipft/strategy.h": '#include "blipft/store.h"\n#include "blipft/comm.h"\n',
    "include/blipft/trainer.h": '#include "blipft/config.h"\n',
    "src/main.cpp": '#include "blipft/trainer.h"\n#include "plan/print_plan.h"\n',
    "src/no_cuda.cpp": '#include "blipft/comm.h"\n#include "blipft/ops.h"\n',
    "src/ops/ops_check.h": "",
    "src/io/json.h": "#include <nlohmann/json.hpp>\n",
    "src/config/config.cpp": "#include <yaml-cpp/yaml.h>\n",
    "src/config/config_schema.cpp": "#include <yaml-cpp/yaml.h>\n",
    "src/train/trainer.cpp": '#include "blipft/trainer.h"\n#include "blipft/model.h"\n#include "engine/engine.h"\n',
    "src/plan/print_plan.h": '#include "blipft/config.h"\n',
    "src/plan/print_plan.cpp": '#include "plan/print_plan.h"\n#include "engine/engine.h"\n',
    "src/engine/engine.h": '#include "blipft/strategy.h"\n#include "blipft/model.h"\n'
                           '#include "trace/span_recorder.h"\n',
    "src/weights/weights.h": '#include "blipft/strategy.h"\n',
    "src/trace/span_recorder.h": '#include "blipft/model.h"\n#include "blipft/strategy.h"\n',
    "src/comm/communicator.h": '#include "blipft/comm.h"\n',
    "src/comm/mpi.cpp": '#include <mpi.h>\n#include "comm/communicator.h"\n',
    "src/comm/nccl.cpp": "#include <nccl.h>\n#include <cuda_runtime.h>\n#include <mpi.h>\n",
    "src/trace/trace.cpp": "#include <hdf5.h>\n",
    "src/pictures/image.cpp": '#include <jpeglib.h>\n#include <webp/demux.h>\n#include "blipft/pictures.h"\n'
                          '#include "io/json.h"\n',
    "src/cuda/gemm.h": "",
    "src/cuda/gemm.cu": '#include <cublasLt.h>\n#include "gemm.h"\n#include "../ops/ops_check.h"\n'
                        '#include "blipft/ops.h"\n',
    "src/cpu/gemm.cpp": '#include <cblas.h>\n#include <immintrin.h>\n#include "ops/ops_check.h"\n',
    "src/models/factory.cpp": '#include "blipft/model.h"\n#include "models/families/picture/vit.h"\n#include "io/json.h"\n',
    "src/models/families/picture/vit.h": '#include "blipft/ops.h"\n',
    "src/models/families/text/gemma.cpp": '  return {.spec = {.model_type = "gemma3_text"}};\n  return decoder_spec("blip-2", "X");\n',
    "src/text/chat_formats.cpp": '    {"gemma2", "x"},\n',
    "src/text/tokenizer_classes.cpp": '  if (name == "GemmaTokenizer") return;  // "gemma3"\n',
    "src/models/blocks/linear_layer.cpp": "  ops.linear_forward({.x = x, .y = y}, stream);\n",
    "src/strategies/fsdp.cpp": '#include "blipft/strategy.h"\n#include "blipft/optimizer.h"\n',
    "src/optimizers/adamw.cpp": '#include "blipft/optimizer.h"\n#include "blipft/ops.h"\n',
}

VIT = "src/models/families/picture/vit.h"

# File, the line that breaks a rule, a part of why.
BREACHES = [
    # vendor headers
    ("src/train/trainer.cpp", "#include <cuda_runtime.h>", "only src/cuda/"),
    ("src/train/trainer.cpp", '#include "cuda_bf16.h"', "only src/cuda/"),
    ("src/cuda/gemm.cu", "#include <nccl.h>", "only src/comm/nccl.cpp"),
    ("src/train/trainer.cpp", "#include <mpi.h>", "only src/comm/"),
    ("src/train/trainer.cpp", "  #  include <hdf5.h>", "only src/io/ and src/trace/"),
    ("src/train/command_line.cpp", "#include <yaml-cpp/node/node.h>", "only src/config/"),
    ("src/io/picture.cpp", "#include <png.h>", "only src/pictures/"),
    ("src/train/texts.cpp", "#include <sentencepiece_processor.h>", "only src/text/"),
    # public headers
    ("include/blipft/comm.h", "#include <mpi.h>", "only src/comm/"),
    ("include/blipft/tensor.h", '#include "ops/ops_check.h"', "a public header"),
    ("include/blipft/tensor.h", "#include <nlohmann/json.hpp>", "only src/"),
    ("include/blipft/tensor.h", "#include <unistd.h>", "a public header"),
    ("include/blipft/ops.h", '#include "blipft/config.h"', "config/, which is not below it"),
    ("include/blipft/unknown.h", "", "no room of the table"),
    ("src/train/trainer.cpp", '#include "blipft/unknown.h"', "no room of the table"),
    ("src/attic/old.cpp", "", "no room of the table"),
    # products of models
    (VIT, "  context.ops.linear_forward({.x = x, .y = y}, context.stream);", "LinearLayer"),
    ("src/models/families/text/opt.cpp", "  ops->linear_backward_weight(args, stream);", "LinearLayer"),
    # upwards
    ("src/trace/trace.cpp", '#include "engine/engine.h"', "engine/, which is not below it"),
    ("src/engine/engine.cpp", '#include "plan/print_plan.h"', "plan/, which is not below it"),
    ("src/plan/print_plan.cpp", '#include "train/trainer.h"', "train/, which is not below it"),
    ("src/strategies/fsdp.cpp", '#include "train/trainer.h"', "train/, which is not below it"),
    ("src/store/store.cpp", '#include "blipft/strategy.h"', "strategies/, which is not below it"),
    ("src/memory/arena.cpp", '#include "strategies/fsdp.h"', "strategies/, which is not below it"),
    ("src/comm/mpi.cpp", '#include "blipft/model.h"', "models/, which is not below it"),
    ("src/ops/check.cpp", '#include "blipft/config.h"', "config/, which is not below it"),
    ("src/io/reader.cpp", '#include "blipft/config.h"', "config/, which is not below it"),
    ("src/optimizers/adamw.cpp", '#include "blipft/config.h"', "config/, which is not below it"),
    ("src/cuda/gemm.cu", '#include "blipft/config.h"', "config/, which is not below it"),
    # below, but not in the line of the table
    (VIT, '#include "blipft/comm.h"', "models/ may not include from comm/"),
    (VIT, '#include "blipft/optimizer.h"', "models/ may not include from optimizers/"),
    (VIT, '#include "../../../cuda/gemm.h"', "models/ may not include from cuda/"),
    ("src/strategies/fsdp.cpp", '#include "blipft/config.h"', "strategies/ may not include from config/"),
    ("src/train/trainer.cpp", '#include "cuda/gemm.h"', "train/ may not include from cuda/"),
    ("src/trace/trace.cpp", '#include "blipft/config.h"', "trace/ may not include from config/"),
    *((f"src/{room}/settings.cpp", '#include "blipft/config.h"', f"{room}/ may not include from config/, which is not below it")
      for room in ("evaluate", "checkpoint", "agreement", "liveness", "engine", "weights", "loading", "datasets", "text")),
    # rooms of one floor
    ("src/loading/loader.cpp", '#include "blipft/model.h"', "loading/ may not include from models/"),
    (VIT, '#include "blipft/loading.h"', "models/ may not include from loading/"),
    ("src/cpu/gemm.cpp", '#include "cuda/gemm.h"', "cpu/ may not include from cuda/"),
    # public headers alone
    ("src/optimizers/adamw.cpp", '#include "ops/ops_check.h"', "public headers of ops/ alone"),
    ("src/train/trainer.cpp", '#include "models/families/picture/vit.h"', "public headers of models/ alone"),
    ("src/strategies/fsdp.cpp", '#include "comm/communicator.h"', "public headers of comm/ alone"),
    ("src/strategies/fsdp.cpp", '#include "comm/new.h"', "public headers of comm/ alone"),
    # a cycle, and a header that includes itself
    ("include/blipft/config.h", '#include "blipft/config.h"',
     "a cycle: include/blipft/config.h -> include/blipft/config.h"),
    (VIT, '#include "models/families/picture/vit.h"', "a cycle"),
    ("src/io/reader.cpp", "  path = path.lexically_normal();", "resolves it as the system does"),
    # code before main(), re-execution, symbols of a library's inside, numbers in disguise
    ("src/main.cpp", '[[gnu::section(".preinit_array"), gnu::used]] void (*first)(int, char**, char**) = f;', "runs before main()"),
    ("src/io/reader.cpp", "[[gnu::constructor]] void first() {}", "runs before main()"),
    ("src/io/reader.cpp", "__attribute__((constructor)) void first() {}", "runs before main()"),
    ("src/main.cpp", "  execv(program.c_str(), arguments);  // once more", "executes a program"),
    ("src/comm/mpi.cpp", '  auto f = dlsym(RTLD_DEFAULT, "opal_progress_set_yield_when_idle");', "a symbol inside of an MPI library"),
    ("src/engine/engine.h", "  const float bits = std::bit_cast<float>(kStopped);", "reads a number's bits as another type"),
    ("src/engine/engine.h", "  std::memcpy(&bits, &stopped, sizeof bits);", "reads a number's bits as another type"),
    # names of families
    ("src/weights/own_head.cpp", '  if (type.starts_with("gemma")) return;', "names a model family"),
    ("src/text/tokenizer.cpp", '  if (family == "gemma3_text") return;', "names a model family"),
    ("src/checkpoint/saving.cpp", '  return type == "blip-2" ? 1 : 2;', "names a model family"),
    ("include/blipft/unit.h", '  const char* name = "Blip2Processor";', "names a model family"),
    # settings compared with words
    ("src/train/trainer.cpp", '  if (config.data.text_padding == "max") return;', "compares a setting with a word"),
    ("src/plan/print_plan.cpp", '  const bool c = config_->train.act_ckpt != "none";', "compares a setting with a word"),
    ("src/engine/engine.h", '  bool b = checkpoint.resume.text == "auto";', "compares a setting with a word"),
]

# Breaches that need several lines: files with what is added to them, where the breach is told, a part of why.
THROUGH_HEADERS = [
    ("an upward include of a header is reported once, where it is",
     {"include/blipft/store.h": '#include "blipft/strategy.h"\n', "include/blipft/strategy.h": ""},
     ["include/blipft/store.h:2: ", "include/blipft/strategy.h:1: "],
     ["strategies/, which is not below it", "a cycle"]),
    ("what a header of a room below reaches",
     {"src/main.cpp": '#include "generate/answers.h"\n', "src/generate/answers.h": '#include "blipft/pictures.h"\n'},
     ["src/main.cpp:3: "],
     ["main/ reaches pictures/, which its line does not name: src/generate/answers.h -> include/blipft/pictures.h"]),
    ("the same two headers deep, through a room's own header",
     {"src/main.cpp": '#include "generate/answers.h"\n', "src/generate/answers.h": '#include "generate/files.h"\n',
      "src/generate/files.h": '#include "blipft/pictures.h"\n'},
     ["src/main.cpp:3: "], ["-> src/generate/files.h -> include/blipft/pictures.h"]),
    ("a cycle of two headers",
     {"src/train/a.h": '#include "train/b.h"\n', "src/train/b.h": '#include <vector>\n#include "a.h"\n'},
     ["src/train/b.h:2: "], ["a cycle: src/train/a.h -> src/train/b.h -> src/train/a.h"]),
    ("a text of the run file that is no path, name or text of the user",
     {"include/blipft/config.h": 'struct EvaluateSection {\n  std::vector<std::string> metrics;\n  std::string ignore_before;\n  std::string kind = "all";\n};\n'},
     ["include/blipft/config.h:4: "], ["make it an enum (blipft/choices.h)"]),
    ("a text of a section that has a base, in the header of the room that acts on it",
     {"include/blipft/model.h": 'struct AdapterSection : Rank {\n  std::string path;\n  std::vector<std::string> targets;\n'
                                '  std::string kind = "all";\n};\n'},
     ["include/blipft/model.h:5: "], ["make it an enum (blipft/choices.h)"]),
    ("a text that is named and not there",
     {"include/blipft/config.h": "struct EvaluateSection {\n  std::string ignore_before;\n};\n"},
     ["include/blipft/config.h:1: "], ["evaluate.metrics  -- TEXT_KEYS names it"]),
    ("a room of more files than a reader finds his way in",
     {f"src/agreement/part_{i}.cpp": "" for i in range(21)}, ["src/agreement:21: "], ["more than the 20 of a room"]),
]


def function(lines, head="void f(int x) {", before=""):
    """A function with `lines` lines, from `head` on."""
    return before + head + "\n" + "  x += 1;\n" * (lines - head.count("\n") - 2) + "}\n"


# Name, file, its text, how what is printed begins ("": nothing is).
LENGTHS = [
    ("a file of 500 lines", "src/io/json.h", "\n" * 500, ""),
    ("a file of 501 lines", "src/io/json.h", "\n" * 501, "src/io/json.h: 501 lines"),
    ("a table of 501 lines", "src/io/case_tables.cpp", "\n" * 501, ""),
    ("a function of 60 lines", "src/io/json.h", function(60), ""),
    ("a function of 61 lines", "src/io/json.h", function(61), "src/io/json.h:1: 61 lines"),
    ("a method of 61 lines", "src/io/json.h", "class A {\n  " + function(61).replace("\n", "\n  ") + "};\n", "src/io/json.h:2: 61 lines"),
    ("a signature over lines", "src/io/json.h", function(62, "void f(int x,\n       int y) {"), "src/io/json.h:1: 62 lines"),
    ("a class of 61 lines", "src/io/json.h", "class A {\n" + "  int x;\n" * 70 + "};\n", ""),
    ("a kernel with a comment", "src/cuda/gemm.cu", function(70, "__global__ void f(int x) {", "// All in registers.\ntemplate <int N>\n"), ""),
    ("a kernel without a comment", "src/cuda/gemm.cu", function(70, "__global__ void f(int x) {"), "src/cuda/gemm.cu:1: 70 lines"),
]


@contextlib.contextmanager
def tree(added):
    """The current folder is a tree that keeps the rules, with these texts added to its files."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as root:
        os.chdir(root)
        for name in {**GOOD, **added}:
            path = pathlib.Path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(GOOD.get(name, "") + added.get(name, ""))
        try:
            yield root
        finally:
            os.chdir(before)


# Types of one name: what a file gets besides, and the line that tells of it; none: there is no breach.
DEFINITIONS = [
    ("two structs", {"src/engine/engine.h": "namespace blipft {\nstruct Source { int a; };\n}\n",
                     "src/weights/weights.h": "namespace blipft {\nclass Source final : public Base {\n};\n}\n"},
     "blipft::Source is defined in src/engine/engine.h:5 and in src/weights/weights.h:3"),
    ("an enum and a class", {"src/engine/engine.h": "namespace blipft {\nenum class Kind : char { a };\n}\n",
                             "src/train/trainer.cpp": "namespace blipft {\nclass Kind {};\n}\n"},
     "blipft::Kind is defined in src/engine/engine.h:5 and in src/train/trainer.cpp:5"),
    ("unnamed namespaces, other namespaces, types inside types, declarations, comments and texts",
     {"src/engine/engine.h": "namespace blipft {\nstruct Part {};\nclass Whole { struct Inner {}; };\n}\n",
      "src/weights/weights.h": "namespace blipft::io {\nstruct Part {};\n}\nnamespace blipft {\nstruct Part;\n"
                               "class Other { struct Inner {}; };\n// struct Part {}\n"
                               "const char* const kText = \"struct Part {\";\n}\n",
      "src/train/trainer.cpp": "namespace blipft {\nnamespace {\nstruct Part {};\n}\nstruct Whole::Part {};\n"
                             "void f() { struct Part {} part; }\n}\n"}, ""),
]


@test
def a_tree_that_keeps_the_rules_passes_and_a_breach_fails(space):
    for added, status, said in (({}, 0, "ok layering\nok one_definition\nok lengths\nok retired_words\n"),
                                ({"src/main.cpp": "#include <hdf5.h>\n"}, 1, "FAILED layering (breaches: 1)")):
        with tree(added) as root:
            done = subprocess.run([sys.executable, TOOL, root], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        check(done.returncode == status and said in done.stdout, done.stdout)


@test
def breaches_of_one_line(space):
    for name, line, why in BREACHES:
        with tree({name: line + "\n"}):
            found = layering.breaches()
            number = pathlib.Path(name).read_text().count("\n")
        check(len(found) == 1 and found[0].startswith(f"{name}:{number}: {line.strip()}") and why in found[0], name, line, found)


@test
def what_headers_reach(space):
    for name, added, places, reasons in THROUGH_HEADERS:
        with tree(added):
            found = layering.breaches()
        check(len(found) == len(places) and all(line.startswith(place) and why in line
                                                for line, place, why in zip(found, places, reasons)), name, found)


@test
def types_of_one_name(space):
    for name, added, line in DEFINITIONS:
        with tree(added):
            found = one_definition.breaches()
        check(len(found) == bool(line) and line in "".join(found), name, found)


@test
def lengths_of_files_and_functions(space):
    for name, path, text, line in LENGTHS:
        with tree({}):
            pathlib.Path(path).write_text(text)
            found = lengths.breaches()
        check(found[0].startswith(line) if line else not found, name, found)


# Name, file, its text, how what is printed begins ("": nothing is).
RETIRED = [
    ("a name", "src/io/json.h", "int most_rows(int k);\n", 'src/io/json.h:1: "most" in "most_rows"'),
    ("a constant", "src/io/json.h", "\nconstexpr int kMostRows = 3;\n", 'src/io/json.h:2: "most" in "kMostRows"'),
    ("a word that is a name by itself", "src/io/json.h", "int most = 3;  // at most 3\n", ""),
    ("a comment's sentence", "src/io/json.h", "// Rows of a batch.\n// Whether it is full.\n", 'src/io/json.h:2: "whether" in "Whether it is full."'),
    ("a sentence over lines", "src/io/json.h", "// Rows of a\n// batch. Whether\n// it is full.\n", 'src/io/json.h:2: "whether"'),
    ("a comment behind code", "src/io/json.h", "int a;  ///< Of rows.\nint b;  ///< rows\n", 'src/io/json.h:1: "of"'),
    ("a word within a sentence", "src/io/json.h", "// Says whether the batch is full, of which the rows are.\n", ""),
    ("a message", "src/io/json.cpp", "const char* text = \"nothing is learnt\";\n", 'src/io/json.cpp:1: "learnt" in "nothing is learnt"'),
    ("a page", "docs/data.md", "What is learnt.\n", 'docs/data.md:1: "learnt"'),
    ("a docstring", "tools/trace.py", '"""What a run took.\n\nMore.\n"""\n', 'tools/trace.py:1: "what" in "What a run took."'),
    ("a comment of Python", "tools/trace.py", "a = 1  # rows\n# Of a\n# batch.\nb = 2\n", 'tools/trace.py:2: "of" in "Of a batch."'),
    ("a text of Python", "test/trace_test.py", 'a = "is learnt"\n', 'test/trace_test.py:1: "learnt"'),
    ("a name of Python", "tools/trace.py", "learnt = 1\n", ""),
    ("a run file", "inputs/demo.yaml", "a: 1  # it is learnt\n", 'inputs/demo.yaml:1: "learnt"'),
    ("a job script", "jobs/run.sh", "a=${b#c}\n# Where jobs\n# wait.\n", 'jobs/run.sh:2: "where" in "Where jobs wait."'),
    ("the list of changes", "CHANGELOG.md", "- What is learnt.\n", 'CHANGELOG.md:1: "learnt"'),
    ("code in a page", "docs/data.md", "`learnt` is a key.\n\n    learnt: 1\n\n```\nlearnt\n```\n", ""),
]


@test
def words_that_are_retired(space):
    for name, path, text, line in RETIRED:
        with tree({}):
            pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
            pathlib.Path(path).write_text(text)
            found = retired_words.breaches()
        check(found[0].startswith(line) if line else not found, name, found)


if __name__ == "__main__":
    sys.exit(run_tests("layering_test", lambda folder: folder, TOOL))
