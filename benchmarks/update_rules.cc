// How close the kernel of a rule of two slots comes to the memory's speed: 40 million parameters on
// one and on two threads, round by round beside the stream rule, which moves the same bytes and
// computes next to nothing. Shared machines' memory speed swings within minutes; the rounds' ratios
// do not. With several replicas it is the step of one host: each owns an equal part of the
// parameters, and the pass averages all gradients and writes all replicas.
//
//   bazel run //benchmarks:update_rules [-- --rule=adamw --elements=40000000 --rounds=15]
//   bazel run //benchmarks:update_rules -- --elements=80000000 --replicas=2 [--shared]
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/huge_page_array.h"
#include "benchmarks/shared_array.h"
#include "benchmarks/stream_rule.h"
#include "common/cli/command_line.h"
#include "server/update/cpu/span_executor.h"
#include "server/update/update_rule.h"

namespace optshard {
namespace {

struct Flags {
  std::string rule = "adam";
  int64_t elements = 40'000'000;
  int replicas = 1;
  bool shared = false;
  int rounds = 15;
};

CommandLine CommandLineOf(Flags& flags) {
  CommandLine line(
      {"update_rules",
       "Times the kernel of an update rule beside the speed of the memory.",
       {"update_rules --rule=adamw", "update_rules --elements=80000000 --replicas=2"}});
  line.Add("rule", &flags.rule, "an update rule that has two slots by default");
  line.Add("elements", &flags.elements, "float32 parameters").AtLeast(1);
  line.Add("replicas", &flags.replicas, "each with parameters and gradients of its own").AtLeast(1);
  line.Add("shared", &flags.shared,
           "parameters and gradients lie in memory that processes can share");
  line.Add("rounds", &flags.rounds, "each times the rule and the limit once").AtLeast(1);
  return line;
}

using Array = std::shared_ptr<float[]>;

Array MakeArray(bool shared, int64_t elements, float value) {
  if (shared) return MakeSharedArray(elements, value);
  return MakeHugePageArray(elements, value);
}

// The replicas of one host, and a task for each owner's part.
class Replicas {
 public:
  Replicas(int count, int64_t elements, bool shared, const Coefficients& coefficients)
      : group_sizes_{count},
        first_(MakeHugePageArray(elements, 0)),
        second_(MakeHugePageArray(elements, 0)) {
    for (int replica = 0; replica < count; ++replica) {
      gradients_.push_back(MakeArray(shared, elements, 1e-3f));
      parameters_.push_back(MakeArray(shared, elements, 1));
      gradient_pointers_.push_back(gradients_.back().get());
    }
    copies_.resize(count);
    for (int owner = 0; owner < count; ++owner) {
      for (int replica = 0; replica < count; ++replica) {
        if (replica != owner) copies_[owner].push_back(parameters_[replica].get());
      }
      // Parts begin at cache lines.
      const int64_t begin = elements * owner / count / 16 * 16;
      const int64_t end = owner + 1 == count ? elements : elements * (owner + 1) / count / 16 * 16;
      SpanUpdate span;
      span.parameter = parameters_[owner].get();
      span.slots = {first_.get(), second_.get()};
      span.replicas.gradients = gradient_pointers_;
      span.replicas.group_sizes = group_sizes_;
      span.replicas.copies = absl::MakeSpan(copies_[owner]);
      tasks_.push_back({&coefficients, span.Part(begin, end - begin)});
    }
  }

  absl::Span<const UpdateTask> tasks() const { return tasks_; }

 private:
  std::vector<int> group_sizes_;
  Array first_, second_;
  std::vector<Array> gradients_, parameters_;
  std::vector<const void*> gradient_pointers_;
  std::vector<std::vector<void*>> copies_;  // by owner
  std::vector<UpdateTask> tasks_;
};

double Milliseconds(SpanExecutor& executor, const UpdateRule& rule,
                    absl::Span<const UpdateTask> tasks) {
  const auto start = std::chrono::steady_clock::now();
  executor.Run(rule, tasks);
  const std::chrono::duration<double, std::milli> elapsed =
      std::chrono::steady_clock::now() - start;
  return elapsed.count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Compare(const Flags& flags, const UpdateRule& rule, absl::Span<const UpdateTask> tasks,
             int thread_count) {
  WorkerThreads threads(thread_count);
  SpanExecutor executor(&threads, DriverKind::kSimd);
  Milliseconds(executor, rule, tasks);
  std::vector<double> ours, limits, ratios;
  for (int round = 0; round < flags.rounds; ++round) {
    limits.push_back(Milliseconds(executor, StreamRule(), tasks));
    ours.push_back(Milliseconds(executor, rule, tasks));
    ratios.push_back(ours.back() / limits.back());
  }
  const int64_t bytes = flags.elements * StreamRuleBytesPerElement(flags.replicas);
  std::printf(
      "%s, %d thread%s: %.1f ms, limit %.1f ms (%.1f GB/s), ratio of medians %.3f, "
      "median ratio %.3f (%.2f to %.2f)\n",
      rule.spec().name.c_str(), thread_count, thread_count == 1 ? "" : "s", Median(ours),
      Median(limits), static_cast<double>(bytes) * 1e-6 / Median(limits),
      Median(ours) / Median(limits), Median(ratios),
      *std::min_element(ratios.begin(), ratios.end()),
      *std::max_element(ratios.begin(), ratios.end()));
}

int Main(const Flags& flags) {
  const absl::StatusOr<const UpdateRule*> rule = RuleRegistry::Find(flags.rule);
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
  const Coefficients coefficients = (*rule)->Prepare(group, 1);
  const Replicas replicas(flags.replicas, flags.elements, flags.shared, coefficients);
  for (int thread_count : {1, 2}) Compare(flags, **rule, replicas.tasks(), thread_count);
  return 0;
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  optshard::Flags flags;
  if (const auto end = optshard::CommandLineOf(flags).ParseOrEnd(argc, argv)) return *end;
  return optshard::Main(flags);
}
