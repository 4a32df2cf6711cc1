#include "common/attach/doorbell.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/attach/attachment.h"
#include "common/cache_line.h"
#include "common/errors.h"
#include "common/row_marks.h"

namespace optshard {
namespace {

constexpr size_t kBitsPerWord = 64;
constexpr size_t kStatusBytes = 4032;
constexpr absl::Duration kLongestTimeout = absl::Hours(24);

size_t GradientWords(const DoorbellShape& shape) {
  return (static_cast<size_t>(shape.parameters) + kBitsPerWord - 1) / kBitsPerWord;
}

// In bytes: a bit a parameter, twice, and the marks.
size_t GradientBytes(const DoorbellShape& shape) {
  return WholeLines((2 * GradientWords(shape) + shape.mark_words()) * sizeof(uint64_t));
}

std::string NameOfSegment(Rank rank) { return absl::StrCat("the doorbell of rank ", rank); }

SegmentLabel LabelOf(Rank rank) {
  SegmentLabel label;
  label.kind = SegmentKind::kDoorbell;
  label.rank = rank;
  return label;
}

// Of values that are staged as bytes, bytes.
int64_t MostElements(const DoorbellRequest& request) {
  return request.kind == DoorbellRequest::Kind::kWriteStagedBytes ? kMaxShareBytes
                                                                  : kStateWindowElements;
}

}  // namespace

// The trainer writes it. Relaxed but for the number: that publishes the rest.
struct alignas(kCacheLineBytes) Doorbell::RequestLine {
  Bell bell;
  std::atomic<uint64_t> number;
  std::atomic<int64_t> timeout_ns;
  std::atomic<uint64_t> hyperparameter_version;
  std::atomic<uint32_t> kind;
  std::atomic<uint32_t> hyperparameter_bytes;
  std::atomic<uint32_t> has_blob;
  std::atomic<uint32_t> blob_bytes;
  std::atomic<uint64_t> withdrawn;
  std::atomic<CallNumber> call;
};

// The server writes it.
struct alignas(kCacheLineBytes) Doorbell::ReplyLine {
  Bell bell;
  std::atomic<uint64_t> begun;
  std::atomic<uint64_t> answered;
  uint64_t step;
  int64_t prepare_ns;
  int64_t commit_ns;
  int64_t apply_ns;
  uint32_t broken;
  uint32_t code;
};

// Of a status that is not OK.
struct alignas(kCacheLineBytes) Doorbell::ReplyText {
  uint32_t payload_bytes;
  uint32_t message_bytes;
  char bytes[kStatusBytes];  // the payload, then the message
};

// Of a request for state, or of the end of a load; the writes of any. The trainer writes it, before
// the number.
struct alignas(kCacheLineBytes) Doorbell::StateLine {
  std::atomic<int32_t> parameter;
  std::atomic<int32_t> slot;
  std::atomic<int64_t> offset_elements;
  std::atomic<int64_t> elements;
  std::atomic<uint64_t> load_token;
  std::atomic<uint64_t> writes;
  std::atomic<uint32_t> writes_are_expected;
};

size_t DoorbellShape::mark_words() const {
  size_t words = 0;
  for (const int64_t of_parameter : rows) words += RowMarkWords(of_parameter);
  return words;
}

size_t DoorbellShape::bytes() const {
  // As Doorbell's private accessors have it.
  return 2 * kCacheLineBytes + WholeLines(2 * sizeof(uint32_t) + kStatusBytes) +
         GradientBytes(*this) + WholeLines(hyperparameter_bytes()) + kMaxBlobBytes +
         kCacheLineBytes + kStateWindowElements * sizeof(double);
}

Doorbell::RequestLine& Doorbell::request() const {
  static_assert(sizeof(RequestLine) == kCacheLineBytes, "one cache line");
  return *reinterpret_cast<RequestLine*>(at(0));
}
Doorbell::ReplyLine& Doorbell::reply() const {
  static_assert(sizeof(ReplyLine) == kCacheLineBytes, "one cache line");
  return *reinterpret_cast<ReplyLine*>(at(kCacheLineBytes));
}
Doorbell::ReplyText& Doorbell::text() const {
  return *reinterpret_cast<ReplyText*>(at(2 * kCacheLineBytes));
}
absl::Span<uint64_t> Doorbell::gradient_words() const {
  return absl::MakeSpan(reinterpret_cast<uint64_t*>(at(2 * kCacheLineBytes + sizeof(ReplyText))),
                        GradientWords(shape_));
}
absl::Span<uint64_t> Doorbell::sparse_words() const {
  const absl::Span<uint64_t> before = gradient_words();
  return absl::MakeSpan(before.data() + before.size(), before.size());
}
uint64_t* Doorbell::mark_words() const { return sparse_words().data() + sparse_words().size(); }
char* Doorbell::hyperparameters() const {
  return at(2 * kCacheLineBytes + sizeof(ReplyText) + GradientBytes(shape_));
}
char* Doorbell::blob() const {
  return hyperparameters() + WholeLines(shape_.hyperparameter_bytes());
}
Doorbell::StateLine& Doorbell::state_line() const {
  static_assert(kMaxBlobBytes % kCacheLineBytes == 0, "what follows the blob begins a line");
  return *reinterpret_cast<StateLine*>(blob() + kMaxBlobBytes);
}
absl::Span<double> Doorbell::state_window() const {
  return absl::MakeSpan(reinterpret_cast<double*>(blob() + kMaxBlobBytes + sizeof(StateLine)),
                        kStateWindowElements);
}

absl::Span<char> Doorbell::share_window() const {
  static_assert(kMaxShareBytes == kStateWindowElements * sizeof(double), "they share the memory");
  return absl::MakeSpan(reinterpret_cast<char*>(state_window().data()), kMaxShareBytes);
}

Doorbell::Doorbell(Segment segment, const DoorbellShape& shape)
    : segment_(std::move(segment)), shape_(shape) {}

absl::StatusOr<Doorbell> Doorbell::Create(Rank rank, const DoorbellShape& shape,
                                          MemoryBudget& budget) {
  absl::StatusOr<Segment> segment =
      Segment::Create(LabelOf(rank), shape.bytes(), NameOfSegment(rank), budget);
  if (!segment.ok()) return segment.status();
  return Doorbell(*std::move(segment), shape);
}

absl::StatusOr<Doorbell> Doorbell::Attach(Rank rank, const DoorbellShape& shape, UniqueFd fd) {
  absl::StatusOr<Segment> segment =
      Segment::Attach(std::move(fd), LabelOf(rank), shape.bytes(), NameOfSegment(rank));
  if (!segment.ok()) return segment.status();
  segment->CloseDescriptor();
  return Doorbell(*std::move(segment), shape);
}

absl::StatusOr<uint64_t> Doorbell::Ask(const DoorbellRequest& asked) {
  if (asked.kind == DoorbellRequest::Kind::kLeave) return Ring(asked);
  if (asked.has_blob && asked.blob.size() > kMaxBlobBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the trainer's blob has %d bytes; at most %d are kept", asked.blob.size(), kMaxBlobBytes));
  }
  if (asked.hyperparameters.size() > shape_.hyperparameter_bytes()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the hyperparameters of %d groups take %d bytes; at most %d go", shape_.groups,
        asked.hyperparameters.size(), shape_.hyperparameter_bytes()));
  }
  if (asked.is_of_state()) {
    if (asked.state.elements > MostElements(asked) || asked.values.size() > kStateWindowElements ||
        asked.bytes.size() > kMaxShareBytes) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "a request for %d elements of state, with %d values and %d bytes; at most %d go at once",
          asked.state.elements, asked.values.size(), asked.bytes.size(), MostElements(asked)));
    }
    WriteState(asked);
  } else if (asked.kind == DoorbellRequest::Kind::kShareBytes) {
    if (asked.share.bytes.size() > kMaxShareBytes) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%d bytes are to be shared; at most %d go at once",
                          asked.share.bytes.size(), kMaxShareBytes));
    }
    WriteShare(asked.share);
  } else {
    WriteStep(asked);
  }
  return Ring(asked);
}

