#include "common/rpc/state_frame_rpc.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"

namespace optshard {
namespace {

using google::protobuf::internal::WireFormatLite;

constexpr uint32_t kValuesTag = WireFormatLite::MakeTag(v1::StateFrame::kValuesFieldNumber,
                                                        WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
// All fields before the values. The largest are hyperparameters of a group, which are 4 KiB at most
// in a trainer's doorbell.
constexpr size_t kLongestHead = 8192;

absl::Status NoFrame(const grpc::ByteBuffer& message) {
  return absl::InternalError(
      absl::StrFormat("a message of %d bytes is no frame of state: the owner runs another version "
                      "of optshard",
                      message.Length()));
}

// Where the values begin, and how many bytes they are; 0 where there are none.
struct ValuesPlace {
  size_t head_bytes = 0;  // the fields before them
  size_t offset = 0;
  size_t bytes = 0;
};

bool FindValues(const std::string& head, size_t message_bytes, ValuesPlace* place) {
  google::protobuf::io::CodedInputStream input(reinterpret_cast<const uint8_t*>(head.data()),
                                               static_cast<int>(head.size()));
  while (true) {
    const auto before = static_cast<size_t>(input.CurrentPosition());
    const uint32_t tag = input.ReadTag();
    if (tag == 0) {
      *place = {before, before, 0};
      return before == message_bytes;
    }
    if (tag != kValuesTag) {
      if (!WireFormatLite::SkipField(&input, tag)) return false;
      continue;
    }
    uint32_t bytes = 0;
    if (!input.ReadVarint32(&bytes)) return false;
    *place = {before, static_cast<size_t>(input.CurrentPosition()), bytes};
    return place->offset + bytes == message_bytes;
  }
}

}  // namespace

grpc::ByteBuffer EncodeStateFrame(const v1::StateFrame& head, const char* data, size_t bytes,
                                  std::function<void()> release) {
  std::string text = head.SerializeAsString();
  uint8_t length[2 * 5];
  uint8_t* end = google::protobuf::io::CodedOutputStream::WriteVarint32ToArray(kValuesTag, length);
  end = google::protobuf::io::CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(bytes),
                                                                      end);
  text.append(reinterpret_cast<const char*>(length), end - length);
  auto owned = std::make_unique<std::function<void()>>(std::move(release));
  const auto destroy = [](void* user_data) {
    const std::unique_ptr<std::function<void()>> release(
        static_cast<std::function<void()>*>(user_data));
    (*release)();
  };
  const grpc::Slice slices[] = {
      grpc::Slice(text),
      // gRPC only reads it.
      grpc::Slice(const_cast<char*>(data), bytes, +destroy, owned.release()),
  };
  return grpc::ByteBuffer(slices, 2);
}

absl::StatusOr<StateFrameParts> DecodeStateFrame(const grpc::ByteBuffer& message) {
  StateFrameParts frame;
  if (!message.Dump(&frame.slices).ok()) return NoFrame(message);
  std::string head;
  for (const grpc::Slice& slice : frame.slices) {
    if (head.size() == kLongestHead) break;
    head.append(reinterpret_cast<const char*>(slice.begin()),
                std::min(slice.size(), kLongestHead - head.size()));
  }
  ValuesPlace place;
  if (!FindValues(head, message.Length(), &place)) return NoFrame(message);
  head.resize(place.head_bytes);
  if (!frame.head.ParseFromString(head)) return NoFrame(message);
  size_t skip = place.offset;
  for (const grpc::Slice& slice : frame.slices) {
    const size_t skipped = std::min(skip, slice.size());
    skip -= skipped;
    if (skipped == slice.size() || place.bytes == 0) continue;
    frame.values.push_back(
        {reinterpret_cast<const char*>(slice.begin()) + skipped, slice.size() - skipped});
  }
  frame.value_bytes = place.bytes;
  return frame;
}

}  // namespace optshard
