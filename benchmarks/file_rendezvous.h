// A rendezvous of processes of one machine through files, for benchmarks of a plane alone.
#ifndef OPTSHARD_BENCHMARKS_FILE_RENDEZVOUS_H_
#define OPTSHARD_BENCHMARKS_FILE_RENDEZVOUS_H_

#include <string>

#include "common/dataplane/rendezvous.h"

namespace optshard {

// A file a key. Thread-safe.
class FileRendezvous : public Rendezvous {
 public:
  // `directory` exists and is empty when the first process begins.
  explicit FileRendezvous(std::string directory) : directory_(std::move(directory)) {}

  absl::Status Put(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Time deadline) override;

 private:
  std::string PathOf(absl::string_view key) const;

  const std::string directory_;
};

}  // namespace optshard

#endif  // OPTSHARD_BENCHMARKS_FILE_RENDEZVOUS_H_
