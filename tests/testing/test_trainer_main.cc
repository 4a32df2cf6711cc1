// A trainer for integration tests: steps some parameters with gradients that depend on rank and
// step only, and tells what happens as one line of JSON an event:
//   joined   owner_address
//   stepping step, checksum (of the parameters): before the step
//   step     step, checksum: after it
//   adding, added      a param group, after step; at_us
//   torn     as error, and it loads a checkpoint
//   loading, loaded    the state or a checkpoint, after step; at_us
//   done     checksum; with --tell_state state, too: digests of the rank's own
//   error    code, message, ranks, torn, in_doubt, owner_away, at_us, call (step, add or load),
//            checksum
//   again    as error, without checksum: it makes the call again
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/optional.h"
#include "client/parameters_checksum.h"
#include "client/sharded_optimizer.h"
#include "client/state_dict.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/process/child_process.h"
#include "examples/rank_link.h"
#include "tests/testing/table_trainer.h"

ABSL_FLAG(std::string, coordinator, "", "HOST:PORT");
ABSL_FLAG(std::string, embedded_coordinator, "", "HOST:PORT, where rank 0 runs one");
ABSL_FLAG(bool, from_environment, false,
          "take the options from it, but for what a flag says below");
ABSL_FLAG(int, rank, 0, "");
ABSL_FLAG(int, world_size, 1, "");
ABSL_FLAG(std::string, policy, "greedy", "PartitionPolicy");
ABSL_FLAG(std::string, rule, "adam", "update rule");
ABSL_FLAG(std::vector<std::string>, table, {},
          "train the table of all rules instead, with each of these policies, and write to --dump");
ABSL_FLAG(int, table_states, std::numeric_limits<int>::max(),
          "how many of the table's forms of state");
ABSL_FLAG(std::string, bucket_view, "auto", "parameters_as_bucket_view: auto, on or off");
ABSL_FLAG(std::string, plane, "auto", "auto, shm or gloo");
ABSL_FLAG(bool, share_parameters, false, "one copy of the parameters for all ranks");
ABSL_FLAG(std::string, interface, "", "network interface or address of the Gloo plane");
ABSL_FLAG(std::string, owner_listen, "", "where the owner's service listens");
ABSL_FLAG(std::string, node, "", "node name; ranks of one are summed first");
ABSL_FLAG(std::string, attach, "embedded", "or unix:PATH");
ABSL_FLAG(bool, wait_for_trainers, false, "where another one is away");
ABSL_FLAG(
    bool, call_again, false,
    "what was given up because a trainer or an owner is away, and loads that were interrupted");
ABSL_FLAG(bool, tell_state, false, "with done");
ABSL_FLAG(int, steps, 5, "how many");
ABSL_FLAG(std::vector<std::string>, pause_after, {},
          "steps after which it waits until it is told to go on");
ABSL_FLAG(std::vector<std::string>, add_after, {},
          "steps after which a param group is added, or each second time a parameter to group 0");
ABSL_FLAG(int, load_after, 0, "step after which it loads; 0: none");
ABSL_FLAG(std::string, load_from, "",
          "directory of the checkpoint that it loads then; none: half of the state that it has");
ABSL_FLAG(std::string, load_torn, "",
          "directory of the checkpoint that it loads after a torn step");
ABSL_FLAG(bool, load_broken, false, "loads that one after any other error of a step, too");
ABSL_FLAG(std::string, load_checkpoint, "",
          "directory of the checkpoint that it loads before its first step");
ABSL_FLAG(int, die_applying, 0, "step in which it dies while it updates a parameter; 0: none");
ABSL_FLAG(int, skip_every, 0, "before each of so many steps, a call without gradients; 0: none");
ABSL_FLAG(int, parameters, 6, "how many");
ABSL_FLAG(int, elements, 10000, "of the largest parameter");
ABSL_FLAG(std::string, first_name, "parameter_0", "of the first parameter");
ABSL_FLAG(int, join_timeout_ms, 60000, "");
ABSL_FLAG(int, step_timeout_ms, 60000, "");
ABSL_FLAG(bool, hold, false, "go on only when released: before the end, and after an error");
ABSL_FLAG(std::string, dump, "", "folder of the table's results");

