// A limit: the memory traffic of the owner's Adam update of one rank's share, nothing else, in huge
// pages where the machine gives them. One process a rank, all at once: they share the bandwidth.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "benchmarks/round_protocol.h"
#include "benchmarks/stream_rule.h"

ABSL_FLAG(int64_t, elements, 0, "float32 parameters in this rank's share");

namespace optshard {
namespace {

constexpr size_t kHugePageBytes = 2 << 20;

struct Free {
  void operator()(float* memory) const { std::free(memory); }
};
using Array = std::unique_ptr<float[], Free>;

Array MakeArray(int64_t elements, float value) {
  const size_t bytes = (elements * sizeof(float) / kHugePageBytes + 1) * kHugePageBytes;
  Array array(static_cast<float*>(std::aligned_alloc(kHugePageBytes, bytes)));
  if (array == nullptr) throw std::bad_alloc();
  // Only advice: without huge pages the figure is a little higher.
  (void)madvise(array.get(), bytes, MADV_HUGEPAGE);
  std::fill_n(array.get(), elements, value);
  return array;
}

struct Share {
  explicit Share(int64_t elements)
      : gradient(MakeArray(elements, 1)),
        parameter(MakeArray(elements, 0)),
        exp_avg(MakeArray(elements, 0)),
        exp_avg_sq(MakeArray(elements, 0)) {}
  Array gradient, parameter, exp_avg, exp_avg_sq;
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
