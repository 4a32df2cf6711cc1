// An operation of the fake data plane, and what each rank brings to it.
#ifndef OPTSHARD_TESTS_TESTING_FAKE_OPERATION_H_
#define OPTSHARD_TESTS_TESTING_FAKE_OPERATION_H_

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/dataplane/data_plane.h"

namespace optshard::testing {

enum class FakeKind { kReduce, kPublish, kAllGather };

// What one rank brings to an operation.
struct FakePart {
  const char* input = nullptr;  // null where the rank gives nothing
  char* output = nullptr;       // null where it gets nothing
  size_t input_checksum = 0;    // kDelayed: of the input at the start
  std::string captured;         // the input's values once read
  bool is_captured = false;
  bool started = false;
  bool delivered = false;  // the outputs are written, or there are none
  bool waited = false;
};

// One operation of all ranks of a plane: each rank's n-th there.
struct FakeOperation {
  FakeKind kind = FakeKind::kReduce;
  StepTag tag;
  // Of a reduction all of it; else who takes part, and the owner of what is published.
  Reduction ranks;
  DType dtype = DType::kFloat32;
  size_t bytes = 0;  // of one rank's input
  Rank first = -1;   // who started it first, and thereby said what it is
  std::vector<FakePart> parts;
};

inline std::string Describe(const FakeOperation& op) {
  static constexpr const char* kNames[] = {"Reduce", "Publish", "AllGather"};
  return absl::StrCat(kNames[static_cast<int>(op.kind)], "(generation ", op.tag.generation,
                      ", step ", op.tag.step, ", bucket ", op.tag.bucket, ", phase ",
                      static_cast<int>(op.tag.phase), ", owner ", op.ranks.owner, ", members ",
                      absl::StrJoin(op.ranks.members, " "), " in groups of ",
                      absl::StrJoin(op.ranks.group_sizes, " "), ", divided by ", op.ranks.divisor,
                      ", ", op.bytes, " bytes)");
}

inline bool SameOperation(const FakeOperation& a, const FakeOperation& b) {
  return a.kind == b.kind && a.tag.generation == b.tag.generation && a.tag.step == b.tag.step &&
         a.tag.bucket == b.tag.bucket && a.tag.phase == b.tag.phase &&
         a.ranks.owner == b.ranks.owner && a.ranks.members == b.ranks.members &&
         a.ranks.group_sizes == b.ranks.group_sizes && a.ranks.divisor == b.ranks.divisor &&
         a.dtype == b.dtype && a.bytes == b.bytes;
}

inline size_t Checksum(const char* data, size_t bytes) {
  return std::hash<std::string_view>()(std::string_view(data, bytes));
}

inline bool Overlap(const char* a, size_t a_bytes, const char* b, size_t b_bytes) {
  return a != nullptr && b != nullptr && a < b + b_bytes && b < a + a_bytes;
}

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_FAKE_OPERATION_H_