uint64_t Doorbell::Ring(const DoorbellRequest& asked) {
  RequestLine& line = request();
  line.kind.store(static_cast<uint32_t>(asked.kind), std::memory_order_relaxed);
  line.timeout_ns.store(absl::ToInt64Nanoseconds(std::min(asked.timeout, kLongestTimeout)),
                        std::memory_order_relaxed);
  state_line().writes.store(asked.writes.writes, std::memory_order_relaxed);
  state_line().writes_are_expected.store(asked.writes.are_expected ? 1 : 0,
                                         std::memory_order_relaxed);
  line.number.store(++number_, std::memory_order_release);
  line.bell.Ring();
  return number_;
}

void Doorbell::WriteStep(const DoorbellRequest& asked) {
  RequestLine& line = request();
  const absl::Span<uint64_t> words = gradient_words();
  for (size_t w = 0; w < words.size(); ++w) {
    uint64_t word = 0;
    const size_t end = std::min(asked.has_gradient.size(), (w + 1) * kBitsPerWord);
    for (size_t p = w * kBitsPerWord; p < end; ++p) {
      if (asked.has_gradient[p]) word |= uint64_t{1} << (p % kBitsPerWord);
    }
    words[w] = word;
  }
  if (!shape_.rows.empty()) WriteMarks(asked.row_marks);
  if (asked.hyperparameter_version != hyperparameter_version_) {
    std::memcpy(hyperparameters(), asked.hyperparameters.data(), asked.hyperparameters.size());
    line.hyperparameter_bytes.store(static_cast<uint32_t>(asked.hyperparameters.size()),
                                    std::memory_order_relaxed);
    line.hyperparameter_version.store(asked.hyperparameter_version, std::memory_order_relaxed);
    hyperparameter_version_ = asked.hyperparameter_version;
  }
  if (asked.has_blob) {
    std::memcpy(blob(), asked.blob.data(), asked.blob.size());
    line.blob_bytes.store(static_cast<uint32_t>(asked.blob.size()), std::memory_order_relaxed);
  }
  line.has_blob.store(asked.has_blob ? 1 : 0, std::memory_order_relaxed);
  line.call.store(asked.call, std::memory_order_relaxed);
  state_line().load_token.store(asked.load_token, std::memory_order_relaxed);
}

