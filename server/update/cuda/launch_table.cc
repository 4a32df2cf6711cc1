#include "server/update/cuda/launch_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "common/buffer.h"
#include "common/dynamic_map.h"
#include "common/half.h"
#include "server/update/cuda/kernel_array.h"

namespace optshard {
namespace {

constexpr size_t kAlignment = 16;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

KernelPass PassOf(const UpdateTask& task) {
  const SpanUpdate& span = task.span;
  const DType arithmetic = task.coefficients->arithmetic;
  const auto slots_end = std::find_if_not(span.slots.begin(), span.slots.end(),
                                          [](const SlotArray& slot) -> bool { return !!slot; });
  const auto all_slots_are = [&](DType dtype) {
    return std::all_of(span.slots.begin(), slots_end, [dtype](const SlotArray& slot) {
      return !slot.is_coded() && slot.dtype() == dtype;
    });
  };
  const auto is_coded = [](const SlotArray& slot) { return slot.is_coded(); };
  const bool is_bare = !span.master && span.correction == nullptr;
  const auto both_are = [&span](DType dtype) {
    return span.parameter.dtype() == dtype && span.gradient.dtype() == dtype;
  };
  if (std::any_of(span.slots.begin(), slots_end, is_coded)) {
    const bool are_float32 = is_bare && both_are(DType::kFloat32) &&
                             std::all_of(span.slots.begin(), slots_end, is_coded);
    return are_float32 ? KernelPass::kCodedFloat32 : KernelPass::kCoded;
  }
  if (is_bare && both_are(arithmetic) && all_slots_are(arithmetic)) return KernelPass::kPlain;
  if (both_are(DType::kBFloat16)) {
    if (is_bare && all_slots_are(DType::kBFloat16)) return KernelPass::kBFloat16;
    if (span.master && all_slots_are(DType::kFloat32)) return KernelPass::kMaster;
  }
  return KernelPass::kMixed;
}

template <typename T>
KernelSpan SpanOf(const SpanUpdate& from, KernelPass pass) {
  KernelSpan span;
  span.updated = ArrayOf(ConstBuffer(from.master ? from.master : from.parameter));
  span.gradient = ArrayOf(from.gradient);
  const auto slots =
      std::find_if_not(from.slots.begin(), from.slots.end(),
                       [](const SlotArray& slot) { return static_cast<bool>(slot); });
  std::transform(from.slots.begin(), slots, span.slots,
                 [](const SlotArray& slot) { return ArrayOf(slot); });
  if (from.master) {
    span.parameter = ArrayOf(ConstBuffer(from.parameter));
    const bool is_half = from.rounded_to == DType::kFloat32;
    span.rounded_to = KindOf(is_half ? from.parameter.dtype() : from.rounded_to);
  }
  span.keeps_parameter = from.keeps_parameter;
  span.corrections = from.correction;
  span.elements = from.elements;
  const int vector_elements = GroupElements<T>(pass);
  span.is_aligned = IsAligned(span.updated, vector_elements) &&
                    IsAligned(span.gradient, vector_elements) &&
                    IsAligned(span.parameter, vector_elements) &&
                    IsAligned(span.corrections, sizeof(int8_t), vector_elements);
  for (const KernelArray& slot : span.slots) {
    span.is_aligned = span.is_aligned && IsAligned(slot, vector_elements);
  }
  return span;
}

absl::Status CheckTask(const UpdateTask& task) {
  const ReplicaSpans& replicas = task.span.replicas;
  if (replicas.gradients.empty() && replicas.copies.empty()) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrFormat("an update on a device was given the gradients of %d replicas and %d copies "
                      "of the parameter, "
                      "expected one averaged gradient: reduce and publish by the data plane",
                      replicas.gradients.size(), replicas.copies.size()));
}

template <typename T>
void CopyCoefficients(const std::vector<const Coefficients*>& sets, void* to) {
  auto* const values = static_cast<T*>(to);
  for (size_t k = 0; k < sets.size(); ++k) {
    std::transform(sets[k]->values.begin(), sets[k]->values.end(), values + k * kMaxCoefficients,
                   [](double value) { return static_cast<T>(value); });
  }
}

CodeTable TableOf(const DynamicMap& map) {
  static_assert(CodeTable::kQuotientDoubt == DynamicMap::kQuotientDoubt);
  static_assert(CodeTable::kPlaceDoubt == DynamicMap::kPlaceDoubt);
  static_assert(CodeTable::kSmallest == DynamicMap::kSmallest);
  CodeTable table;
  for (int s = 0; s < DynamicMap::kSections; ++s) {
    table.sections[s] = {map.scale[s], map.offset[s] + CodeTable::kPlaceBase,
                         map.limit[s] + CodeTable::kPlaceBase};
  }
  for (int o = 0; o < 16; ++o) {
    table.octaves[o] = {
        static_cast<int32_t>(BitsOf(map.octave_begins[o])) - CodeTable::kQuotientDoubt,
        map.octave_sections[o]};
  }
  std::copy(std::begin(map.values), std::end(map.values), table.values);
  std::copy(std::begin(map.middles), std::end(map.middles), table.middles);
  table.largest = map.largest;
  for (int code = 0; code < 256; ++code) {
    const auto q = static_cast<float>(static_cast<int8_t>(code));
    table.averages[code] = q / (254.0f - std::abs(q));
  }
  return table;
}

}  // namespace

