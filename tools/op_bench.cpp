// op_bench: times the ops of a step on the CUDA backend, and compares them with the GPU's rates.
//
//   op_bench [--batch N,N,...] [--filter TEXT] [--json FILE] [--cache FILE] [--device N] [--ceilings] [--tf32]
//
// The shapes are those of BLIP-2 opt-2.7b with micro-batches of 16 and of 64 samples; attention also at those of LLaMA.
// Two ceilings are measured first: a kernel that copies 1 GiB, and a bf16 product of 8192 x 8192 x 8192; --ceilings
// stops after them. Each op's bytes (inputs and outputs once) and operations (2 a multiply-add) give a lower bound of its time
// at those rates; the last column is this bound divided by the measured time, and names the limiting rate. "from" is the
// source of the inputs: device memory, or the L2 cache if the previous op just wrote small tensors; the latter can exceed
// the copy rate. Operations are those of the shapes, not of the tiles that kernels pad them to.
// With --tf32, products of f32 factors use TF32: the rows whose shape ends with "f32".
#include "bench_options.h"
#include "op_bench/cases.h"

int main(int argc, char** argv) {
  using namespace blipft::bench;
  return run_main("op_bench", [&] {
    const Options options({{"--batch", "16,64", "N,N,..."}, {"--filter", "", "TEXT"}, {"--json", "", "FILE"},
                           {"--cache", "build/gemm-cache.txt", "FILE"}, {"--device", "0", "N"}, {"--ceilings", "", ""},
                           {"--tf32", "", ""}},
                          argc, argv);
    Harness harness(static_cast<int>(options.number("--device")), options.text("--cache"), options.flag("--tf32"));
    harness.print_header();
    harness.measure_ceilings();
    if (!options.flag("--ceilings")) {
      harness.set_filter(options.text("--filter"));
      for (int64_t batch : options.numbers("--batch")) {
        linear_cases(harness, batch);
        blip2_attention_cases(harness, batch);
        row_cases(harness, batch);
      }
      other_attention_cases(harness);
      decode_cases(harness);
      flat_cases(harness);
    }
    if (options.flag("--json")) harness.write_json(options.text("--json"));
  });
}
