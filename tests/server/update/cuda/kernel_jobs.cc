#include "tests/server/update/cuda/kernel_jobs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/block_code.h"
#include "common/half.h"
#include "common/parameter_space.h"
#include "server/update/cuda/sequenced_rule.h"

namespace optshard::testing {
namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kGuard = 32;  // bytes between arrays that nobody may write
constexpr char kGuardByte = 0x5a;
constexpr DType kHalves[] = {DType::kFloat16, DType::kBFloat16};
constexpr DType kFloats[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

// Memory that begins a cache line, as the device's does.
struct AlignedBytes {
  explicit AlignedBytes(const std::vector<char>& bytes)
      : data(static_cast<char*>(operator new(bytes.size() + kLine, std::align_val_t(kLine)))) {
    std::memcpy(data, bytes.data(), bytes.size());
  }
  ~AlignedBytes() { operator delete(data, std::align_val_t(kLine)); }
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;

  char* const data;
};

double ReadOne(const char* at, DType dtype, int64_t i) {
  const auto read = [at, i](auto zero) {
    std::memcpy(&zero, at + i * sizeof(zero), sizeof(zero));
    return zero;
  };
  switch (dtype) {
    case DType::kFloat64:
      return read(double{});
    case DType::kFloat16:
      return FromFloat16(read(uint16_t{}));
    case DType::kBFloat16:
      return FromBFloat16(read(uint16_t{}));
    case DType::kFloat32:
      break;
  }
  return read(float{});
}

void WriteOne(char* at, DType dtype, int64_t i, double value) {
  const auto write = [at, i](auto number) {
    std::memcpy(at + i * sizeof(number), &number, sizeof(number));
  };
  const auto narrow = static_cast<float>(value);
  switch (dtype) {
    case DType::kFloat64:
      return write(value);
    case DType::kFloat16:
      return write(ToFloat16(narrow));
    case DType::kBFloat16:
      return write(ToBFloat16(narrow));
    case DType::kFloat32:
      return write(narrow);
  }
}

std::string FirstDifference(const std::string& name, DType dtype, int64_t elements,
                            const char* actual, const char* expected) {
  const size_t bytes = SizeOf(dtype);
  for (int64_t i = 0; i < elements; ++i) {
    if (std::memcmp(actual + i * bytes, expected + i * bytes, bytes) == 0) continue;
    const double a = ReadOne(actual, dtype, i);
    const double b = ReadOne(expected, dtype, i);
    if (std::isnan(a) && std::isnan(b)) continue;
    return absl::StrFormat("%s[%d of %d] is %a, expected %a", name, i, elements, a, b);
  }
  return "";
}

bool TakesOnlyMatrices(const UpdateRule& rule) { return !rule.CheckParameter({2}).ok(); }

// One of the divisors of `number`.
int64_t AnyDivisor(int64_t number, std::mt19937& random) {
  std::vector<int64_t> divisors;
  for (int64_t k = 1; k * k <= number; ++k) {
    if (number % k != 0) continue;
    divisors.push_back(k);
    divisors.push_back(number / k);
  }
  return divisors.empty() ? 1 : divisors[random() % divisors.size()];
}

// Of one to three dimensions, or of two where the rule takes no others.
std::vector<int64_t> AnyShape(const UpdateRule& rule, int64_t elements, std::mt19937& random) {
  const int64_t columns = AnyDivisor(elements, random);
  const int64_t rows = AnyDivisor(elements / columns, random);
  if (TakesOnlyMatrices(rule)) return {elements / columns, columns};
  switch (random() % 4) {
    case 0:
      return {elements};
    case 1:
      return {elements / columns / rows, rows, columns};
    default:
      return {elements / columns, columns};
  }
}

std::vector<JobShape> ShapesOfAllRules(JobKind kind) {
  // Around the ends of vectors, blocks of codes, units and chunks; nothing; and several chunks.
  return {
      {kind, {1024}},
      {kind, {0, 1, 2, 3, 5, 7, 8, 9, 31, 32, 33, 255, 256, 257, 1023, 0}, true},
      {kind, {1025, 4095, 4097, 8192, 8193, 20000}, true},
      {kind, {1, 3, 257, 4100, 2047}, false},
      {kind, {700, 3000}, true, true},
      {kind, {701, 2999}, false, true},
      {kind, {1500, 40, 300, 2}, true, false, true},
  };
}

bool IsCoded(JobKind kind) { return kind == JobKind::kCoded || kind == JobKind::kCodedFloat32; }

}  // namespace

std::string NameOf(JobKind kind) {
  switch (kind) {
    case JobKind::kFloat32:
      return "float32";
    case JobKind::kFloat64:
      return "float64";
    case JobKind::kBFloat16:
      return "bfloat16";
    case JobKind::kBFloat16Master:
      return "bfloat16_master";
    case JobKind::kMixed:
      return "mixed";
    case JobKind::kMaster:
      return "master";
    case JobKind::kCorrected:
      return "corrected";
    case JobKind::kCodedFloat32:
      return "coded_float32";
    case JobKind::kCoded:
      break;
  }
  return "coded";
}

std::vector<RuleCase> KernelRuleCases() {
  std::vector<RuleCase> cases = AllRuleCases();
  const auto add = [&cases](const char* rule, const char* name, const Hyperparameters& options) {
    const auto known = std::find_if(cases.begin(), cases.end(), [rule](const RuleCase& each) {
      return each.rule->spec().name == rule;
    });
    if (known == cases.end()) return;
    RuleCase more = *known;
    for (const auto& [option, value] : options.values()) more.group.Set(option, value);
    more.name += absl::StrCat(", ", name);
    cases.push_back(more);
  };
  // Options that are on by default are switched off.
  Hyperparameters unscaled;
  unscaled.Set("always_adapt", false);
  unscaled.Set("weight_decay", 0.0);
  add("lamb", "without the ratio of norms", unscaled);
  // The result is in other memory after an even number.
  Hyperparameters twice;
  twice.Set("ns_steps", 2.0);
  twice.Set("nesterov", false);
  twice.Set("adjust_lr_fn", std::string("match_rms_adamw"));
  add("muon", "two iterations", twice);
  Hyperparameters no_iteration;
  no_iteration.Set("ns_steps", 0.0);
  add("muon", "no iteration", no_iteration);
  // Likewise where the CPU cannot run it, without a library. The host's test names who must be
  // here.
  const auto has_none = [](const RuleCase& each) {
    return (each.rule->formula() == nullptr &&
            SequencedRule::Find(each.rule->spec().name) == nullptr) ||
           !each.rule->CheckParameter({2, 2}).ok();
  };
  cases.erase(std::remove_if(cases.begin(), cases.end(), has_none), cases.end());
  return cases;
}

bool MultipliesMatrices(const RuleCase& rule_case) {
  const auto sequenced = SequencedRule::Find(rule_case.rule->spec().name);
  return sequenced != nullptr && sequenced->MultipliesMatrices() &&
         rule_case.group.Number("ns_steps") > 0;
}

bool Takes(const RuleCase& rule_case, JobKind kind) {
  const std::vector<Slot> slots = rule_case.rule->Slots(rule_case.group);
  return !IsCoded(kind) || std::any_of(slots.begin(), slots.end(), [](const Slot& slot) {
    return slot.eight_bit != EightBit::kNo;
  });
}

std::vector<JobShape> JobShapes(const RuleCase& rule_case, JobKind kind) {
  std::vector<JobShape> shapes = ShapesOfAllRules(kind);
  if (rule_case.rule->spec().element_wise) return shapes;
  if (TakesOnlyMatrices(*rule_case.rule)) {
    // Some of one shape, long and wide ones beside each other, and squares.
    shapes.push_back(JobShape::OfShapes(
        kind, {{40, 50}, {50, 40}, {40, 50}, {33, 33}, {40, 50}, {1, 70}, {300, 2}, {50, 40}}));
    shapes.push_back(shapes.back());  // with other numbers, and other batches
    return shapes;
  }
  // Matrices by ones and by fives, of which the CPU begins blocks anew; with more rows and columns
  // than are added at a time, and few of both.
  shapes.push_back(JobShape::OfShapes(
      kind, {{3, 91, 100}, {7, 50, 63}, {5000, 2}, {2, 5000}, {1100, 1, 2}, {40, 33, 3}}));
  return shapes;
}

JobShape JobShape::OfShapes(JobKind kind, std::vector<std::vector<int64_t>> shapes) {
  JobShape job;
  job.kind = kind;
  job.shapes = std::move(shapes);
  for (const std::vector<int64_t>& shape : job.shapes) job.elements.push_back(ElementsOf(shape));
  return job;
}

KernelJob::KernelJob(const RuleCase& rule_case, const JobShape& shape, StepNumber step,
                     uint32_t seed)
    : rule_(rule_case.rule), random_(seed) {
  const DType dtype = shape.kind == JobKind::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  for (const StepNumber count : {step, step + 1}) {
    coefficients_.push_back(rule_->Prepare(rule_case.group, count, dtype));
  }
  for (const int64_t elements : shape.elements) AddTask(rule_case, shape, elements);
  memory_.resize(memory_.size() + kGuard, kGuardByte);
}

void KernelJob::AddTask(const RuleCase& rule_case, const JobShape& shape, int64_t elements) {
  const auto any_float = [&] { return kFloats[random_() % std::size(kFloats)]; };
  const auto any_half = [&] { return kHalves[random_() % std::size(kHalves)]; };
  const auto type = [&] {
    switch (shape.kind) {
      case JobKind::kFloat32:
      case JobKind::kCodedFloat32:
        return DType::kFloat32;
      case JobKind::kFloat64:
        return DType::kFloat64;
      case JobKind::kBFloat16:
      case JobKind::kBFloat16Master:
        return DType::kBFloat16;
      default:
        return any_float();
    }
  };
  const bool is_zero = shape.zeros && tasks_.size() % 2 == 0;
  const auto of_parameter_values = [&] {
    return is_zero ? std::vector<double>(elements) : Values(elements, true, false);
  };
  Task task;
  task.elements = elements;
  task.shape = {elements};
  if (!rule_->spec().element_wise) {
    task.shape =
        shape.shapes.empty() ? AnyShape(*rule_, elements, random_) : shape.shapes[tasks_.size()];
  }
  task.coefficients = static_cast<int>(random_() % coefficients_.size());
  DType of_parameter = type();
  if (shape.kind == JobKind::kCorrected) of_parameter = any_half();
  const bool is_master = shape.kind == JobKind::kMaster;
  if (is_master || shape.kind == JobKind::kBFloat16Master) {
    if (is_master) of_parameter = any_float();
    if (of_parameter == DType::kFloat32) task.rounded_to = any_half();
    task.master = AddArray("master", DType::kFloat32, elements, shape.aligned);
    Fill(task.master, of_parameter_values());
  }
  task.parameter = AddArray("parameter", of_parameter, elements, shape.aligned);
  Fill(task.parameter, of_parameter_values());
  task.gradient = AddArray("gradient", type(), elements, shape.aligned);
  Fill(task.gradient, Values(elements, true, shape.specials));
  if (shape.kind == JobKind::kCorrected) {
    task.correction.name = "correction";
    task.correction.is_correction = true;
    task.correction.elements = elements;
    task.correction.offset = Reserve(elements, 1, shape.aligned);
    for (int64_t i = 0; i < elements; ++i) {
      memory_[task.correction.offset + i] =
          static_cast<char>(static_cast<int>(random_() % 255) - 127);
    }
  }
  const std::vector<Slot> slots = rule_->Slots(rule_case.group);
  for (size_t s = 0; s < slots.size(); ++s) {
    const bool is_signed = rule_case.signed_slots[s];
    Place place;
    if (!slots[s].ShapeFor(task.shape).has_value()) {
      task.slots.push_back(place);
      continue;
    }
    const int64_t values = slots[s].ValuesFor(task.shape, elements);
    const bool codes = shape.kind == JobKind::kCodedFloat32 ||
                       (shape.kind == JobKind::kCoded && random_() % 4 != 0);
    if (codes && slots[s].eight_bit != EightBit::kNo) {
      const bool companded = random_() % 2 == 0;
      const bool of_signed = slots[s].eight_bit == EightBit::kSigned;
      const BlockCode code =
          companded ? (of_signed ? BlockCode::kCompandedAverage : BlockCode::kCompandedSquare)
                    : (of_signed ? BlockCode::kDynamicSigned : BlockCode::kDynamicUnsigned);
      place = AddCoded(slots[s].name, code, values);
    } else {
      const bool is_float32 = shape.kind == JobKind::kBFloat16Master;
      place = AddArray(slots[s].name, is_float32 ? DType::kFloat32 : type(), values, shape.aligned);
    }
    Fill(place, Values(values, is_signed, false));
    task.slots.push_back(place);
  }
  tasks_.push_back(task);
}

int64_t KernelJob::Reserve(int64_t bytes, size_t element_bytes, bool aligned) {
  auto offset = static_cast<int64_t>(memory_.size()) + kGuard;
  offset = (offset + kLine - 1) / kLine * kLine;
  if (!aligned) offset += static_cast<int64_t>(random_() % 15 * element_bytes);
  memory_.resize(offset + bytes, kGuardByte);
  return offset;
}

KernelJob::Place KernelJob::AddArray(const std::string& name, DType dtype, int64_t elements,
                                     bool aligned) {
  Place place;
  place.name = name;
  place.dtype = dtype;
  place.elements = elements;
  place.offset = Reserve(elements * static_cast<int64_t>(SizeOf(dtype)), SizeOf(dtype), aligned);
  return place;
}

KernelJob::Place KernelJob::AddCoded(const std::string& name, BlockCode code, int64_t elements) {
  Place place;
  place.name = name;
  place.is_coded = true;
  place.code = code;
  place.elements = elements;
  place.offset = Reserve(CodeBytes(code, elements), 1, /*aligned=*/true);
  place.scales = Reserve(ScaleBytes(code, elements), 4, /*aligned=*/true);
  return place;
}

void KernelJob::Fill(const Place& place, const std::vector<double>& values) {
  if (!place.is_coded) {
    for (int64_t i = 0; i < place.elements; ++i) {
      WriteOne(memory_.data() + place.offset, place.dtype, i, values[i]);
    }
    return;
  }
  const std::vector<float> floats(values.begin(), values.end());
  std::vector<uint8_t> codes(CodeBytes(place.code, place.elements));
  std::vector<char> scales(ScaleBytes(place.code, place.elements));
  Encode(floats.data(), place.elements, {place.code, codes.data(), scales.data()});
  std::copy(codes.begin(), codes.end(), memory_.begin() + place.offset);
  std::copy(scales.begin(), scales.end(), memory_.begin() + place.scales);
}

std::vector<double> KernelJob::Values(int64_t elements, bool is_signed, bool specials) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kSpecials[] = {0.0, -0.0, kInfinity, -kInfinity, NAN, 0x1p-149, -1e-39, 3e38};
  std::vector<double> values(elements);
  for (double& value : values) {
    const double mantissa = 1 + static_cast<double>(random_() & 0x7fffff) / 0x800000;
    value = std::ldexp(mantissa, static_cast<int>(random_() % 16) - 12);
    if (is_signed && random_() % 2 == 0) value = -value;
    if (specials && random_() % 16 == 0) value = kSpecials[random_() % std::size(kSpecials)];
  }
  // Blocks of codes that have only zeros.
  if (elements >= 512 && random_() % 2 == 0) {
    std::fill(values.begin() + 256, values.begin() + 512, 0.0);
  }
  return values;
}

