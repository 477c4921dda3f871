// --plan with --generate or --evaluate: the memory of generation, and the texts that fit.
#pragma once

#include "blipft/config.h"

namespace blipft {

struct GenerationPlanRequest {
  int64_t ranks = 0;                       ///< 0: the config decides
  double gpu_gib = 0;                      ///< memory of a GPU; 0: the GPU of this machine, else an H200's
  bool fit = false;                        ///< prints only the largest numbers of texts for several lengths
  bool scored = false;                     ///< plans --evaluate
};
/// Prints the memory plan of a generation and how many texts of which length fit. Returns true if the generation fits.
/// Needs no GPU and no weights.
bool print_generation_plan(const Config& config, const GenerationPlanRequest& request);

}  // namespace blipft
