// What a process of a launched job is.
#ifndef OPTSHARD_TOOLS_LAUNCHER_ROLE_H_
#define OPTSHARD_TOOLS_LAUNCHER_ROLE_H_

#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace optshard {

struct Role {
  enum class Kind { kCoordinator, kServer, kTrainer };

  Kind kind = Kind::kTrainer;
  int rank = -1;  // of a trainer, in the whole job

  static Role Coordinator() { return {Kind::kCoordinator, -1}; }
  static Role Server() { return {Kind::kServer, -1}; }
  static Role Trainer(int rank) { return {Kind::kTrainer, rank}; }

  // As messages and prefixes of lines have it.
  std::string Name() const {
    switch (kind) {
      case Kind::kCoordinator:
        return "coordinator";
      case Kind::kServer:
        return "server";
      case Kind::kTrainer:
        break;
    }
    return absl::StrCat("rank ", rank);
  }

  friend bool operator==(const Role& a, const Role& b) {
    return a.kind == b.kind && a.rank == b.rank;
  }
  friend bool operator<(const Role& a, const Role& b) {
    return std::tie(a.kind, a.rank) < std::tie(b.kind, b.rank);
  }
};

}  // namespace optshard

#endif  // OPTSHARD_TOOLS_LAUNCHER_ROLE_H_
