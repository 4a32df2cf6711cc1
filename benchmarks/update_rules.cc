// How close the kernel of a rule of two slots comes to the memory's speed: 40 million parameters on
// one and on two threads, round by round beside the stream rule, which moves the same bytes and
// computes next to nothing. Shared machines' memory speed swings within minutes; the rounds' ratios
// do not.
//
//   bazel run //benchmarks:update_rules [-- --rule=adamw --elements=40000000 --rounds=15]
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "benchmarks/huge_page_array.h"
#include "benchmarks/stream_rule.h"
#include "server/update/update_rule.h"
#include "server/update/update_threads.h"

ABSL_FLAG(std::string, rule, "adam", "an update rule that has two slots by default");
ABSL_FLAG(int64_t, elements, 40'000'000, "float32 parameters");
ABSL_FLAG(int, rounds, 15, "rounds; each times the rule and the limit once");

namespace optshard {
namespace {

double Milliseconds(UpdateThreads& threads, const UpdateRule& rule, const SpanTask& task) {
  const auto start = std::chrono::steady_clock::now();
  threads.Run(rule, DriverKind::kSimd, {&task, 1});
  const std::chrono::duration<double, std::milli> elapsed =
      std::chrono::steady_clock::now() - start;
  return elapsed.count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Compare(const UpdateRule& rule, const Coefficients& coefficients, const SpanUpdate& span,
             int thread_count) {
  UpdateThreads threads(thread_count);
  const SpanTask task{&coefficients, span};
  Milliseconds(threads, rule, task);
  std::vector<double> ours, limits, ratios;
  for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
    limits.push_back(Milliseconds(threads, StreamRule(), task));
    ours.push_back(Milliseconds(threads, rule, task));
    ratios.push_back(ours.back() / limits.back());
  }
  const double gigabytes = kStreamRuleBytesPerElement * static_cast<double>(span.elements) * 1e-9;
  std::printf("%s, %d thread%s: %.1f ms, limit %.1f ms (%.1f GB/s), ratio %.2f (%.2f to %.2f)\n",
              rule.spec().name.c_str(), thread_count, thread_count == 1 ? "" : "s", Median(ours),
              Median(limits), gigabytes / (Median(limits) * 1e-3), Median(ratios),
              *std::min_element(ratios.begin(), ratios.end()),
              *std::max_element(ratios.begin(), ratios.end()));
}

int Main() {
  const absl::StatusOr<const UpdateRule*> rule = RuleRegistry::Find(absl::GetFlag(FLAGS_rule));
  if (!rule.ok()) {
    std::fprintf(stderr, "%s\n", rule.status().ToString().c_str());
    return 1;
  }
  const Hyperparameters group = *(*rule)->Validate({});
  const size_t slot_count = (*rule)->Slots(group).size();
  if (slot_count != 2) {
    std::fprintf(stderr, "The limit is that of a rule with 2 slots; \"%s\" has %zu\n",
                 (*rule)->spec().name.c_str(), slot_count);
    return 1;
  }
  const int64_t elements = absl::GetFlag(FLAGS_elements);
  const HugePageArray gradient = MakeHugePageArray(elements, 1e-3f),
                      parameter = MakeHugePageArray(elements, 1);
  const HugePageArray first = MakeHugePageArray(elements, 0),
                      second = MakeHugePageArray(elements, 0);
  SpanUpdate span;
  span.parameter = parameter.get();
  span.gradient = gradient.get();
  span.slots = {first.get(), second.get()};
  span.elements = elements;
  for (int thread_count : {1, 2}) {
    Compare(**rule, (*rule)->Prepare(group, 1), span, thread_count);
  }
  return 0;
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Times an update rule's kernel beside the memory's speed.");
  absl::ParseCommandLine(argc, argv);
  return optshard::Main();
}
