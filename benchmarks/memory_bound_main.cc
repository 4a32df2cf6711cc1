// A limit: the memory traffic of the Adam update of one rank's share, nothing else, in huge pages
// where the machine gives them. One process a rank, all at once: they share the bandwidth. With
// several replicas it is the traffic of a one-pass step: all their gradients are read, all their
// parameters written. All of it is the process's own memory, which is faster than shared memory in
// small pages.
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "benchmarks/bench_flags.h"
#include "benchmarks/huge_page_array.h"
#include "benchmarks/round_protocol.h"
#include "benchmarks/stream_rule.h"
#include "common/stagger.h"

ABSL_FLAG(int, rank, 0, "this process's rank");
ABSL_FLAG(int, world_size, 1, "number of ranks");
ABSL_FLAG(int64_t, elements, 0, "float32 parameters, all ranks'");
ABSL_FLAG(int, replicas, 1, "gradients and parameters of as many replicas are moved");
ABSL_FLAG(bool, share_parameters, false, "one copy of the parameters for all replicas");

namespace optshard {
namespace {

// A rank's share of every replica.
class Share {
 public:
  Share(int64_t elements, int replicas, bool share_parameters) {
    SpanUpdate& span = span_;
    span.elements = elements;
    span.slots = {Array(elements, 0), Array(elements, 0)};
    span.parameter = Array(elements, 0);
    for (int i = 0; i < replicas; ++i) gradients_.push_back(Array(elements, 1));
    if (replicas == 1) {
      span.gradient = gradients_[0];
      return;
    }
    for (int i = 1; i < replicas && !share_parameters; ++i) copies_.push_back(Array(elements, 0));
    group_sizes_ = {replicas};
    span.replicas.gradients = gradients_;
    span.replicas.group_sizes = group_sizes_;
    span.replicas.copies = absl::MakeSpan(copies_);
  }

  void Stream() const { StreamRule().Update(DriverKind::kSimd, Coefficients(), span_); }
  float first_parameter() const { return span_.parameter[0]; }

 private:
  float* Array(int64_t elements, float value) {
    const size_t begin = StaggerBytes(arrays_.size()) / sizeof(float);
    arrays_.push_back(MakeHugePageArray(elements + static_cast<int64_t>(begin), value));
    return arrays_.back().get() + begin;
  }

  std::vector<HugePageArray> arrays_;
  std::vector<const float*> gradients_;
  std::vector<float*> copies_;
  std::vector<int> group_sizes_;
  SpanUpdate span_;
};

Contestant SetUp() {
  const int64_t elements = absl::GetFlag(FLAGS_elements);
  const int64_t rank = absl::GetFlag(FLAGS_rank);
  const int64_t world_size = absl::GetFlag(FLAGS_world_size);
  const int64_t own = elements * (rank + 1) / world_size - elements * rank / world_size;
  const auto share = std::make_shared<Share>(own, absl::GetFlag(FLAGS_replicas),
                                             absl::GetFlag(FLAGS_share_parameters));
  return {[share] { share->Stream(); },
          [share]() -> std::map<std::string, double> {
            return {{"first_parameter", share->first_parameter()}};
          }};
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  optshard::ParseBenchFlags(argc, argv, "The memory bound of one rank; run_bench.py drives it.");
  return optshard::ServeRounds(optshard::SetUp);
}
