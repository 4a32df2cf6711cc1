#include "server/shard/state/device_slot_memory.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "common/block_code.h"
#include "common/clock.h"
#include "server/shard/state/slot_memory.h"

namespace optshard {
namespace {

// Copied over and over again. A multiple of kCodeGrid.
constexpr int64_t kFillElements = 256 * kCodeGrid;
constexpr absl::Duration kLongestFill = absl::Minutes(10);

SlotType TypeOf(const SlotArray& array) {
  SlotType type;
  if (array.is_coded()) {
    type.code = array.coded().code;
  } else {
    type.dtype = array.dtype();
  }
  return type;
}

// An array of the host like one on the device.
class HostArray {
 public:
  HostArray(const SlotArray& like, int64_t elements)
      : memory_(SlotArrays::Bytes(elements, TypeOf(like))),
        array_(SlotArrays(memory_.data()).Take(elements, TypeOf(like))) {}

  const SlotArray& get() const { return array_; }

 private:
  std::vector<char> memory_;
  const SlotArray array_;
};

absl::Status CopyTo(HostTransfer& transfer, const SlotArray& to, const SlotArray& from,
                    int64_t elements, absl::Time deadline) {
  const std::vector<SlotBytes> values = BytesOf(from, elements);
  const std::vector<SlotBytes> places = BytesOf(to, elements);
  absl::Status status;
  for (size_t i = 0; i < values.size() && status.ok(); ++i) {
    status = transfer.Write(places[i].data, values[i].data, values[i].bytes, deadline);
  }
  return status;
}

}  // namespace

std::vector<SlotBytes> BytesOf(const SlotArray& array, int64_t elements) {
  if (!array.is_coded()) {
    return {{array.plain().data(), static_cast<size_t>(elements) * SizeOf(array.dtype())}};
  }
  const CodedArray& coded = array.coded();
  return {{coded.codes, static_cast<size_t>(CodeBytes(coded.code, elements))},
          {coded.scales, static_cast<size_t>(ScaleBytes(coded.code, elements))}};
}

absl::Status FillSlotOn(HostTransfer& transfer, const SlotArray& array, int64_t elements,
                        double value, absl::Time deadline) {
  const int64_t at_once = std::min(elements, kFillElements);
  const HostArray filled(array, at_once);
  FillSlot(filled.get(), at_once, value);
  absl::Status status;
  for (int64_t begin = 0; begin < elements && status.ok(); begin += at_once) {
    status = CopyTo(transfer, array.From(begin), filled.get(), std::min(at_once, elements - begin),
                    deadline);
  }
  return status;
}

absl::Status WriteSlotOn(HostTransfer& transfer, const SlotArray& array, int64_t first,
                         int64_t count, const double* from, absl::Time deadline) {
  const HostArray written(array, count);
  WriteSlot(written.get(), 0, count, from);
  return CopyTo(transfer, array.From(first), written.get(), count, deadline);
}

SlotFiller::SlotFiller(DeviceApi* device)
    : device_(device), deadline_(Clock::Monotonic().Now() + kLongestFill) {}

absl::Status SlotFiller::Fill(const SlotArray& array, int64_t elements, double value) {
  if (device_ == nullptr) {
    FillSlot(array, elements, value);
    return absl::OkStatus();
  }
  if (!transfer_.has_value()) {
    absl::StatusOr<HostTransfer> transfer = HostTransfer::Create(device_, Clock::Monotonic());
    if (!transfer.ok()) return transfer.status();
    transfer_.emplace(*std::move(transfer));
  }
  return FillSlotOn(*transfer_, array, elements, value, deadline_);
}

absl::Status SlotFiller::Finish() {
  return transfer_.has_value() ? transfer_->Finish(deadline_) : absl::OkStatus();
}

}  // namespace optshard