void Doorbell::WriteState(const DoorbellRequest& asked) {
  StateLine& line = state_line();
  line.parameter.store(asked.state.parameter, std::memory_order_relaxed);
  line.slot.store(asked.state.slot, std::memory_order_relaxed);
  line.offset_elements.store(asked.state.offset_elements, std::memory_order_relaxed);
  line.elements.store(asked.state.elements, std::memory_order_relaxed);
  std::copy(asked.values.begin(), asked.values.end(), state_window().begin());
  std::copy(asked.bytes.begin(), asked.bytes.end(), share_window().begin());
}

// The line's fields have other meanings here.
void Doorbell::WriteShare(const ByteShare& share) {
  StateLine& line = state_line();
  line.parameter.store(share.from, std::memory_order_relaxed);
  line.slot.store(static_cast<int32_t>(share.call), std::memory_order_relaxed);
  line.offset_elements.store(share.position, std::memory_order_relaxed);
  line.elements.store(static_cast<int64_t>(share.bytes.size()), std::memory_order_relaxed);
  std::copy(share.bytes.begin(), share.bytes.end(), share_window().begin());
}

bool Doorbell::WaitForReply(uint64_t number, absl::Time deadline) {
  ReplyLine& line = reply();
  const auto answered = [&] { return line.answered.load(std::memory_order_acquire) >= number; };
  // The bell is counted before whoever waits looks at anything else: no ring gets lost between.
  const uint32_t count = line.bell.Count();
  if (!answered() && count == heard_) line.bell.Wait(heard_, deadline);
  heard_ = answered() ? count : line.bell.Count();
  return answered();
}

void Doorbell::WakeTrainer() { reply().bell.Ring(); }

// Sequential consistency (Dekker): of a trainer that withdraws and a server that begins, each
// writes its own word before it reads the other's, so not both overlook the other.
bool Doorbell::Withdraw(uint64_t number) {
  request().withdrawn.store(number, std::memory_order_seq_cst);
  return reply().begun.load(std::memory_order_seq_cst) < number;
}

DoorbellReply Doorbell::ReadReply() const {
  const ReplyLine& line = reply();
  DoorbellReply read;
  read.step = line.step;
  read.broken = line.broken != 0;
  read.prepare = absl::Nanoseconds(line.prepare_ns);
  read.commit = absl::Nanoseconds(line.commit_ns);
  read.apply = absl::Nanoseconds(line.apply_ns);
  if (line.code == 0) return read;
  const ReplyText& status = text();
  const size_t payload = std::min<size_t>(status.payload_bytes, kStatusBytes);
  const size_t message = std::min<size_t>(status.message_bytes, kStatusBytes - payload);
  read.status = absl::Status(static_cast<absl::StatusCode>(line.code),
                             absl::string_view(status.bytes + payload, message));
  errors::AttachPayload(read.status, absl::string_view(status.bytes, payload));
  return read;
}

