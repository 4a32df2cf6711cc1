// Reads the optimizer state of a running job, as any program may: it is no rank, the coordinator's
// address is all that it needs, and no rank waits for it.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "client/control/optimizer_client_rpc.h"
#include "common/cli/command_line.h"
#include "common/state_format.h"

namespace optshard {
namespace {

struct Flags {
  std::string coordinator;
  std::string optimizer = "default";
};

template <typename Number>
double SumOfSquares(const std::vector<char>& bytes, int64_t elements) {
  double sum = 0;
  for (int64_t i = 0; i < elements; ++i) {
    Number value;
    std::memcpy(&value, bytes.data() + i * static_cast<int64_t>(sizeof(value)), sizeof(value));
    sum += static_cast<double>(value) * static_cast<double>(value);
  }
  return sum;
}

// "norm 0.0123", or nothing where the values have a type that this example does not read.
std::string NormText(const OptimizerClient::Slot& slot, const std::vector<char>& bytes) {
  if (slot.format == StateFormat::kFloat32) {
    return absl::StrFormat(", norm %.6g", std::sqrt(SumOfSquares<float>(bytes, slot.elements)));
  }
  if (slot.format == StateFormat::kFloat64) {
    return absl::StrFormat(", norm %.6g", std::sqrt(SumOfSquares<double>(bytes, slot.elements)));
  }
  return "";
}

absl::Status ReadAndShow(const Flags& flags) {
  OptimizerClient::Options options;
  options.coordinator = flags.coordinator;
  options.optimizer = flags.optimizer;
  const auto client = OptimizerClient::Connect(options);
  if (!client.ok()) return client.status();
  const std::vector<OptimizerClient::Slot>& slots = (*client)->slots();
  std::vector<std::vector<char>> values;
  std::vector<char*> places;
  for (const OptimizerClient::Slot& slot : slots) {
    values.emplace_back(static_cast<size_t>(slot.bytes()) + 1);  // an address also of no bytes
    places.push_back(values.back().data());
  }
  const absl::Time begin = absl::Now();
  const auto pulled = (*client)->ReadState(places, OptimizerClient::ReadOptions());
  if (!pulled.ok()) return pulled.status();
  std::printf("%s\n",
              absl::StrFormat("the state of step %d, generation %d: %d slots of %d parameters, %d "
                              "bytes in %.0f ms",
                              pulled->step, pulled->generation, slots.size(),
                              (*client)->spec().space.parameter_count(), pulled->bytes,
                              absl::ToDoubleMilliseconds(absl::Now() - begin))
                  .c_str());
  for (size_t group = 0; group < pulled->hyperparameters.size(); ++group) {
    std::printf("%s\n", absl::StrCat("group ", group, ": ", (*client)->spec().rules[group].name,
                                     " ", pulled->hyperparameters[group].ToString())
                            .c_str());
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    const OptimizerClient::Slot& slot = slots[i];
    std::printf("%s\n",
                absl::StrCat((*client)->spec().space.parameter(slot.parameter).name, " ", slot.name,
                             " ", NameOf(slot.format), " [", absl::StrJoin(slot.shape, ", "), "]",
                             NormText(slot, values[i]))
                    .c_str());
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Flags flags;
  CommandLine line({"optshard-read-state",
                    "Reads the optimizer state of a running job, all of it as it was after one "
                    "step, and shows the hyperparameters of that step and the norm of each slot. "
                    "The job trains on meanwhile.",
                    {"optshard-read-state --coordinator=127.0.0.1:4700"}});
  line.Group("Job");
  line.Add("coordinator", &flags.coordinator, "address of the job's coordinator")
      .Value("HOST:PORT")
      .Required();
  line.Add("optimizer", &flags.optimizer, "which of the job's optimizers");
  const auto end = line.ParseOrEnd(argc, argv);
  if (end) return *end;
  const absl::Status shown = ReadAndShow(flags);
  if (shown.ok()) return EXIT_SUCCESS;
  std::fprintf(stderr, "optshard-read-state: %s\n", shown.ToString().c_str());
  return EXIT_FAILURE;
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) { return optshard::Main(argc, argv); }