Buffer KernelJob::BufferAt(void* at, const Place& place) {
  if (place.offset < 0) return nullptr;
  return Buffer(static_cast<char*>(at) + place.offset, place.dtype);
}

std::vector<UpdateTask> KernelJob::TasksAt(void* at) const {
  std::vector<UpdateTask> tasks;
  for (const Task& from : tasks_) {
    UpdateTask task;
    task.coefficients = &coefficients_[from.coefficients];
    task.span.parameter = BufferAt(at, from.parameter);
    task.span.gradient = BufferAt(at, from.gradient);
    task.span.master = BufferAt(at, from.master);
    task.span.rounded_to = from.rounded_to;
    if (from.correction.offset >= 0) {
      task.span.correction = static_cast<int8_t*>(at) + from.correction.offset;
    }
    for (size_t s = 0; s < from.slots.size(); ++s) {
      const Place& slot = from.slots[s];
      if (slot.is_coded) {
        task.span.slots[s] = CodedArray{slot.code, static_cast<uint8_t*>(at) + slot.offset,
                                        static_cast<char*>(at) + slot.scales};
      } else {
        task.span.slots[s] = BufferAt(at, slot);  // or none
      }
    }
    task.span.elements = from.elements;
    task.span.shape = from.shape;
    tasks.push_back(task);
  }
  return tasks;
}

