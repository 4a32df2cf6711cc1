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

#include "benchmarks/huge_page_array.h"
#include "benchmarks/round_protocol.h"
#include "benchmarks/stream_rule.h"
#include "common/cli/command_line.h"
#include "common/stagger.h"

namespace optshard {
namespace {

struct Flags {
  int rank = 0;
  int world_size = 1;
  int64_t elements = 0;
  int replicas = 1;
  bool share_parameters = false;
};

CommandLine CommandLineOf(Flags& flags) {
  CommandLine line({"optshard-bench-memory",
                    "The memory bound of one rank. run_bench.py drives it.",
                    {"optshard-bench-memory --elements=80000000"}});
  line.Add("rank", &flags.rank, "this process's rank");
  line.Add("world-size", &flags.world_size, "number of ranks").AtLeast(1);
  line.Add("elements", &flags.elements, "float32 parameters of all ranks together").AtLeast(0);
  line.Add("replicas", &flags.replicas,
           "the gradients and parameters of as many replicas are moved")
      .AtLeast(1);
  line.Add("share-parameters", &flags.share_parameters,
           "one copy of the parameters for all replicas");
  return line;
}

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
      span.gradient = static_cast<const float*>(gradients_[0]);
      return;
    }
    for (int i = 1; i < replicas && !share_parameters; ++i) copies_.push_back(Array(elements, 0));
    group_sizes_ = {replicas};
    span.replicas.gradients = gradients_;
    span.replicas.group_sizes = group_sizes_;
    span.replicas.copies = absl::MakeSpan(copies_);
  }

  void Stream() const { StreamRule().Update(DriverKind::kSimd, coefficients_, span_); }
  float first_parameter() const { return span_.parameter.As<float>()[0]; }

 private:
  float* Array(int64_t elements, float value) {
    const size_t begin = StaggerBytes(arrays_.size()) / sizeof(float);
    arrays_.push_back(MakeHugePageArray(elements + static_cast<int64_t>(begin), value));
    return arrays_.back().get() + begin;
  }

  std::vector<HugePageArray> arrays_;
  std::vector<const void*> gradients_;
  std::vector<void*> copies_;
  std::vector<int> group_sizes_;
  SpanUpdate span_;
  const Coefficients coefficients_ = StreamRule().Prepare({}, 1);
};

Contestant SetUp(const Flags& flags) {
  const int64_t begin = flags.elements * flags.rank / flags.world_size;
  const int64_t end = flags.elements * (flags.rank + 1) / flags.world_size;
  const auto share = std::make_shared<Share>(end - begin, flags.replicas, flags.share_parameters);
  return {[share] { share->Stream(); },
          [share]() -> std::map<std::string, double> {
            return {{"first_parameter", share->first_parameter()}};
          }};
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  return optshard::RunContestant(argc, argv, optshard::CommandLineOf, optshard::SetUp);
}