namespace optshard {
namespace {

void Tell(const std::string& event, nlohmann::json line) {
  line["event"] = event;
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

void TellMoment(const std::string& event, int step) {
  Tell(event, {{"step", step}, {"at_us", absl::ToUnixMicros(Clock::Monotonic().Now())}});
}

// Cheap, the same on every machine, with sums that depend on their order.
void FillOrderSensitive(uint64_t seed, at::Tensor& tensor) {
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  float* values = tensor.mutable_data_ptr<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const double mantissa = static_cast<double>(state >> 40) / (1 << 23) - 1;
    values[i] = static_cast<float>(std::ldexp(mantissa, static_cast<int>(state >> 35 & 15) - 8));
  }
}

at::Tensor MakeParameter(int number) {
  at::Tensor values = at::zeros({absl::GetFlag(FLAGS_elements) / (number + 1)},
                                at::TensorOptions().dtype(at::kFloat));
  // Other values on each rank: rank 0's must win.
  FillOrderSensitive(1000 * absl::GetFlag(FLAGS_rank) + number, values);
  return values.set_requires_grad(true);
}

std::vector<at::Tensor> MakeParameters() {
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < absl::GetFlag(FLAGS_parameters); ++i) parameters.push_back(MakeParameter(i));
  return parameters;
}

ShardedOptimizerOptions FromFlagsOrEnvironment() {
  if (absl::GetFlag(FLAGS_from_environment)) {
    return ValueOrThrow(ShardedOptimizerOptions::FromEnvironment());
  }
  ShardedOptimizerOptions options;
  options.coordinator = absl::GetFlag(FLAGS_coordinator);
  options.rank = absl::GetFlag(FLAGS_rank);
  options.world_size = absl::GetFlag(FLAGS_world_size);
  options.plane = absl::GetFlag(FLAGS_plane);
  options.attach = absl::GetFlag(FLAGS_attach);
  return options;
}

ShardedOptimizerOptions Options() {
  ShardedOptimizerOptions options = FromFlagsOrEnvironment();
  options.job = "test";
  options.embedded_coordinator = absl::GetFlag(FLAGS_embedded_coordinator);
  options.policy = ValueOrThrow(ParsePartitionPolicy(absl::GetFlag(FLAGS_policy)));
  options.parameters_as_bucket_view =
      ValueOrThrow(ParseBucketView(absl::GetFlag(FLAGS_bucket_view)));
  options.share_parameters = absl::GetFlag(FLAGS_share_parameters);
  options.interface = absl::GetFlag(FLAGS_interface);
  options.owner_listen = absl::GetFlag(FLAGS_owner_listen);
  options.node = absl::GetFlag(FLAGS_node);
  options.wait_for_trainers = absl::GetFlag(FLAGS_wait_for_trainers);
  options.join_timeout = absl::Milliseconds(absl::GetFlag(FLAGS_join_timeout_ms));
  options.step_timeout = absl::Milliseconds(absl::GetFlag(FLAGS_step_timeout_ms));
  options.close_timeout = absl::Seconds(20);
  options.parameter_names = {absl::GetFlag(FLAGS_first_name)};
  for (int i = 1; i < absl::GetFlag(FLAGS_parameters); ++i) {
    options.parameter_names.push_back(absl::StrCat("parameter_", i));
  }
  return options;
}

// Of its own slices: the first write to that page ends this process.
void DieOnceHalfUpdated(const at::Tensor& parameter) {
  const rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto middle = reinterpret_cast<uintptr_t>(parameter.const_data_ptr()) +
                      static_cast<uintptr_t>(parameter.nbytes()) / 2;
  if (mprotect(reinterpret_cast<void*>(middle / page * page), page, PROT_READ) != 0) {
    std::perror("mprotect");
    std::abort();
  }
}

const char* g_call = "";  // that is under way, or was the last one

bool IsAway(const absl::Status& status) {
  return errors::IsTrainerGone(status) || errors::IsOwnerAway(status);
}

// Of a load: others step already; or, where optimizers do not wait, somebody is away, some ranks
// have begun it again and others go on with it, or what a checkpoint replaces is torn.
bool IsInterrupted(const absl::Status& status) {
  if (errors::IsRanksDisagree(status)) return true;
  if (absl::GetFlag(FLAGS_wait_for_trainers)) return false;
  return IsAway(status) || absl::IsAborted(status) ||
         (errors::IsTornStep(status) && !absl::GetFlag(FLAGS_load_from).empty());
}

nlohmann::json Described(const absl::Status& status) {
  return {{"code", absl::StatusCodeToString(status.code())},
          {"message", std::string(status.message())},
          {"ranks", errors::RanksOf(status)},
          {"torn", errors::IsTornStep(status)},
          {"in_doubt", errors::IsStepInDoubt(status)},
          {"owner_away", errors::IsOwnerAway(status)},
          {"call", g_call},
          {"at_us", absl::ToUnixMicros(Clock::Monotonic().Now())}};
}

// As a program does that does not let the optimizer wait for others.
template <typename Call>
void CallAgain(const char* name, bool (*may_repeat)(const absl::Status&), const Call& call) {
  g_call = name;
  const absl::Time deadline =
      absl::Now() + absl::Milliseconds(absl::GetFlag(FLAGS_step_timeout_ms));
  while (true) {
    try {
      return call();
    } catch (const StatusError& error) {
      if (!absl::GetFlag(FLAGS_call_again) || !may_repeat(error.status())) throw;
      if (absl::Now() >= deadline) throw;
      Tell("again", Described(error.status()));
      absl::SleepFor(absl::Milliseconds(20));
    }
  }
}

void Step(ShardedOptimizer& optimizer, const std::vector<at::Tensor>& parameters,
          std::vector<at::Tensor>& gradients, int step) {
  optimizer.zero_grad();
  const int skip_every = absl::GetFlag(FLAGS_skip_every);
  if (skip_every > 0 && step % skip_every == 0) optimizer.step();
  const auto rank = static_cast<uint64_t>(absl::GetFlag(FLAGS_rank));
  for (size_t i = 0; i < parameters.size(); ++i) {
    FillOrderSensitive(1 + i + 100 * rank + 10000 * static_cast<uint64_t>(step), gradients[i]);
    parameters[i].mul(gradients[i]).sum().backward();
  }
  Tell("stepping", {{"step", step}, {"checksum", ParametersChecksum(parameters)}});
  // The largest parameters are spread over the ranks: the middle of this one belongs to this rank.
  if (step == absl::GetFlag(FLAGS_die_applying)) DieOnceHalfUpdated(parameters[rank]);
  CallAgain("step", IsAway, [&] { optimizer.step(); });
  Tell("step", {{"step", step}, {"checksum", ParametersChecksum(parameters)}});
}

// How often the step is among these.
int CountOf(int step, const std::vector<std::string>& steps) {
  return static_cast<int>(std::count(steps.begin(), steps.end(), absl::StrCat(step)));
}

// Until the test says so once, or releases this trainer for good.
void WaitToGoOn() {
  char byte;
  recv(kLinkDescriptor, &byte, 1, 0);
}

void AddAfter(int step, ShardedOptimizer& optimizer, std::vector<at::Tensor>& parameters,
              std::vector<at::Tensor>& gradients) {
  for (int i = 0; i < CountOf(step, absl::GetFlag(FLAGS_add_after)); ++i) {
    const at::Tensor added = MakeParameter(static_cast<int>(parameters.size()));
    TellMoment("adding", step);
    CallAgain("add", IsAway, [&] {
      if (parameters.size() % 2 == 1) return optimizer.add_parameters({added});
      optimizer.add_param_group(torch::optim::OptimizerParamGroup(std::vector<at::Tensor>{added}));
    });
    TellMoment("added", step);
    parameters.push_back(added);
    gradients.push_back(at::zeros(added.sizes(), at::TensorOptions().dtype(at::kFloat)));
  }
}

// Without the state of each second parameter, which begins anew: what is loaded in part differs
// from this, and from the state before.
StateDict HalfOf(StateDict dict) {
  const auto parameters = static_cast<int64_t>(dict.state.size());
  for (int64_t number = 1; number < parameters; number += 2) dict.state.erase(number);
  return dict;
}

// `loaded` is of an attempt before. Where a server was lost as its state was replaced, there is no
// other one.
void LoadHalf(ShardedOptimizer& optimizer, absl::optional<StateDict>& loaded) {
  try {
    optimizer.consolidate_state_dict(-1);
    loaded = HalfOf(optimizer.state_dict());
  } catch (const StatusError& error) {
    if (!absl::IsDataLoss(error.status()) || !loaded.has_value()) throw;
  }
  optimizer.load_state_dict(*loaded);
}

// Returns the step after which it goes on.
int Load(int step, ShardedOptimizer& optimizer, absl::optional<StateDict>& dict) {
  const std::string directory = absl::GetFlag(FLAGS_load_from);
  TellMoment("loading", step);
  CallAgain("load", IsInterrupted, [&] {
    if (directory.empty()) return LoadHalf(optimizer, dict);
    step = static_cast<int>(optimizer.load_checkpoint(directory).step);
  });
  TellMoment("loaded", step);
  return step;
}

bool LoadsAfter(int step) { return step > 0 && step == absl::GetFlag(FLAGS_load_after); }

// Whether another rank still loads what this one, or its predecessor, has loaded before this step:
// all ranks are told to make the call again.
bool OthersLoad(const absl::Status& status, int step, int loaded) {
  return absl::GetFlag(FLAGS_call_again) && absl::GetFlag(FLAGS_load_after) > 0 &&
         step == loaded + 1 && errors::IsRanksDisagree(status);
}

void TellError(const std::string& event, const absl::Status& status,
               const std::vector<at::Tensor>& parameters) {
  nlohmann::json line = Described(status);
  line["checksum"] = ParametersChecksum(parameters);
  Tell(event, line);
}

void Train(std::vector<at::Tensor> parameters, RankLink& test) {
  std::unique_ptr<ShardedOptimizer> optimizer;  // lives on while an error is looked at
  try {
    optimizer = std::make_unique<ShardedOptimizer>(
        parameters, RuleOptions(absl::GetFlag(FLAGS_rule)), Options());
    auto finished = static_cast<int>(optimizer->finished_step());
    Tell("joined", {{"owner_address", optimizer->owner_address()},
                    {"finished_step", finished},
                    {"blob", optimizer->blob()},
                    {"checksum", ParametersChecksum(parameters)}});
    if (!absl::GetFlag(FLAGS_load_checkpoint).empty()) {
      finished =
          static_cast<int>(optimizer->load_checkpoint(absl::GetFlag(FLAGS_load_checkpoint)).step);
      Tell("loaded", {{"step", finished}, {"blob", optimizer->blob()}});
    }
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : parameters) {
      gradients.push_back(at::zeros(parameter.sizes(), at::TensorOptions().dtype(at::kFloat)));
    }
    // A successor has what its predecessor added.
    for (int step = 0; step <= finished; ++step) AddAfter(step, *optimizer, parameters, gradients);
    absl::optional<StateDict> dict;
    if (LoadsAfter(finished)) finished = Load(finished, *optimizer, dict);
    int loaded = finished;  // perhaps by its predecessor
    for (int step = finished + 1; step <= absl::GetFlag(FLAGS_steps); ++step) {
      optimizer->set_blob(absl::StrCat("after step ", step));
      try {
        Step(*optimizer, parameters, gradients, step);
      } catch (const StatusError& error) {
        if (OthersLoad(error.status(), step, loaded)) {
          Tell("again", Described(error.status()));
          step = loaded = Load(loaded, *optimizer, dict);
          continue;
        }
        const std::string directory = absl::GetFlag(FLAGS_load_torn);
        const bool loads = errors::IsTornStep(error.status()) || absl::GetFlag(FLAGS_load_broken);
        if (directory.empty() || !loads) throw;
        TellError("torn", error.status(), parameters);
        step = static_cast<int>(optimizer->load_checkpoint(directory).step);
        Tell("loaded", {{"step", step}, {"blob", optimizer->blob()}});
        continue;
      }
      AddAfter(step, *optimizer, parameters, gradients);
      if (LoadsAfter(step)) step = loaded = Load(step, *optimizer, dict);
      if (CountOf(step, absl::GetFlag(FLAGS_pause_after)) == 0) continue;
      Tell("paused", {{"step", step}});
      WaitToGoOn();
    }
    nlohmann::json done = {{"checksum", ParametersChecksum(parameters)}};
    if (absl::GetFlag(FLAGS_tell_state)) {
      CallAgain("state", IsAway,
                [&] { done["state"] = DigestLines(optimizer->local_state_dict()); });
    }
    Tell("done", done);
    if (absl::GetFlag(FLAGS_hold)) test.WaitForRelease();
    optimizer->Close();
  } catch (const StatusError& error) {
    TellError("error", error.status(), parameters);
    if (absl::GetFlag(FLAGS_hold)) test.WaitForRelease();
    throw;
  }
}

void TrainTable() {
  ShardedOptimizerOptions options = Options();
  options.parameter_names.clear();
  testing::TrainTable(options, absl::GetFlag(FLAGS_table), absl::GetFlag(FLAGS_table_states),
                      absl::GetFlag(FLAGS_dump));
  Tell("done", {});
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  at::set_num_threads(1);
  optshard::RankLink test(/*launched=*/true);
  try {
    if (!absl::GetFlag(FLAGS_table).empty()) {
      optshard::TrainTable();
    } else {
      optshard::Train(optshard::MakeParameters(), test);
    }
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return EXIT_FAILURE;
  }
}
