// The table of strategies.
#include "strategies/replicated.h"
#include "strategies/sharded.h"

namespace blipft {

int64_t shard_count(const std::string& name, int64_t ranks) { return name == "fsdp" ? ranks : 1; }

std::unique_ptr<Strategy> make_strategy(const std::string& name, const StrategyContext& context,
                                        const ShardedSettings& sharded) {
  if (name == "single") {
    BLIPFT_USER_CHECK(context.groups.all->size() == 1, "parallel.strategy: single runs on one rank, but there are ",
                      context.groups.all->size(), "; use ddp or fsdp");
    return std::make_unique<Replicated>(context);
  }
  if (name == "ddp") return std::make_unique<Replicated>(context);
  if (name == "fsdp") return std::make_unique<Sharded>(context, sharded);
  throw UserError(concat("parallel.strategy: found ", name, ", known are single, ddp, fsdp"));
}

}  // namespace blipft
