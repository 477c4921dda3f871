"""Layering: tools/layering.sh finds each kind of breach, and nothing in a tree that keeps the rules."""
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

GOOD = {
    "include/blipft/tensor.h": "#include <vector>\n",
    "include/blipft/ops.h": '#include "blipft/tensor.h"\n',
    "include/blipft/comm.h": "",
    "include/blipft/optimizer.h": "",
    "include/blipft/model.h": "",
    "src/ops/ops_check.h": "",
    "src/config/config.cpp": "#include <yaml-cpp/yaml.h>\n",
    "src/config/config_schema.cpp": "#include <yaml-cpp/yaml.h>\n",
    "src/run/trainer.cpp": '#include "blipft/model.h"\n#include "blipft/comm.h"\n',
    "src/comm/mpi.cpp": "#include <mpi.h>\n",
    "src/comm/nccl.cpp": "#include <nccl.h>\n#include <cuda_runtime.h>\n#include <mpi.h>\n",
    "src/trace/trace.cpp": "#include <hdf5.h>\n",
    "src/cuda/gemm.h": "",
    "src/cuda/gemm.cu": '#include <cublasLt.h>\n#include "gemm.h"\n#include "../ops/ops_check.h"\n'
                        '#include "blipft/ops.h"\n',
    "src/cpu/gemm.cpp": '#include <cblas.h>\n#include <immintrin.h>\n#include "ops/ops_check.h"\n',
    "src/models/vit.cpp": '#include "blipft/ops.h"\n',
    "src/models/blocks/linear_layer.cpp": "  ops.linear_forward({.x = x, .y = y}, stream);\n",
    "src/strategies/fsdp.cpp": '#include "blipft/comm.h"\n#include "blipft/optimizer.h"\n',
    "src/optimizers/adamw.cpp": '#include "blipft/optimizer.h"\n#include "blipft/ops.h"\n',
}

# file, the line that breaks a rule
BREACHES = [
    ("src/run/trainer.cpp", "#include <cuda_runtime.h>"),
    ("src/run/trainer.cpp", '#include "cuda_bf16.h"'),
    ("src/cuda/gemm.cu", "#include <nccl.h>"),
    ("src/run/trainer.cpp", "#include <mpi.h>"),
    ("src/run/trainer.cpp", "  #  include <hdf5.h>"),
    ("src/run/command_line.cpp", "#include <yaml-cpp/node/node.h>"),
    ("include/blipft/comm.h", "#include <mpi.h>"),
    ("include/blipft/tensor.h", '#include "ops/ops_check.h"'),
    ("include/blipft/tensor.h", "#include <nlohmann/json.hpp>"),
    ("include/blipft/tensor.h", "#include <unistd.h>"),
    ("src/models/vit.cpp", '#include "blipft/comm.h"'),
    ("src/models/vit.cpp", '#include "blipft/optimizer.h"'),
    ("src/models/vit.cpp", '#include "../cuda/gemm.h"'),
    ("src/models/vit.cpp", '#include "strategies/new.h"'),
    ("src/models/vit.cpp", "  context.ops.linear_forward({.x = x, .y = y}, context.stream);"),
    ("src/models/vit.cpp", "  ops->linear_backward_weight(args, stream);"),
    ("src/strategies/fsdp.cpp", '#include "blipft/model.h"'),
    ("src/strategies/fsdp.cpp", '#include "models/vit.h"'),
    ("src/optimizers/adamw.cpp", '#include "blipft/config.h"'),
    ("src/optimizers/adamw.cpp", '#include "ops/ops_check.h"'),
    ("src/cpu/gemm.cpp", '#include "cuda/gemm.h"'),
    ("src/cpu/gemm.cpp", '#include "blipft/model.h"'),
    ("src/cuda/gemm.cu", '#include "blipft/config.h"'),
    ("src/store/store.cpp", '#include "blipft/strategy.h"'),
    ("src/ops/check.cpp", '#include "blipft/config.h"'),
    ("src/comm/mpi.cpp", '#include "blipft/model.h"'),
    ("src/data/loader.cpp", '#include "blipft/model.h"'),
    ("src/io/reader.cpp", '#include "blipft/config.h"'),
    ("src/config/config.cpp", '#include "blipft/model.h"'),
    ("src/memory/plan.cpp", '#include "strategies/fsdp.h"'),
    ("src/trace/trace.cpp", '#include "models/vit.h"'),
    ("src/run/trainer.cpp", '#include "cuda/gemm.h"'),
    ("src/strategies/fsdp.cpp", '#include "run/trainer.h"'),
]


def layering(files):
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = os.path.join(root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as f:
                f.write(text)
        done = subprocess.run([os.path.join(ROOT, "tools/layering.sh"), root], capture_output=True, text=True)
        return done.returncode, done.stdout


def main():
    failed = 0

    def report(name, ok, text=""):
        nonlocal failed
        failed += not ok
        print(("ok " if ok else "FAILED ") + name + ("" if ok else ": " + text))

    code, out = layering(GOOD)
    report("layering: a tree that keeps the rules", code == 0 and out == "", out)
    for name, line in BREACHES:
        files = dict(GOOD)
        files[name] = files.get(name, "") + line + "\n"
        number = files[name].count("\n")
        code, out = layering(files)
        expected = f"{name}:{number}: {line.strip()}"
        report(f"layering: {name} with {line.strip()}",
               code == 1 and out.startswith(expected) and "1 breach" in out, out)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
