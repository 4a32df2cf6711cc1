#include "common/digest.h"

#include <xxhash.h>

namespace optshard {

void DigestBuilder::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

DigestBuilder::DigestBuilder(absl::string_view domain) : state_(XXH3_createState()) {
  XXH3_64bits_reset(state_.get());
  AddText(domain);
}

DigestBuilder& DigestBuilder::AddInt(int64_t value) {
  unsigned char bytes[8];
  for (int i = 0; i < 8; ++i) {
    bytes[i] = static_cast<unsigned char>(static_cast<uint64_t>(value) >> (8 * i));
  }
  XXH3_64bits_update(state_.get(), bytes, sizeof(bytes));
  return *this;
}

DigestBuilder& DigestBuilder::AddText(absl::string_view text) {
  return BeginText(static_cast<int64_t>(text.size())).AddPart(text);
}

DigestBuilder& DigestBuilder::AddPart(absl::string_view part) {
  XXH3_64bits_update(state_.get(), part.data(), part.size());
  return *this;
}

uint64_t DigestBuilder::value() const { return XXH3_64bits_digest(state_.get()); }

}  // namespace optshard