bool Doorbell::WaitForRequest(absl::Time deadline) {
  RequestLine& line = request();
  const auto asked = [&] { return line.number.load(std::memory_order_acquire) != number_; };
  const uint32_t count = line.bell.Count();
  if (asked()) {
    heard_ = count;
    return true;
  }
  if (count == heard_) line.bell.Wait(heard_, deadline);
  heard_ = line.bell.Count();
  return asked();
}

void Doorbell::WakeServer() { request().bell.Ring(); }

absl::Status Doorbell::Take(DoorbellRequest* taken) {
  RequestLine& line = request();
  number_ = line.number.load(std::memory_order_acquire);
  reply().begun.store(number_, std::memory_order_seq_cst);
  if (IsWithdrawn()) {
    return absl::CancelledError(absl::StrFormat("request %d was withdrawn", number_));
  }
  taken->kind = DoorbellRequest::Kind::kStep;  // so counts what is none
  const uint32_t kind = line.kind.load(std::memory_order_relaxed);
  const int64_t timeout_ns = line.timeout_ns.load(std::memory_order_relaxed);
  const uint64_t version = line.hyperparameter_version.load(std::memory_order_relaxed);
  const uint32_t hyperparameter_bytes = line.hyperparameter_bytes.load(std::memory_order_relaxed);
  const uint32_t blob_bytes = line.blob_bytes.load(std::memory_order_relaxed);

  const auto refused = [&](absl::string_view field, uint64_t actual, absl::string_view expected) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "request %d at the doorbell is none: its %s is %d, expected %s; is the trainer still "
        "the program that attached?",
        number_, field, actual, expected));
  };
  if (kind < static_cast<uint32_t>(DoorbellRequest::Kind::kStep) ||
      kind > static_cast<uint32_t>(DoorbellRequest::Kind::kLeave)) {
    return refused("kind", kind, "1 to 15");
  }
  taken->kind = static_cast<DoorbellRequest::Kind>(kind);
  if (timeout_ns < 0 || timeout_ns > absl::ToInt64Nanoseconds(kLongestTimeout)) {
    return refused("timeout in ns", static_cast<uint64_t>(timeout_ns), "0 s to 24 h");
  }
  taken->timeout = absl::Nanoseconds(timeout_ns);
  taken->writes.writes = state_line().writes.load(std::memory_order_relaxed);
  taken->writes.are_expected =
      state_line().writes_are_expected.load(std::memory_order_relaxed) != 0;
  if (taken->kind == DoorbellRequest::Kind::kLeave) return absl::OkStatus();
  if (taken->is_of_state()) {
    if (TakeState(taken)) return absl::OkStatus();
    return refused("number of state elements", static_cast<uint64_t>(taken->state.elements),
                   absl::StrCat("0 to ", MostElements(*taken)));
  }
  if (taken->kind == DoorbellRequest::Kind::kShareBytes) {
    if (TakeShare(&taken->share)) return absl::OkStatus();
    return refused("number of shared bytes", taken->share.bytes.size(),
                   absl::StrCat("0 to ", kMaxShareBytes, " of a known call"));
  }
  taken->has_blob = line.has_blob.load(std::memory_order_relaxed) != 0;
  if (hyperparameter_bytes > shape_.hyperparameter_bytes()) {
    return refused("number of hyperparameter bytes", hyperparameter_bytes,
                   absl::StrCat("at most ", shape_.hyperparameter_bytes()));
  }
  if (taken->has_blob && blob_bytes > kMaxBlobBytes) {
    return refused("number of blob bytes", blob_bytes, absl::StrCat("at most ", kMaxBlobBytes));
  }
  taken->call = line.call.load(std::memory_order_relaxed);
  taken->load_token = state_line().load_token.load(std::memory_order_relaxed);
  taken->has_gradient.resize(shape_.parameters);
  const absl::Span<const uint64_t> words = gradient_words();
  for (size_t w = 0; w < words.size(); ++w) {
    const uint64_t word = words[w];
    const size_t end = std::min(taken->has_gradient.size(), (w + 1) * kBitsPerWord);
    for (size_t p = w * kBitsPerWord; p < end; ++p) {
      taken->has_gradient[p] = ((word >> (p % kBitsPerWord)) & 1) != 0;
    }
  }
  taken->row_marks.assign(shape_.parameters, nullptr);
  if (!shape_.rows.empty()) TakeMarks(taken);
  if (version != taken->hyperparameter_version) {
    taken->hyperparameters.assign(hyperparameters(), hyperparameter_bytes);
    taken->hyperparameter_version = version;
  }
  if (taken->has_blob) taken->blob.assign(blob(), blob_bytes);
  return absl::OkStatus();
}

