#include "server/node/memory_need_command.h"

#include <cstdio>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/checked_math.h"
#include "common/cli/command_line.h"
#include "common/cli/parsed_option.h"
#include "server/node/rank_set.h"
#include "server/shard/inspection/size_text.h"

namespace optshard {
namespace {

constexpr char kProgram[] = "optshard-server --memory-need";

struct Flags {
  JobDescription job;
  int64_t parameters = 0;
  DType dtype = DType::kFloat32;
  std::string model;
  bool memory_need = false;  // is given, or this would not run
};

absl::StatusOr<GradientMode> ParseGradientMode(absl::string_view name) {
  return name == NameOf(GradientMode::kAveraged) ? GradientMode::kAveraged : GradientMode::kReduce;
}

CommandLine CommandLineOf(Flags& flags) {
  CommandLine line(
      {kProgram,
       "What the ranks of a node will need in memory, computed as the shard server does when "
       "their trainers attach. Nothing is allocated, and no job runs. The last line of the output "
       "is JSON, in bytes.",
       {"optshard-server --memory-need --node-ranks=0-3 --parameters=80000000",
        "optshard-server --memory-need --node-ranks=0-1 --world-size=4 --model=model.safetensors "
        "--rule=adamw --master-weights"}});
  JobDescription& job = flags.job;
  line.Group("Job");
  line.Add("node-ranks", Into(&job.ranks, ParseRankSet),
           "the ranks of this node, such as 0-3 or 4@1")
      .Value("RANKS")
      .Required();
  line.Add("world-size", &job.world_size, "how many ranks the job has")
      .AtLeast(0)
      .Default("those of this node");
  line.Add("plane", Into(&job.plane, ParseHostPlaneKind),
           "data plane between the shard owners; over Gloo, or where ranks are on other nodes, "
           "reduced gradients and messages take memory")
      .OneOf({"auto", "shm", "gloo"})
      .Default("auto");
  line.Group("Model");
  line.Add("parameters", &flags.parameters,
           "how many parameters the model has: then all ranks own alike, which a model with one "
           "very large parameter does not give")
      .AtLeast(0)
      .Default("as --model says");
  line.Add("dtype", Into(&flags.dtype, ParseDType), "with --parameters: their type")
      .OneOf({"float32", "float64", "bfloat16", "float16"})
      .Default("float32");
  line.Add("model", &flags.model,
           "a .safetensors file that has the model's parameters: names, shapes and types are read, "
           "values are not")
      .Value("FILE")
      .Default("none");
  line.Group("Optimizer");
  line.Add("rule", &job.rule, "the update rule of all parameters, such as adamw").Value("RULE");
  line.Add("policy", Into(&job.policy, ParsePartitionPolicy), "who owns what")
      .OneOf({"greedy", "greedy_in_order", "balanced", "replicated"})
      .Default("greedy");
  line.Add("gradient-mode", Into(&job.gradient_mode, ParseGradientMode),
           "reduce: the step averages the gradients; averaged: the trainer has")
      .OneOf({"reduce", "averaged"})
      .Default("reduce");
  line.Add("master-weights", &job.state.master_weights,
           "16-bit parameters are kept in float32 as well");
  line.Add("main-gradients", &job.main_gradients, "gradients of 16-bit parameters are float32");
  line.Add("state-dtype", Into(&job.state.format, ParseStateFormat), "how the slots are kept")
      .OneOf({"float32", "bfloat16", "int8_dynamic", "int8_companded"})
      .Default("float32");
  line.Add("share-parameters", &job.share_parameters,
           "one copy of the parameters for all ranks of the node");
  line.Add("threads", &job.threads, "of the update of one rank")
      .AtLeast(0)
      .Default("as many as this machine has CPUs");
  line.Add("memory-need", &flags.memory_need, "this page's command").Hidden();
  return line;
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", kProgram, status.ToString().c_str());
  return 1;
}

absl::StatusOr<ParameterSpace> SpaceOf(const Flags& flags) {
  if ((flags.parameters == 0) == flags.model.empty()) {
    return absl::InvalidArgumentError(
        "give either --parameters=N, how many the model has, or --model=FILE");
  }
  return flags.model.empty() ? SpaceOfElements(flags.parameters, flags.dtype, flags.job.world_size)
                             : SpaceOfModel(flags.model);
}

// The rank that needs most.
const NodeMemoryNeed::OfRank& Largest(const NodeMemoryNeed& need) {
  const NodeMemoryNeed::OfRank* largest = &need.ranks.begin()->second;
  for (const auto& [rank, of_rank] : need.ranks) {
    if (of_rank.total() > largest->total()) largest = &of_rank;
  }
  return *largest;
}

std::string Row(const std::string& what, int64_t bytes) {
  return absl::StrFormat("  %-26s %12s  %d\n", what, SizeText(bytes), bytes);
}

}  // namespace

std::string MemoryNeedText(const JobDescription& job, const ParameterSpace& space,
                           const NodeMemoryNeed& need) {
  const NodeMemoryNeed::OfRank& largest = Largest(need);
  const MemoryNeed& most = largest.need;
  const int64_t bookkeeping = most.ledger_bytes + most.record_bytes + most.doorbell_bytes +
                              most.state_window_bytes + NodeMemoryNeed::kRoundingBytes;
  const int64_t server_bytes =
      SaturatingAdd(SaturatingAdd(need.total(), need.snapshot_bytes()), kServerProcessBytes);
  std::string text = absl::StrFormat(
      "%d parameters in %d tensors, rule %s, policy %s, %d ranks, of which %s here\n\n"
      "The rank that needs most:\n",
      space.total_elements(), space.parameter_count(), job.rule, NameOf(job.policy), job.world_size,
      RankSetText(job.ranks));
  absl::StrAppend(&text, Row("parameters", most.parameters_bytes),
                  Row("gradients", most.gradients_bytes), Row("optimizer state", most.slots_bytes),
                  Row("reduced gradients, at most", most.reduced_bytes),
                  Row("messages, at most", most.message_bytes),
                  Row("workspaces, at most", most.workspace_bytes), Row("bookkeeping", bookkeeping),
                  Row("in all", largest.total()), "\nThis node:\n",
                  Row("all ranks (--memory-limit)", need.total()),
                  Row("a snapshot's copies", need.snapshot_bytes()),
                  Row("the server itself", kServerProcessBytes), Row("in all", server_bytes), "\n");
  absl::StrAppendFormat(&text,
                        "{\"world_size\": %d, \"ranks\": \"%s\", \"rank_bytes\": %d, "
                        "\"node_bytes\": %d, \"snapshot_bytes\": %d, \"server_bytes\": %d}\n",
                        job.world_size, RankSetText(job.ranks), largest.total(), need.total(),
                        need.snapshot_bytes(), server_bytes);
  return text;
}

int RunMemoryNeed(int argc, char** argv) {
  Flags flags;
  const auto end = CommandLineOf(flags).ParseOrEnd(argc, argv);
  if (end) return *end;
  if (flags.job.world_size == 0) flags.job.world_size = static_cast<int>(flags.job.ranks.size());
  const absl::StatusOr<ParameterSpace> space = SpaceOf(flags);
  if (!space.ok()) return Fail(space.status());
  const absl::StatusOr<NodeMemoryNeed> need = NodeMemoryNeedOf(flags.job, *space);
  if (!need.ok()) return Fail(need.status());
  std::fputs(MemoryNeedText(flags.job, *space, *need).c_str(), stdout);
  return 0;
}

}  // namespace optshard
