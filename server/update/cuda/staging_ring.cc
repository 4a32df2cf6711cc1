#include "server/update/cuda/staging_ring.h"

#include <algorithm>
#include <utility>

#include "common/cuda/cuda_status.h"
#include "common/errors.h"

namespace optshard {
namespace {

constexpr size_t kSmallest = 64 << 10;

}  // namespace

absl::StatusOr<StagingRing> StagingRing::Create() {
  StagingRing ring;
  absl::StatusOr<std::unique_ptr<Place>> first = MakePlace();
  if (!first.ok()) return first.status();
  ring.places_.push_back(*std::move(first));
  return ring;
}

absl::StatusOr<std::unique_ptr<StagingRing::Place>> StagingRing::MakePlace() {
  absl::StatusOr<CudaEvent> event = CudaEvent::Create();
  if (!event.ok()) return event.status();
  auto place = std::make_unique<Place>();
  place->is_read = *std::move(event);
  return place;
}

absl::StatusOr<StagingRing::Place*> StagingRing::Copy(size_t bytes, Fill fill, cudaStream_t stream,
                                                      absl::Time deadline) {
  const absl::StatusOr<Place*> place = Next(bytes, deadline);
  if (!place.ok()) return place.status();
  const Place& at = **place;
  fill(at.host.data(), at.device.data());
  const cudaError_t error =
      cudaMemcpyAsync(at.device.data(), at.host.data(), bytes, cudaMemcpyHostToDevice, stream);
  if (error != cudaSuccess) return CudaStatus(error, "copying the table of an update");
  return *place;
}

absl::StatusOr<StagingRing::Place*> StagingRing::Next(size_t bytes, absl::Time deadline) {
  const absl::StatusOr<bool> is_free = places_[next_]->is_read.IsReached();
  if (!is_free.ok()) return errors::WithContext(is_free.status(), "an earlier update");
  if (!*is_free && places_.size() < kMostPlaces) {
    absl::StatusOr<std::unique_ptr<Place>> made = MakePlace();
    if (!made.ok()) return made.status();
    places_.insert(places_.begin() + static_cast<ptrdiff_t>(next_), *std::move(made));
  }
  Place& place = *places_[next_];
  next_ = (next_ + 1) % places_.size();
  const absl::Status status = place.is_read.Wait(deadline);
  if (!status.ok()) return errors::WithContext(status, "an earlier update");
  if (place.device.bytes() >= bytes) return &place;
  const size_t with_more = std::max(kSmallest, bytes + bytes / 2);
  place.device = CudaMemory();
  place.host = CudaMemory();
  auto host = CudaMemory::OnHost(with_more);
  if (!host.ok()) return host.status();
  auto device = CudaMemory::OnDevice(with_more);
  if (!device.ok()) return device.status();
  place.host = *std::move(host);
  place.device = *std::move(device);
  return &place;
}

}  // namespace optshard
