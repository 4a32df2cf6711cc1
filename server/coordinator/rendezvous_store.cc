#include "server/coordinator/rendezvous_store.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/request_limits.h"

namespace optshard {
namespace {

void Answer(RendezvousStore::GetCallback callback, absl::StatusOr<std::string> answer,
            Deferred& deferred) {
  deferred.push_back([callback = std::move(callback), answer = std::move(answer)]() mutable {
    callback(std::move(answer));
  });
}

absl::Status CheckKey(absl::string_view key) { return CheckLength("the rendezvous key", key); }

}  // namespace

absl::Status RendezvousStore::Put(Rank rank, absl::string_view key, absl::string_view value,
                                  Deferred& deferred) {
  if (!failure_.ok()) return failure_;
  if (key.empty()) return absl::InvalidArgumentError("the rendezvous key is empty");
  absl::Status fits = CheckKey(key);
  fits.Update(CheckLength("the value at the rendezvous", value, kMaxRendezvousValueBytes));
  if (!fits.ok()) return fits;
  if (const auto present = values_.find(key); present != values_.end()) {
    if (present->second == value) return absl::OkStatus();
    return absl::AlreadyExistsError(
        absl::StrCat("rendezvous key \"", key, "\" holds another value; a key is written once"));
  }
  size_t& key_count = key_counts_[rank];
  if (key_count >= kMaxRendezvousKeys) {
    return absl::ResourceExhaustedError(
        absl::StrCat("rank ", rank, " puts rendezvous key \"", key, "\" after ", key_count,
                     " others; each may put ", kMaxRendezvousKeys, ": put more into one value"));
  }
  ++key_count;
  const auto entry = values_.emplace(std::string(key), std::string(value)).first;
  for (auto wait = waits_.begin(); wait != waits_.end();) {
    if (wait->key == key) {
      Answer(std::move(wait->callback), entry->second, deferred);
      wait = waits_.erase(wait);
    } else {
      ++wait;
    }
  }
  return absl::OkStatus();
}

void RendezvousStore::Get(absl::string_view key, absl::Time deadline, GetCallback callback,
                          Deferred& deferred) {
  if (!failure_.ok()) {
    Answer(std::move(callback), failure_, deferred);
  } else if (absl::Status fits = CheckKey(key); !fits.ok()) {
    Answer(std::move(callback), std::move(fits), deferred);
  } else if (const auto entry = values_.find(key); entry != values_.end()) {
    Answer(std::move(callback), entry->second, deferred);
  } else {
    waits_.push_back({std::string(key), deadline, std::move(callback)});
  }
}

void RendezvousStore::Expire(absl::Time now, Deferred& deferred) {
  for (auto wait = waits_.begin(); wait != waits_.end();) {
    if (wait->deadline <= now) {
      Answer(std::move(wait->callback),
             absl::NotFoundError(
                 absl::StrCat("nobody has put rendezvous key \"", wait->key, "\" yet; ask again")),
             deferred);
      wait = waits_.erase(wait);
    } else {
      ++wait;
    }
  }
}

void RendezvousStore::Fail(const absl::Status& reason, Deferred& deferred) {
  if (!failure_.ok()) return;
  failure_ = reason;
  for (Wait& wait : waits_) Answer(std::move(wait.callback), reason, deferred);
  waits_.clear();
}

}  // namespace optshard