// Whether there can be so many elements.
bool Doorbell::TakeState(DoorbellRequest* taken) {
  const StateLine& line = state_line();
  taken->state.parameter = line.parameter.load(std::memory_order_relaxed);
  taken->state.slot = line.slot.load(std::memory_order_relaxed);
  taken->state.offset_elements = line.offset_elements.load(std::memory_order_relaxed);
  const int64_t elements = line.elements.load(std::memory_order_relaxed);
  taken->state.elements = elements;
  if (elements < 0 || elements > MostElements(*taken)) return false;
  if (taken->kind == DoorbellRequest::Kind::kWriteStagedBytes) {
    taken->bytes = share_window().first(elements);
  }
  if (taken->writes_values()) {
    taken->value_memory.assign(state_window().begin(), state_window().begin() + elements);
    taken->values = taken->value_memory;
  }
  return true;
}

// Whether there can be such a share. The rank is checked by whoever knows how many there are.
bool Doorbell::TakeShare(ByteShare* taken) const {
  const StateLine& line = state_line();
  const int64_t bytes = line.elements.load(std::memory_order_relaxed);
  const int32_t call = line.slot.load(std::memory_order_relaxed);
  taken->from = line.parameter.load(std::memory_order_relaxed);
  taken->call = static_cast<ShareCall>(call);
  taken->position = static_cast<uint32_t>(line.offset_elements.load(std::memory_order_relaxed));
  taken->bytes = share_window().first(bytes < 0 || bytes > kMaxShareBytes ? 0 : bytes);
  return static_cast<int64_t>(taken->bytes.size()) == bytes &&
         (taken->call == ShareCall::kConsolidate || taken->call == ShareCall::kLoad);
}

void Doorbell::WriteMarks(const std::vector<const uint64_t*>& row_marks) {
  const absl::Span<uint64_t> sparse = sparse_words();
  std::fill(sparse.begin(), sparse.end(), 0);
  uint64_t* to = mark_words();
  for (size_t p = 0; p < row_marks.size(); ++p) {
    const size_t words = RowMarkWords(shape_.rows[p]);
    if (row_marks[p] != nullptr) {
      sparse[p / kBitsPerWord] |= uint64_t{1} << (p % kBitsPerWord);
      std::copy_n(row_marks[p], words, to);
    }
    to += words;
  }
}

void Doorbell::TakeMarks(DoorbellRequest* taken) {
  const absl::Span<const uint64_t> sparse = sparse_words();
  taken->mark_memory.resize(shape_.mark_words());
  size_t first = 0;
  for (size_t p = 0; p < taken->row_marks.size(); ++p) {
    const size_t words = RowMarkWords(shape_.rows[p]);
    if (words > 0 && ((sparse[p / kBitsPerWord] >> (p % kBitsPerWord)) & 1) != 0) {
      std::copy_n(mark_words() + first, words, &taken->mark_memory[first]);
      taken->row_marks[p] = &taken->mark_memory[first];
    }
    first += words;
  }
}

bool Doorbell::IsWithdrawn() const {
  return request().withdrawn.load(std::memory_order_seq_cst) >= number_;
}

void Doorbell::Answer(const DoorbellReply& how) {
  ReplyLine& line = reply();
  line.step = how.step;
  line.broken = how.broken ? 1 : 0;
  line.prepare_ns = absl::ToInt64Nanoseconds(how.prepare);
  line.commit_ns = absl::ToInt64Nanoseconds(how.commit);
  line.apply_ns = absl::ToInt64Nanoseconds(how.apply);
  line.code = static_cast<uint32_t>(how.status.code());
  if (!how.status.ok()) {
    ReplyText& status = text();
    std::string payload = errors::EncodePayload(how.status);
    if (payload.size() > kStatusBytes / 2) payload.clear();
    const absl::string_view message = how.status.message().substr(0, kStatusBytes - payload.size());
    std::memcpy(status.bytes, payload.data(), payload.size());
    std::memcpy(status.bytes + payload.size(), message.data(), message.size());
    status.payload_bytes = static_cast<uint32_t>(payload.size());
    status.message_bytes = static_cast<uint32_t>(message.size());
  }
  line.answered.store(number_, std::memory_order_release);
  line.bell.Ring();
}

}  // namespace optshard
