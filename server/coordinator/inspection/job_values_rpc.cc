#include "server/coordinator/inspection/job_values_rpc.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/state_format.h"
#include "common/utf8_prefix.h"
#include "proto/optshard/v1/shard_owner.grpc.pb.h"
#include "server/coordinator/inspection/slot_answers_rpc.h"

namespace optshard {
namespace {

constexpr int64_t kUsualElements = 10;
constexpr int64_t kMostElements = 64 << 10;
constexpr int kAttempts = 5;
constexpr size_t kShownNameBytes = 200;

absl::StatusOr<int32_t> FindParameter(const JobPlan& plan, const v1::ReadValuesRequest& request) {
  const int count = plan.space().parameter_count();
  if (request.name().empty()) {
    if (request.parameter() >= 0 && request.parameter() < count) return request.parameter();
    return absl::NotFoundError(absl::StrFormat("no parameter %d: the optimizer has 0 to %d",
                                               request.parameter(), count - 1));
  }
  for (int p = 0; p < count; ++p) {
    if (plan.space().parameter(p).name == request.name()) return p;
  }
  return absl::NotFoundError(absl::StrCat("no parameter is named \"",
                                          Utf8Prefix(request.name(), kShownNameBytes),
                                          "\"; ask JobInspection.ListParameters"));
}

// What is read of one owner.
struct Part {
  Rank rank = 0;
  int64_t offset_elements = 0;
  int64_t elements = 0;
};

// Where the values are.
struct Place {
  int32_t parameter = 0;
  std::string name;
  std::vector<Part> parts;
  int64_t offset_elements = 0;
  int64_t elements = 0;
};

// A slot, and the owner that has told of it.
struct FoundSlot {
  v1::SlotPart slot;
  Rank rank = 0;
};

absl::StatusOr<FoundSlot> FindSlot(const JobView& view, int32_t parameter, const std::string& slot,
                                   const CallPatience& patience) {
  SlotQuestion question;
  question.parameters = {parameter};
  const SlotAnswers answers = AskAboutSlots(view, question, patience);
  if (answers.parts.empty()) {
    if (answers.unanswered.empty()) {
      return absl::AbortedError("the owner of the parameter says nothing of it; ask again");
    }
    return absl::UnavailableError(answers.unanswered.front().summary());
  }
  std::vector<std::string> known;
  const Rank rank = answers.first_ranks.at(parameter);
  for (const v1::SlotPart& part : answers.parts.at(parameter).front().slots()) {
    if (part.slot() == slot) return FoundSlot{part, rank};
    known.push_back(part.slot());
  }
  return absl::NotFoundError(
      absl::StrCat("parameter ", parameter, " has no slot \"", Utf8Prefix(slot, kShownNameBytes),
                   "\"; it has: ", known.empty() ? "none" : absl::StrJoin(known, ", ")));
}

absl::StatusOr<Place> FindPlace(const JobView& view, const v1::ReadValuesRequest& request,
                                const CallPatience& patience) {
  if (request.offset_elements() < 0 || request.elements() < 0 ||
      request.elements() > kMostElements) {
    return absl::InvalidArgumentError(
        absl::StrFormat("offset_elements %d, elements %d: neither may be negative, nor elements "
                        "more than %d",
                        request.offset_elements(), request.elements(), kMostElements));
  }
  const absl::StatusOr<int32_t> parameter = FindParameter(*view.plan, request);
  if (!parameter.ok()) return parameter.status();
  const absl::StatusOr<FoundSlot> found = FindSlot(view, *parameter, request.slot(), patience);
  if (!found.ok()) return found.status();
  const v1::SlotPart& slot = found->slot;
  Place place;
  place.parameter = *parameter;
  place.name =
      std::string(Utf8Prefix(view.plan->space().parameter(*parameter).name, kShownNameBytes));
  place.offset_elements = request.offset_elements();
  const std::vector<JobPlan::OwnerSlice>& owners = view.plan->owners[*parameter];
  const int64_t size =
      slot.is_whole() ? slot.elements() : view.plan->space().parameter(*parameter).elements();
  const bool begins_behind = place.offset_elements >= std::max<int64_t>(size, 1);
  if (begins_behind || request.elements() > size - place.offset_elements) {
    return absl::OutOfRangeError(
        absl::StrFormat("%s of %s has %d elements", request.slot(), place.name, size));
  }
  place.elements = request.elements() != 0 ? request.elements()
                                           : std::min(kUsualElements, size - place.offset_elements);
  // What several owners have as a whole, any of them may tell.
  if (slot.is_whole() || size == 0 || view.plan->is_replicated()) {
    place.parts.push_back({found->rank, place.offset_elements, place.elements});
    return place;
  }
  const int64_t end = place.offset_elements + place.elements;
  for (const JobPlan::OwnerSlice& owner : owners) {
    const int64_t from = std::max(owner.offset_elements, place.offset_elements);
    const int64_t to = std::min(owner.offset_elements + owner.elements, end);
    if (from < to) place.parts.push_back({owner.rank, from, to - from});
  }
  return place;
}

absl::StatusOr<v1::SlotChunk> ReadPart(const JobView& view, const Place& place, const Part& part,
                                       const std::string& slot, const CallPatience& patience) {
  const OwnerToAsk owner = {part.rank, view.owner_address(part.rank)};
  absl::Status status = CheckAddress(owner);
  if (!status.ok()) return status;
  v1::ReadSlotRequest request;
  view.SetOwner(part.rank, request);
  request.set_parameter(place.parameter);
  request.set_slot(slot);
  request.set_offset_elements(part.offset_elements);
  request.set_elements(part.elements);
  grpc::ClientContext context;
  context.set_deadline(DeadlineAfter(patience.deadline - Clock::Monotonic().Now()));
  const auto stub = v1::ShardOwner::NewStub(MakeChannel(owner.address));
  const auto stream = stub->ReadSlot(&context, request);
  v1::SlotChunk chunk;  // so few values come in one
  v1::SlotChunk next;
  int chunks = 0;
  while (stream->Read(&next)) {
    if (++chunks == 1) chunk = std::move(next);
    if (chunks > 1) context.TryCancel();
  }
  status = FromGrpc(stream->Finish());
  const int64_t values = chunk.values_size() + chunk.float64_values_size();
  if (chunks > 1 || (status.ok() && (values != part.elements ||
                                     !IsKnown(static_cast<StateFormat>(chunk.format()))))) {
    status = absl::InternalError(absl::StrFormat("it sends %d values in %d messages, expected %d",
                                                 values, chunks, part.elements));
  }
  if (!status.ok()) {
    return absl::Status(status.code(), absl::StrCat("rank ", part.rank, " at ", owner.address, ": ",
                                                    status.message()));
  }
  return chunk;
}

// ABORTED where the parts are of different steps.
absl::StatusOr<v1::ReadValuesResponse> ReadOnce(const JobView& view, const Place& place,
                                                const std::string& slot,
                                                const CallPatience& patience) {
  v1::ReadValuesResponse response;
  for (const Part& part : place.parts) {
    const absl::StatusOr<v1::SlotChunk> chunk = ReadPart(view, place, part, slot, patience);
    if (!chunk.ok()) return chunk.status();
    const bool is_first = &part == &place.parts.front();
    if (!is_first && chunk->step() != response.step()) {
      return absl::AbortedError(
          absl::StrFormat("the values of rank %d are of step %d, those of the ranks before it of "
                          "step %d; ask again",
                          part.rank, chunk->step(), response.step()));
    }
    response.set_step(chunk->step());
    response.set_format(chunk->format());
    response.mutable_values()->MergeFrom(chunk->values());
    response.mutable_float64_values()->MergeFrom(chunk->float64_values());
  }
  response.set_offset_elements(place.offset_elements);
  response.set_summary(absl::StrFormat("%s of %s, %s, elements [%d, %d), step %d", slot, place.name,
                                       NameOf(static_cast<StateFormat>(response.format())),
                                       place.offset_elements,
                                       place.offset_elements + place.elements, response.step()));
  return response;
}

}  // namespace

absl::StatusOr<v1::ReadValuesResponse> ReadValues(const JobView& view,
                                                  const v1::ReadValuesRequest& request,
                                                  const CallPatience& patience) {
  const absl::StatusOr<Place> place = FindPlace(view, request, patience);
  if (!place.ok()) return place.status();
  for (int attempt = 1;; ++attempt) {
    absl::StatusOr<v1::ReadValuesResponse> response =
        ReadOnce(view, *place, request.slot(), patience);
    const bool again = absl::IsAborted(response.status()) && attempt < kAttempts &&
                       Clock::Monotonic().Now() < patience.deadline && !patience.ended();
    if (!again) return response;
  }
}

}  // namespace optshard