absl::StatusOr<std::vector<LaunchTable>> LaunchTable::For(absl::Span<const UpdateTask> tasks) {
  std::vector<LaunchTable> tables;
  for (const UpdateTask& task : tasks) {
    if (const absl::Status status = CheckTask(task); !status.ok()) return status;
    if (task.span.elements <= 0) continue;
    const KernelPass pass = PassOf(task);
    auto table = std::find_if(tables.begin(), tables.end(), [&](const LaunchTable& candidate) {
      return candidate.Takes(pass, task);
    });
    if (table == tables.end()) {
      tables.push_back(LaunchTable(pass, task.coefficients->slots, task.coefficients->arithmetic));
      table = tables.end() - 1;
    }
    table->Add(task);
  }
  for (LaunchTable& table : tables) table.Finish();
  return tables;
}

bool LaunchTable::Takes(KernelPass pass, const UpdateTask& task) const {
  return pass == pass_ && task.coefficients->slots == slots_ &&
         task.coefficients->arithmetic == arithmetic_;
}

void LaunchTable::Add(const UpdateTask& task) {
  const bool is_double = arithmetic_ == DType::kFloat64;
  KernelSpan span = is_double ? SpanOf<double>(task.span, pass_) : SpanOf<float>(task.span, pass_);
  if (coefficients_.empty() || coefficients_.back() != task.coefficients) {
    coefficients_.push_back(task.coefficients);
  }
  span.coefficients = static_cast<int32_t>(coefficients_.size()) - 1;
  const int64_t chunk = is_double ? ChunkElements<double>(pass_) : ChunkElements<float>(pass_);
  chunks_before_.push_back(chunks_);
  chunks_ += (span.elements - 1) / chunk + 1;
  spans_.push_back(span);
}

void LaunchTable::Finish() {
  const size_t number = arithmetic_ == DType::kFloat64 ? sizeof(double) : sizeof(float);
  chunks_at_ = Aligned(spans_.size() * sizeof(KernelSpan));
  coefficients_at_ = Aligned(chunks_at_ + chunks_before_.size() * sizeof(int64_t));
  bytes_ = Aligned(coefficients_at_ + coefficients_.size() * kMaxCoefficients * number);
}

size_t LaunchTable::CoefficientAt(size_t set, int index) const {
  const size_t number = arithmetic_ == DType::kFloat64 ? sizeof(double) : sizeof(float);
  return coefficients_at_ + (set * kMaxCoefficients + index) * number;
}

void LaunchTable::CopyTo(void* to) const {
  auto* const bytes = static_cast<char*>(to);
  std::memcpy(bytes, spans_.data(), spans_.size() * sizeof(KernelSpan));
  std::memcpy(bytes + chunks_at_, chunks_before_.data(), chunks_before_.size() * sizeof(int64_t));
  if (arithmetic_ == DType::kFloat64) {
    CopyCoefficients<double>(coefficients_, bytes + coefficients_at_);
  } else {
    CopyCoefficients<float>(coefficients_, bytes + coefficients_at_);
  }
}

template <typename T>
KernelArguments<T> LaunchTable::ArgumentsAt(const void* at, const CodeTable* tables,
                                            const StepDecision* decision) const {
  const auto* const bytes = static_cast<const char*>(at);
  KernelArguments<T> arguments;
  arguments.spans = reinterpret_cast<const KernelSpan*>(bytes);
  arguments.chunks_before = reinterpret_cast<const int64_t*>(bytes + chunks_at_);
  arguments.span_count = static_cast<int32_t>(spans_.size());
  arguments.chunks = chunks_;
  arguments.coefficients = reinterpret_cast<const T*>(bytes + coefficients_at_);
  arguments.decision = decision;
  arguments.tables = tables;
  return arguments;
}

template KernelArguments<float> LaunchTable::ArgumentsAt(const void*, const CodeTable*,
                                                         const StepDecision*) const;
template KernelArguments<double> LaunchTable::ArgumentsAt(const void*, const CodeTable*,
                                                          const StepDecision*) const;

const CodeTable* CodeTables() {
  static const std::array<CodeTable, kCodeTables> tables = {TableOf(DynamicMap::Signed()),
                                                            TableOf(DynamicMap::Unsigned())};
  return tables.data();
}

}  // namespace optshard
