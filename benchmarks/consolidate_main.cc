// A contestant of ours: one rank that has all optimizer state brought to rank 0, by
// consolidate_state_dict or by a pull over RPC from all owners.
#include <torch/utils.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "benchmarks/bench_models.h"
#include "benchmarks/huge_page_array.h"
#include "benchmarks/job_options.h"
#include "benchmarks/round_protocol.h"
#include "client/control/state_destination.h"
#include "client/control/state_pull_rpc.h"
#include "client/rule_options.h"
#include "client/sharded_optimizer.h"
#include "client/status_error.h"
#include "common/cli/command_line.h"

namespace optshard {
namespace {

struct Flags {
  int layers = 20;
  std::string by = "consolidate";
  JobFlags job;
};

CommandLine CommandLineOf(Flags& flags) {
  CommandLine line({"optshard-bench-consolidate",
                    "One rank of ours, whose rounds bring all state to rank 0. run_bench.py drives "
                    "it.",
                    {"optshard-bench-consolidate --layers=2"}});
  line.Add("layers", &flags.layers, "how many layers of Linear(2000, 2000)").AtLeast(1);
  line.Add("by", &flags.by, "consolidate_state_dict, or a pull over RPC from all owners")
      .OneOf({"consolidate", "rpc"});
  AddJobOptions(line, &flags.job);
  return line;
}

// Memory for all slots, of huge pages as that of the bare streams, which stays from round to round.
class SlotsInMemory final : public StateDestination {
 public:
  explicit SlotsInMemory(const std::vector<at::Tensor>& parameters) : parameters_(parameters) {}

  absl::Status Take(const Piece& piece, absl::Span<const Bytes> values) override {
    const int64_t size = ElementBytes(piece.format);
    char* to = MemoryOf(piece, size) + piece.offset_elements * size;
    for (const Bytes& part : values) {
      std::memcpy(to, part.data, part.size);
      to += part.size;
    }
    return absl::OkStatus();
  }

 private:
  char* MemoryOf(const Piece& piece, int64_t size) {
    absl::MutexLock lock(&mutex_);
    HugePageArray& memory = slots_[{piece.parameter, std::string(piece.slot)}];
    if (memory == nullptr) {
      const auto bytes = static_cast<size_t>(parameters_[piece.parameter].numel() * size);
      memory = MakeHugePageArray(bytes / sizeof(float) + 1, 0.0f);
    }
    return reinterpret_cast<char*>(memory.get());
  }

  const std::vector<at::Tensor> parameters_;
  absl::Mutex mutex_;
  std::map<std::pair<int32_t, std::string>, HugePageArray> slots_ ABSL_GUARDED_BY(mutex_);
};

void Pull(const ShardedOptimizer& optimizer, SlotsInMemory& destination) {
  std::vector<StateOwnerAddress> owners;
  for (const std::string& address : optimizer.owner_addresses()) {
    owners.push_back({static_cast<Rank>(owners.size()), address});
  }
  StatePullOptions pull;
  pull.keep_copies = false;
  ValueOrThrow(PullState(owners, destination, pull));
}

Contestant SetUp(const Flags& flags) {
  torch::set_num_threads(1);
  const ShardedOptimizerOptions options = JobOptions(flags.job);
  const std::vector<at::Tensor> parameters = MakeLinearLayers(flags.layers)->parameters();
  const auto optimizer =
      std::make_shared<ShardedOptimizer>(parameters, RuleOptions("adam").Set("lr", 0.01), options);
  FillGradients(parameters, 1 + options.rank);
  optimizer->step();
  const auto check = [parameters] { return CheckOf(parameters); };
  if (flags.by == "consolidate") {
    return {[optimizer] { optimizer->consolidate_state_dict(0); }, check};
  }
  const auto slots = std::make_shared<SlotsInMemory>(parameters);
  return {[optimizer, slots, rank = options.rank] {
            if (rank == 0) Pull(*optimizer, *slots);
          },
          check};
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  return optshard::RunContestant(argc, argv, optshard::CommandLineOf, optshard::SetUp);
}