std::vector<double> KernelJob::Parameter(size_t index, const std::vector<char>& memory) const {
  const Place& place = tasks_[index].parameter;
  std::vector<double> values;
  for (int64_t i = 0; i < place.elements; ++i) {
    values.push_back(ReadOne(memory.data() + place.offset, place.dtype, i));
  }
  return values;
}

std::vector<char> KernelJob::Expected() const {
  const AlignedBytes copy(memory_);
  for (UpdateTask& task : TasksAt(copy.data)) {
    AlignedFloats workspace(
        rule_->WorkspaceBytes(task.span.shape, task.span.parameter.dtype()) / sizeof(float) + 1);
    task.span.workspace = workspace.data();
    rule_->Update(DriverKind::kScalar, *task.coefficients, task.span);
  }
  return std::vector<char>(copy.data, copy.data + memory_.size());
}

std::string KernelJob::DifferenceIn(const Place& place, const char* memory, const char* expected) {
  if (place.offset < 0) return "";
  const char* const a = memory + place.offset;
  const char* const b = expected + place.offset;
  if (!place.is_coded && !place.is_correction) {
    return FirstDifference(place.name, place.dtype, place.elements, a, b);
  }
  for (int64_t i = 0; i < place.elements; ++i) {
    if (a[i] == b[i]) continue;
    return absl::StrFormat("%s: byte %d of %d is %d, expected %d", place.name, i, place.elements,
                           a[i], b[i]);
  }
  if (!place.is_coded) return "";
  const int64_t bytes = ScaleBytes(place.code, place.elements);
  const bool is_dynamic = BlockElements(place.code) == 256;
  const DType dtype = is_dynamic ? DType::kFloat32 : DType::kFloat16;
  return FirstDifference(place.name + "'s scales", dtype,
                         bytes / static_cast<int64_t>(SizeOf(dtype)), memory + place.scales,
                         expected + place.scales);
}

