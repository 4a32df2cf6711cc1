// Updates of several spans by a rule that has kernels, which kernels and the CPU's drivers do to
// copies of the same memory: every variant of every rule, in every type, at odd sizes and
// alignments.
#ifndef OPTSHARD_TESTS_SERVER_UPDATE_CUDA_KERNEL_JOBS_H_
#define OPTSHARD_TESTS_SERVER_UPDATE_CUDA_KERNEL_JOBS_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "common/block_code.h"
#include "common/buffer.h"
#include "common/dtype.h"
#include "common/ids.h"
#include "server/update/executor.h"
#include "server/update/update_rule.h"
#include "tests/server/update/rule_cases.h"

namespace optshard::testing {

// Which types a job's arrays have.
enum class JobKind {
  kFloat32,
  kFloat64,
  kBFloat16,
  kBFloat16Master,  // with masters and slots in float32
  kMixed,           // each of any type that is computed in float32
  kMaster,          // 16-bit parameters with masters, or float32 ones that are rounded
  kCorrected,       // 16-bit parameters with corrections
  kCodedFloat32,    // all slots in 8 bits that can be, the rest float32
  kCoded,           // like kMixed, with slots in 8 bits
};
constexpr JobKind kJobKinds[] = {
    JobKind::kFloat32,        JobKind::kFloat64,      JobKind::kBFloat16,
    JobKind::kBFloat16Master, JobKind::kMixed,        JobKind::kMaster,
    JobKind::kCorrected,      JobKind::kCodedFloat32, JobKind::kCoded};
std::string NameOf(JobKind kind);

struct JobShape {
  // Of whole parameters.
  static JobShape OfShapes(JobKind kind, std::vector<std::vector<int64_t>> shapes);

  JobKind kind = JobKind::kFloat32;
  std::vector<int64_t> elements;  // of each span
  bool aligned = true;            // or every array begins anywhere
  bool specials = false;          // infinities, NaN, zeros and denormals among the gradients
  bool zeros = false;             // every other parameter, or its master, is zero
  // Of rules that need whole parameters, of each span; empty: any.
  std::vector<std::vector<int64_t>> shapes = {};
};

// Memory with what the arrays of some tasks hold, and the tasks over any copy of it. Thread-
// compatible.
class KernelJob {
 public:
  // Of a rule that takes such types. Where it needs whole parameters, each span is one, of any
  // shape. `step`: of the parameters' counts.
  KernelJob(const RuleCase& rule_case, const JobShape& shape, StepNumber step, uint32_t seed);

  const UpdateRule& rule() const { return *rule_; }
  const std::vector<char>& start() const { return memory_; }  // before the update

  // Over a copy of start() at `at`, 64-byte aligned. Valid as long as the job.
  std::vector<UpdateTask> TasksAt(void* at) const;

  // A span's, in a copy of the memory.
  std::vector<double> Parameter(size_t index, const std::vector<char>& memory) const;

  // What the CPU's scalar driver makes of start().
  std::vector<char> Expected() const;

  // "" where `memory` has the same bits, guards included, where any NaN equals any NaN of its type;
  // otherwise array, index and both values.
  static std::string Difference(const KernelJob& job, const std::vector<char>& memory,
                                const std::vector<char>& expected);
  // Likewise of the slots alone.
  static std::string DifferenceOfSlots(const KernelJob& job, const std::vector<char>& memory,
                                       const std::vector<char>& expected);

 private:
  // An array in the memory; values, or codes with their scales.
  struct Place {
    int64_t offset = -1;  // none
    DType dtype = DType::kFloat32;
    bool is_coded = false;
    BlockCode code = BlockCode::kDynamicSigned;
    int64_t scales = 0;
    bool is_correction = false;
    int64_t elements = 0;
    std::string name;
  };
  struct Task {
    Place parameter, gradient, master, correction;
    std::vector<Place> slots;
    DType rounded_to = DType::kFloat32;
    int64_t elements = 0;
    std::vector<int64_t> shape;
    int coefficients = 0;
  };

  void AddTask(const RuleCase& rule_case, const JobShape& shape, int64_t elements);
  int64_t Reserve(int64_t bytes, size_t element_bytes, bool aligned);
  Place AddArray(const std::string& name, DType dtype, int64_t elements, bool aligned);
  Place AddCoded(const std::string& name, BlockCode code, int64_t elements);
  void Fill(const Place& place, const std::vector<double>& values);
  std::vector<double> Values(int64_t elements, bool is_signed, bool specials);
  static Buffer BufferAt(void* at, const Place& place);
  static std::string DifferenceIn(const Place& place, const char* memory, const char* expected);

  const UpdateRule* rule_;
  std::mt19937 random_;
  std::vector<char> memory_;
  std::vector<Coefficients> coefficients_;  // of two step counts
  std::vector<Task> tasks_;
};

// Of all rules that have kernels, where these are linked in.
std::vector<RuleCase> KernelRuleCases();

// Whether products of matrices are computed, whose bits on a GPU are not the CPU's.
bool MultipliesMatrices(const RuleCase& rule_case);

// Whether the rule takes jobs of that kind.
bool Takes(const RuleCase& rule_case, JobKind kind);

// The shapes that both the host's and a device's test go through; `kind` in each.
std::vector<JobShape> JobShapes(const RuleCase& rule_case, JobKind kind);

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_UPDATE_CUDA_KERNEL_JOBS_H_
