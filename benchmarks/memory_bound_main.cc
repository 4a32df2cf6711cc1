// A limit: the memory traffic of the owner's Adam update of one rank's share, nothing else, in huge
// pages where the machine gives them. One process a rank, all at once: they share the bandwidth.
#include <map>
#include <memory>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "benchmarks/huge_page_array.h"
#include "benchmarks/round_protocol.h"
#include "benchmarks/stream_rule.h"

ABSL_FLAG(int64_t, elements, 0, "float32 parameters in this rank's share");

namespace optshard {
namespace {

struct Share {
  explicit Share(int64_t elements)
      : gradient(MakeHugePageArray(elements, 1)),
        parameter(MakeHugePageArray(elements, 0)),
        exp_avg(MakeHugePageArray(elements, 0)),
        exp_avg_sq(MakeHugePageArray(elements, 0)) {}
  HugePageArray gradient, parameter, exp_avg, exp_avg_sq;
};

Contestant SetUp() {
  const int64_t elements = absl::GetFlag(FLAGS_elements);
  const auto share = std::make_shared<Share>(elements);
  SpanUpdate span;
  span.parameter = share->parameter.get();
  span.gradient = share->gradient.get();
  span.slots = {share->exp_avg.get(), share->exp_avg_sq.get()};
  span.elements = elements;
  return {[span] { StreamRule().Update(DriverKind::kSimd, Coefficients(), span); },
          [share]() -> std::map<std::string, double> {
            return {{"first_parameter", share->parameter[0]}};
          }};
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("The memory bound of one rank; run_bench.py drives it.");
  absl::ParseCommandLine(argc, argv);
  return optshard::ServeRounds(optshard::SetUp);
}