std::string KernelJob::DifferenceOfSlots(const KernelJob& job, const std::vector<char>& memory,
                                         const std::vector<char>& expected) {
  for (size_t t = 0; t < job.tasks_.size(); ++t) {
    for (const Place& slot : job.tasks_[t].slots) {
      const std::string difference = DifferenceIn(slot, memory.data(), expected.data());
      if (!difference.empty()) return absl::StrFormat("span %d: %s", t, difference);
    }
  }
  return "";
}

std::string KernelJob::Difference(const KernelJob& job, const std::vector<char>& memory,
                                  const std::vector<char>& expected) {
  if (memory == expected) return "";
  for (size_t t = 0; t < job.tasks_.size(); ++t) {
    const Task& task = job.tasks_[t];
    std::vector<Place> places = {task.parameter, task.gradient, task.master, task.correction};
    places.insert(places.end(), task.slots.begin(), task.slots.end());
    for (const Place& place : places) {
      const std::string difference = DifferenceIn(place, memory.data(), expected.data());
      if (!difference.empty()) return absl::StrFormat("span %d: %s", t, difference);
    }
  }
  // Guards: where nothing lies, the start's bytes.
  for (size_t i = 0; i < memory.size(); ++i) {
    if (expected[i] == kGuardByte && memory[i] != expected[i]) {
      return absl::StrFormat("byte %d, which is no array's or is %d, was changed to %d", i,
                             expected[i], memory[i]);
    }
  }
  return "";
}

}  // namespace optshard::testing
