// blipft: the command line, and the end of every error.
#include <cstdio>
#include <exception>
#include <string>

#include "agreement/rank_guard.h"
#include "base/standard_output.h"
#include "blipft/comm.h"
#include "blipft/config.h"
#include "blipft/datasets.h"
#include "blipft/error.h"
#include "blipft/monitor.h"
#include "blipft/trainer.h"
#include "blipft/version.h"
#include "export/export_model.h"
#include "generate/run_metrics.h"
#include "generate/answers.h"
#include "generate/print_generation_plan.h"
#include "config/recipes.h"
#include "io/hdf5_handle.h"
#include "io/run_log.h"
#include "liveness/launch_watch.h"
#include "liveness/stop_request.h"
#include "plan/print_plan.h"
#include "show/show_samples.h"
#include "weights/hub_cache.h"

namespace {
using namespace blipft;
using Action = CommandLine::Action;

// `ranks`: number of ranks of the run; 0: as parallel.devices says.
Config configuration(const CommandLine& line, int64_t ranks) {
  Config config = load_config(line.config_file, line.overrides, ranks);
  config.model.path = folder_of_model(config.model.path);
  if (!config.given("data.max_text_tokens")) {
    TextSettings texts;
    texts.keys = config.data.keys;
    texts.pictures = config.data.pictures;
    texts.pictures_in_texts = reads_pictures_in_texts(config);
    config.data.max_text_tokens = usual_text_tokens(config.data.path, config.data.format, texts, config.data.max_text_tokens);
  }
  check_metrics(config);
  if (line.smoke_steps > 0) make_smoke(config, line.smoke_steps);
  return config;
}

void print_versions() {
  std::printf("blipft %s, commit %s\ncompiler  %s\n", version_number(), version_commit(), version_compiler().c_str());
  for (const LibraryVersion& library : {mpi_library(), io::hdf5_library(), nccl_library()}) {
    const bool found = !library.found.empty();
    std::printf("%-8s  %s\n", library.name.c_str(), library.built.empty() ? "not in this build" :
                concat("built with ", library.built, found ? ", found " + library.found : ", not found").c_str());
  }
  for (const auto& [name, version] : cuda_versions()) std::printf("%s %s\n", name.c_str(), version.c_str());
}

// Runs the actions that need no MPI. Returns the exit status: 1 if the planned job, or all settings, do not fit.
int answer(const CommandLine& line) {
  if (line.action == Action::help) return std::fputs(help_text(line.help_section).c_str(), stdout), 0;
  if (line.action == Action::version) return print_versions(), 0;
  if (line.action == Action::recipes) return std::fputs(recipe_list().c_str(), stdout), 0;
  const Config config = configuration(line, line.plan_ranks);
  print_notes(config);
  if (line.action == Action::plan) {
    if (line.plan_generation)
      return print_generation_plan(config, {line.plan_ranks, line.plan_gpu_gib, line.plan_fit, line.plan_evaluation}) ? 0 : 1;
    const auto print = line.plan_fit ? print_fit : print_plan;
    return print(config, line.plan_ranks, line.plan_node_ranks, line.plan_gpu_gib) ? 0 : 1;
  }
  if (line.action == Action::show) return show_samples(config, line.show_samples, line.show_random), 0;
  const int64_t ranks = config.parallel.devices;
  std::fputs(to_yaml(ranks > 0 ? resolve_for_ranks(config, ranks) : config).c_str(), stdout);
  return 0;
}

const char* name_of(Action action) {
  switch (action) {
    case Action::generate: return "--generate";
    case Action::evaluate: return "--evaluate";
    case Action::export_model: return "--export";
    default: return "training";
  }
}

int run(const CommandLine& line, const std::string& mistake, int* argc, char*** argv) {
  ignore_signals_of_writes();
  const LaunchWatch launch([&] {           // errors of the run file are reported when all ranks have started
    return (line.config_file.empty() ? Config() : load_config(line.config_file, line.overrides)).parallel.timeout_seconds;
  });
  World world(argc, argv);
  LaunchWatch::mpi_started();
  try {
    world.run_agreeing_on_errors([&] {
      if (!mistake.empty()) throw UserError(mistake);
    });
    RankGuard::compare_actions(name_of(line.action), world);
    if (line.action == Action::export_model) return export_model(line.checkpoint, line.overrides, world), 0;
    Config config;
    world.run_agreeing_on_errors([&] { config = configuration(line, world.size()); });
    if (world.rank() == 0) print_notes(config);
    if (line.action == Action::train) return train(config, world);
    if (line.prompt.empty() && !line.chat) start_run_log(false);  // texts go into files; what is printed beside them delays no rank
    const AnswerRequest request{{line.prompt, line.image, line.system}, line.chat, line.action == Action::evaluate};
    return answer_prompts(config, request, world), 0;
  } catch (const AgreedError& error) {
    if (world.rank() == 0) std::fprintf(stderr, "blipft: %s\n", error.what());
    return 1;
  } catch (const std::exception& error) {
    world.abort(describe(error), 1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  StopRequest::listen();
  try {
    CommandLine line;
    std::string mistake;                   // ranks may have been given different ones, and tell of it together
    try {
      line = parse_command_line(argc, argv);
    } catch (const UserError& error) {
      if (!LaunchWatch::one_of_several()) throw;
      mistake = error.what();
    }
    if (line.action <= Action::export_model) check_libraries({mpi_library(), io::hdf5_library(), nccl_library()});
    if (line.action == Action::train) StopRequest::watch();
    else StopRequest::release();
    return check_standard_output(line.action <= Action::export_model ? run(line, mistake, &argc, &argv) : answer(line));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "blipft: %s\n", describe(error).c_str());
    return 2;
  }
}
